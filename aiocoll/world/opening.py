"""One endpoint: from an ear that others may reach, through its links, to its orderly end.

The rule: until it is taken, whatever was opened on the way is closed when something fails.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from ..config import Settings
from ..endpoint import Endpoint, Member
from ..endpoint.snapshot import snapshot
from ..errors import AiocollError, RendezvousError, RendezvousTimeoutError, UsageError
from ..group import Group
from ..group.calls import identifier
from ..group.growing import Plan
from ..group.ownership import Connection, Lineage, Shut
from ..observe.dumping import Source
from ..place import Place
from ..rendezvous import Meeting
from ..rendezvous.hosts import check_reachable
from ..rendezvous.island import Island
from ..rendezvous.lobby import process_is_dead
from ..store.base import Store
from ..store.prefix import prefix
from ..store.users import me
from ..transport import kinds
from ..transport.base import Transport
from ..transport.front import fronted
from ..transport.inproc import InprocTransport, Switch
from ..transport.local import Routed
from ..transport.tcp import TcpTransport
from ..transport.tcp_connect import TcpWorld, listen

if TYPE_CHECKING:
    from ..transport.shm.meeting import Shared

T = TypeVar("T")

_LEAVING_SECONDS: Final = 5.0
_LEAVING_BROKEN_SECONDS: Final = 1.0
_INQUEST_SECONDS: Final = (0.05, 1.0)
_LINKED_AT_ONCE_MAX: Final = 256
"""In a grown world of so many ranks each links to each at once: no store will know who of them has left."""
_switches: WeakValueDictionary[int, Switch] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Wanted:
    """One connect() whose arguments are in order."""

    transport: str | Switch
    settings: Settings
    place: Place
    secret: bytes = field(repr=False)
    name: str
    timeout: float

    @property
    def job(self) -> str:
        """The job's name in every handshake."""
        return self.place.job_name

    @property
    def within_process(self) -> bool:
        """Whether only ranks of this process are to be reached."""
        return self.transport == "inproc" or isinstance(self.transport, Switch)

    @property
    def added(self) -> str:
        """The name of a transport that does not ship with the package; empty if it does."""
        return "" if self.within_process or self.transport in kinds.SHIPPED else str(self.transport)


