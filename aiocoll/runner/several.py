"""One runner among several: the same attempts as alone, but their end is everybody's.

Rule: local ranks are ended as soon as any node has failed, and what this runner returns is what all of them return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from aiocoll.runner.job import Attempt
from aiocoll.runner.nodes import End, Node
from aiocoll.runner.plan import Layout
from aiocoll.runner.signals import STOPPED, Signals
from aiocoll.runner.supervise import Supervisor

T = TypeVar("T")


async def among_others(supervisor: Supervisor, signals: Signals) -> tuple[int, list[str]]:
    """Meets the other runners and sees the job through; the exit code and the last words."""
    options = supervisor.options
    node = await _unless_stopped(Node.open(options), signals)
    if node is None:
        return _stopped(signals)
    try:
        for restart in range(supervisor.restarts + 1):
            layout = await _unless_stopped(node.meet(restart), signals)
            if layout is None:
                code, words = _stopped(signals)
                await node.end(restart, End(code, node.rank, tuple(words), final=True))
                return code, words
            end = await _attempt(supervisor, node, layout, signals)
            if end.code == 0 or end.final or restart == supervisor.restarts:
                break
            supervisor.say_restart(restart, end.words)
        elsewhere = [f"aiocoll: node {end.node} reports:"] if end.node != node.rank else []
        return end.code, [*elsewhere, *end.words] if end.code else []
    finally:
        await node.close()


async def _attempt(supervisor: Supervisor, node: Node, layout: Layout, signals: Signals) -> End:
    started = supervisor.recipe.start(layout, supervisor.options.secret)
    attempt = supervisor.new_attempt(started, node.next_number)
    over: asyncio.Future[End] = asyncio.get_running_loop().create_future()
    telling: list[asyncio.Task[End]] = []

    def ended(end: End) -> None:
        if not over.done():
            over.set_result(end)
        if end.code in STOPPED:
            if attempt.stopped is None:  # else it is our own end that comes back: no second Ctrl-C
                attempt.stop(end.code)
        elif end.code:
            attempt.end_for_failure()

    def tell() -> None:
        if attempt.stopped is not None or not attempt.verdict.only_consequences:
            telling.append(asyncio.ensure_future(node.end(layout.restart, _end_of(attempt, node))))

    attempt.on_ending = tell
    try:
        async with supervisor.watched(attempt, signals):
            node.watch(layout.restart, ended)
            await attempt.run()
            if over.done() and over.result().lost:
                return over.result()
            mine = await node.finish(layout.restart, _end_of(attempt, node))
            if mine.code:
                # What was told at the first failure was early; these words know how the others fared.
                return replace(mine, words=tuple(attempt.last_words())) if mine.node == node.rank else mine
            if await _unless_stopped(_result(over), signals) is None:
                code, words = _stopped(signals)
                return await node.finish(layout.restart, End(code, node.rank, tuple(words), final=True))
            return over.result()
    finally:
        await asyncio.gather(*telling, return_exceptions=True)
        await node.leave(layout.restart)


def _end_of(attempt: Attempt, node: Node) -> End:
    code = attempt.exit_code
    return End(code, node.rank, tuple(attempt.last_words()) if code else (), final=attempt.stopped is not None)


async def _result(future: asyncio.Future[T]) -> T:
    return await asyncio.shield(future)


async def _unless_stopped(wanted: Coroutine[Any, Any, T], signals: Signals) -> T | None:
    """What `wanted` gives, None if a signal that ends the job comes before."""
    getting = asyncio.ensure_future(wanted)
    stopping = asyncio.ensure_future(signals.arrived.wait())
    try:
        await asyncio.wait([getting, stopping], return_when=asyncio.FIRST_COMPLETED)
        return getting.result() if getting.done() else None
    finally:
        for task in (getting, stopping):
            task.cancel()
        await asyncio.gather(getting, stopping, return_exceptions=True)


def _stopped(signals: Signals) -> tuple[int, list[str]]:
    code = signals.stopped or 1
    return code, [f"aiocoll: stopped while waiting for other runners; exit code {code}"]
