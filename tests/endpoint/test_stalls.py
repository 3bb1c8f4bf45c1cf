"""Calls that wait for long: one line a call that says whom for and what those last did, and one when it is over."""

from __future__ import annotations

import asyncio
import logging
import re

import numpy as np
import pytest

from aiocoll.config import Settings
from aiocoll.errors import CollectiveTimeoutError, UsageError
from aiocoll.group import Group
from aiocoll.sim import Crash
from aiocoll.sim import run as simulate

from .ranks import ranks, results

FIVE = Settings(stall_seconds=5.0)


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "aiocoll.stall"]


def _of(lines: list[str], rank: int) -> list[str]:
    return [line for line in lines if re.search(rf" on rank {rank}\b", line)]


def test_f3_one_rank_comes_late(caplog: pytest.LogCaptureFixture) -> None:
    async def main(group: Group) -> float:
        await group.barrier()
        if group.rank == 2:
            await asyncio.sleep(90.0)
        total = await group.all_reduce(np.float64(group.rank + 1))
        await group.barrier()  # and the next call is as any other
        return float(total)

    with caplog.at_level(logging.WARNING, "aiocoll.stall"):
        assert simulate(4, main, settings=FIVE) == [10.0] * 4
    lines = _lines(caplog)
    for rank in (0, 1, 3):
        first, second = _of(lines, rank)
        assert first.startswith(f"all_reduce (call 1) of group 'world' on rank {rank} has waited 5.0 s, since ")
        assert "missing: rank 2 (host2, pid 10002; its last call: barrier (call 0))" in first
        assert "rank 1 (" not in first and "rank 3 (" not in first
        assert second == f"all_reduce (call 1) of group 'world' on rank {rank} went on after 90.0 s"
    assert not _of(lines, 2) and len(lines) == 6


def test_a_call_that_fails_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main(group: Group) -> str:
        if group.rank == 1:
            await asyncio.sleep(60.0)
            return ""
        with pytest.raises(CollectiveTimeoutError):
            await group.all_gather(np.arange(group.rank + 1), timeout=20.0)
        return "late"

    with caplog.at_level(logging.WARNING, "aiocoll.stall"):
        simulate(3, main, settings=FIVE)
    lines = _lines(caplog)
    for rank in (0, 2):
        first, second = _of(lines, rank)
        assert "has waited 5.0 s" in first and "missing: rank 1 (" in first and "no call yet" in first
        assert second.endswith("ended with CollectiveTimeoutError after 20.0 s")


def test_a_rank_that_is_gone_is_no_stall(caplog: pytest.LogCaptureFixture) -> None:
    async def main(group: Group) -> None:
        await group.barrier(timeout=30.0)
        await asyncio.sleep(7.0)

    with caplog.at_level(logging.WARNING, "aiocoll.stall"), pytest.raises(ConnectionError):
        simulate(3, main, settings=FIVE, crash=Crash(1, at=0.0))
    assert not _lines(caplog)


def test_messages_stall_too_but_not_those_from_anyone(caplog: pytest.LogCaptureFixture) -> None:
    async def main(group: Group) -> float:
        if group.rank == 0:
            await group.barrier(name="begin")
            await asyncio.sleep(12.0)
            await group.send(np.float64(4.5), 1, tag=3)
            await group.send(np.float64(5.5), 2)
            return 0.0
        await group.barrier(name="begin")
        return float(await group.recv(0, tag=3) if group.rank == 1 else await group.recv())

    with caplog.at_level(logging.WARNING, "aiocoll.stall"):
        assert simulate(3, main, settings=FIVE) == [0.0, 4.5, 5.5]
    first, second = _lines(caplog)
    assert first.startswith("recv from rank 0 with tag 3 of group 'world' on rank 1 has waited 5.0 s")
    assert "missing: rank 0 (host0, pid 10000; its last call: barrier (call 0 named 'begin'))" in first
    assert second == "recv from rank 0 with tag 3 of group 'world' on rank 1 went on after 12.0 s"


@pytest.mark.parametrize("settings", [None, Settings(stall_seconds=0.0)])
def test_nothing_is_said_where_nobody_wants_it(caplog: pytest.LogCaptureFixture, settings: Settings | None) -> None:
    async def main(group: Group) -> None:
        await asyncio.sleep(100.0 * group.rank)
        await group.barrier()

    with caplog.at_level(logging.DEBUG, "aiocoll.stall"):
        simulate(2, main, settings=settings)
    assert not _lines(caplog)


