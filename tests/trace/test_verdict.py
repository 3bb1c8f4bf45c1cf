"""What dumps say together: first divergence, who waits for whom, who died; from simulated ranks."""

from __future__ import annotations

import asyncio
import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

from aiocoll.endpoint.snapshot import snapshot
from aiocoll.errors import AiocollError, MismatchError, PeerLostError
from aiocoll.group import Group
from aiocoll.observe.dump import text_of, write
from aiocoll.runner.traces import Traces
from aiocoll.sim import Crash, SlowLink
from aiocoll.sim import run as simulate
from aiocoll.trace.command import main as trace
from aiocoll.trace.dumps import Dump, files, latest, read
from aiocoll.trace.verdict import verdict


def _dump(group: Group) -> Dump:
    # through JSON, as it goes in life
    return Dump(json.loads(json.dumps(snapshot(group._endpoint, "test"))))


def test_the_first_divergence_names_both_sides() -> None:
    async def main(group: Group) -> Dump:
        for each in range(41):
            await group.barrier() if each % 2 else await group.all_reduce(np.arange(3.0) + group.rank)
        with pytest.raises(MismatchError):
            if group.rank == 2:
                await group.broadcast(np.arange(3.0), root=1)
            else:
                await group.all_reduce(np.arange(3.0))
        return _dump(group)

    lines = verdict(simulate(4, main, latency=1e-3))  # so that all have made the call when the news come
    (line,) = [line for line in lines if "divergence" in line]
    assert line.startswith("first divergence in group 'world': rank 2 called broadcast #41 [broadcast")
    assert " where ranks 0, 1, 3 called all_reduce #41 [all_reduce" in line


def test_who_waits_for_whom_and_what_the_last_one_does() -> None:
    async def main(group: Group) -> Any:
        await group.barrier()
        if group.rank == 2:
            await asyncio.sleep(5.0)
            dump = _dump(group)
            await group.all_reduce(np.float64(1))
            return dump
        waiting = asyncio.ensure_future(group.all_reduce(np.float64(1)))
        await asyncio.sleep(5.0)
        dump = _dump(group)
        await waiting
        return dump

    lines = verdict(simulate(3, main))
    assert any("wait" in line and "for rank 2 in all_reduce (call 1) of group 'world', 5.0 s" in line for line in lines)
    (end,) = [line for line in lines if "waits for nobody" in line]
    assert end == "rank 2 waits for nobody: its last call, barrier (call 0) of group 'world', ended 5.0 s ago"


def test_ranks_that_wait_for_one_another_are_a_cycle() -> None:
    async def main(group: Group) -> Dump:
        after, before = (group.rank + 1) % 3, (group.rank - 1) % 3
        waiting = asyncio.ensure_future(group.recv(before, tag=group.rank))
        await asyncio.sleep(1.0)
        dump = _dump(group)
        await group.barrier(name="all have looked")
        await group.send(np.arange(group.rank + 1), after, tag=after)
        await waiting
        return dump

    lines = verdict(simulate(3, main))
    assert "rank 0 waits for rank 2 in recv from rank 2 with tag 0 of group 'world', 1.0 s" in lines
    cycle_line = "a cycle: rank 0 waits for rank 2 waits for rank 1 waits for rank 0; nobody of them can go on"
    assert lines[-1] == cycle_line


def test_what_is_under_way_makes_no_cycle() -> None:
    async def main(group: Group) -> Dump:
        calls = asyncio.ensure_future(_barriers(group, 2))
        await asyncio.sleep(1.0)
        dump = _dump(group)
        await calls
        return dump

    lines = verdict(simulate(2, main, faults=SlowLink(1, 0, latency=5.0)))
    assert lines == [
        "rank 0 waits for rank 1 in barrier (call 0) of group 'world', 1.0 s, which has ended it: what it sent is "
        "under way",
        "rank 1 waits for rank 0 in barrier (call 1) of group 'world', 1.0 s",
    ]


async def _barriers(group: Group, count: int) -> None:
    for _ in range(count):
        await group.barrier()


def test_the_dead_are_named_with_those_who_saw_it() -> None:
    async def main(group: Group) -> Any:
        with pytest.raises(PeerLostError):
            while True:
                await group.all_reduce(np.float64(group.rank))
        return _dump(group)

    found = [each for each in simulate(4, main, latency=1e-3, crash=Crash(1, at=0.01)) if isinstance(each, Dump)]
    lines = verdict(found)
    assert lines[0].startswith("rank 1 (host1, pid 10001) is lost: ") and lines[0].endswith("(seen by ranks 0, 2, 3)")
    assert not any("left no dump" in line for line in lines)


def test_a_rank_without_a_dump_is_named() -> None:
    async def main(group: Group) -> Dump:
        return _dump(group)

    found = simulate(4, main)
    assert verdict([found[0], found[3]]) == ["ranks 1, 2 left no dump"]
    assert verdict(found) == []


def test_groups_of_the_same_name_are_kept_apart() -> None:
    async def main(group: Group) -> Dump:
        first, second = await group.dup(), await group.dup()
        await first.all_reduce(np.arange(2.0))
        await second.barrier()
        dump = _dump(group)
        await first.close()
        await second.close()
        return dump

    assert verdict(simulate(3, main)) == []


