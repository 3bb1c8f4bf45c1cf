"""Future: what ``Work.get_future()`` returns, in torch's words.

The rule: a callback runs once, when the value is there, on the thread that brought it (at once where it is there
already), and in the context of whoever gave it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from ..sync.work import call_back
from .refusals import RuntimeUsageError, TypeUsageError

T = TypeVar("T")
S = TypeVar("S")


def _may_block() -> None:
    """A future that no call is behind may be waited for anywhere."""


class Future(Generic[T]):
    """A value that comes later; ``done()``, ``wait()``, ``value()``, ``then(callback)``; a loop may await it."""

    __slots__ = ("_future", "_refuse_to_block")

    def __init__(self, *, devices: Any = None) -> None:
        """``devices``: accepted for code written for GPUs; nothing here depends on it."""
        self._future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._refuse_to_block: Callable[[], None] = _may_block

    @classmethod
    def behind(cls, refuse_to_block: Callable[[], None]) -> Future[Any]:
        """A future for which waiting raises what ``refuse_to_block`` raises, while its value is not there."""
        future: Future[Any] = cls()
        future._refuse_to_block = refuse_to_block
        return future

    def settled(self) -> None:
        """It is done: what was behind it is needed no more."""
        self._refuse_to_block = _may_block

    def done(self) -> bool:
        """Is there a value or an error?"""
        return self._future.done()

    def wait(self) -> T:
        """Blocks until there is a value, and returns it; raises the error instead where there is one."""
        if not self._future.done():
            self._refuse_to_block()
        return self._future.result()

    def value(self) -> T:
        """The value of a future that is done; its error is raised."""
        if not self._future.done():
            raise RuntimeUsageError("value() of a future that is not done: wait() first, or use it in then(callback)")
        return self._future.result()

    def then(self, callback: Callable[[Future[T]], S]) -> Future[S]:
        """A future of what ``callback(this)`` returns, which runs when this one is done; it hears of errors through
        ``value()``. On the thread of a group's loop it must not block: what waits for a call is refused there."""
        _require_callable(callback)
        following: Future[S] = Future.behind(self._refuse_to_block)

        def run(_: Future[T]) -> None:
            try:
                following.set_result(callback(self))
            except BaseException as error:  # whoever waits for what follows hears it, whatever it is
                following.set_exception(error)
            following.settled()

        self.add_done_callback(run)
        return following

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Runs ``callback(this)`` when this is done; nobody hears what it returns."""
        _require_callable(callback)
        pending = [(contextvars.copy_context(), callback, self)]

        def once(_: Any) -> None:  # and then lets go of all of them, so that tensors go when their owner drops them
            context, function, future = pending.pop()
            context.run(call_back, function, future)

        self._future.add_done_callback(once)

    def set_result(self, result: T) -> None:
        """Gives it its value; once."""
        self._once()
        self._future.set_result(result)

    def set_exception(self, result: BaseException) -> None:
        """Gives it its error; once."""
        if not isinstance(result, BaseException):
            raise TypeUsageError(f"set_exception takes an exception, not {type(result).__name__}")
        self._once()
        self._future.set_exception(result)

    def _once(self) -> None:
        if self._future.done():
            raise RuntimeUsageError("a future is marked completed only once")

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self._future).__await__()

    def __repr__(self) -> str:
        return f"Future({'done' if self.done() else 'waiting'})"


def _require_callable(callback: Any) -> None:
    if not callable(callback):
        raise TypeUsageError(f"a callback is a function of one future, not {type(callback).__name__}")
