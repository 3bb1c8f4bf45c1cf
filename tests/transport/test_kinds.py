"""Transports that do not ship with the package are found by name, and what is none is refused before a socket opens."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
from types import ModuleType
from typing import Any

import pytest

import aiocoll
from aiocoll.errors import UsageError
from aiocoll.transport import kinds
from aiocoll.transport.inproc import InprocTransport, Switch


@pytest.mark.parametrize("name", ["carrier_pigeon", "base", "Tcp", "", "os.path", "../x"])
def test_what_is_no_transport_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match=r"is none of auto, shm, tcp, inproc"):
        aiocoll.connect(transport=name)


class Ear:
    """A kind over the in-process switch; remembers what it was told."""

    made: list[Ear] = []
    switches: dict[int, Switch] = {}

    def __init__(self, address: str) -> None:
        self.address, self.closed = address, False
        Ear.made.append(self)

    def info(self) -> dict[str, Any]:
        return {"number": len(Ear.made)}

    async def connect(self, peers: kinds.Peers) -> InprocTransport:
        self.peers = peers
        if len(peers.told) > 2:
            raise OSError("only two ranks fit")
        return InprocTransport(Ear.switches.setdefault(peers.world, Switch()), asyncio.get_running_loop())

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pigeon(monkeypatch: pytest.MonkeyPatch) -> str:
    """A transport of another package, found by its entry point."""
    module: Any = ModuleType("somebody_elses_pigeon")
    module.listen = Ear
    monkeypatch.setitem(sys.modules, "somebody_elses_pigeon", module)
    entry = importlib.metadata.EntryPoint("pigeon", "somebody_elses_pigeon", "aiocoll.transport")
    ours = importlib.metadata.EntryPoints([entry])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **wanted: ours.select(**wanted))
    kinds.find.cache_clear()
    Ear.made.clear()
    Ear.switches.clear()
    yield "pigeon"
    kinds.find.cache_clear()


async def world(transports: list[str]) -> list[Any]:
    from aiocoll.store import MemoryStore

    store = MemoryStore()

    async def rank(rank: int, transport: str) -> Any:
        where: dict[str, Any] = {"store": store, "rank": rank, "size": len(transports), "transport": transport}
        async with aiocoll.connect(**where, secret="known to all", timeout=5) as group:
            return int(await group.all_reduce(group.rank + 1))

    try:
        return await asyncio.gather(*(rank(*each) for each in enumerate(transports)), return_exceptions=True)
    finally:
        await store.close()


async def test_ranks_talk_over_a_transport_of_another_package(pigeon: str) -> None:
    assert await world([pigeon, pigeon]) == [3, 3]
    first, second = sorted(Ear.made, key=lambda each: each.peers.rank)
    assert [first.peers.rank, second.peers.rank, first.peers.size] == [0, 1, 2]
    assert first.peers.secret == b"known to all" and "known to all" not in repr(first.peers)
    assert sorted(each["number"] for each in first.peers.told) == [1, 2]


async def test_its_failure_is_the_callers_and_leaves_nothing_open(pigeon: str) -> None:
    failures = await world([pigeon, pigeon, pigeon])
    assert [str(each) for each in failures] == ["only two ranks fit"] * 3
    assert all(each.closed for each in Ear.made)


async def test_ranks_that_want_different_transports_are_told(pigeon: str) -> None:
    failure, other = await world([pigeon, "tcp"])
    assert isinstance(failure, UsageError) and "another one on ranks [1]" in str(failure)
    assert isinstance(other, aiocoll.AiocollError)
