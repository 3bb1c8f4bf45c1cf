"""Several ranks as tasks of one loop: start them, crash some, and settle what the run as a whole has come to.

Rule: the first failure that is nobody's consequence is the one that is raised, and no task is left behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from ..errors import GroupBrokenError, PeerLostError, UsageError
from .loop import rank_running


@dataclass(frozen=True, slots=True)
class Crash:
    """A rank that stops as if its power were cut: `at` seconds after the start, or after `frames` more frames.

    Without either it is only expected that the rank dies, by its own hand.
    """

    rank: int
    at: float | None = None
    frames: int | None = None


class _Crashed:
    """What stands in the list of results for a rank that crashed as it was told to."""

    def __repr__(self) -> str:
        return "CRASHED"


CRASHED: Final = _Crashed()


def check_crashes(crashes: Iterable[Crash], size: int) -> tuple[Crash, ...]:
    """The crashes as a tuple, at most one per rank; UsageError for what cannot happen."""
    checked = tuple(crashes)
    for crash in checked:
        if not isinstance(crash, Crash) or not 0 <= crash.rank < size:
            raise UsageError(f"{crash!r} is no crash of one of {size} ranks; give Crash(rank, at=seconds)")
        if crash.at is not None and not 0 <= crash.at < math.inf:
            raise UsageError(f"{crash!r}: at= is seconds after the start")
    if len({crash.rank for crash in checked}) < len(checked):
        raise UsageError(f"a rank crashes at most once: {checked!r}")
    return checked


class Ranks:
    """The tasks of one run."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.crashed: set[int] = set()
        self.tasks: list[asyncio.Task[Any]] = []
        self.order: list[int] = []
        """Ranks in the order in which they ended."""
        self.verdict: BaseException | None = None
        """What the run came to when it is not a rank's own failure (a deadlock, say)."""

    def __repr__(self) -> str:
        return f"<Ranks {self.size}: {len(self.order)} ended, crashed {sorted(self.crashed)}>"

    def start(self, one: Callable[[int], Coroutine[Any, Any, Any]]) -> None:
        """Makes a task of each `one(rank)`, in a context that says which rank it is."""
        for rank in range(self.size):
            context = contextvars.copy_context()
            context.run(rank_running.set, rank)
            task = asyncio.get_running_loop().create_task(one(rank), name=f"rank {rank}", context=context)
            task.add_done_callback(lambda _, rank=rank: self.order.append(rank))  # type: ignore[misc]
            self.tasks.append(task)

    def ended(self) -> dict[int, str]:
        """How those that run no more have ended."""
        return {rank: self._how(rank) for rank in self.order}

    def _how(self, rank: int) -> str:
        task = self.tasks[rank]
        if rank in self.crashed:
            return "crashed"
        if task.cancelled():
            return "been cancelled"
        error = task.exception()
        return "returned" if error is None else f"raised {type(error).__name__}"

    def crash(self, rank: int) -> None:
        """The program of `rank` runs no further; what it holds is the caller's to cut."""
        if rank not in self.crashed and not self.tasks[rank].done():
            self.crashed.add(rank)
            self.tasks[rank].cancel("power cut")

    def stop(self, verdict: BaseException) -> None:
        """Ends the run with `verdict`."""
        if self.verdict is None:
            self.verdict = verdict
        for task in self.tasks:
            task.cancel(str(verdict).partition("\n")[0])

    async def wait(self, *, limit: float | None = None, grace: float | None = None) -> None:
        """Until all have ended. After `limit` seconds, or `grace` seconds after a failure, those left are cancelled
        and what they hung in becomes the verdict or a note to the failure."""
        until = math.inf if limit is None else asyncio.get_running_loop().time() + limit
        left = set(self.tasks)
        while left:
            now = asyncio.get_running_loop().time()
            timeout = None if until == math.inf else max(0.0, until - now)
            done, left = await asyncio.wait(left, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if left and not done:
                self.stop(TimeoutError(f"ranks still ran after their time:\n{self.stacks()}"))
                await asyncio.wait(left)
                return
            if grace is not None and any(not task.cancelled() and task.exception() for task in done):
                until = min(until, now + grace)

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
            if not self.tasks[rank].cancelled() and rank not in self.crashed
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
        cancelled = [rank for rank in self.order if self.tasks[rank].cancelled() and rank not in self.crashed]
        return asyncio.CancelledError(f"ranks {cancelled} were cancelled") if cancelled else None

    def results(self) -> list[Any]:
        """By rank, CRASHED for those that did as they were told; raises `failure` if there is one."""
        failure = self.failure()
        if failure is not None:
            raise failure
        return [CRASHED if rank in self.crashed else task.result() for rank, task in enumerate(self.tasks)]


__all__ = ["CRASHED", "Crash", "Ranks", "check_crashes"]
