"""The event loop of a runner: store, attempts, restarts, deadline, and the last words.

Rule: whatever happens, ranks are ended before this returns, and the exit code is the one documented.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from aiocoll.errors import AiocollError, RendezvousTimeoutError, UsageError
from aiocoll.runner.console import Console
from aiocoll.runner.job import TIMEOUT_CODE, Attempt, open_logs
from aiocoll.runner.options import JOIN_S, Options
from aiocoll.runner.processes import Processes
from aiocoll.runner.replace import Claim, Replacements
from aiocoll.runner.signals import UNREAD_CODE, EarlySignals, Signals
from aiocoll.runner.start import Recipe, Started
from aiocoll.store.server import StoreServer


class Supervisor:
    """One run of ``aiocoll run`` (or of `launch`, without signals) on this host."""

    options: Options
    recipe: Recipe

    def __init__(self, options: Options, recipe: Recipe, console: Console) -> None:
        self.options, self.recipe, self._console = options, recipe, console
        self._deadline = math.inf
        self._replacements = 0
        self.attempt: Attempt | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"Supervisor(attempt={self.attempt})"

    async def run(self, first: Started | None, early: EarlySignals | None = None) -> tuple[int, list[str]]:
        """The job's exit code and the last words; `first` are ranks that have been started already.

        Signals are handled where the process has caught them from its beginning (`early`).
        """
        self.loop = asyncio.get_running_loop()
        self._deadline = self.loop.time() + self.options.timeout
        with contextlib.ExitStack() as stack:
            if self.recipe.traces is not None:
                stack.callback(self.recipe.traces.remove)
            caught = stack.enter_context(Signals(self.loop, early)) if early is not None else None
            if caught is not None:
                self._console.on_unread = partial(self._unread, self.loop, caught)
            if first is not None:
                return await self._alone(first, caught)
            assert caught is not None
            from aiocoll.runner.several import among_others

            return await among_others(self, caught)

    @staticmethod
    def _unread(loop: asyncio.AbstractEventLoop, signals: Signals) -> None:
        """Other tools get SIGPIPE when nobody reads what they say."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the job with it
            loop.call_soon_threadsafe(signals.stop, UNREAD_CODE)

    async def _alone(self, started: Started, signals: Signals | None) -> tuple[int, list[str]]:
        for restart in range(self.restarts + 1):
            if restart:
                started = self.recipe.start_alone(replace(started.layout, restart=restart))
            attempt = self.new_attempt(started, self._next_number)
            assert started.listener is not None
            async with _serving(started), self.watched(attempt, signals):
                await attempt.run()
            if attempt.exit_code == 0 or attempt.stopped is not None or restart == self.restarts:
                break
            self.say_restart(restart, attempt.last_words())
        return attempt.exit_code, attempt.last_words()

    @property
    def restarts(self) -> int:
        """How often all ranks may be started again."""
        return self.options.max_restarts if self.options.on_failure == "restart" else 0

    async def _next_number(self) -> int | None:
        if self._replacements == self.options.max_restarts:
            return None
        self._replacements += 1
        return self._replacements

    @property
    def seconds_left(self) -> float:
        """Until the job's --timeout."""
        return self._deadline - asyncio.get_running_loop().time()

    # -- parts --------------------------------------------------------------------------------------------------------

    def new_attempt(self, started: Started, claim: Claim) -> Attempt:
        """Watches over ranks that have just been started; `claim` gives each replacement its number."""
        layout, options = started.layout, self.options
        ranks = range(layout.first, layout.first + layout.ranks)
        logs = open_logs(options.log_dir, ranks, layout.restart) if options.log_dir else {}
        self.attempt = Attempt(
            started.processes,
            ranks,
            self._console,
            size=layout.size,
            on_failure=options.on_failure,
            grace=options.grace,
            failure_grace=options.failure_grace,
            logs=logs,
            traces=self.recipe.traces,
            job=layout.job,
        )
        if options.on_failure == "shrink" and (options.max_restarts or layout.join):
            self._replace_in(self.attempt, started, claim)
        return self.attempt

    def _replace_in(self, attempt: Attempt, started: Started, claim: Claim) -> None:
        def start(rank: int, number: int, join: bool) -> Processes:
            return self.recipe.start_in_place_of(rank, started.layout, started.secret, number, join=join)

        attempt.replacements = Replacements(attempt, start, claim, self.options.max_restarts)
        attempt.on_change = attempt.replacements.end_when_idle
        if started.layout.join:
            attempt.replacements.all_are_new()

    @asynccontextmanager
    async def watched(self, attempt: Attempt, signals: Signals | None) -> AsyncIterator[None]:
        """Signals and the deadline reach this attempt while it runs."""
        loop = asyncio.get_running_loop()
        timer = loop.call_at(self._deadline, attempt.stop, TIMEOUT_CODE) if self._deadline < math.inf else None
        if signals is not None:
            signals.attempt = attempt
            if signals.stopped is not None:
                loop.call_soon(attempt.stop, signals.stopped)
        try:
            yield
        finally:
            if signals is not None:
                signals.attempt = None
            if timer is not None:
                timer.cancel()
            for log in attempt.logs.values():
                log.close()

    def say(self, text: str) -> None:
        """A word in the middle of the job."""
        self._console.say(text)

    def say_restart(self, restart: int, words: Sequence[str]) -> None:
        """Why an attempt ended, and that the next follows."""
        for line in words:
            self._console.say(line)
        self._console.event("restart", number=restart + 1, most=self.restarts)
        self._console.say(f"aiocoll: starting all ranks again (restart {restart + 1} of {self.restarts})")


@asynccontextmanager
async def _serving(started: Started) -> AsyncIterator[None]:
    layout = started.layout
    server = await StoreServer.start("127.0.0.1", 0, secret=started.secret, job=layout.job, sock=started.listener)
    try:
        yield
    finally:
        await server.close()


def supervise(options: Options, recipe: Recipe, console: Console, first: Started | None, early: EarlySignals) -> int:
    """Runs a `Supervisor` in an event loop of its own and says the last words; errors of the meeting are some, too."""
    try:
        code, words = asyncio.run(Supervisor(options, recipe, console).run(first, early))
    except UsageError:
        raise
    except AiocollError as error:
        late = isinstance(error, RendezvousTimeoutError) and options.timeout < JOIN_S
        code, words = TIMEOUT_CODE if late else 1, [f"aiocoll: {error}"]
    finally:
        if first is not None:
            first.close()
    for line in words:
        console.say(line)
    console.event("end", code=code, words=words)
    return code
