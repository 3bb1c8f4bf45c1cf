"""The endpoint: all links of one rank, what waits, and who is told when a frame arrives.

The rule: the hot path (post, match, finish) allocates one object per receive and touches the loop only to park.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..buffers import Scratch
from ..config import Settings
from ..cpus import usable_cpus
from ..errors import WireError
from ..observe import emit
from ..transport.base import BLOCKING_TURN_BYTES, LOOP_TURN_BYTES, Link, Transport
from ..transport.inproc import Loopback
from ..transport.shm.link import ShmLink
from ..wire import frame
from ..wire.codec import CONTROL_BYTES_MAX, unpack_control
from ..wire.frame import Landing
from .failure import Failure
from .inbox import Inbox
from .operations import Operation
from .scope import Scope

if TYPE_CHECKING:
    from ..transport.shm.transport import ShmTransport
    from .channel import Call


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

    @property
    def island(self) -> str:
        """Equal for ranks that are near one another: those that share memory, else those of one host."""
        return self.memory or self.machine

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host}, pid {self.pid})"


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

    def __init__(self, endpoint: Endpoint, peer: int) -> None:
        self.endpoint, self.inbox, self.peer = endpoint, endpoint.inbox, peer

    def arriving(
        self, kind: int, epoch: int, group: int, call: int, step: int, meta: bytes, length: int
    ) -> Landing | None:
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
            self.endpoint.failure.left(self.peer)
        return None


class Endpoint:
    """One rank's links and the matching of what arrives with what is wanted."""

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
        self.spin_seconds = 0.0
        self.memory: ShmTransport | None = getattr(transport, "memory", None)
        """The links through shared memory, if there are any."""
        self.scopes: dict[int, Scope] = {}
        self.parked: set[Operation] = set()
        self.segments = Scratch()
        self.waited_seconds = 0.0
        self.closed = False
        self.inbox = Inbox(self)
        self.failure = Failure(self)
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

    def lost(self, peer: int, reason: str) -> None:
        self.failure.lost(peer, reason)

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
        self.failure.entered(scope)
        return scope

    def leave(self, scope: Scope) -> None:
        """This rank is done with a group; what arrives for it from now on is dropped."""
        self.scopes.pop(scope.id, None)
        self.inbox.forget_group(scope)

    # -- waiting

    def hurry(self, operation: Operation) -> None:
        """Looks whether ``operation`` can finish now; again and again for a short while where that is worth it."""
        if operation.peer < 0:
            for each in self.transport.links():
                each.progress()
            return
        link = self.link(operation.peer)
        if not link.ready:
            return
        if isinstance(link, ShmLink):
            link.progress(operation.is_done)
            if not operation.done:
                self._look(operation, link)
            return
        link.progress()
        if not operation.done and self.inline and self.spin_seconds > 0.0:
            self._spin(operation, link)

    def serve_blocked(self, spin_seconds: float, look_seconds: float) -> None:
        """A blocking driver steps the coroutines from now on; before they sleep verbs spin on sockets for
        ``spin_seconds``, and look into shared memory for ``look_seconds``."""
        self.inline, self.spin_seconds = True, spin_seconds
        self.transport.turn_bytes = BLOCKING_TURN_BYTES
        if self.memory is not None:
            self.memory.look_for(look_seconds, shares_loop=False)

    def serve_loop(self) -> None:
        """Others share the loop from now on."""
        self.inline, self.spin_seconds = False, 0.0
        self.transport.turn_bytes = LOOP_TURN_BYTES
        self._look_in_turns()

    def _look_in_turns(self) -> None:
        """Whoever waits looks for a moment of each of the loop's turns, unless that would keep a core, or this very
        loop, from those who are looked for."""
        if self.memory is None:
            return
        mine = self.members[self.rank]
        local = [self.members[link.peer] for link in self.memory.links()]
        here = any((member.host, member.pid) == (mine.host, mine.pid) for member in local)
        seconds = 0.0 if here or len(local) + 1 > usable_cpus() else self.settings.loop_spin_seconds
        self.memory.look_for(seconds, shares_loop=True)

    def _look(self, operation: Operation, link: ShmLink) -> None:
        """Looks into the lanes of a local peer, and moves what else there is, while that is allowed."""
        memory, clock, pending = link.port, time.perf_counter, self.transport.pending
        seconds = memory.may_look()
        if seconds <= 0.0:
            return
        memory.wake()
        began = clock()
        until = began + seconds
        while True:
            if link.glance():
                link.progress(operation.is_done)
                if operation.done:
                    break
                if self.inline:
                    until = clock() + seconds
            for other in pending():
                if other is not link and other.progress() and operation.done:
                    break
            if clock() >= until:
                break
            os.sched_yield()
        memory.looked(clock() - began)

    def _spin(self, operation: Operation, link: Link) -> None:
        clock, pending = time.perf_counter, self.transport.pending
        until = clock() + self.spin_seconds
        while True:
            for _ in range(8):
                moved = link.progress()
                if operation.done:
                    return
                for other in pending():
                    if other is not link:
                        moved = other.progress() or moved
                if moved:
                    until = clock() + self.spin_seconds
            if clock() >= until:
                return
            os.sched_yield()

    def park(self, operation: Operation) -> None:
        """``operation`` sleeps on its future from now on, and its deadline is watched."""
        call = operation.call
        if call is not None:
            if not call.compared:  # what comes from now on is compared when it comes
                call.compared = True
                if self.inbox.arrived:
                    self.inbox.compare(call)
            if call.error is not None:  # it failed while nobody waited for this
                operation.finish(call.error)
                return
            operation.deadline = call.deadline
            if call.wanted:
                for wanted in call.wanted:
                    wanted.post()
                call.wanted.clear()
        self.parked.add(operation)
        self._parked_at[operation] = self.loop.time()
        if operation.deadline < self._sweep_at:
            self._arm(operation.deadline)
        if self._look_timer is None and call is not None:
            self._look_after(self.settings.look_seconds)
        if self.inline and self.memory is not None:
            self.memory.sleep()

    def unpark(self, operation: Operation) -> None:
        """``operation`` woke, or whoever awaited it was cancelled."""
        self.parked.discard(operation)
        operation.waiter = None
        began = self._parked_at.pop(operation, None)
        if began is not None:
            self.waited_seconds += self.loop.time() - began

    def _arm(self, when: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep_at = when
        self._sweep = self.loop.call_at(when, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        self._sweep, self._sweep_at = None, math.inf
        now = self.loop.time()
        late = [operation for operation in self.parked if operation.deadline <= now]
        for operation in sorted(late, key=lambda operation: operation.deadline):
            if not operation.done:
                self.failure.late(operation)
        upcoming = min((op.deadline for op in self.parked if op.deadline > now), default=math.inf)
        if upcoming < self._sweep_at:
            self._arm(upcoming)

    def _look_after(self, seconds: float) -> None:
        if seconds < math.inf:
            self._look_timer = self.loop.call_later(seconds, self._look_around)

    def _look_around(self) -> None:
        """Calls that wait for long ask once whether their peers made the same: two ranks that each wait for the other
        to send first would not see their difference before the deadline."""
        self._look_timer = None
        now = self.loop.time()
        waiting: dict[Call, set[int]] = {}
        for operation in self.parked:
            call = operation.call
            if call is not None and not call.looked and not operation.done:
                waiting.setdefault(call, set()).add(operation.peer)
        soonest = math.inf
        for call in sorted(waiting, key=lambda each: each.began):
            left = call.began + self.settings.look_seconds - now
            if left > 1e-3:
                soonest = min(soonest, left)
            elif call.error is None:
                call.looked = True
                self.failure.look(call, sorted(waiting[call]))
        if self._look_timer is None:
            self._look_after(soonest)

    def waiting_for(self) -> list[tuple[str, int]]:
        """(what, world rank) for everything that waits: the edges of the wait-for graph."""
        return sorted((operation.describe(), operation.peer) for operation in self.parked)

    async def breathe(self) -> None:
        """Gives the event loop a turn, where anybody but us needs it."""
        if self.inline or time.perf_counter() - self._round_began < self.settings.breath_seconds:
            return
        if not self._round_ends:
            self._round_ends = True
            self.loop.call_soon(self._begin_round)
        await asyncio.sleep(0)

    def _begin_round(self) -> None:
        """The loop begins another round; all the long work in it shares one allowance."""
        self._round_ends = False
        self._round_began = time.perf_counter()

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
        for link in self.transport.links():
            if link.peer != self.rank:
                link.submit(frame.BYE, 0, 0, 0, b"", None)

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
        self.transport.close()
        self.scopes.clear()
        emit("endpoint_closed", rank=self.rank)


def _by_transport(nbytes: dict[Link, int]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for link, number in nbytes.items():
        sums[link.transport] = sums.get(link.transport, 0) + number
    return sums
