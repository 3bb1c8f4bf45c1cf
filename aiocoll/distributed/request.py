"""Calls on their way: what runs a documented call, and the handle that isend, irecv and async_op=True return.

The rule: a call's number is taken in the loop's thread, in the order in which calls were made, and a result stands in
its tensors before the handle says that it is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import AiocollError, UsageError
from ..sync import SyncGroup, Work
from ..sync.stepping import followed
from .arguments import seconds_of, switch
from .futures import Future
from .refusals import RuntimeUsageError, TypeUsageError, documented

if TYPE_CHECKING:
    from ..group import Group

T = TypeVar("T")


class Collector(Protocol):
    """Who keeps the handles of what is started on ``member`` meanwhile."""

    member: SyncGroup | None

    def append(self, work: Any) -> None: ...


COLLECTOR: ContextVar[Collector | None] = ContextVar("collector", default=None)


class Request:
    """A call that goes on by itself; what it fills may be looked at when ``is_completed()``."""

    __slots__ = ("_member", "_sender", "_tensors", "_work")

    def __init__(
        self, work: Work[Any], member: SyncGroup, tensors: Sequence[Any] = (), *, receives: bool = False
    ) -> None:
        """``tensors``: what it fills; ``receives``: its result is the sender's rank in the world."""
        self._work, self._member, self._tensors, self._sender = work, member, tensors, receives
        collector = COLLECTOR.get()
        if collector is not None and collector.member is member:
            collector.append(self)

    def is_completed(self) -> bool:
        """Has it ended? True for ever after ``wait()`` has returned."""
        return self._work.done()

    def is_success(self) -> bool:
        """Has it ended well? Never blocks."""
        return self._work.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """What it raised, if it has ended; None otherwise."""
        return _as_documented(self._work.error())

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Blocks until it has ended, raises what it raised, returns True.

        A timeout that is too short raises TimeoutError and leaves the call running. A timedelta of 0 is none, as
        torch has it.
        """
        if timeout == timedelta(0):
            timeout = None
        try:
            return self._work.wait(seconds_of(timeout))
        except UsageError as error:
            raise documented(error) from error.__cause__

    def synchronize(self) -> None:
        """``wait()`` without a limit: on the CPU there is no stream that could wait instead."""
        self.wait()

    def result(self) -> list[Any]:
        """Waits, then gives the tensors that the call has filled: the caller's own, in a list."""
        self.wait()
        return list(self._tensors)

    def source_rank(self) -> int:
        """After an irecv: the rank of the world that sent the message."""
        self.wait()
        if not self._sender:
            raise RuntimeUsageError("source_rank() is for receives: sourceRank() of any other call is nobody's")
        rank: int = self._work.result()
        return rank

    def _source_rank(self) -> int:
        """The same as a rank of the group, as torch's own code asks for it."""
        return self._member.ranks.index(self.source_rank())

    def get_future(self) -> Future[list[Any]]:
        """A future of ``result()``, for ``then(callback)``."""
        future: Future[list[Any]] = Future.behind(self._work.refuse_to_block)
        tensors = list(self._tensors)

        def ended(work: Work[Any]) -> None:
            error = work.error()
            if error is None:
                future.set_result(tensors)
            else:
                future.set_exception(_as_documented(error) or error)
            future.settled()

        self._work.add_done_callback(ended)
        return future

    def cancel(self) -> bool:
        """Ends it, unless it is over: a receive is withdrawn and the next one gets its message; a send arrives whole or
        not at all; a collective breaks its group."""
        return self._work.cancel()

    def __await__(self) -> Generator[Any, None, list[Any]]:
        yield from self._work.__await__()
        return list(self._tensors)

    def __repr__(self) -> str:
        return f"Request({self._work!r})"


def call(
    group: SyncGroup,
    what: str,
    make: Callable[[Group], Awaitable[Any]],
    async_op: Any,
    after: Callable[[Any], Any] | None = None,
    tensors: Sequence[Any] = (),
) -> Request | None:
    """Makes an async call, blocking or started; ``after`` gets its result and runs before anybody sees the end;
    ``tensors`` are what it fills."""
    if after is None:
        step = make
    else:
        then = after

        def step(g: Group) -> Awaitable[Any]:
            return followed(make(g), then)

    if async_op is not True and async_op is not False:
        with judging(group, what):
            async_op = switch(async_op, f"{what} on rank {group.rank}", "async_op")
    if async_op:
        return Request(group.begin(step, what), group, tensors)
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


def _as_documented(error: BaseException | None) -> BaseException | None:
    return documented(error) if isinstance(error, UsageError) else error


class judging:
    """Where the arguments of a collective are judged: what is refused here is refused for the peers too, who do not
    wait for this rank. An argument may be a stranger's object and raise anything: that is a refusal like any other."""

    __slots__ = ("_collective", "_group")

    def __init__(self, group: SyncGroup, collective: str) -> None:
        self._group, self._collective = group, collective

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            refusal = error if isinstance(error, UsageError) else self._as_refusal(error)
            try:
                self._group.run(lambda g: g.refuse(self._collective, refusal))
            except AiocollError:
                pass  # the refusal itself, or a group that is broken already: the argument is still what to tell
            raise documented(refusal) from (error.__cause__ if refusal is error else error)

    def _as_refusal(self, error: Exception) -> UsageError:
        kind = TypeUsageError if isinstance(error, TypeError) else RuntimeUsageError
        where = f"{self._collective} on rank {self._group.rank}"
        return kind(f"{where}: an argument cannot be used: it raised {type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"judging({self._group!r}, {self._collective!r})"
