"""The ranks of a world as tasks of one loop, and a way for one of them to die."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll.group import Group
from aiocoll.store import MemoryStore
from aiocoll.transport.inproc import InprocTransport

HANG_SECONDS = 30.0
on_every_transport = pytest.mark.parametrize("transport", ["tcp", "shm", "inproc"])


@contextlib.asynccontextmanager
async def ranks(size: int, transport: str = "tcp", **options: Any) -> AsyncIterator[list[Group]]:
    """`size` groups of one world, closed at the end."""
    store = MemoryStore()
    options = {"timeout": HANG_SECONDS} | options
    groups = await asyncio.gather(
        *(aiocoll.connect(rank=rank, size=size, store=store, transport=transport, **options) for rank in range(size))
    )
    try:
        yield groups
    finally:
        await asyncio.gather(*(group.close() for group in groups))
        await store.close()


async def soon(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """All results or errors, in order; a hang is a failure."""
    async with asyncio.timeout(HANG_SECONDS):
        return await asyncio.gather(*awaitables, return_exceptions=True)


async def results(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """All results, in order; the first error is raised; a hang is a failure."""
    async with asyncio.timeout(HANG_SECONDS):
        return await asyncio.gather(*awaitables)


def kill(group: Group) -> None:
    """The rank of ``group`` ends as by SIGKILL: its connections are cut and it says nothing."""
    endpoint = group._endpoint
    transport = endpoint.transport
    if isinstance(transport, InprocTransport):
        transport.switch.power_cut(group.rank)
    transport.close()
    endpoint.failure.closing()
    if endpoint._sweep is not None:
        endpoint._sweep.cancel()
    endpoint.closed = True


def numbers(n: int, seed: int = 0) -> np.ndarray:
    """Different per element and per seed."""
    return np.arange(n, dtype=np.float64) * 3 + seed


async def warm(groups: list[Group]) -> None:
    """All ranks are linked to all."""
    await results(group.all_to_all([np.array([group.rank])] * len(groups)) for group in groups)


def quiet(group: Group) -> bool:
    """Nothing of anybody lies here, and nothing waits."""
    endpoint = group._endpoint
    inbox, mailbox = endpoint.inbox, group._scope.mailbox
    return not (
        inbox.unreceived_bytes() or inbox.arrived or inbox.expected or inbox.offers or inbox._granted
        or mailbox.wanted or mailbox.taking or mailbox.kept or mailbox.sends or endpoint.parked or endpoint._parked_at
    )  # fmt: skip
