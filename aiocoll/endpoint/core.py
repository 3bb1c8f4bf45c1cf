"""The endpoint: all links of one rank, what waits, and who is told when a frame arrives.

The rule: the hot path (post, match, finish) allocates one object per receive and touches the loop only to park.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import observe
from ..buffers import Scratch
from ..config import Settings
from ..errors import WireError
from ..observe.flight import Flight
from ..transport.base import Link, Transport
from ..transport.inproc import Loopback
from ..transport.shm.link import ShmLink
from ..wire import frame
from ..wire.codec import CONTROL_BYTES_MAX, unpack_control
from ..wire.frame import Landing
from .failure import Failure
from .inbox import Inbox
from .operations import Operation
from .scope import Scope
from .stalls import Stalls
from .waiting import Waiting

if TYPE_CHECKING:
    from ..observe.dumping import Source
    from ..transport.shm.transport import ShmTransport


@dataclass(frozen=True, slots=True)
class Member:
    """What every rank knows of every other from the meeting."""

    rank: int
    host: str
    pid: int
    machine: str = ""
    """Equal for ranks on one host (the kernel's boot id)."""
    memory: str = ""
    """Equal for ranks that share memory with one another; empty for one that shares it with nobody."""
    number: int = -1
    """The rank of the world, as users see it: that of the connection, unless that grew out of another one."""

    def __post_init__(self) -> None:
        if self.number < 0:
            object.__setattr__(self, "number", self.rank)

    @property
    def island(self) -> str:
        """Equal for ranks that are near one another: those that share memory, else those of one host."""
        return self.memory or self.machine

    def __str__(self) -> str:
        return f"rank {self.number} ({self.host}, pid {self.pid})"


class _Letter:
    """The landing of a control frame."""

    __slots__ = ("_data", "_position", "_read")

    def __init__(self, length: int, read: Callable[[bytes], None]) -> None:
        self._data, self._position, self._read = bytearray(length), 0, read

    def window(self) -> memoryview:
        return memoryview(self._data)[self._position :]

    def advance(self, nbytes: int) -> None:
        self._position += nbytes

    def complete(self) -> None:
        self._read(bytes(self._data))


class PeerSink:
    """Takes the frames of one peer."""

    __slots__ = ("endpoint", "inbox", "peer")
    endpoint: Endpoint
    inbox: Inbox
    peer: int

    def __init__(self, endpoint: Endpoint, peer: int) -> None:
        self.endpoint, self.inbox, self.peer = endpoint, endpoint.inbox, peer

    def arriving(self, kind: int, group: int, call: int, step: int, meta: bytes, length: int) -> Landing | None:
        if kind == frame.DATA:
            return self.inbox.data(self.peer, group, call, step, meta, length)
        if kind == frame.MESSAGE:
            return self.inbox.message(self.peer, group, call, step, meta, length)
        if kind == frame.CONTROL:
            if length > CONTROL_BYTES_MAX:
                raise WireError(f"control frame of {length} bytes")
            endpoint, peer = self.endpoint, self.peer
            return _Letter(length, lambda data: endpoint.failure.heard(peer, group, call, unpack_control(data)))
        if kind in (frame.BODY_DATA, frame.BODY_MESSAGE):
            return self.inbox.body(self.peer, kind, group, call, step, length)
        if length:
            raise WireError(f"frame kind {kind} carries {length} bytes")
        if kind == frame.OFFER_DATA:
            self.inbox.offered_data(self.peer, group, call, step, meta)
        elif kind == frame.OFFER_MESSAGE:
            self.inbox.offered_message(self.peer, group, call, step, meta)
        elif kind in (frame.GRANT_DATA, frame.GRANT_MESSAGE):
            self.inbox.granted(self.peer, kind, group, call, step)
        elif kind == frame.CREDIT:
            self.inbox.credited(self.peer, call)
        elif kind == frame.BYE:
            self.endpoint.failure.said_goodbye(self.peer, meta)
        return None


class Endpoint(Waiting):
    """One rank's links and the matching of what arrives with what is wanted."""

    # As in Waiting: pyright wants the types of what __init__ sets to stand in the same class.
    rank: int
    members: tuple[Member, ...]
    loop: asyncio.AbstractEventLoop
    transport: Transport
    settings: Settings

    size: int

    def __init__(
        self,
        rank: int,
        members: tuple[Member, ...],
        loop: asyncio.AbstractEventLoop,
        transport: Transport,
        settings: Settings,
    ) -> None:
        self.rank, self.members, self.size = rank, members, len(members)
        self.loop, self.transport, self.settings = loop, transport, settings
        self.inline = False
        """True while a blocking driver steps the coroutines: verbs may spin, and nobody else needs the loop."""
        self.spin_seconds: float = 0.0
        self.interrupted = False
        self.memory: ShmTransport | None = getattr(transport, "memory", None)
        """The links through shared memory, if there are any."""
        self.scopes: dict[int, Scope] = {}
        self.parked: dict[Operation, None] = {}
        self.segments: Scratch = Scratch()
        self.waited_seconds: float = 0.0
        self.closed: bool = False
        self.inbox: Inbox = Inbox(self)
        self.failure: Failure = Failure(self)
        self.stalls: Stalls = Stalls(self, settings.stall_seconds)
        self.flight: Flight = Flight()
        """What happened here last."""
        self.world: int = 0
        """The group that this connection was made for."""
        self.trace: Source | None = None
        """Who writes down what is known here when a group breaks."""
        self._links: list[Link | None] = [None] * self.size
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_at = math.inf
        self._look_timer: asyncio.TimerHandle | None = None
        self._parked_at: dict[Operation, float] = {}
        self._round_began, self._round_ends = 0.0, False
        self.inquest: Callable[[int, str], None] | None = None
        """Who finds out whether a rank that was not reached has left or died, and tells ``failure.died``."""
        transport.attach(self)
        self.near: list[ShmLink | None] = [None] * self.size
        """The links through shared memory, by world rank."""
        if self.memory is not None:
            for each in self.memory.made.values():
                self.near[each.peer] = each
        self._look_in_turns()

    def __repr__(self) -> str:
        return f"<Endpoint rank {self.rank} of {self.size} over {self.transport!r}, {len(self.parked)} waiting>"

    # -- the owner of the transport

    def sink(self, peer: int) -> PeerSink:
        return PeerSink(self, peer)

    @property
    def waiting(self) -> bool:
        return bool(self.parked)

    def lost(self, peer: int, reason: str, *, certain: bool = True) -> None:
        self.failure.lost(peer, reason, certain=certain)

    def link(self, peer: int) -> Link:
        """The link to a world rank; made when first used."""
        link = self._links[peer]
        if link is None:
            loopback = peer == self.rank
            link = Loopback(peer, self.sink(peer)) if loopback else self.transport.link(peer)
            self._links[peer] = link
        return link

    def link_all(self, scope: Scope) -> None:
        """Links to all members of a group that are not gone."""
        for world in scope.others():
            if world not in self.failure.absent:
                self.link(world)

    def linked(self, peer: int) -> None:
        self.failure.linked(peer)

    def unreached(self, peer: int, reason: str) -> None:
        self.failure.left(peer, reason)
        if self.inquest is not None:
            self.inquest(peer, reason)

    # -- groups

    def enter(self, id: int, ranks: tuple[int, ...], label: str) -> Scope:
        """This rank takes part in group ``id`` from now on."""
        scope = self.scopes[id] = Scope(self, id, ranks, label)
        self.world = self.world or id
        self.flight.entered(id, label)
        self.note("group", group=label, rank=scope.rank, ranks=ranks)
        self.failure.entered(scope)
        return scope

    def leave(self, scope: Scope) -> None:
        """This rank is done with a group; what arrives for it from now on is dropped."""
        self.scopes.pop(scope.id, None)
        self.note("group_left", group=scope.label, rank=scope.rank)
        self.inbox.forget_group(scope)

    def note(self, kind: str, **facts: Any) -> None:
        """Something happened that is worth a line: the flight recorder keeps it, and who listens hears it."""
        self.flight.note(kind, facts)
        if observe.active:
            observe.emit(kind, **facts)

    # -- the end

    def statistics(self) -> dict[str, Any]:
        """Bytes by transport, seconds waited, unreceived bytes."""
        links = self.transport.links()
        return {
            "bytes_sent": _by_transport({link: link.bytes_sent for link in links}),
            "bytes_received": _by_transport({link: link.bytes_received for link in links}),
            "seconds_waited": self.waited_seconds,
            "unreceived_bytes": self.inbox.unreceived_bytes(),
            "links": len(links),
        }

    def say_bye(self) -> None:
        """Tells every linked peer that the end of the connection will be no accident."""
        farewell = self.failure.farewell()
        for link in self.transport.links():
            if link.peer != self.rank:
                link.submit(frame.BYE, 0, 0, 0, farewell, None)

    def close(self) -> None:
        """Cuts all links at once; what still waits ends with GroupBrokenError."""
        if self.closed:
            return
        self.closed = True
        for scope in self.scopes.values():
            scope.troubled = True
        self.failure.closing()
        if self._sweep is not None:
            self._sweep.cancel()
        if self._look_timer is not None:
            self._look_timer.cancel()
        self.stalls.close()
        self.transport.close()
        self.note("endpoint_closed", rank=self.rank)
        if self.trace is not None:
            self.trace.close()
        self.scopes.clear()


def _by_transport(nbytes: dict[Link, int]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for link, number in nbytes.items():
        sums[link.transport] = sums.get(link.transport, 0) + number
    return sums
