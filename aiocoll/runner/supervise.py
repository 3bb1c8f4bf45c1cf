"""The event loop of a runner: store, attempts, restarts, deadline, and the last words.

Rule: whatever happens, ranks are ended before this returns, and the exit code is the one documented.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from aiocoll.errors import AiocollError
from aiocoll.runner.console import Console
from aiocoll.runner.job import Attempt, Signals, open_logs
from aiocoll.runner.nodes import End, Node
from aiocoll.runner.options import Options
from aiocoll.runner.plan import Layout
from aiocoll.runner.start import Recipe, Started
from aiocoll.store.server import StoreServer

TIMEOUT_CODE = 124


class Supervisor:
    """One run of ``aiocoll run`` (or of `launch`, without signals) on this host."""

    def __init__(self, options: Options, recipe: Recipe, console: Console) -> None:
        self._options, self._recipe, self._console = options, recipe, console
        self._deadline = math.inf
        self.attempt: Attempt | None = None

    def __repr__(self) -> str:
        return f"Supervisor(attempt={self.attempt})"

    async def run(self, first: Started | None, *, signals: bool = True) -> int:
        """The job's exit code; `first` are ranks that have been started already."""
        self._deadline = asyncio.get_running_loop().time() + self._options.timeout
        with contextlib.ExitStack() as stack:
            caught = stack.enter_context(Signals(asyncio.get_running_loop())) if signals else None
            code, words = await (self._alone(first, caught) if first is not None else self._among_others(caught))
        for line in words:
            self._console.say(line)
        self._console.event("end", code=code, words=words)
        return code

    async def _alone(self, started: Started, signals: Signals | None) -> tuple[int, list[str]]:
        for restart in range(self._options.max_restarts + 1):
            if restart:
                started = self._recipe.start_alone(replace(started.layout, restart=restart))
            attempt = self._attempt(started)
            assert started.listener is not None
            async with _serving(started), self._watched(attempt, signals):
                await attempt.run()
            if attempt.exit_code == 0 or attempt.stopped is not None or restart == self._options.max_restarts:
                break
            self._say_restart(restart, attempt.last_words())
        return attempt.exit_code, [] if attempt.exit_code == 0 else attempt.last_words()

    async def _among_others(self, signals: Signals | None) -> tuple[int, list[str]]:
        interrupted = asyncio.ensure_future(_until_stopped(signals))
        opening = asyncio.ensure_future(Node.open(self._options))
        await asyncio.wait([opening, interrupted], return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            return _stopped(signals)
        try:
            node = opening.result()
        except BaseException:
            interrupted.cancel()
            raise
        try:
            for restart in range(self._options.max_restarts + 1):
                meeting = asyncio.ensure_future(node.meet(restart))
                await asyncio.wait([meeting, interrupted], return_when=asyncio.FIRST_COMPLETED)
                if not meeting.done():
                    meeting.cancel()
                    await node.end(restart, End(_stopped(signals)[0], self._options.node_rank, tuple(_stopped(signals)[1]), True))
                    return _stopped(signals)
                end = await self._one_of_several(node, meeting.result(), signals)
                if end.code == 0 or end.final or restart == self._options.max_restarts:
                    break
                self._say_restart(restart, end.words)
            away = end.node != self._options.node_rank
            return end.code, [f"aiocoll: node {end.node} says:" * away, *end.words][not away :] if end.code else []
        finally:
            interrupted.cancel()
            await node.close()

    async def _one_of_several(self, node: Node, layout: Layout, signals: Signals | None) -> End:
        attempt = self._attempt(self._recipe.start(layout, self._options.secret))
        over: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        telling: list[asyncio.Future[End]] = []

        def ended(end: End) -> None:
            if not over.done():
                over.set_result(end)
            if end.code:
                attempt.end_for_failure()

        def tell() -> None:
            if not attempt.verdict.only_consequences:
                telling.append(asyncio.ensure_future(node.end(layout.restart, self._end_of(attempt))))

        attempt.on_first_failure = tell
        node.watch(layout.restart, ended)
        try:
            async with self._watched(attempt, signals):
                running = asyncio.ensure_future(attempt.run())
                await asyncio.wait([running])
                running.result()
                mine = await node.finish(layout.restart, self._end_of(attempt))
                if mine.code:
                    return mine
                stopped = asyncio.ensure_future(_until_stopped(signals))
                await asyncio.wait([over, stopped], return_when=asyncio.FIRST_COMPLETED)
                stopped.cancel()
                if not over.done():
                    return await node.finish(layout.restart, End(_stopped(signals)[0], self._options.node_rank, final=True))
                return over.result()
        finally:
            await asyncio.gather(*telling, return_exceptions=True)
            await node.leave(layout.restart)

    def _end_of(self, attempt: Attempt) -> End:
        words = tuple(attempt.last_words()) if attempt.exit_code else ()
        return End(attempt.exit_code, self._options.node_rank, words, attempt.stopped is not None)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _attempt(self, started: Started) -> Attempt:
        layout, options = started.layout, self._options
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
        )
        return self.attempt

    @asynccontextmanager
    async def _watched(self, attempt: Attempt, signals: Signals | None) -> AsyncIterator[None]:
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

    def _say_restart(self, restart: int, words: list[str] | tuple[str, ...]) -> None:
        for line in words:
            self._console.say(line)
        self._console.event("restart", number=restart + 1, most=self._options.max_restarts)
        self._console.say(f"aiocoll: starting all ranks again (restart {restart + 1} of {self._options.max_restarts})")


@asynccontextmanager
async def _serving(started: Started) -> AsyncIterator[None]:
    layout = started.layout
    server = await StoreServer.start("127.0.0.1", 0, secret=started.secret, job=layout.job, sock=started.listener)
    try:
        yield
    finally:
        await server.close()


async def _until_stopped(signals: Signals | None) -> None:
    """Returns when a signal has come that ends the job."""
    if signals is None:
        await asyncio.Event().wait()
    else:
        await signals.arrived.wait()


def _stopped(signals: Signals | None) -> tuple[int, list[str]]:
    code = (signals.stopped if signals is not None else None) or 1
    return code, [f"aiocoll: stopped before all runners had met; exit code {code}"]


def supervise(
    options: Options,
    recipe: Recipe,
    console: Console,
    first: Started | None,
    *,
    signals: bool = True,
    ready: Callable[[Supervisor], None] = lambda supervisor: None,
) -> int:
    """Runs a `Supervisor` in an event loop of its own; errors of the meeting become words and exit code 1."""
    supervisor = Supervisor(options, recipe, console)
    ready(supervisor)
    try:
        return asyncio.run(supervisor.run(first, signals=signals))
    except AiocollError as error:
        console.say(f"aiocoll: {error}")
        console.event("end", code=1, words=[str(error)])
        return 1
    finally:
        if first is not None:
            first.close()
