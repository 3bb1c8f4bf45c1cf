"""Ranks that wait use next to no CPU time (N8): blocking and awaited, in memory and over TCP, more ranks than CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.processes import spawn

WAITED_SECONDS = 0.6
CPU_SECONDS_MAX = 0.1  # for the call itself and a look around now and then; a rank that spins takes all of them

WAIT = """
import asyncio, time
import aiocoll
from aiocoll.errors import CollectiveTimeoutError
answer = {{}}
def waits(what, call):
    before = time.process_time()
    try:
        call()
    except CollectiveTimeoutError:
        pass
    answer[what] = time.process_time() - before
async def awaits(what, call):
    before = time.process_time()
    try:
        await call
    except CollectiveTimeoutError:
        pass
    answer[what] = time.process_time() - before
for transport in ("tcp", "shm"):
    g = aiocoll.sync.connect("file://{place}/meet-" + transport, rank=rank, size=size, transport=transport, timeout=60)
    for threaded in ("inline", "threaded"):
        if threaded == "threaded":
            g.start.barrier().wait()
        for _ in range(3):
            g.all_reduce(np.arange(5.0) + rank)
        if rank:  # waits for rank 0, which waits for a message that never comes
            waits(transport + " barrier " + threaded, g.barrier)
        else:
            waits(transport + " recv " + threaded, lambda: g.recv(1, tag=5, timeout={seconds}))
            g.barrier()
    g.close()
    async def main(group):
        await group.barrier()
        await awaits(transport + " awaited", group.recv((rank + 1) % size, timeout={seconds}))
        await group.barrier()
    aiocoll.run(main, uvloop=rank % 2 == 0, init_method="file://{place}/run-" + transport, rank=rank, size=size,
                transport=transport, timeout=60)
"""


@pytest.mark.slow
def test_n8_ranks_that_wait_leave_the_cpu_to_others(tmp_path: Path) -> None:
    """A waiting rank sleeps, on every driver, loop and transport; CPU time, so that other programs do not count."""
    used = spawn(3, WAIT.format(place=tmp_path, seconds=WAITED_SECONDS))
    busy = [(rank, what, cpu) for rank, each in enumerate(used) for what, cpu in each.items() if cpu > CPU_SECONDS_MAX]
    assert not busy, busy
    assert all(len(each) == 6 for each in used)
