"""Cases N1 and N7: over two and four gibibytes, and how much memory that takes beside the caller's.

The rule: a few seconds each, in little memory; what is measured is memory, never time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop

import aiocoll
from aiocoll import MAX, Group
from aiocoll.store import MemoryStore
from aiocoll.sync import SyncGroup, connect
from tests.group.cases import ranks
from tests.group.large import WINDOW, Added, holds, pattern, require_memory, windows

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as _first:
    _first.run(asyncio.sleep(0))  # the first uvloop of a process opens a pipe for good, which no test is to blame for

GIB = 1 << 30
MIB = 1 << 20
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def in_threads(size: int, transport: str, folder: Path, program: Callable[[SyncGroup], Any]) -> list[Any]:
    """Blocking ranks, a thread each."""

    def one(rank: int) -> Any:
        with connect(f"file://{folder}/meet", rank=rank, size=size, transport=transport, timeout=100.0) as group:
            return program(group)

    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@pytest.mark.parametrize(("nbytes", "transport"), [(2 * GIB - 1, "shm"), (2 * GIB + 1, "tcp"), (4 * GIB + 8, "shm")])
def test_n1_messages_over_two_and_four_gib(nbytes: int, transport: str, tmp_path: Path) -> None:
    """They arrive whole and in place, with at most 64 MiB beside sender's and receiver's arrays."""
    with windows(nbytes, 5) as given, windows(nbytes, None) as taken, Added() as added:

        def program(group: SyncGroup) -> None:
            if group.rank == 0:
                group.send(given, 1)
            else:
                assert group.recv(0, out=taken) is taken
            group.barrier()

        in_threads(2, transport, tmp_path, program)
        assert holds(taken, pattern(WINDOW, 5))
    assert added.most < 64 * MIB, f"{added.most / MIB:.0f} MiB"


def test_n1_a_broadcast_over_four_gib() -> None:
    """The same for root's array on the other ranks."""
    nbytes = 4 * GIB + 8
    with windows(nbytes, 6) as given, windows(nbytes, None) as taken, Added() as added:

        async def main(group: Group) -> None:
            mine = given if group.rank == 0 else taken
            assert await group.broadcast(mine, out=mine) is mine

        ranks(2, main, "tcp", timeout=100.0, limit=200.0)
        assert holds(taken, pattern(WINDOW, 6))
    assert added.most < 64 * MIB, f"{added.most / MIB:.0f} MiB"


def test_n1_a_reduction_of_two_gib() -> None:
    """In place, by an op that may meet the same window again; exactly 2**31 bytes."""
    nbytes = 2 * GIB
    with windows(nbytes, 7) as one, windows(nbytes, 8) as other, Added() as added:

        async def main(group: Group) -> None:
            mine = (one, other)[group.rank]
            assert await group.all_reduce(mine, MAX, out=mine) is mine

        ranks(2, main, "shm", timeout=100.0, limit=200.0)
        wanted = np.maximum(pattern(WINDOW, 7), pattern(WINDOW, 8))
        assert holds(one, wanted) and holds(other, wanted)
    assert added.most < 64 * MIB, f"{added.most / MIB:.0f} MiB"


def test_n1_parts_below_two_gib_that_are_more_together() -> None:
    """all_gather of three parts of 700 MiB into one output."""
    nbytes = 3 * 700 * MIB
    each = nbytes // 3
    with windows(nbytes, 9) as given, windows(nbytes, None) as first, windows(nbytes, None) as rest, Added() as added:

        async def main(group: Group) -> None:
            mine = given[group.rank * each : (group.rank + 1) * each]
            await group.all_gather(mine, out=first if group.rank == 0 else rest)

        ranks(3, main, "shm", timeout=100.0, limit=200.0)
        assert holds(first, pattern(WINDOW, 9)) and holds(rest, pattern(WINDOW, 9))
    assert added.most < 64 * MIB, f"{added.most / MIB:.0f} MiB"


def test_n1_an_object_with_an_array_over_two_gib(tmp_path: Path) -> None:
    """It comes as a new array beside its neighbours in the object; its sender sends it from where it is."""
    require_memory(4.0)
    nbytes = 2 * GIB + 1
    with windows(nbytes, 10) as given, Added() as added:

        def program(group: SyncGroup) -> None:
            if group.rank == 0:
                group.send_object({"name": "large", "array": given}, 1)
            else:
                found = group.recv_object(0)
                assert found["name"] == "large" and holds(found["array"], pattern(WINDOW, 10))
            group.barrier()

        in_threads(2, "shm", tmp_path, program)
    assert added.most < nbytes + 64 * MIB, f"{added.most / MIB:.0f} MiB"


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_n7_a_blocking_receive_lands_in_the_callers_array(transport: str, tmp_path: Path) -> None:
    """Half a gibibyte into an array that is there: under 16 MiB beside it."""
    with windows(GIB // 2, 11) as given, windows(GIB // 2, None) as taken:

        def program(group: SyncGroup) -> None:
            if group.rank == 0:
                group.send(given[: 32 * MIB], 1)
                group.send(given, 1)
            else:
                group.recv(0, out=taken[: 32 * MIB])  # what a first message needs once and for all
                group.recv(0, out=taken)
            group.barrier()

        with Added() as added:
            in_threads(2, transport, tmp_path, program)
        assert holds(taken, pattern(WINDOW, 11))
    assert added.most < 16 * MIB, f"{added.most / MIB:.0f} MiB"


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_n7_what_is_awaited_lands_in_the_callers_array(transport: str, factory: Any) -> None:
    """The same for a broadcast on both loops. (An awaited receive may be cancelled, and must not have written then.)"""
    with windows(GIB // 4, 12) as given, windows(GIB // 4, None) as taken:

        async def one(store: Any, rank: int) -> None:
            async with aiocoll.connect(store=store, rank=rank, size=2, transport=transport, timeout=100.0) as group:
                mine = given if rank == 0 else taken
                await group.broadcast(mine, out=mine)

        async def both() -> None:
            store = MemoryStore()
            try:
                await asyncio.gather(one(store, 0), one(store, 1))
            finally:
                await store.close()

        with Added() as added, asyncio.Runner(loop_factory=factory) as runner:
            runner.run(both())
        assert holds(taken, pattern(WINDOW, 12))
    assert added.most < 16 * MIB, f"{added.most / MIB:.0f} MiB"
