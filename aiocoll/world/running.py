"""run: a whole program on one rank, from the first event loop to the last goodbye.

The rule: it adds nothing to ``async with connect()`` but the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import platform
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..errors import UsageError
from ..group import Group
from ..group.calls import true_or_false
from .connecting import connect

T = TypeVar("T")


def run(main: Callable[[Group], Awaitable[T]], *, uvloop: bool = True, **connect_arguments: Any) -> T:
    """Joins the world, runs ``main(group)`` to its end, closes everything and returns what ``main`` returned.

    ``uvloop``: use it where it is installed; the other keywords are those of ``connect``.
    """
    given: object = main
    if inspect.iscoroutine(given):
        given.close()  # or Python would complain that nobody awaited it
        name = given.__name__
        raise UsageError(f"run(main) takes an async function of a group: write run({name}), not run({name}(...))")
    if not callable(main):
        raise UsageError(f"run(main) takes an async function of a group, not {main!r}")
    if asyncio._get_running_loop() is not None:
        raise UsageError("run() cannot be called from a running event loop: use 'async with aiocoll.connect()'")

    async def program() -> T:
        async with connect(**connect_arguments) as group:
            result = main(group)
            del group  # which main may replace by another one that grew out of it
            if not inspect.isawaitable(result):
                raise UsageError(
                    f"run(main): {getattr(main, '__name__', main)!r} must be an async function; "
                    "a plain one has the blocking group of aiocoll.sync.connect()"
                )
            return await result

    factory = new_event_loop if true_or_false(uvloop, "run", "uvloop") else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(program())


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop where there is one, else asyncio's own."""
    if platform.python_implementation() == "CPython" and sys.platform != "win32":
        try:
            import uvloop
        except ImportError:
            pass  # an optional speed-up where it is not installed
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()
