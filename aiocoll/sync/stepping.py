"""Stepping: a coroutine is run by hand for its first step, and by a Task of its loop for the rest.

The rule: nothing here knows of groups or drivers; a coroutine notices no difference, cancellation included.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

from ..errors import GroupBrokenError

T = TypeVar("T")
Make = Callable[[], Awaitable[T]]

ABANDON_SECONDS_MAX = 1.0  # what an interrupted call gets to tell its peers


def coroutine_of(awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
    return cast(Coroutine[Any, Any, T], awaitable) if hasattr(awaitable, "send") else _awaited(awaitable)


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def followed(awaitable: Awaitable[Any], after: Callable[[Any], Any]) -> Any:
    """What ``after`` makes of the result, before anybody sees that there is one."""
    return after(await awaitable)


async def as_task(make: Make[T]) -> T:
    await asyncio.sleep(0)  # parks, so that what follows runs in the Task that continues this
    return await make()


class Continued(Coroutine[Any, Any, T]):
    """The rest of a coroutine that was stepped once by hand and waits for `parked_on`, as a Task's coroutine.

    Not an ``async def``: a Task that is cancelled before its first step would close that one unstarted, and the
    coroutine inside, which has started, would never learn of it.
    """

    __slots__ = ("_coroutine", "_parked_on", "_resumed")

    def __init__(self, coroutine: Coroutine[Any, Any, T], parked_on: Any) -> None:
        self._coroutine, self._parked_on, self._resumed = coroutine, parked_on, False

    def continues(self, coroutine: Coroutine[Any, Any, Any]) -> bool:
        return self._coroutine is coroutine

    def send(self, value: Any) -> Any:
        if self._resumed:
            return self._coroutine.send(value)
        self._resumed = True
        return self._parked_on

    def throw(self, *error: Any) -> Any:
        if not self._resumed:
            self._resumed = True
            if self._parked_on is not None and self._parked_on.cancel():  # what a Task does to what it waits for
                return self._parked_on
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise NotImplementedError("only a Task runs this")

    @property
    def __name__(self) -> str:
        return getattr(self._coroutine, "__name__", type(self._coroutine).__name__)

    def __repr__(self) -> str:
        return f"Continued({self._coroutine!r})"


# ---------------------------------------------------------------------------------------------- ends of a wait


def stop_loop(task: asyncio.Task[Any]) -> None:
    task.get_loop().stop()


def abandon(
    coroutine: Coroutine[Any, Any, Any], task: asyncio.Task[Any] | None, loop: asyncio.AbstractEventLoop
) -> None:
    """Ends an interrupted call as ``abandon_task`` does, wherever between two of its steps it was."""
    if getattr(coroutine, "cr_suspended", False) and (task is None or task.done()):
        for each in asyncio.all_tasks(loop):
            rest = each.get_coro()
            if isinstance(rest, Continued) and rest.continues(coroutine):
                break
        else:
            each = loop.create_task(Continued(coroutine, None))
        abandon_task(each, loop)
    if task is not None:
        abandon_task(task, loop)


def abandon_task(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Cancels an interrupted call and gives it a moment to tell its peers."""
    if not task.done():
        task.cancel()
        task.add_done_callback(stop_loop)
        until = loop.time() + ABANDON_SECONDS_MAX
        limit = loop.call_at(until, loop.stop)
        try:
            while not task.done() and loop.time() < until:  # a stop may be left over from before
                loop.run_forever()
        finally:
            limit.cancel()
    if task.done() and not task.cancelled():
        task.exception()  # seen: it is the interrupt itself, or what the cancelled call made of it


class Latch:
    """Opens once; whoever waits for it goes on then. An Event whose waits a Ctrl-C can end without harm."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        self._lock.release()

    def wait(self) -> None:
        with self._lock:
            pass

    def wait_for(self, seconds: float) -> None:
        """The same with a limit, for the only one that waits."""
        self._lock.acquire(timeout=seconds)

    def __repr__(self) -> str:
        return f"<Latch, {'closed' if self._lock.locked() else 'open'}>"


def outcome(task: asyncio.Task[T], loop: asyncio.AbstractEventLoop, ended: Latch, leave: Callable[[], None]) -> T:
    """Leaves the loop to its thread, and waits for a call that goes on there."""
    try:
        leave()
        ended.wait()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        ended.wait_for(ABANDON_SECONDS_MAX)
        raise
    if not task.done():
        raise GroupBrokenError("this call did not end when its world was closed, and was given up")
    return task.result()