class Ear:
    """What others may reach of a rank that has no links yet, and how links come of it."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._listener: socket.socket | None = None
        self._added: kinds.Ear | None = None
        self._island = Island(wanted.settings, str(wanted.transport))

    def learn(self, wanted: Wanted) -> None:
        """The same connect(), of which the meeting has told more."""
        self._wanted = wanted

    def __repr__(self) -> str:
        return f"<Ear for {self._wanted.name!r} over {self._wanted.transport!r}>"

    def info(self, address: str) -> Mapping[str, Any]:
        """What the others learn of me: where I listen."""
        if self._wanted.within_process:
            return {"address": "", "port": 0, "transport": "inproc"}
        if self._wanted.added:
            self._added = kinds.find(self._wanted.added)(address)
            return {"address": "", "port": 0, "transport": self._wanted.added, "told": dict(self._added.info())}
        self._listener = listen(address)
        host, port = fronted(self._wanted.settings.proxy, address, self._listener.getsockname()[1])
        return {"address": host, "port": port, **self._island.info()}

    def close(self) -> None:
        """Nobody comes any more; idempotent, and nothing to what was connected."""
        self._island.close()
        if self._listener is not None:
            self._listener.close()
        if self._added is not None:
            self._added.close()

    async def connect(self, meeting: Meeting, numbers: Sequence[int] = ()) -> Endpoint:
        """The endpoint; ``numbers``: its ranks as users see them. Closes everything when it fails."""
        memory: dict[int, str] = {}
        shared: Shared | None = None
        added: Transport | None = None
        try:
            self._check_alike(meeting)
            if self._added is not None and meeting.size > 1:
                added = await self._connected(self._added, meeting)
                self._added = None  # the transport's from now on
            if self._listener is not None and meeting.size > 1:
                seconds = min(self._wanted.settings.shm_seconds, self._wanted.timeout)
                memory, shared = await self._island.settle(meeting, self._tcp_world(meeting), seconds)
            endpoint = self._endpoint(meeting, memory, shared, numbers, added)
            self._listener = None  # the transport's from now on
            return endpoint
        except BaseException:
            if shared is not None:
                shared.close()
            if added is not None:
                added.close()
            self.close()
            raise

    def _check_alike(self, meeting: Meeting) -> None:
        """Ranks whose links are of different kinds could only wait for one another; each of them sees it here."""
        kind = "inproc" if self._wanted.within_process else self._wanted.added
        others = {rank: info.get("transport", "") for rank, info in enumerate(meeting.members)}
        others = {rank: other for rank, other in others.items() if other != kind}
        if others:
            here, there = (
                kind or self._wanted.transport,
                "; ".join(f"{other or 'sockets or shared memory'} on rank {rank}" for rank, other in others.items()),
            )
            raise UsageError(f"transport={here!r} here, and {there}: all ranks of a job use the same")

    async def _connected(self, ear: kinds.Ear, meeting: Meeting) -> Transport:
        """What ``ear`` makes of the meeting, in time: whoever wrote it may have forgotten that peers can be slow."""
        wanted = self._wanted
        peers = kinds.Peers(
            rank=meeting.rank, size=meeting.size, world=meeting.world, job=wanted.job, secret=wanted.secret,
            told=_of_members(meeting, "'told' by its transport", lambda info: dict(info["told"])),
            seconds=wanted.timeout,
        )  # fmt: skip
        try:
            async with asyncio.timeout(min(wanted.timeout, 1e9)) as limit:
                return await ear.connect(peers)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise RendezvousTimeoutError(
                f"{meeting.where}: transport={wanted.added!r} has not connected rank {meeting.rank} with the other "
                f"{meeting.size - 1} after {wanted.timeout:g} s"
            ) from error

    def _tcp_world(self, meeting: Meeting) -> TcpWorld:
        addresses = _of_members(meeting, "address", lambda info: (str(info["address"]), int(info["port"])))
        wanted = self._wanted
        return TcpWorld(
            meeting.rank, meeting.size, tuple(addresses), wanted.secret, wanted.job, meeting.world,
            wanted.settings.lost_seconds,
        )  # fmt: skip

    def _endpoint(
        self, meeting: Meeting, memory: Mapping[int, str], shared: Shared | None, numbers: Sequence[int],
        added: Transport | None,
    ) -> Endpoint:  # fmt: skip
        loop = asyncio.get_running_loop()
        transport = self._transport(meeting, loop, shared) if added is None else added
        if isinstance(transport, InprocTransport):
            memory = transport.switch.memory(meeting.size)
        pids = _of_members(meeting, "process id", _pid)
        members = tuple(
            Member(
                rank,
                str(info.get("host", "")),
                pids[rank],
                str(info.get("boot", "")),
                memory.get(rank, ""),
                numbers[rank] if numbers else rank,
            )  # fmt: skip
            for rank, info in enumerate(meeting.members)
        )
        wanted = self._wanted
        endpoint = Endpoint(meeting.rank, members, loop, transport, wanted.settings)
        told = partial(snapshot, endpoint, job=wanted.place.job, restart=wanted.place.restart)
        endpoint.trace = Source(told, endpoint.flight, wanted.settings.trace_dir)
        endpoint.note("connected", rank=meeting.rank, size=meeting.size, name=wanted.name, transport=repr(transport))
        return endpoint

    def _transport(self, meeting: Meeting, loop: asyncio.AbstractEventLoop, shared: Shared | None) -> Transport:
        wanted = self._wanted.transport
        if isinstance(wanted, Switch):
            return InprocTransport(wanted.grown(meeting.world, meeting.members) if meeting.grown else wanted, loop)
        if self._wanted.within_process or meeting.size == 1:
            if any(pid != os.getpid() for pid in _of_members(meeting, "process id", _pid)):
                raise UsageError("transport='inproc' joins ranks of one process only; use 'auto' or 'tcp'")
            self.close()
            switch = _switches.get(meeting.world)
            if switch is None:
                switch = _switches[meeting.world] = Switch()
            return InprocTransport(switch, loop)
        assert self._listener is not None
        if shared is not None and len(shared.peers) == meeting.size - 1:
            self._listener.close()  # nobody is left for TCP
            return _shm(loop, meeting.rank, shared)
        far = TcpTransport(loop, self._tcp_world(meeting), self._listener)
        return far if shared is None else Routed(_shm(loop, meeting.rank, shared), far, shared.peers)


def _pid(info: Mapping[str, Any]) -> int:
    return int(info.get("pid", 0))


def _of_members(meeting: Meeting, what: str, read: Callable[[Mapping[str, Any]], T]) -> list[T]:
    """What ``read`` finds in each member's entry, which somebody else may have written."""
    found = []
    for rank, info in enumerate(meeting.members):
        try:
            found.append(read(info))
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            text = f"{meeting.where}: the entry of rank {rank} in the store has no {what} ({error!r}): "
            raise RendezvousError(f"{text}{str(dict(info))[:200]}; use another name=") from error
    return found


