"""What the tests of growing share: members and newcomers of one job, as tasks of one loop over a store in memory.

The rule: whoever waits for something awaits it; nothing here waits for time to pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll import Group
from aiocoll.rendezvous.lobby import Lobby
from aiocoll.store import MemoryStore

TRANSPORTS = ("inproc", "tcp", "shm")
SECONDS = 20.0

over_each_transport = pytest.mark.parametrize("transport", TRANSPORTS)


class Job:
    """One job: its store, and where its ranks meet."""

    def __init__(self, transport: str = "inproc") -> None:
        self.store, self.transport = MemoryStore(), transport
        self.lobby = Lobby(self.store, "world")

    def connect(self, **where: Any) -> Any:
        given: dict[str, Any] = {"store": self.store, "transport": self.transport, "timeout": SECONDS}
        return aiocoll.connect(**given | where)

    async def member(self, rank: int, size: int, main: Callable[[Group], Awaitable[Any]]) -> Any:
        async with self.connect(rank=rank, size=size) as group:
            return await main(group)

    async def newcomer(self, main: Callable[[Group], Awaitable[Any]], **where: Any) -> Any:
        async with self.connect(join=True, **where) as group:
            return await main(group)

    async def run(self, size: int, main: Callable[[Group], Awaitable[Any]], *others: Awaitable[Any]) -> list[Any]:
        """What the members return, then what the others do."""
        async with asyncio.timeout(60):
            return await asyncio.gather(*(self.member(rank, size, main) for rank in range(size)), *others)

    async def line(self, count: int) -> None:
        """Returns once so many newcomers stand in line."""
        async with asyncio.timeout(SECONDS):
            while True:
                await self.lobby.listen()
                if len(await self.lobby.waiting()) >= count:
                    return
                await self.lobby.bell(SECONDS)

    async def keys(self) -> list[str]:
        """What is left of lobbies and of what has grown."""
        keys = await self.store.list("aiocoll.")
        return [key for key in keys if not key.endswith(("/seq", "/bell"))]


async def adds_up(group: Group) -> None:
    """An all_reduce on inputs that differ gives what it must."""
    total = await group.all_reduce(np.arange(7.0) * (group.rank + 1))
    assert np.array_equal(total, np.arange(7.0) * (group.size * (group.size + 1) / 2))
