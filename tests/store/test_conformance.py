"""Every store does what `aiocoll.testing.stores` asks, alone and seen through a prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from aiocoll.store import FileStore, MemoryStore, Store, StoreServer, TCPStore, prefix
from aiocoll.testing.stores import CHECKS, Check, Open

KINDS = ("memory", "file", "tcp", "memory/prefix", "file/prefix", "tcp/prefix", "tcp/prefix/prefix")


@pytest_asyncio.fixture
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens handles of the kind that the test is parametrized with, and closes them."""
    kind, *views = request.param.split("/")
    opened: list[Store] = []
    server = await StoreServer.start("127.0.0.1", 0) if kind == "tcp" else None
    memory = MemoryStore()

    async def one() -> Store:
        store: Store
        if server is not None:
            store = await TCPStore.connect(*server.address)
        elif kind == "file":
            store = FileStore(tmp_path / "store")
        else:
            store = memory.clone()
        opened.append(store)
        for depth, _ in enumerate(views):
            store = prefix(store, f"view {depth}/")
        return store

    if views:
        neighbour = await one()
        await neighbour._store.set("foreign", b"neither seen nor touched")
    yield one
    for store in opened:
        await store.close()
    if server is not None:
        await server.close()


@pytest.mark.parametrize("open_store", KINDS, indirect=True)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
async def test_conforms(open_store: Callable[[], Awaitable[Store]], check: Check) -> None:
    await check(open_store)


@pytest.mark.parametrize("open_store", KINDS, indirect=True)
async def test_is_a_store(open_store: Open) -> None:
    assert isinstance(await open_store(), Store)