def _shm(loop: asyncio.AbstractEventLoop, rank: int, shared: Shared) -> Transport:
    from ..transport.shm.transport import ShmTransport  # loads only where there can be shared memory

    return ShmTransport(loop, rank, shared)


class Opened:
    """An endpoint whose links are made, and how it ends; nobody's until ``group`` makes it a group's."""

    endpoint: Endpoint
    meeting: Meeting

    def __init__(self, wanted: Wanted, endpoint: Endpoint, meeting: Meeting, lineage: Lineage) -> None:
        self._wanted, self.endpoint, self.meeting, self._lineage = wanted, endpoint, meeting, lineage
        self._shut = watch_over(endpoint, meeting)

    def __repr__(self) -> str:
        return f"<Opened {self.endpoint!r}>"

    def group(self, name: str, timeout: float, new_ranks: tuple[int, ...] = ()) -> Group:
        """The group of all its ranks, which owns it."""
        endpoint, world = self.endpoint, self.meeting.world
        connection = Connection(endpoint, self._shut, self._lineage, part=self.meeting.part)
        scope = endpoint.enter(identifier("world", world), tuple(range(endpoint.size)), name)
        return Group(
            endpoint, scope, self._wanted.settings, timeout=timeout, connection=connection, owner=True,
            new_ranks=new_ranks,
        )  # fmt: skip

    def between(self, member: int, guest: int) -> Group:
        """A group of two, that only a death of one of them breaks: what one tells the other about the admission."""
        id = identifier("admission", self.meeting.world, member, guest)
        return self._private(id, (member, guest), f"admission of {guest} by {member}")

    async def prove(self, seconds: float) -> None:
        """Returns once every rank has come here: all links work."""
        ranks = tuple(range(self.endpoint.size))
        everybody = self._private(identifier("proof", self.meeting.world), ranks, "newcomers and members")
        try:
            if len(ranks) <= _LINKED_AT_ONCE_MAX:
                self.endpoint.link_all(everybody._scope)
            await everybody.barrier(timeout=seconds)
        finally:
            self.meeting.died = _has_left
            everybody._abandon()

    def _private(self, id: int, members: tuple[int, ...], label: str) -> Group:
        scope = self.endpoint.enter(id, members, label)
        return Group(self.endpoint, scope, self._wanted.settings, timeout=self._wanted.timeout)

    async def discard(self) -> None:
        """Says goodbye and closes it."""
        await self._shut()


