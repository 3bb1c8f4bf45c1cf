"""Coming, going and coming again: situations reported of other systems (K1, K3)."""

from __future__ import annotations

import asyncio
import gc
import os
import time
import warnings
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll import CollectiveTimeoutError, Group, GroupBrokenError, MismatchError, NotInitializedError, PeerLostError
from aiocoll.store import MemoryStore
from tests.group.cases import outcome
from tests.ports import free_url
from tests.turns import until

BOUND = 3.0  # seconds for what should take milliseconds, on the slowest machine


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def fails(group: Group, turn: int) -> None:
    """A call that breaks the group, another way each time."""
    if turn % 3 == 0:
        error = await outcome(group.all_reduce(np.ones(3 + group.rank)))
        assert isinstance(error, MismatchError | GroupBrokenError), error
    elif turn % 3 == 1 and group.rank == 0:
        task = asyncio.ensure_future(group.barrier())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    elif group.rank == 0:
        error = await outcome(group.recv(1, timeout=0.01))
        assert isinstance(error, CollectiveTimeoutError | PeerLostError), error  # it has left, perhaps


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("subgroups", [False, True])
@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
async def test_k1_twenty_times(failing: bool, subgroups: bool, external: bool, transport: str) -> None:
    store = MemoryStore() if external else None
    url = None if external else free_url()

    async def one(rank: int, turn: int) -> None:
        async with aiocoll.connect(url, store=store, rank=rank, size=2, transport=transport, timeout=30) as group:
            assert await group.all_reduce(turn + rank) == 2 * turn + 1
            if subgroups:
                part = await group.subgroup([1, 0])
                assert await part.all_gather(rank + turn) == [1 + turn, turn]
                if turn % 2:
                    await part.close()
            if failing:
                await fails(group, turn)

    await asyncio.gather(one(0, 0), one(1, 0))
    before = descriptors()
    for turn in range(1, 21):
        await asyncio.gather(one(0, turn), one(1, turn))
    await until(lambda: descriptors() <= before, 0.001)  # the store that rank 0 served ends in a thread of its own
    if store is not None:
        await store.close()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
async def test_k3_closing_is_quick_while_peers_keep_their_ends_open(transport: str) -> None:
    store = MemoryStore()
    gone = asyncio.Event()

    async def one(rank: int) -> None:
        async with aiocoll.connect(store=store, rank=rank, size=3, transport=transport, timeout=30) as group:
            await group.barrier()
            if rank == 0:
                began = time.monotonic()
                await group.close()
                await group.close()
                assert time.monotonic() - began < BOUND
                gone.set()
                assert type(await outcome(group.barrier())) is NotInitializedError
            else:
                await gone.wait()  # with open links all the while
                rest = await group.subgroup([1, 2])
                assert await rest.all_reduce(rank) == 3
                await rest.close()

    await asyncio.gather(*map(one, range(3)))
    await store.close()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("how", ["mismatch", "cancelled", "late"])
async def test_k3_closing_is_quick_after_every_failure(transport: str, how: str) -> None:
    store = MemoryStore()
    turn = ["mismatch", "cancelled", "late"].index(how)

    async def one(rank: int) -> None:
        async with aiocoll.connect(store=store, rank=rank, size=2, transport=transport, timeout=30) as group:
            await group.barrier()
            big = asyncio.ensure_future(outcome(group.send(np.ones(12 << 20), 1 - rank)))  # more than may lie there
            await asyncio.sleep(0)
            await fails(group, turn)
            began = time.monotonic()
        assert time.monotonic() - began < 2 * BOUND + 5  # sends may leave first, which is bounded
        await big

    await asyncio.gather(one(0), one(1))
    await store.close()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("steps", range(12))
async def test_k3_a_close_that_is_cancelled_leaves_nothing_open(transport: str, steps: int) -> None:
    """Cancelled at any of its steps; afterwards, at the latest after closing again, nothing is left."""
    store = MemoryStore()
    before = descriptors()

    async def one(rank: int) -> None:
        group = await aiocoll.connect(store=store, rank=rank, size=2, transport=transport, timeout=30)
        await group.barrier()
        await outcome(group.send(np.ones(2 << 20), 1 - rank))  # the other may have left by then
        if rank == 0:
            closing = asyncio.ensure_future(group.close())
            for _ in range(steps):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
        await asyncio.wait_for(group.close(), 10)

    await asyncio.gather(one(0), one(1))
    await store.close()
    for _ in range(20):
        await asyncio.sleep(0)
    gc.collect()
    assert descriptors() <= before


@pytest.mark.parametrize("transport", ["tcp", "shm", "inproc"])
def test_k3_a_loop_that_ends_before_its_group_is_a_warning_and_nothing_worse(transport: str) -> None:
    kept: list[Any] = []

    async def main() -> None:
        store = MemoryStore()

        async def one(rank: int) -> None:
            group = await aiocoll.connect(store=store, rank=rank, size=2, transport=transport, timeout=30)
            kept.append(group)
            assert await group.all_reduce(rank) == 1

        await asyncio.gather(one(0), one(1))
        await store.close()

    before = descriptors()
    asyncio.run(main())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept.clear()
        gc.collect()
    texts = [str(each.message) for each in caught]
    assert len([text for text in texts if "was never closed" in text]) == 2, texts
    assert all(each.category is ResourceWarning for each in caught), texts
    assert descriptors() <= before
