"""New processes in place of ranks that failed while the others go on (``--on-failure shrink --max-restarts N``).

Rule: a replacement is started only while somebody runs who can take it in, and whoever waits for that in vain is ended.

What the runner knows of a rank's place in the world is what the rank says (`aiocoll.observe.report.tell`): that it is
``connecting``, ``waiting`` to be taken in, or has ``met`` the others. A program that never says anything may run with
replacements too; it is only never found to wait in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiocoll.errors import AiocollError
from aiocoll.runner.processes import Processes
from aiocoll.runner.verdict import Ending

if TYPE_CHECKING:
    from aiocoll.runner.job import Attempt

CONSEQUENCE_WAIT_S = 0.5
"""A rank that could not go on is often only the first of all; so long it is seen whether others can."""
IDLE_S = 0.5
"""So long nobody may have been left who could take a replacement in, until it is ended."""

Start = Callable[[int, int, bool], Processes]
"""(rank, number of the replacement, whether it joins a world that has met) -> its process, started."""
Claim = Callable[[], Awaitable[int | None]]
"""The number of the next replacement of the job, None when there may be no more."""


class Replacements:
    """Of one `Attempt`; `most` is only for words."""

    def __init__(self, attempt: Attempt, start: Start, claim: Claim, most: int) -> None:
        self._attempt, self._start, self._claim, self._most = attempt, start, claim, most
        self._tasks: set[asyncio.Task[None]] = set()
        self._newcomers: set[int] = set()  # whose process has not met the others yet
        self._waiting: set[int] = set()
        self._connecting = self._met = False
        self._idle: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"Replacements(most={self._most}, newcomers={sorted(self._newcomers)}, pending={self.pending})"

    @property
    def pending(self) -> bool:
        """Whether a replacement is about to be started."""
        return bool(self._tasks)

    @property
    def idle(self) -> bool:
        """Whether all that runs here waits to be taken in."""
        running = self._attempt.running
        return bool(running) and not self.pending and all(rank in self._waiting for rank in running)

    def all_are_new(self) -> None:
        """The ranks of this runner come to a world that others have formed."""
        self._met = True
        self._newcomers.update(self._attempt.ranks)

    def heard(self, rank: int, word: str) -> None:
        """A rank has said where it stands."""
        if word == "connecting":
            self._connecting = True
        elif word == "waiting":
            self._waiting.add(rank)
        elif word == "met":
            self._met = True
            self._newcomers.discard(rank)
            self._waiting.discard(rank)

    def consider(self, ending: Ending) -> None:
        """A rank has failed: replaces it, now or after a moment, if there is a use for that."""
        self._newcomers.discard(ending.rank)
        self._waiting.discard(ending.rank)
        task = asyncio.get_running_loop().create_task(self._replace(ending))
        self._tasks.add(task)
        task.add_done_callback(self._considered)

    def _considered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._attempt.look_whether_over()
        self._attempt.on_change()

    async def _replace(self, ending: Ending) -> None:
        attempt, rank = self._attempt, ending.rank
        if ending.consequence:
            await asyncio.sleep(CONSEQUENCE_WAIT_S)
        if attempt.is_ending():
            return
        if not self._somebody_goes_on():
            attempt.verdict.not_replaced[rank, ending.number] = "nobody was left whom it could have joined"
            return
        number = await self._claim()
        if number is None:
            attempt.verdict.not_replaced[rank, ending.number] = f"--max-restarts {self._most} was used up"
            return
        if attempt.is_ending():
            return
        # As long as nobody has met, the world is still being formed, and the rank's own place in it is free again.
        join = self._met or not self._connecting
        try:
            processes = self._start(rank, number, join)
        except AiocollError as error:
            attempt.verdict.not_replaced[rank, ending.number] = f"no process could be started: {error}"
            return
        if join:
            self._newcomers.add(rank)
        attempt.adopt(rank, processes, number)

    def _somebody_goes_on(self) -> bool:
        return any(rank not in self._newcomers for rank in self._attempt.running)

    # -- waiting in vain ----------------------------------------------------------------------------------------------

    def end_when_idle(self) -> None:
        """For a runner that is alone: if all that is left of the job waits for a while, it is ended."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self.idle:
            self._idle = asyncio.get_running_loop().call_later(IDLE_S, self.end_idle)

    def end_idle(self) -> None:
        """Ends those that wait."""
        attempt = self._attempt
        if self.idle and not attempt.is_ending():
            attempt.verdict.too_late.update(attempt.running)
            attempt.end_idle()

    async def close(self) -> None:
        """Starts nothing any more."""
        if self._idle is not None:
            self._idle.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
