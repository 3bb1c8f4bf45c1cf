"""Work: a started operation, waited for from any thread or awaited from any loop.

The rule: an operation lives on the driver's loop and nowhere else; this file only watches it from outside.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from ..errors import CollectiveTimeoutError, UsageError

T = TypeVar("T")

_log = logging.getLogger("aiocoll.sync")
_CANCEL_SECONDS_MAX = 5.0  # an operation that does not end by then is given up as it stands


class Operation(Protocol):
    """The running side of a Work."""

    name: str

    def cancel(self) -> None:
        """Asks the loop to end the operation; never blocks."""
        ...

    def refuse_to_block(self) -> None:
        """Raises UsageError where waiting would wait for itself: on the loop's own thread, in a forked child."""
        ...


class Work(Generic[T]):
    """An operation that goes on by itself while the caller does something else.

    A buffer given to the operation belongs to it until ``done()``. Letting go of a Work does not stop its operation.
    """

    __slots__ = ("__weakref__", "_future", "_operation", "_since")

    def __init__(self, future: concurrent.futures.Future[T], operation: Operation) -> None:
        self._future, self._operation = future, operation
        self._since = time.monotonic()

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Blocks until the operation is over, raises what it raised, returns True.

        ``timeout`` in seconds: a wait that is too short raises TimeoutError and leaves the operation running.
        """
        self._result(seconds(timeout))
        return True

    def done(self) -> bool:
        """Is it over: finished, failed or cancelled? Never blocks."""
        return self._future.done()

    def result(self, timeout: float | timedelta | None = None) -> T:
        """Waits like ``wait`` and returns what the blocking call would have returned."""
        return self._result(seconds(timeout))

    def exception(self, timeout: float | timedelta | None = None) -> BaseException | None:
        """Waits, and returns the error of the operation instead of raising it; None when there was none."""
        self._await_end(seconds(timeout))
        error = self._future.exception()
        if isinstance(error, concurrent.futures.CancelledError):
            raise error
        return error

    def error(self) -> BaseException | None:
        """The error of an operation that is over, a cancellation included; None where there is none (yet). Never
        blocks."""
        return self._future.exception() if self._future.done() else None

    def add_done_callback(self, callback: Callable[[Work[T]], Any]) -> None:
        """Runs ``callback(this)`` once it is over, on the thread that ends it, which must not block; at once where it
        is over already."""
        pending = [(callback, self)]

        def once(_: Any) -> None:  # and then lets go of both
            function, work = pending.pop()
            call_back(function, work)

        self._future.add_done_callback(once)

    def refuse_to_block(self) -> None:
        """Raises UsageError where waiting for it would wait for itself."""
        self._operation.refuse_to_block()

    def cancel(self) -> bool:
        """Ends the operation; False when it was over before. Afterwards it is ``done()`` and writes nothing more.

        A receive is only withdrawn; a cancelled collective breaks its group, as cancelling always does.
        """
        if self._future.done():
            return False
        self._operation.refuse_to_block()
        self._operation.cancel()
        concurrent.futures.wait((self._future,), _CANCEL_SECONDS_MAX)
        if not self._future.done():
            try:
                self._future.set_exception(concurrent.futures.CancelledError())
            except concurrent.futures.InvalidStateError:
                pass  # it ended between the two lines
        return isinstance(self._future.exception(), concurrent.futures.CancelledError)

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self._future).__await__()

    def _result(self, timeout: float | None) -> T:
        self._await_end(timeout)
        return self._future.result()

    def _await_end(self, timeout: float | None) -> None:
        if self._future.done():
            return
        name = self._operation.name
        self._operation.refuse_to_block()
        try:
            self._future.exception(timeout)
        except TimeoutError:
            waited = time.monotonic() - self._since
            raise CollectiveTimeoutError(
                f"{name} is still running {waited:.3f} s after its start (this wait was given {timeout:g} s); "
                "it goes on: wait again, or cancel() it",
                operation=name,
                collective=name,
                elapsed=waited,
            ) from None

    def __repr__(self) -> str:
        return f"Work({self._operation.name}, {'done' if self.done() else 'running'})"


def call_back(function: Callable[[T], Any], argument: T) -> None:
    """Runs a callback whose errors nobody waits for: they are logged, ``sys.exit()`` included, which would end the
    thread that all calls of its group need, and not the program. A Ctrl-C arrives, where it has come."""
    try:
        function(argument)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        _log.exception("a callback, %r, raised %r, which nobody else will hear of", function, error)


def wait_for_first(works: Sequence[Work[Any]], timeout: float | None = None) -> None:
    """Blocks until at least one of them is over, whichever way; returns all the same when ``timeout`` has passed."""
    if not any(work.done() for work in works):
        for work in works:
            work._operation.refuse_to_block()
        futures = [work._future for work in works]
        concurrent.futures.wait(futures, seconds(timeout), concurrent.futures.FIRST_COMPLETED)


def seconds(timeout: float | timedelta | None) -> float | None:
    """A timeout as seconds; timedelta as torch's callers write it; None for no limit, or what no clock can count."""
    if timeout is None:
        return None
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise UsageError(f"timeout={timeout!r}: seconds, a timedelta or None is needed")
    return None if value > threading.TIMEOUT_MAX else float(value)
