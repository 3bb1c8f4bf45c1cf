"""Calls on their way: what runs a documented call, and the handle that isend, irecv and async_op=True return.

The rule: a call's number is taken in the loop's thread, in the order in which calls were made, and a result stands in
its tensors before the handle says that it is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import AiocollError, UsageError
from ..sync import SyncGroup, Work
from .arguments import seconds_of
from .refusals import documented

if TYPE_CHECKING:
    from ..group import Group

T = TypeVar("T")


class Request:
    """A call that goes on by itself; what it fills may be looked at when ``is_completed()``."""

    __slots__ = ("_source", "_work")

    def __init__(self, work: Work[Any], source: Callable[[], int] | None = None) -> None:
        self._work, self._source = work, source

    def is_completed(self) -> bool:
        """Has it ended? True for ever after ``wait()`` has returned."""
        return self._work.done()

    def is_success(self) -> bool:
        """Has it ended well? Never blocks."""
        return self._work.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """What it raised, if it has ended; None otherwise."""
        return _as_documented(self._work.exception()) if self._work.done() else None

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Blocks until it has ended, raises what it raised, returns True.

        A timeout that is too short raises TimeoutError and leaves the call running.
        """
        try:
            return self._work.wait(seconds_of(timeout))
        except UsageError as error:
            raise documented(error) from error.__cause__

    def result(self) -> Any:
        """Waits, then gives what the blocking call returns."""
        self.wait()
        return self._work.result()

    def source_rank(self) -> int:
        """After an irecv: the rank of the world that sent the message."""
        self.wait()
        if self._source is None:
            raise UsageError("source_rank() is for receives")
        return self._source()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._work.__await__()

    def __repr__(self) -> str:
        return f"Request({self._work!r})"


def call(
    group: SyncGroup,
    what: str,
    make: Callable[[Group], Awaitable[Any]],
    async_op: bool,
    after: Callable[[Any], Any] | None = None,
) -> Request | None:
    """Makes an async call, blocking or started; ``after`` gets its result and runs before anybody sees the end."""
    if after is None:
        step = make
    else:
        then = after

        def step(g: Group) -> Awaitable[Any]:
            return _then(make(g), then)

    if async_op:
        return Request(group.begin(step, what))
    run(group, step)
    return None


def run(group: SyncGroup, make: Callable[[Group], Awaitable[T]]) -> T:
    """Blocks for an async call; refusals come in the documented classes."""
    try:
        return group.run(make)
    except UsageError as error:
        raise documented(error) from error.__cause__


def again(call_again: Callable[..., Any], *arguments: Any) -> bool:
    """Blocks for a call that was made before with arguments alike; False, and nothing done, if there was none."""
    try:
        return call_again(*arguments) is not NotImplemented
    except UsageError as error:
        raise documented(error) from error.__cause__


async def _then(awaitable: Awaitable[Any], after: Callable[[Any], Any]) -> Any:
    return after(await awaitable)


def _as_documented(error: BaseException | None) -> BaseException | None:
    return documented(error) if isinstance(error, UsageError) else error


def refused(group: SyncGroup, what: str, error: UsageError) -> UsageError:
    """For a refused argument of a collective: the peers' call is refused too, and this is what to raise here."""
    try:
        group.run(lambda g: g.refuse(what, error))
    except AiocollError:
        pass  # the refusal itself, or a group that is broken already: the argument is still what to tell
    return documented(error)
