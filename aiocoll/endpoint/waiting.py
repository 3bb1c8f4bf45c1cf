"""How an operation waits: it looks, for a moment where that is worth it, then sleeps on its future until its deadline.

The rule: a look moves what else there is, too, so that no two ranks look at one another for ever; whoever sleeps has a
deadline, and somebody who watches it.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from typing import TYPE_CHECKING

from ..config import Settings
from ..cpus import usable_cpus
from ..transport.base import BLOCKING_TURN_BYTES, LOOP_TURN_BYTES, Link, Transport
from ..transport.shm.link import ShmLink
from .message import MessageReceive, MessageSend
from .operations import Operation

if TYPE_CHECKING:
    from ..transport.shm.transport import ShmTransport
    from .channel import Call
    from .core import Member
    from .failure import Failure
    from .inbox import Inbox
    from .stalls import Stalls


class Waiting:
    """What waits at one endpoint."""

    rank: int
    members: tuple[Member, ...]
    loop: asyncio.AbstractEventLoop
    transport: Transport
    settings: Settings
    inline: bool
    interrupted: bool
    """Whether somebody has to be let in, so that nobody may look for long."""
    spin_seconds: float
    memory: ShmTransport | None
    parked: dict[Operation, None]
    """What waits, in the order in which it began to: those of one deadline are late in that order."""
    waited_seconds: float
    inbox: Inbox
    failure: Failure
    stalls: Stalls
    _sweep: asyncio.TimerHandle | None
    _sweep_at: float
    _look_timer: asyncio.TimerHandle | None
    _parked_at: dict[Operation, float]
    _round_began: float
    _round_ends: bool

    def link(self, peer: int) -> Link:
        """The link to a world rank."""
        raise NotImplementedError

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
                if operation.done or not link.ready:  # a link that has ended keeps what nobody takes out any more
                    break
                if self.inline:
                    until = clock() + seconds
            for other in pending():
                if other is not link:
                    other.progress()
            if operation.done or clock() >= until or self.interrupted:
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
            if clock() >= until or self.interrupted:
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
        elif isinstance(operation, MessageReceive | MessageSend) and operation.peer in operation.scope.left_by:
            self.failure.desert(operation)
            if operation.done:
                return
        self.parked[operation] = None
        if self.stalls.idle:
            self.stalls.watch()
        self._parked_at[operation] = self.loop.time()
        if operation.deadline < self._sweep_at:
            self._arm(operation.deadline)
        if self._look_timer is None and (call is not None or isinstance(operation, MessageReceive | MessageSend)):
            self._look_after(self.settings.look_seconds)
        if self.inline and self.memory is not None:
            self.memory.sleep()

    def unpark(self, operation: Operation) -> None:
        """``operation`` woke, or whoever awaited it was cancelled."""
        self.parked.pop(operation, None)
        if self.stalls.told:
            self.stalls.woke(operation)
        operation.waiter = None
        began = self._parked_at.pop(operation, None)
        if began is not None:
            self.waited_seconds += self.loop.time() - began

    def waited(self, operation: Operation) -> float:
        """For how many seconds an operation has slept."""
        began = self._parked_at.get(operation)
        return 0.0 if began is None else self.loop.time() - began

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
        to send first would not see their difference before the deadline. Messages ask whether the other side is still
        in the group: it may have closed it before there was a link to say so."""
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
        messages = [each for each in self.parked if isinstance(each, MessageReceive | MessageSend) and not each.looked]
        for message in messages:
            left = message.began + self.settings.look_seconds - now
            if left > 1e-3:
                soonest = min(soonest, left)
            elif message.peer >= 0:
                message.looked = True
                self.failure.ask(message, [message.peer], self.failure.told_whether_left)
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
