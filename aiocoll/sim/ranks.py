"""Several ranks as tasks of one loop: start them, stop some, and settle what the run as a whole has come to.

Rule: the first failure that is nobody's consequence is the one that is raised, and no task is left behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from ..errors import GroupBrokenError, PeerLostError
from .loop import rank_running


class Stopped:
    """What stands in the list of results for a rank that a fault has ended."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __repr__(self) -> str:
        return self.how.upper()


CRASHED: Final = Stopped("crashed")
FROZEN: Final = Stopped("frozen")
CANCELLED: Final = Stopped("cancelled")


class Ranks:
    """The tasks of one run."""

    def __init__(self, size: int, at_end: Callable[[int], object] | None = None) -> None:
        """``at_end`` hears of each rank whose program has ended."""
        self.size: int = size
        self._at_end = at_end
        self.stopped: dict[int, Stopped] = {}
        """How faults have ended ranks; one that is cancelled may still go its own way."""
        self.tasks: list[asyncio.Task[Any]] = []
        self._over: list[asyncio.Future[None]] = []
        self._still: set[int] = set()
        self.order: list[int] = []
        """Ranks in the order in which they ended."""
        self.verdict: BaseException | None = None
        """What the run came to when it is not a rank's own failure (a deadlock, say)."""

    def __repr__(self) -> str:
        return f"<Ranks {self.size}: {len(self.order)} ended, stopped {self.stopped}>"

    def start(
        self, one: Callable[[int], Coroutine[Any, Any, Any]], contexts: Sequence[contextvars.Context] = ()
    ) -> None:
        """Makes a task of each `one(rank)`, in a context that says which rank it is (the one that is given, if any)."""
        loop = asyncio.get_running_loop()
        for rank in range(self.size):
            self._over.append(loop.create_future())
            context = contexts[rank] if contexts else contextvars.copy_context()
            context.run(rank_running.set, rank)
            task = loop.create_task(one(rank), name=f"rank {rank}", context=context)
            task.add_done_callback(functools.partial(self._ended, rank))
            self.tasks.append(task)

    def _ended(self, rank: int, _: asyncio.Task[Any]) -> None:
        self.order.append(rank)
        if self._at_end is not None:
            self._at_end(rank)
        if not self._over[rank].done():
            self._over[rank].set_result(None)

    def ended(self) -> dict[int, str]:
        """How those that run no more have ended."""
        return {rank: self._how(rank) for rank in self.order} | {rank: "frozen" for rank in self.still()}

    def _how(self, rank: int) -> str:
        task = self.tasks[rank]
        stopped = self.stopped.get(rank)
        if stopped is not None and (stopped is not CANCELLED or task.cancelled()):
            return "been cancelled" if stopped is CANCELLED else stopped.how
        if task.cancelled():
            return "been cancelled"
        error = task.exception()
        return "returned" if error is None else f"raised {type(error).__name__}"

    def cancel(self, rank: int, how: Stopped) -> None:
        """The program of `rank` is cancelled; unless that is all, it runs no further, and what it holds is the
        caller's to cut."""
        if not self.tasks[rank].done() and self.stopped.get(rank, CANCELLED) is CANCELLED:
            self.stopped[rank] = how
            self.tasks[rank].cancel(how.how)

    def crash(self, rank: int) -> None:
        """The program of `rank` runs no further; what it holds is the caller's to cut."""
        self.cancel(rank, CRASHED)

    def stand_still(self, rank: int) -> None:
        """Nobody waits for the end of `rank` any more."""
        self._still.add(rank)
        if not self._over[rank].done():
            self._over[rank].set_result(None)

    def still(self) -> list[int]:
        """Those that stand still and have not ended."""
        return sorted(rank for rank in self._still if not self.tasks[rank].done())

    def stop(self, verdict: BaseException) -> None:
        """Ends the run with `verdict`."""
        if self.verdict is None:
            self.verdict = verdict
        for task in self.tasks:
            task.cancel(str(verdict).partition("\n")[0])

    async def wait(self, *, limit: float | None = None, grace: float | None = None) -> None:
        """Until all have ended, but for those that stand still. After `limit` seconds, or `grace` seconds after a
        failure, those left are cancelled and what they hung in becomes the verdict or a note to the failure."""
        until = math.inf if limit is None else asyncio.get_running_loop().time() + limit
        left = set(self._over)
        while left:
            now = asyncio.get_running_loop().time()
            timeout = None if until == math.inf else max(0.0, until - now)
            done, left = await asyncio.wait(left, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if left and not done:
                self.stop(TimeoutError(f"ranks still ran after their time:\n{self.stacks()}"))
                await asyncio.wait(left)
                return
            if grace is not None and self._failed():
                until = min(until, now + grace)

    def _failed(self) -> bool:
        ended = [task for task in self.tasks if task.done()]
        return any(not task.cancelled() and task.exception() for task in ended)

    def stacks(self) -> str:
        """Where each rank that still runs stands."""
        lines = []
        for rank, task in enumerate(self.tasks):
            frames = [] if task.done() else task.get_stack()
            if frames:
                inner: Any = task.get_coro()
                while getattr(inner, "cr_await", None) is not None and hasattr(inner.cr_await, "cr_frame"):
                    inner = inner.cr_await
                frame = getattr(inner, "cr_frame", None) or frames[-1]
                lines.append(f"  rank {rank}: {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        return "\n".join(lines)

    def failure(self) -> BaseException | None:
        """The cause of the run's failure: the verdict, else the earliest error that is no consequence of another."""
        errors = [
            (self.tasks[rank].exception(), rank)
            for rank in self.order
            if not self.tasks[rank].cancelled() and not self._as_told(rank)
        ]
        failed = [(error, rank) for error, rank in errors if error is not None]
        causes = [pair for pair in failed if not isinstance(pair[0], PeerLostError | GroupBrokenError)] or failed
        if self.verdict is not None and not (causes and isinstance(self.verdict, TimeoutError)):
            return self.verdict
        if causes:
            error, rank = causes[0]
            error.add_note(f"raised on rank {rank} of {self.size}")
            others = {other: how for other, how in sorted(self.ended().items()) if other != rank}
            if others:
                error.add_note("the others: " + ", ".join(f"rank {other} has {how}" for other, how in others.items()))
            return error
        cancelled = [rank for rank in self.order if self.tasks[rank].cancelled() and not self._as_told(rank)]
        return asyncio.CancelledError(f"ranks {cancelled} were cancelled") if cancelled else None

    def _as_told(self, rank: int) -> bool:
        """Whether a fault has ended this rank."""
        stopped = self.stopped.get(rank)
        return stopped is not None and (stopped is not CANCELLED or self.tasks[rank].cancelled())

    def results(self) -> list[Any]:
        """By rank, CRASHED and the like for those that a fault has ended; raises `failure` if there is one."""
        failure = self.failure()
        if failure is not None:
            raise failure
        return [self.stopped[rank] if self._as_told(rank) else task.result() for rank, task in enumerate(self.tasks)]


__all__ = ["CANCELLED", "CRASHED", "FROZEN", "Ranks", "Stopped"]
