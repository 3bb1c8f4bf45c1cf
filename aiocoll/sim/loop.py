"""An event loop whose clock jumps from event to event and whose order among ranks comes from a seed.

Rule: whatever asyncio promises within one rank still holds (callbacks run in the order in which they were scheduled);
between ranks the next to run is drawn at random, so equal seeds give equal runs and other seeds other interleavings.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
import selectors
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple

from ..errors import DeadlockError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

rank_running: contextvars.ContextVar[int] = contextvars.ContextVar("rank_running", default=-1)
"""Whose code runs; tasks, callbacks and timers inherit it. -1 is the simulation itself."""


class SimLoop(asyncio.SelectorEventLoop):
    """`on_deadlock` is called when every rank waits and no timer is pending; it must make something happen.

    Without it, or when it changes nothing, `DeadlockError` ends the loop. Executors run their function at once, in
    place; sockets and other threads do not exist in simulated time.
    """

    _stopping: bool

    def __init__(self, seed: int = 0, on_deadlock: Callable[[], None] | None = None) -> None:
        self.now: float = 0.0
        self.random: random.Random = random.Random(seed)
        self.on_deadlock = on_deadlock
        self.steps = 0
        self.before_step: dict[int, Callable[[], None]] = {}
        """Called before each step of a rank, by rank; it may hold the rank, and the step waits."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._set = 0
        super().__init__(selectors.SelectSelector())  # which nobody asks
        self._ready = self._drawn = _Drawn(self)

    def __repr__(self) -> str:
        return f"<SimLoop t={self.now:g} steps={self.steps} ready={len(self._ready)}>"

    def time(self) -> float:
        """Simulated seconds since the start."""
        return self.now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Timers of one time fire in the order in which they were set; `asyncio` leaves that open."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._set += 1
        heappush(self._timers, (when, self._set, timer))
        return timer

    def _run_once(self) -> None:
        """One round, as `asyncio` has it: the timers that are due, then what is ready by now."""
        drawn, timers = self._drawn, self._timers
        if not drawn and not self._stopping:
            self._advance()
        while timers and timers[0][0] <= self.now:
            timer: Any = heappop(timers)[2]
            if not timer._cancelled:
                drawn.append(timer)
        for _ in range(len(drawn)):
            handle: Any = drawn.popleft()
            if not handle._cancelled:
                handle._run()

    def _advance(self) -> None:
        """Nothing is ready: jumps to the next timer, or finds that there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if timers and timers[0][0] < math.inf:
            self.now = max(self.now, timers[0][0])
            return
        if self.on_deadlock is not None:
            self.on_deadlock()
        if not self._drawn:
            raise DeadlockError(f"at t={self.now:g} s every rank waits and nothing can happen any more")

    def hold(self, rank: int) -> None:
        """Nothing of `rank` runs from now on; what it has to do piles up."""
        self._drawn.hold(rank)

    def release(self, rank: int) -> None:
        """`rank` goes on with what has piled up."""
        self._drawn.release(rank)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """`func` runs here and now: threads would bring in an order that no seed controls."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Forgets whom it served, too: what is left refers to nothing but itself."""
        super().close()
        self.on_deadlock = None
        self.before_step.clear()
        self._timers.clear()

    def _write_to_self(self) -> None:
        """There is no other thread to be woken by."""

    def _make_self_pipe(self) -> None:
        """Nor a socket to be woken through."""

    def _close_self_pipe(self) -> None:
        """There is none."""


class _Drawn(deque[asyncio.Handle]):
    """The loop's ready queue: a queue per rank, and the rank to serve is drawn.

    A deque by name only, since asyncio wants one: the handles stand in `_queues`.
    """

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop
        self._queues: dict[int, deque[asyncio.Handle]] = {}
        self._waiting: list[int] = []  # ranks with something to do, in no particular but a reproducible order
        self._held: set[int] = set()
        self._count = 0
        self._nothing = asyncio.Handle(_nothing, (), loop)
        self._nothing.cancel()

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def append(self, handle: asyncio.Handle) -> None:
        owned: Any = handle  # by a context, of which asyncio's stubs do not know
        rank = owned._context.get(rank_running, -1)
        queue = self._queues.get(rank)
        if queue is None:
            queue = self._queues[rank] = deque()
        if rank in self._held:
            queue.append(handle)
            return
        if not queue:
            self._waiting.append(rank)
        queue.append(handle)
        self._count += 1

    def popleft(self) -> asyncio.Handle:
        waiting = self._waiting
        if not waiting:  # those that had something to do when the round began are held since
            return self._nothing
        loop = self._loop
        place = int(loop.random.random() * len(waiting)) if len(waiting) > 1 else 0
        rank = waiting[place]
        if rank in loop.before_step:
            loop.before_step[rank]()
            if rank in self._held:
                return self._nothing
            place = waiting.index(rank)
        queue = self._queues[rank]
        handle = queue.popleft()
        if not queue:
            waiting[place] = waiting[-1]
            waiting.pop()
        self._count -= 1
        loop.steps += 1
        return handle

    def hold(self, rank: int) -> None:
        """See SimLoop.hold."""
        if rank not in self._held:
            self._held.add(rank)
            if rank in self._waiting:
                self._waiting.remove(rank)
                self._count -= len(self._queues[rank])

    def release(self, rank: int) -> None:
        """See SimLoop.release."""
        if rank in self._held:
            self._held.remove(rank)
            queue = self._queues.get(rank)
            if queue:
                self._waiting.append(rank)
                self._count += len(queue)

    def clear(self) -> None:
        self._queues.clear()
        self._waiting.clear()
        self._count = 0


def _nothing() -> None:
    return


__all__ = ["SimLoop", "rank_running"]
