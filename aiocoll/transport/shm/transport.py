"""The links of one rank to its host, and when it sleeps.

A rank that sleeps says so in its segment, and whoever posts a frame for it then rings its bell, an eventfd that its
loop watches. It is awake from the moment it begins to look until its loop might block.

The rule: before sleeping it says so, fences, and looks once more; a poster posts, fences, and then asks whether the
other sleeps. So one of the two sees the other.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..base import LOOP_TURN_BYTES, Link, Owner
from .heap import Heap
from .inlane import LOOKS
from .link import ShmLink
from .loans import Loans
from .meeting import Peer, Shared
from .outlane import Outlane
from .segment import ASLEEP, Geometry, Segment
from .stamp import Stamp, Views

_log = logging.getLogger("aiocoll.transport")
_VIEWS_MAX: Final = 1024
_LOOKS_PER_TURN: Final = 5
"""How many waits of one turn of the loop may look in vain."""
CALLS_PER_TURN: Final = 64
"""After so many calls that never had to wait, others get the loop."""
_IDLE_SECONDS: Final = 0.001
"""So long a frame may lie in its lane while nobody waits for any."""
_LOOK_AGAIN_SECONDS: Final = 0.05
"""How often a rank that waits looks though no bell has rung: a belt, which should never be needed."""


def _nothing() -> None:
    """What follows a fence that is over when it returns."""


class ShmTransport:
    """The links to the ranks of this host that share memory."""

    loop: asyncio.AbstractEventLoop
    rank: int
    peers: dict[int, Peer]
    private: bool

    name = "shm"

    def __init__(self, loop: asyncio.AbstractEventLoop, rank: int, shared: Shared) -> None:
        self.loop, self.rank = loop, rank
        self.segment: Segment = shared.segment
        self._bell = shared.bell_fd
        self.peers, self.private = shared.peers, shared.private
        self.geometry: Geometry = self.segment.geometry
        self.made: dict[int, ShmLink] = {}
        self._links: list[ShmLink] = []
        self.turn_bytes = LOOP_TURN_BYTES
        self.asleep: bool = True
        self.memory = self
        self._look_seconds, self._looked = 0.0, 0.0
        self.shares_loop: bool = True
        """Whether others need the loop."""
        self.calls: int = 0
        """Calls that have come and gone in this turn of the loop."""
        self._owner: Owner | None = None
        self._views: dict[tuple[np.dtype[Any], int], Views] = {}
        self.heap: Heap = Heap()
        """The arrays of this rank that its peers can read where they are."""
        self.loans: Loans = Loans(self.heap)
        self.hungry: set[Outlane] = set()
        """Lanes with frames that wait for room."""
        self._serving = self._feeding = False
        self._belt: asyncio.TimerHandle | None = None
        self._idle: asyncio.Handle | None = None
        lock = threading.Lock()
        self.acquire: Callable[[], object] = lock.acquire
        self.release: Callable[[], object] = lock.release
        if self.segment.fence is not None:
            self.acquire, self.release = self.segment.fence, _nothing
        self.closed: bool = False

    def __repr__(self) -> str:
        return f"<ShmTransport rank {self.rank}: {len(self.made)} links, {'asleep' if self.asleep else 'awake'}>"

    def attach(self, owner: Owner) -> None:
        self._owner = owner
        island = sorted([*self.peers, self.rank])
        mine = island.index(self.rank)
        for peer, end in self.peers.items():
            self.made[peer] = ShmLink(self, peer, end, owner.sink(peer), mine, island.index(peer))
        self._links = list(self.made.values())
        self.loop.add_reader(self._bell, self._rung)
        self.loop.call_soon(self._serve)  # what was posted before this rank had an owner

    def link(self, peer: int) -> ShmLink:
        return self.made[peer]

    def links(self) -> list[Link]:
        return list(self._links)

    def pending(self) -> list[Link]:
        return [link for link in self._links if link.ready and (link.outlane.waits or link.inlane.news())]

    def drained(self) -> bool:
        return all(link.drained() for link in self._links)

    # -- sleeping

    def fence(self) -> None:
        """Nothing before it is seen after what comes behind it: taking a lock is a locked instruction, where that is
        not enough the kernel sees to it."""
        self.acquire()
        self.release()

    def look_for(self, seconds: float, *, shares_loop: bool) -> None:
        """How long whoever waits may look before it sleeps: each time, or, if others need the loop, in each of its
        turns."""
        self._look_seconds, self.shares_loop = seconds, shares_loop
        if shares_loop and not self.asleep:
            self.loop.call_soon(self.sleep)  # from now on the loop may block whenever nothing is to be done

    def may_look(self) -> float:
        """For how many seconds one may look now."""
        return 0.0 if self._looked > _LOOKS_PER_TURN * self._look_seconds else self._look_seconds

    def looked(self, seconds: float) -> None:
        """Somebody has looked for so long."""
        if self.shares_loop:
            self._looked += seconds

    def looks(self) -> Iterator[None]:
        """One item for each time that one may look now; in between others get the core."""
        seconds = self.may_look()
        if seconds <= 0.0 or self.hungry:
            return
        self.wake()
        began = now = perf_counter()
        while now - began < seconds:
            for _ in range(LOOKS):
                yield
            os.sched_yield()
            now = perf_counter()
        self.looked(now - began)

    def wake(self) -> None:
        """This rank looks from now on: nobody need ring."""
        if self.asleep:
            self.asleep = False
            self.segment.words[ASLEEP] = 0
            if self.shares_loop:
                self.loop.call_soon(self.sleep)  # before the loop can block

    def sleep(self) -> None:
        """The loop may block from now on. What came in the meantime is taken first."""
        if self.closed:
            return
        self._looked, self.calls = 0.0, 0
        if not self.asleep:
            self.asleep = True
            self.segment.words[ASLEEP] = 1
            self.fence()
        self._serve_if_wanted()
        if self._belt is None:
            self._belt = self.loop.call_later(_LOOK_AGAIN_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._belt = None
        if self._owner is not None and not self.closed:
            self._serve()
            if self._owner.waiting:
                self._belt = self.loop.call_later(_LOOK_AGAIN_SECONDS, self._look_again)

    def _rung(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return
        self._serve_if_wanted()

    def _serve_if_wanted(self) -> None:
        """Serves, or, while nobody waits, leaves what came where a call that is about to be made finds it at once."""
        if self._owner is not None and self._owner.waiting:
            self._serve()
            return
        self.hear_news()
        if self._idle is None and any(link.news() for link in self._links):
            taken = [link.inlane.taken for link in self._links]
            self._idle = self.loop.call_later(_IDLE_SECONDS, self._serve_idle, taken)

    def hear_news(self) -> None:
        """Takes what lies in the lanes up to the last news: of failures, say, that concern the next call."""
        for link in self._links:
            if link.ready and not link.inlane.heard_all():
                link.progress(link.inlane.heard_all)

    def _serve_idle(self, before: list[int]) -> None:
        """Serves the links of which nobody has taken anything for a moment."""
        self._idle, more = None, False
        if self.closed:
            return
        for link, taken in zip(self._links, before, strict=True):
            if link.inlane.taken == taken and link.news():
                link.progress()
                more = more or link.news()
        if more:
            self._idle = self.loop.call_soon(self._serve_idle, [link.inlane.taken for link in self._links])
        else:
            self._serve_if_wanted()

    def _serve(self) -> None:
        """Moves what can be moved on all links, a turn's worth each, as long as somebody waits."""
        more = False
        for link in self._links:
            if link.news():
                link.progress(self._nobody_waits)
                more = more or link.news()
        if more:
            self.serve_soon()

    def _nobody_waits(self) -> bool:
        return self._owner is None or not self._owner.waiting

    def serve_soon(self) -> None:
        """Looks again in the loop's next turn."""
        if not self._serving:
            self._serving = True
            self.loop.call_soon(self._serve_on)

    def _serve_on(self) -> None:
        self._serving = False
        if not self.closed:
            self._serve_if_wanted()

    # -- memory

    def stamp(
        self, kind: int, group: int, step: int, meta: bytes, dtype: np.dtype[Any], count: int, private: bool = False
    ) -> Stamp | None:
        """What such frames have in common, or None where they do not fit a slot and a piece. ``private`` ones are not
        to lie in a cell."""
        if not Stamp.fits(meta, 0 if private else count * dtype.itemsize, self.geometry):
            return None
        views = self._views.get((dtype, count))
        if views is None:
            if len(self._views) >= _VIEWS_MAX:
                self._views.clear()
            views = self._views[dtype, count] = Views(dtype, count)
        return Stamp(kind, group, step, meta, views)

    def stage(self, stamp: Stamp, x: NDArray[Any]) -> int:
        """Puts ``x`` into a cell, for several readers; -1 if none is free. ``segment.release`` gives it up."""
        free = self.segment.free
        if not free:
            self.settle_lanes()
            if not free:
                return -1
        cell = free.popleft()
        self.segment.readers[cell] = 1
        stamp.views.cells(self.segment.array, self.geometry)[cell][...] = x
        return cell

    def ask_all(self) -> None:
        """Some lane waits for room: every peer that holds cells is to wake this rank when it takes something."""
        for link in self._links:
            link.outlane.ask()

    def feed(self) -> None:
        """There are free cells again: the lanes that wait get their turn."""
        for lane in list(self.hungry):
            lane.flush(self.turn_bytes)

    def feed_soon(self) -> None:
        """The same, in the loop's next turn."""
        if not self._feeding:
            self._feeding = True
            self.loop.call_soon(self._feed_now)

    def _feed_now(self) -> None:
        self._feeding = False
        if not self.closed:
            self.feed()

    def settle_lanes(self) -> None:
        """Frees the cells that peers have read."""
        for link in self._links:
            link.outlane.settle()

    # -- the end

    def doubt(self, peer: int, reason: str) -> None:
        """A peer writes what no correct peer writes."""
        self.made[peer].end(reason, certain=False)

    def owner_lost(self, peer: int, reason: str, *, certain: bool) -> None:
        if self._owner is not None and not self.closed:
            self._owner.lost(peer, reason, certain=certain)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for timer in (self._belt, self._idle):
            if timer is not None:
                timer.cancel()
        for link in self._links:
            link.close()
        self.loans.close()
        self.heap.close()
        self.loop.remove_reader(self._bell)
        os.close(self._bell)
        for peer in self.peers.values():
            os.close(peer.bell_fd)
            peer.bell_fd = -1
            peer.mapped.close()
        for link in self._links:
            link.inlane.close()
            link.outlane.close()
        for views in self._views.values():
            views.close()
        self.segment.close()
        self._owner = None
