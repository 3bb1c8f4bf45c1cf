"""Programs that end in the middle: their threads finish first, what is lost is said, and nobody waits for long.

The rule: real programs, since it is the interpreter's own end that is tested; one that hangs fails by its deadline.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from aiocoll.sync import leaving

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 50.0


def programs(tmp_path: Path, body: str, size: int = 2, *options: str) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each rank's program: `body`, with `rank` and a blocking group `g`."""
    start = f"""
    import logging, os, sys, threading
    logging.disable(logging.WARNING)  # that somebody had to wait while the machine stood still
    import numpy as np
    import aiocoll
    rank, size = int(sys.argv[1]), {size}
    g = aiocoll.sync.connect("file://{tmp_path}/meet", rank=rank, size=size, timeout=30)
    """
    program = textwrap.dedent(start) + textwrap.dedent(body)
    children = [
        subprocess.Popen(
            [sys.executable, *options, "-c", program, str(rank)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        said = [child.communicate(timeout=SECONDS_MAX) for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.communicate()
    return [(child.returncode, out, err) for child, (out, err) in zip(children, said, strict=True)]


@pytest.mark.skipif(
    (3, 12, 0) <= sys.version_info[:3] < (3, 12, 2),
    reason="Python 3.12.0 and 3.12.1 start no thread once the main thread has ended",
)
def test_threads_finish_what_they_do_before_the_world_is_left(tmp_path: Path) -> None:
    """A program has ended when its last thread has, as in Python without us; those of executors too."""
    body = """
    from concurrent.futures import ThreadPoolExecutor
    def work(name):
        for turn in range(200):
            total = g.all_reduce(np.arange(5.0) + turn + rank, name=name)
            assert (total == 2 * np.arange(5.0) + 2 * turn + 1).all()
        os.write(1, f"finished {name}\\n".encode())  # print() writes in parts, others' between
    threading.Thread(target=work, args=["plain"]).start()
    ThreadPoolExecutor(1).submit(work, "pool")
    """
    for code, out, err in programs(tmp_path, body):
        assert code == 0 and sorted(out.splitlines()) == ["finished plain", "finished pool"], err
        assert not err


def test_a_thread_that_another_one_is_about_to_start_is_waited_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python lists it before it can be joined."""
    ended: list[int] = []
    starting = threading.Thread(target=lambda: ended.append(1))
    listed = threading.enumerate

    def listing() -> list[threading.Thread]:
        found = [*listed(), *([] if starting.ident else [starting])]
        if len(looks) == 2:
            starting.start()
        looks.append(found)
        return found

    looks: list[list[threading.Thread]] = []
    monkeypatch.setattr(threading, "enumerate", listing)
    monkeypatch.setattr("aiocoll.sync.leaving.hosting_threads", lambda: [each for each in listed() if each != starting])
    leaving._await_threads()
    assert ended == [1] and starting in looks[0]


def test_what_had_not_finished_is_said_and_peers_do_not_wait(tmp_path: Path) -> None:
    body = """
    if rank == 0:
        works = [g.start.recv(1, tag=7), g.start.all_reduce(np.arange(4.0))]
        g.start.send(np.arange(3.0), 1)  # this one leaves
    else:
        try:
            print(g.recv(0).tolist())
            g.recv(0, tag=1)
        except aiocoll.PeerLostError as error:
            print("lost", error.rank)
        g.close()
    """
    (code, out, err), (other, words, complaint) = programs(tmp_path, body)
    assert code == 0 and not out
    assert "RuntimeWarning: process " in err, err
    assert "ended while all_reduce of group 'world' and 1 more had not finished" in err, err
    assert other == 0 and words == "[0.0, 1.0, 2.0]\nlost 0\n" and not complaint


def test_an_exception_out_of_the_program_reaches_those_who_wait(tmp_path: Path) -> None:
    body = """
    with g:
        if rank == 0:
            g.start.all_reduce(np.arange(4.0))
            raise SystemExit("enough")
        try:
            g.recv(0)
        except aiocoll.GroupBrokenError as error:
            print("rank 0" in str(error), "SystemExit: enough" in str(error))
    """
    (code, _, err), (other, words, complaint) = programs(tmp_path, body)
    assert (code, err) == (1, "enough\n")
    assert (other, words, complaint) == (0, "True True\n", "")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_async_program_that_drops_a_task_is_told_so_by_asyncio_and_by_nobody_else(tmp_path: Path, loop: str) -> None:
    """In the interpreter's development mode, where everything unusual is a warning."""
    body = f"""
    import asyncio
    g.close()
    async def main(group):
        await group.all_reduce(np.arange(3.0) + rank)
        if rank == 0:
            task = asyncio.create_task(group.all_reduce(1))
            await asyncio.sleep(0)
            return
        try:
            await group.recv(0)
        except (aiocoll.PeerLostError, aiocoll.GroupBrokenError) as error:
            print(error.rank)
    aiocoll.run(main, uvloop={loop == "uvloop"}, init_method="file://{tmp_path}/again", rank=rank, size=2)
    """
    (code, out, err), (other, words, complaint) = programs(tmp_path, body, 2, "-X", "dev", "-W", "error")
    assert (code, out, other, words) == (0, "", 0, "0\n")
    assert "all_reduce (call 1): group 'world' was closed on this rank (0) while this was pending" in err
    assert err.count("never retrieved") == 1 and "Warning" not in err + complaint and "destroyed" not in err + complaint
