"""Meetings and stores: situations reported of other systems (the rest of H1 to H9 is in tests/rendezvous and store)."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

import aiocoll
from aiocoll.errors import RendezvousTimeoutError
from aiocoll.store import MemoryStore, Store, TCPStore, host_store
from tests.ports import free_ports, free_url


@pytest.fixture
async def stores() -> AsyncIterator[list[TCPStore]]:
    """Four clients of one server."""
    hosted = host_store("127.0.0.1", 0, secret=b"s", job="h")
    opened = [await TCPStore.connect(*hosted.address, secret=b"s", job="h") for _ in range(4)]
    yield opened
    for store in opened:
        await store.close()
    hosted.release()
    hosted.join(10)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_h1_ranks_that_each_picked_a_port_say_where_nobody_answered() -> None:
    urls = [f"tcp://127.0.0.1:{port}" for port in free_ports(3)]
    calls = [aiocoll.connect(url, rank=rank, size=3, timeout=0.5) for rank, url in enumerate(urls)]
    began = time.monotonic()
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert time.monotonic() - began < 10
    for rank, (error, url) in enumerate(zip(errors, urls, strict=True)):
        assert isinstance(error, RendezvousTimeoutError) and url in str(error), error
        assert f"missing rank{'s 1, 2' if rank == 0 else ' 0'}" in str(error), error
        assert error.missing == ((1, 2) if rank == 0 else (0,))


async def test_h3_a_wait_for_keys_of_which_some_were_set_before(stores: list[TCPStore]) -> None:
    waiter, *setters = stores
    await setters[0].set("a", b"1")
    waiting = asyncio.ensure_future(waiter.wait(["a", "b", "c", "b"], timeout=5))
    await turns()
    await setters[1].set("b", b"2")
    await turns()
    assert not waiting.done()
    await setters[2].set("c", b"3")
    await waiting
    await waiter.wait([], timeout=0)
    await waiter.wait(["a", "a", "c"], timeout=0)
    with pytest.raises(TimeoutError, match="never"):
        await waiter.wait(["a", "never"], timeout=0)


async def test_h5_a_get_of_nothing_names_the_key_and_blocks_nobody(stores: list[TCPStore]) -> None:
    store = stores[0]
    getting = asyncio.ensure_future(store.get("nope", timeout=1))
    counts = await asyncio.gather(*(store.add("count") for _ in range(100)))
    assert sorted(counts) == list(range(1, 101)) and not getting.done()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"'nope'.*1\.?\d* s"):
        await getting
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("size", [1, 3])
async def test_h8_a_group_of_one_name_is_made_and_left_fifty_times_on_one_store(size: int) -> None:
    store: Store = MemoryStore()

    async def one(rank: int, turn: int) -> None:
        async with aiocoll.connect(store=store, rank=rank, size=size, name="g", transport="tcp") as group:
            assert await group.all_reduce(turn + rank) == size * turn + sum(range(size))

    for turn in range(50):
        await asyncio.gather(*(one(rank, turn) for rank in range(size)))
    assert await store.list() == ["aiocoll/g/current"]  # which of them is the present one: one key, however many came
    await store.close()


async def test_h8_one_that_gave_up_leaves_nothing_to_the_next_of_that_name() -> None:
    store: Store = MemoryStore()

    async def one(rank: int, timeout: float) -> Any:
        async with aiocoll.connect(store=store, rank=rank, size=2, name="g", transport="tcp", timeout=timeout) as group:
            return await group.all_gather(rank)

    with pytest.raises(RendezvousTimeoutError, match="missing rank 1"):
        await one(0, 0.2)
    task = asyncio.ensure_future(one(1, 30))
    await turns()
    task.cancel()
    await asyncio.wait([task])
    assert await asyncio.gather(one(0, 30), one(1, 30)) == [[0, 1], [0, 1]]
    assert await store.list() == ["aiocoll/g/current"]
    await store.close()


@pytest.mark.slow
async def test_h9_a_hundred_ranks_at_once() -> None:
    """All of them in one process, in the same instant; each holds a listening socket and a connection to the store."""
    size = 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    url = free_url()

    async def one(rank: int) -> None:
        async with aiocoll.connect(url, rank=rank, size=size, transport="tcp", timeout=60) as group:
            await group.barrier()
            assert await group.all_reduce(rank) == size * (size - 1) // 2
            assert group.statistics()["links"] < 40  # links are made when they are used

    try:
        await asyncio.gather(*map(one, range(size)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