def test_many_calls_that_wait_at_once_say_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    async def main(group: Group) -> None:
        if group.rank == 1:
            await asyncio.sleep(30.0)
        await asyncio.gather(*(group.all_reduce(np.arange(10.0) * each) for each in range(20)))

    with caplog.at_level(logging.WARNING, "aiocoll.stall"):
        simulate(2, main, settings=FIVE)
    lines = _lines(caplog)
    assert len([line for line in lines if "has waited" in line]) == 20
    assert len([line for line in lines if "went on after 30.0 s" in line]) == 20


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm"])
async def test_real_transports(
    transport: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIOCOLL_STALL_SECONDS", "0.05")
    told = asyncio.Event()

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    async def late(group: Group) -> float:
        if group.rank == 1:
            await told.wait()
        return float(await group.all_reduce(np.float64(group.rank + 1)))

    log, heard = logging.getLogger("aiocoll.stall"), Heard()
    log.addHandler(heard)
    try:
        with caplog.at_level(logging.WARNING, "aiocoll.stall"):
            async with ranks(3, transport) as groups:
                for _ in range(3):  # the third comes the quick way
                    told.clear()
                    assert await results(late(group) for group in groups) == [6.0] * 3
    finally:
        log.removeHandler(heard)
    for rank in (0, 2):
        said = _of(_lines(caplog), rank)
        assert any("missing: rank 1 (" in line for line in said)
        assert sum("has waited" in line for line in said) <= 3


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().stall_seconds == 10.0
    assert Settings.from_env({"AIOCOLL_STALL_SECONDS": "0"}).stall_seconds == 0.0
    with pytest.raises(UsageError, match="AIOCOLL_STALL_SECONDS='never'"):
        Settings.from_env({"AIOCOLL_STALL_SECONDS": "never"})


def test_agree_and_shrink_stall_too(caplog: pytest.LogCaptureFixture) -> None:
    async def main(group: Group) -> tuple[bool, int]:
        if group.rank == 2:
            await asyncio.sleep(20.0)
        agreed = await group.agree(group.rank != 1)
        if group.rank == 0:
            await asyncio.sleep(10.0)
        smaller = await group.shrink()
        size = smaller.size
        await smaller.close()
        return agreed, size

    with caplog.at_level(logging.WARNING, "aiocoll.stall"):
        assert simulate(3, main, settings=FIVE) == [(False, 3)] * 3
    lines = _lines(caplog)
    for rank, waits in {0: "agree 1 20.0 2", 1: "agree 1 20.0 2, shrink 2 10.0 0", 2: "shrink 2 10.0 0"}.items():
        expected = []
        for kind, number, seconds, missing in (each.split() for each in waits.split(", ")):
            label = rf"{kind} \(recovery call {number}\) of group 'world' on rank {rank}"
            who = rf"missing: rank {missing} \(host{missing}, pid 1000{missing}; its last call: no call yet\)"
            expected.append(rf"{label} has waited 5\.0 s, .*\(timeout inf s\); {who}")
            expected.append(rf"{label} went on after {seconds} s")
        found = _of(lines, rank)
        assert len(found) == len(expected) and all(map(re.fullmatch, expected, found)), (found, expected)


def test_an_agree_that_comes_to_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main(group: Group) -> None:
        if group.rank == 1:
            await asyncio.sleep(20.0)
            return
        with pytest.raises(CollectiveTimeoutError):
            await group.agree(timeout=8.0)

    with caplog.at_level(logging.WARNING, "aiocoll.stall"):
        simulate(2, main, settings=FIVE)
    first, second = _lines(caplog)
    assert first.startswith("agree (recovery call 1) of group 'world' on rank 0 has waited 5.0 s")
    assert re.search(r"ended with CollectiveTimeoutError after [89]\.\d s", second), second


def test_of_many_messages_for_one_rank_the_oldest_speaks(caplog: pytest.LogCaptureFixture) -> None:
    small = Settings(stall_seconds=5.0, unreceived_bytes_max=2000)

    async def main(group: Group) -> int:
        got = 0
        if group.rank:
            await asyncio.sleep(20.0 + group.rank)
            for each in range(150):
                got += int(await group.recv(0, tag=each % 7))
            return got
        later = [group.send(np.int64(each), 1, tag=each % 7) for each in range(150)]
        others = [group.send(np.int64(each), 2, tag=each % 7) for each in range(150)]
        await asyncio.gather(*later, *others)
        return got

    with caplog.at_level(logging.WARNING, "aiocoll.stall"):
        assert simulate(3, main, settings=small) == [0, 11175, 11175]
    lines = sorted(line for line in _lines(caplog) if "has waited" in line)
    assert len(lines) == 2, lines
    for line, peer in zip(lines, (1, 2), strict=True):
        who = rf"send to rank {peer} with tag \d \(and (\d+) more\) of group 'world' on rank 0 has waited"
        found = re.match(who, line)
        assert found and 100 < int(found[1]) < 150, line
        assert f"missing: rank {peer} (" in line
    assert len([line for line in _lines(caplog) if "went on after" in line]) == 2


def test_messages_that_wait_one_after_the_other_speak_once_in_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    async def main(group: Group) -> None:
        if group.rank == 1:
            await asyncio.sleep(30.0)
            for tag in range(20):
                await group.send(np.float64(tag), 0, tag=tag)
            return

        async def later(tag: int) -> float:
            await asyncio.sleep(float(tag))
            return float(await group.recv(1, tag=tag))

        assert await asyncio.gather(*map(later, range(20))) == list(map(float, range(20)))

    with caplog.at_level(logging.WARNING, "aiocoll.stall"):
        simulate(2, main, settings=FIVE)
    said = [line for line in _lines(caplog) if "has waited" in line]
    assert [re.findall(r"tag \d+", line)[0] for line in said] == ["tag 0", "tag 5", "tag 10", "tag 15"]
