"""One runner among several: the same attempts as alone, but their end is everybody's.

Rule: local ranks are ended as soon as any node has failed, unless the job goes on without failed ranks; and what this
runner returns is what all of them return, unless it leaves a job that goes on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from aiocoll.runner.job import TIMEOUT_CODE, WHY, Attempt
from aiocoll.runner.nodes import End, Node
from aiocoll.runner.plan import Layout
from aiocoll.runner.signals import STOPPED, Signals
from aiocoll.runner.supervise import Supervisor

T = TypeVar("T")


async def among_others(supervisor: Supervisor, signals: Signals) -> tuple[int, list[str]]:
    """Meets the other runners and sees the job through; the exit code and the last words."""
    options = supervisor.options
    node = await _unless_stopped(Node.open(options, supervisor.say), signals)
    if node is None:
        return _stopped(signals)
    try:
        for restart in range(supervisor.restarts + 1):
            layout = await _unless_stopped(node.meet(restart), signals)
            if layout is None:
                code, words = _stopped(signals)
                if restart or node.serves:
                    await node.end(restart, End(code, node.rank, tuple(words), final=True))
                else:  # nothing has begun: another runner may come in its place
                    await node.go(f"was {WHY.get(code, 'stopped')}")
                return code, words
            end = await _OneOfMany(supervisor, node, layout, signals).run()
            if end.code == 0 or end.final or restart == supervisor.restarts:
                break
            supervisor.say_restart(restart, end.words)
        elsewhere = [f"aiocoll: node {end.node} reports:"] if end.node != node.rank and end.code else []
        return end.code, [*elsewhere, *end.words]
    finally:
        await node.close()


async def _go_or_end(node: Node, restart: int, end: End) -> End:
    """Stopped from outside: this runner alone leaves, where the job can do without it; else it is the end of all."""
    if node.may_leave and end.code != TIMEOUT_CODE:
        await node.go(f"was {WHY.get(end.code, 'stopped')}")
        return end
    return await node.end(restart, end)


class _OneOfMany:
    """One attempt of this runner."""

    def __init__(self, supervisor: Supervisor, node: Node, layout: Layout, signals: Signals) -> None:
        self._supervisor, self._node, self._signals = supervisor, node, signals
        self._restart = layout.restart
        started = supervisor.recipe.start(layout, supervisor.options.secret)
        self._attempt = supervisor.new_attempt(started, node.next_number)
        self._over: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._telling: list[asyncio.Task[Any]] = []
        self._stood: bool | None = None
        self._alone = False

    def __repr__(self) -> str:
        return f"_OneOfMany({self._node}, {self._attempt}, alone={self._alone})"

    async def run(self) -> End:
        attempt, node = self._attempt, self._node
        attempt.on_ending = self._tell_the_end
        attempt.on_change = self._changed
        try:
            async with self._supervisor.watched(attempt, self._signals):
                node.watch(self._restart, self._ended)
                await attempt.run()
                return await self._conclude()
        finally:
            await asyncio.gather(*self._telling, return_exceptions=True)
            await node.leave(self._restart)

    @property
    def _shrinks(self) -> bool:
        return self._supervisor.options.on_failure == "shrink"

    # -- while it runs ------------------------------------------------------------------------------------------------

    def _ended(self, end: End) -> None:
        """The attempt is over somewhere."""
        if end.lost and self._node.may_go_alone and self._attempt.stopped is None:
            self._alone = True
            self._supervisor.say(f"{end.words[0]}; the ranks here go on without it, and get no replacements")
            self._changed()
            return
        if not self._over.done():
            self._over.set_result(end)
        if end.code in STOPPED:
            if self._attempt.stopped is None:  # else it is our own end that comes back: no second Ctrl-C
                self._attempt.stop(end.code)
        elif end.code:
            self._attempt.end_for_failure()
        elif self._attempt.replacements is not None:
            self._attempt.replacements.end_idle()

    def _tell(self, telling: Coroutine[Any, Any, Any]) -> None:
        self._telling.append(asyncio.ensure_future(telling))

    def _tell_the_end(self) -> None:
        attempt = self._attempt
        if attempt.stopped is not None:
            self._tell(_go_or_end(self._node, self._restart, _end_of(attempt, self._node)))
        elif not attempt.verdict.only_consequences:
            self._tell(self._node.end(self._restart, _end_of(attempt, self._node)))

    def _changed(self) -> None:
        """Tells the others when all that runs here waits to be taken in, and when that is no longer so."""
        replacements = self._attempt.replacements
        if replacements is None:
            return
        if self._alone:
            replacements.end_when_idle()
        elif self._shrinks and self._attempt.running and self._stood is not replacements.idle:
            self._stood = replacements.idle
            self._tell(self._node.stands(self._restart, self._attempt.result(over=self._stood)))

    # -- when nothing runs here any more ------------------------------------------------------------------------------

    async def _conclude(self) -> End:
        attempt, node = self._attempt, self._node
        mine = _end_of(attempt, node)
        if self._alone or (attempt.stopped is not None and node.may_leave):
            return mine
        if self._over.done() and self._over.result().lost:
            return self._over.result()
        if mine.code and not (self._shrinks and attempt.stopped is None):
            told = await node.end(self._restart, mine)
            # What was told at the first failure was early; these words know how the others fared.
            return replace(told, words=tuple(attempt.last_words())) if told.node == node.rank else told
        await asyncio.gather(*self._telling, return_exceptions=True)
        await node.stands(self._restart, attempt.result())
        if await _unless_stopped(_result(self._over), self._signals, self._supervisor.seconds_left) is None:
            code, words = _stopped(self._signals)
            return await _go_or_end(node, self._restart, End(code, node.rank, tuple(words), final=True))
        return self._over.result()


def _end_of(attempt: Attempt, node: Node) -> End:
    code = attempt.exit_code
    return End(code, node.rank, tuple(attempt.last_words()), final=attempt.stopped is not None)


async def _result(future: asyncio.Future[T]) -> T:
    return await asyncio.shield(future)


async def _unless_stopped(wanted: Coroutine[Any, Any, T], signals: Signals, seconds: float = math.inf) -> T | None:
    """What `wanted` gives, None if a signal that ends the job comes before, or the time is up."""
    getting = asyncio.ensure_future(wanted)
    stopping = asyncio.ensure_future(signals.arrived.wait())
    try:
        timeout = None if seconds == math.inf else max(seconds, 0.0)
        await asyncio.wait([getting, stopping], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return getting.result() if getting.done() else None
    finally:
        for task in (getting, stopping):
            task.cancel()
        await asyncio.gather(getting, stopping, return_exceptions=True)


def _stopped(signals: Signals) -> tuple[int, list[str]]:
    code = signals.stopped or TIMEOUT_CODE
    return code, [f"aiocoll: {WHY.get(code, 'stopped')} while waiting for other runners; exit code {code}"]