class Opening:
    """A new endpoint for a group that grows: an ear, its info, and how it is opened over the job's store."""

    def __init__(self, wanted: Wanted, lineage: Lineage, store: Store, where: str, address: str) -> None:
        self._wanted, self._lineage, self._store, self._where = wanted, lineage, store, where
        self._address, self._ear = address, Ear(wanted)

    def __repr__(self) -> str:
        return f"<Opening at {self._where}: {self._ear!r}>"

    def info(self) -> dict[str, Any]:
        """What the others must know of this rank."""
        return me() | dict(self._ear.info(self._address))

    async def open(self, plan: Plan, infos: list[dict[str, Any]], rank: int) -> Opened:
        """Makes it: ``infos`` of all ranks, this one being ``rank``."""
        world = int(plan["world"])
        store = prefix(self._store, f"{plan['at']}/")
        meeting = Meeting(
            rank=rank, size=len(infos), world=world, members=infos, store=store, where=self._where, grown=True,
            died=partial(_has_died, self._store, plan.get("guests", ()), infos),
        )  # fmt: skip
        check_reachable(self._where, infos)
        endpoint = await self._ear.connect(meeting, plan["numbers"])
        return Opened(self._wanted, endpoint, meeting, self._lineage)

    def close(self) -> None:
        """Nothing comes of it; idempotent, and without effect on what was opened."""
        self._ear.close()


async def _has_died(
    store: Store, guests: Sequence[Mapping[str, Any]], infos: Sequence[Mapping[str, Any]], rank: int
) -> bool | None:
    """Until all links are made nobody has left: whoever cannot be reached and has ended is lost, and so is a newcomer
    (of whom members know where it stood in line) that has gone out of the line."""
    if process_is_dead(infos[rank]):
        return True
    place = rank - (len(infos) - len(guests))
    return True if place >= 0 and guests and not await store.check([guests[place]["place"]]) else None


async def _has_left(rank: int) -> bool | None:
    """Later, one that was never reached may have left in good order: nobody keeps a list."""
    return None


def watch_over(endpoint: Endpoint, meeting: Meeting) -> Shut:
    """Has it found out what became of ranks that cannot be reached; gives what closes it all."""
    loop = endpoint.loop
    inquests: set[asyncio.Task[None]] = set()  # a loop holds its tasks only weakly

    def inquest(peer: int, reason: str) -> None:
        task = loop.create_task(_find_out(endpoint, meeting, peer, reason))
        inquests.add(task)
        task.add_done_callback(inquests.discard)

    endpoint.inquest = inquest

    async def shut() -> None:
        await _shut(endpoint)
        if inquests:
            for task in inquests:
                task.cancel()
            await asyncio.wait(list(inquests), timeout=_LEAVING_BROKEN_SECONDS)

    return shut


async def _find_out(endpoint: Endpoint, meeting: Meeting, peer: int, reason: str) -> None:
    """Whether a rank that was not reached has left, and others go on among themselves, or died and breaks its groups.

    Only what is certain counts: a process that is seen to have ended, and has not said that it leaves."""
    pause, pause_max = _INQUEST_SECONDS
    try:
        while not endpoint.closed and (died := await meeting.died(peer)) is not False:
            if died:
                endpoint.failure.died(peer, f"its process ended ({reason})")
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, pause_max)
    except (AiocollError, OSError):
        pass  # a store that is gone knows nothing


async def _shut(endpoint: Endpoint) -> None:
    """Says goodbye, lets what was sent leave (bounded), and cuts the links."""
    if endpoint.closed:
        return
    seconds = _LEAVING_BROKEN_SECONDS if endpoint.failure.bad_news else _LEAVING_SECONDS
    try:
        endpoint.failure.closing()
        endpoint.say_bye()
        until, pause = endpoint.loop.time() + seconds, 0.0005
        while not endpoint.transport.drained() and endpoint.loop.time() < until:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        for link in endpoint.transport.links():
            link.progress()  # unread bytes at close would turn the end of the connection into a reset
    finally:
        endpoint.close()
