"""Transports that do not ship with the package are found by name, and what is none is refused before a socket opens."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
from types import ModuleType
from typing import Any

import pytest

import aiocoll
from aiocoll.errors import RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.transport import kinds
from aiocoll.transport.inproc import InprocTransport, Switch
from aiocoll.world import opening


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


async def world(transports: list[str], timeout: float = 5.0) -> list[Any]:
    from aiocoll.store import MemoryStore

    store = MemoryStore()

    async def rank(rank: int, transport: str) -> Any:
        where: dict[str, Any] = {"store": store, "rank": rank, "size": len(transports), "transport": transport}
        async with aiocoll.connect(**where, secret="known to all", timeout=timeout) as group:
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


@pytest.mark.parametrize("kinds_wanted", [("pigeon", "tcp"), ("inproc", "auto", "tcp"), ("pigeon", "inproc")])
async def test_ranks_that_want_different_transports_are_told(pigeon: str, kinds_wanted: tuple[str, ...]) -> None:
    """All of them at once, instead of waiting for one another."""
    names = [each if each in (pigeon, "inproc") else "sockets or shared memory" for each in kinds_wanted]
    for rank, failure in enumerate(await world(list(kinds_wanted))):
        assert isinstance(failure, UsageError), failure
        assert str(failure).startswith(f"transport={kinds_wanted[rank]!r} here, and ")
        for other, name in enumerate(names):
            assert (f"{name} on rank {other}" in str(failure)) == (name != names[rank])
    assert all(each.closed for each in Ear.made)


async def test_a_transport_that_does_not_connect_in_time_is_named(pigeon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: Ear, peers: kinds.Peers) -> InprocTransport:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(Ear, "connect", never)
    failures = await world([pigeon, pigeon], timeout=0.3)
    assert [type(each) for each in failures] == [RendezvousTimeoutError] * 2
    assert "transport='pigeon' has not connected rank 1 with the other 1 after 0.3 s" in str(failures[1])
    assert all(each.closed for each in Ear.made)


@pytest.mark.parametrize(
    ("wrong", "missing"),
    [
        ({"told": 5}, "'told' by its transport"),
        ({}, "'told' by its transport"),
        ({"told": {}, "pid": "x"}, "process id"),
    ],
)
async def test_a_wrong_entry_in_the_store_is_shown(
    pigeon: str, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], missing: str
) -> None:
    def info(self: opening.Ear, address: str) -> dict[str, Any]:
        said = real(self, address)
        return {**said, **wrong} if wrong else {"transport": said["transport"]}

    real = opening.Ear.info
    monkeypatch.setattr(opening.Ear, "info", info)
    for failure in await world([pigeon, pigeon]):
        assert type(failure) is RendezvousError, repr(failure)
        assert f"the entry of rank 0 in the store has no {missing}" in str(failure) and pigeon in str(failure)