def test_the_facts_of_a_rank_are_bounded_and_tell_of_everything() -> None:
    async def main(group: Group) -> tuple[Dump, Dump]:
        await group.send(np.arange(3.0), (group.rank + 1) % 2, tag=7)
        await group.recv(tag=7)
        await group.all_reduce(np.float64(1), name="loss")
        with pytest.raises(ValueError):
            await group.broadcast(object() if group.rank == 0 else None)
        early = _dump(group)
        for _ in range(1500):
            await group.barrier()
        return early, _dump(group)

    early, late = simulate(2, main)[0]
    facts = list(early.facts())
    assert [fact["kind"] for fact in facts] == ["group", "message", "message", "call", "refused"]
    assert facts[1]["what"] == "send" and facts[1]["peer"] == 1 and facts[1]["tag"] == 7
    assert facts[3]["collective"] == "all_reduce" and "named 'loss'" in facts[3]["label"]
    assert facts[4]["by"] == 0 and facts[4]["call"] == 0
    kept = list(late.facts())
    assert len(kept) == 1000 and {fact["kind"] for fact in kept} == {"call"}
    assert [fact["call"] for fact in kept] == list(range(501, 1501))
    assert all(fact["error"] is None and fact["ended"] >= fact["at"] for fact in kept)


def test_a_failed_call_says_how_it_ended() -> None:
    async def main(group: Group) -> Dump:
        with pytest.raises((TimeoutError, RuntimeError)):
            if group.rank == 0:
                await group.barrier(timeout=1.0)
            await asyncio.sleep(3.0)
            await group.barrier()
        return _dump(group)

    dump = simulate(2, main)[0]
    (call,) = dump.facts("call")
    assert call["error"].startswith("CollectiveTimeoutError: barrier (call 0)")
    (broken,) = dump.facts("broken")
    assert broken["by"] == 0 and broken["error"].startswith("CollectiveTimeoutError")


def test_files_text_and_show(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def main(group: Group) -> Dump:
        with pytest.raises(MismatchError):
            await (group.barrier() if group.rank == 1 else group.all_reduce(np.arange(2.0)))
        return _dump(group)

    dumps = simulate(3, main, latency=1e-3)
    for dump in dumps:
        path = write(str(tmp_path / "d"), f"rank{dump.rank}-pid{dump.pid}-1", dump.content)
        assert read(path).content == dump.content
        text = pathlib.Path(path.removesuffix(".json") + ".txt").read_text()
        assert text == text_of(dump.content) and f"rank {dump.rank} of 3" in text and "MismatchError" in text
    assert len(files([str(tmp_path / "d")])) == 3
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "d").iterdir()} == {0o600}
    assert trace(["show", str(tmp_path / "d")]) == 0
    shown = capsys.readouterr().out
    assert "first divergence in group 'world': rank 1 called barrier #0" in shown and "[r2]" in shown
    assert trace(["show", "--json", str(tmp_path / "d")]) == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["dumps"]) == 3 and any("rank 1 called barrier #0" in line for line in content["verdict"])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "something else"}'])
def test_what_is_no_dump_is_an_error_that_names_the_file(
    tmp_path: pathlib.Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.trace.json"
    path.write_text(text)
    with pytest.raises(AiocollError, match=r"x\.trace\.json"):
        read(str(path))
    assert trace(["show", str(path)]) == 1 and "x.trace.json" in capsys.readouterr().err
    assert trace(["show", str(tmp_path / "nothing")]) == 1 and "nothing" in capsys.readouterr().err


def test_the_newest_dump_before_the_end_speaks() -> None:
    async def main(group: Group) -> Dump:
        return _dump(group)

    (dump,) = simulate(1, main)
    older, newer = (Dump({**dump.content, "wall": wall}) for wall in (100.0, 200.0))
    (ranks,) = latest([older, newer]).values()
    assert ranks[0] is newer
    (ranks,) = latest([older, newer], before=150.0).values()
    assert ranks[0] is older
    (ranks,) = latest([newer, older], before=50.0).values()
    assert ranks[0] is older
    assert math.isfinite(newer.wall)


def test_dumps_of_two_jobs_in_one_directory_are_kept_apart(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def main(group: Group) -> Dump:
        waiting = asyncio.ensure_future(group.recv((group.rank + 1) % 2))
        await asyncio.sleep(1.0)
        dump = _dump(group)
        await group.send(np.arange(group.rank + 1), (group.rank + 1) % 2)
        await waiting
        return dump

    async def alone(group: Group) -> Dump:
        return _dump(group)

    for job, program in (("first", main), ("second", alone), ("", alone)):
        for dump in simulate(2, program):
            write(str(tmp_path), f"{job}{dump.rank}", {**dump.content, "job": job, "world": f"world of {job}"})
    dumps = [read(path) for path in files([str(tmp_path)])]
    lines = verdict(dumps)
    assert lines and all(line.startswith("job first: ") for line in lines)
    assert [line for line in lines if "a cycle: " in line]
    assert trace(["show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for job in ("job first", "job second", "a job without a name"):
        assert f"rank 0 (host0, pid 10000) of 2 of {job}: test" in shown
    # What the runner of one says of its ranks.
    assert Traces(str(tmp_path), private=False).words("second", 0.0, math.inf, all_here=True) == []
    assert Traces(str(tmp_path), private=False).words("first", 0.0, math.inf, all_here=True)
