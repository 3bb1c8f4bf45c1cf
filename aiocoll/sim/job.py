"""The job around a simulated world: its store, which newcomers reach from afar, and who of its processes lives.

Rule: a store answers after the time that a message takes, there and back; what a rank has asked it is done though the
rank dies meanwhile, but nobody waits there for a dead one. Processes of one host see one another die, others do not.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from ..config import Settings
from ..errors import RendezvousError
from ..group import Group
from ..group.ownership import Lineage
from ..place import Place
from ..rendezvous.request import Reached
from ..store.memory import MemoryStore
from ..store.prefix import PrefixStore
from ..store.users import played
from ..world.admitting import Admission
from ..world.newcomer import join
from ..world.opening import Wanted
from .fabric import PID, Fabric, SimSwitch

WHERE: Final = "simulation"
_LOBBY: Final = "simulation"
_WAITS_SECONDS_MAX: Final = 3600.0
"""How long newcomers wait where calls have no deadline."""


class Job:
    """What the ranks of one run have besides their links."""

    def __init__(self, fabric: Fabric, world: SimSwitch, settings: Settings, timeout: float, latency: float) -> None:
        self.fabric: Fabric = fabric
        self.latency: float = latency
        self.store: MemoryStore = MemoryStore()
        self._stores: dict[int, FarStore] = {}
        self._wanted = Wanted(world, settings, Place(), b"", "world", timeout)

    def __repr__(self) -> str:
        return f"<Job of {self.fabric!r}>"

    def enter(self, rank: int) -> None:
        """What runs in this context from now on is a process of its own, that of ``rank``."""
        played.set(_Process(self.fabric, rank))
        self._stores[rank] = FarStore(self.store, self.latency)

    def admission(self, rank: int, lineage: Lineage) -> Admission:
        """How the member ``rank`` finds newcomers."""
        return Admission(self._wanted, lineage, self._stores[rank], _LOBBY, where=WHERE, numbers="numbers", address="")

    async def join(self, rank: int) -> Group:
        """The group that takes in the newcomer ``rank``."""
        store = self._stores[rank]
        return await join(self._wanted, Reached(store, WHERE, "", store.close), _LOBBY, seconds=_WAITS_SECONDS_MAX)

    def power_cut(self, rank: int) -> None:
        """That process is dead."""
        if rank in self._stores:
            self._stores[rank].power_cut()


class FarStore(PrefixStore):
    """The store as one rank reaches it."""

    def __init__(self, store: MemoryStore, latency: float) -> None:
        super().__init__(store, "")
        self._latency = latency
        self._asked: set[asyncio.Task[None]] = set()
        self._cut = False

    async def _call(self, op: str, args: list[Any], timeout: float | None) -> Any:
        if self._cut:
            raise RendezvousError(f"{self.where}: this process is dead")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        do = partial(super()._call, op, args, timeout)
        asking = loop.create_task(self._serve(answer, do), context=contextvars.Context())
        self._asked.add(asking)
        asking.add_done_callback(self._asked.discard, context=contextvars.Context())
        try:
            error, value = await answer
        finally:
            asking.cancel()
        if error is not None:
            raise error
        return value

    async def _serve(self, answer: asyncio.Future[Any], do: Callable[[], Awaitable[Any]]) -> None:
        """What the store does for the rank, in its own time."""
        done: tuple[Exception | None, Any]
        await asyncio.sleep(self._latency)
        try:
            done = None, await do()
        except Exception as error:
            done = error, None
        await asyncio.sleep(self._latency)
        if not answer.done():
            answer.set_result(done)

    def power_cut(self) -> None:
        """Nothing more comes from that rank, and the store forgets that it waits."""
        self._cut = True
        for asking in list(self._asked):
            asking.cancel()


class _Process:
    """One rank as a process: see ``store.users.Cast``."""

    def __init__(self, fabric: Fabric, rank: int) -> None:
        self._fabric, self._host, self._pid = fabric, fabric.hosts[rank], PID + rank

    def __repr__(self) -> str:
        return f"<process {self._pid} on host {self._host}>"

    def me(self) -> dict[str, Any]:
        """The terms of ``store.users.me``."""
        host = f"host{self._host}"
        return {"host": host, "boot": host, "namespace": 0, "pid": self._pid, "started": "0"}

    def is_dead(self, user: Mapping[str, Any]) -> bool:
        """Whether a process of this host has ended."""
        rank = int(user.get("pid", 0)) - PID
        return user.get("host") == f"host{self._host}" and (rank in self._fabric.dead or rank in self._fabric.over)


__all__ = ["Job"]
