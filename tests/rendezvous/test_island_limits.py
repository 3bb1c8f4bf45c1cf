"""What a process may have, and its children: few descriptors, no file size, no address space, a fork after connect."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiocoll import Group, PeerLostError
from aiocoll.testing import CRASHED, Crash, run

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(120)

RANKS = """
import asyncio, gc, json, logging, os, resource, sys
import numpy as np
import aiocoll
from aiocoll.errors import AiocollError
from aiocoll.store import MemoryStore

lines = []

class Kept(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())

logging.getLogger("aiocoll.transport").addHandler(Kept())

async def world(size=2):
    async with MemoryStore() as store:
        joining = (aiocoll.connect(store=store, rank=r, size=size, timeout=2) for r in range(size))
        groups = await asyncio.gather(*joining, return_exceptions=True)
        failed = [each for each in groups if isinstance(each, BaseException)]
        try:
            if failed:
                raise failed[0]
            sums = await asyncio.gather(*(g.all_reduce(np.arange(50.) + g.rank) for g in groups))
            assert all(float(each[9]) == 9.0 * size + sum(range(size)) for each in sums), sums
            return groups[0]._endpoint.transport.name
        finally:
            for group in groups:
                if not isinstance(group, BaseException):
                    await group.close() if not failed else group._endpoint.close()

def attempt():
    lines.clear()
    try:
        what = asyncio.run(world())
    except (OSError, AiocollError) as error:
        what = type(error).__name__
    gc.collect()
    return what, list(lines)
"""


def told_by(script: str) -> Any:
    """What a fresh process prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", RANKS + script], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FEW_DESCRIPTORS = """
attempt()  # what the first loop and imports open for good
open_now = len(os.listdir("/proc/self/fd")) - 1
results = []
for spare in range(6, 26):
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_now + spare, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    results.append(attempt())
    assert len(os.listdir("/proc/self/fd")) - 1 == open_now, (spare, results[-1])
print(json.dumps(results))
"""


@pytest.mark.slow
def test_with_every_number_of_descriptors_it_shares_memory_or_says_why_not() -> None:
    results = told_by(FEW_DESCRIPTORS)
    outcomes = [outcome for outcome, _ in results]
    ladder = [{"tcp": 1, "shm": 2}.get(outcome, 0) for outcome in outcomes]
    assert ladder == sorted(ladder) and {1, 2} <= set(ladder), outcomes
    for outcome, said in results:
        lines = [line for line in said if "talks over TCP" in line]  # TCP has its own when it is short of them, too
        if outcome == "tcp":
            assert len(lines) == 2 and len({line.partition(": ")[2] for line in lines}) == 1, lines
            assert "Too many open files" in lines[0] or "ulimit -n" in lines[0], lines
        elif outcome == "shm":
            assert lines == []


LIMITS = """
attempt()  # what is imported and allocated for good
limit = getattr(resource, "RLIMIT_" + {name!r})
resource.setrlimit(limit, ({bytes}, resource.getrlimit(limit)[1]))
print(json.dumps(attempt()))
"""


@pytest.mark.parametrize(("name", "nbytes", "words"), [("FSIZE", 1 << 20, "File too large"), ("AS", None, "memory")])
def test_a_limit_of_memory_is_the_reason(name: str, nbytes: int | None, words: str) -> None:
    size = str(nbytes) if nbytes else 'int(open("/proc/self/statm").read().split()[0]) * 4096 + (8 << 20)'
    outcome, lines = told_by(LIMITS.replace("{name!r}", repr(name)).replace("{bytes}", size))
    assert outcome == "tcp" and len(lines) == 2 and all(words in line for line in lines), (outcome, lines)


FORK = """
import signal, threading

async def main():
    async with MemoryStore() as store:
        groups = await asyncio.gather(*(aiocoll.connect(store=store, rank=r, size=2, timeout=20) for r in range(2)))
        assert groups[0]._endpoint.transport.name == "shm"
        told = []
        for way in ("exit", "quit", "call"):
            pid = os.fork()
            if pid == 0:
                try:
                    if way == "call":
                        try:
                            groups[0].all_reduce(np.ones(3)).send(None)
                        except AiocollError as error:
                            os._exit(7 if "fork" in str(error) or "process" in str(error) else 8)
                        os._exit(9)
                    if way == "quit":
                        gc.collect()
                        groups.clear()
                        gc.collect()
                        sys.exit(0)
                finally:
                    os._exit(0)
            _, status = os.waitpid(pid, 0)
            sums = await asyncio.gather(*(g.all_reduce(np.arange(90000.) + g.rank) for g in groups))
            assert all(float(each[5]) == 11.0 for each in sums)
            told.append(os.waitstatus_to_exitcode(status))
        for group in groups:
            await group.close()
        return told

print(json.dumps(asyncio.run(main())))
"""


def test_a_forked_child_is_refused_and_disturbs_nobody() -> None:
    assert told_by(FORK) == [0, 0, 7]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_death_is_seen_though_a_forked_child_lives_on(transport: str, tmp_path: Path) -> None:
    """The child has copies of all that its parent had open; it must not keep the connections from ending."""
    orphan = tmp_path / "orphan"

    async def main(group: Group) -> int | None:
        await group.all_reduce(np.arange(4.0) + group.rank)
        if group.rank == 1:
            pid = os.fork()
            if pid == 0:
                signal.alarm(100)
                signal.pause()
            orphan.write_text(str(pid))
            await group.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(PeerLostError) as lost:  # after 60 seconds it would be another error
            await group.barrier()  # news of the death may come before this one's end
            await group.all_reduce(np.ones(1000) * group.rank)
        if group.rank == 0:
            os.kill(int(orphan.read_text()), signal.SIGKILL)
        return lost.value.rank

    assert run(3, main, "process", faults=Crash(1, at=100.0), transport=transport) == [1, CRASHED, 1]
