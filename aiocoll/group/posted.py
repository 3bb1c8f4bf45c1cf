"""Calls that are made and not yet awaited: the number is taken, the coroutine has not begun.

The rule: whatever becomes of such a call, its peers hear of it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from ..endpoint.channel import Call
from ..errors import AiocollError

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(slots=True)
class Turn:
    """The place of one call among the calls of its group."""

    collective: str
    number: int
    """The call on the wire."""
    label: str
    """The call in messages."""
    error: AiocollError | None = None
    """Why the call cannot be made at all: awaiting it raises that."""


class Posted(Coroutine[Any, Any, T]):
    """A coroutine whose call has been made already: dropped or cancelled before it ran, it takes the call back.

    ``take_back(how)`` hears what became of it: "cancelled" or "never awaited".
    """

    __slots__ = ("_inner", "_started", "_take_back", "_what")

    def __init__(self, inner: Coroutine[Any, Any, T], take_back: Callable[..., None], what: Any) -> None:
        self._inner, self._take_back, self._what, self._started = inner, take_back, what, False

    def __repr__(self) -> str:
        return f"<Posted {self.what}>"

    @property
    def what(self) -> str:
        """The call in messages."""
        return str(self._what)

    @property
    def cr_suspended(self) -> bool:
        """Whether it has begun and waits, as a coroutine's."""
        return bool(getattr(self._inner, "cr_suspended", False))

    def send(self, value: Any) -> Any:
        self._started = True
        return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        self._unstarted("cancelled")
        return self._inner.throw(*error)

    def close(self) -> None:
        self._unstarted("cancelled")
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        self._started = True
        return self._inner.__await__()

    def _unstarted(self, how: str) -> None:
        if not self._started:
            self._started = True
            self._take_back(how)

    def __del__(self) -> None:
        if not self._started:
            self._inner.close()  # whose own warning would name what no user knows
            warnings.warn(f"{self.what} was never awaited: write 'await' before it", RuntimeWarning, stacklevel=2)
            self._unstarted("never awaited")


class PostedAgain(Posted[T]):
    """The same for a call that came again, a Call: what it is called is made up only where that is told."""

    __slots__ = ()

    @property
    def what(self) -> str:
        call: Call = self._what
        return call.collective

    def _unstarted(self, how: str) -> None:
        if not self._started:
            self._started = True
            call: Call = self._what
            self._take_back(Turn(call.collective, call.number, call.label), call.description, how)


def failing(error: BaseException) -> Posted[Any]:
    """What raises ``error`` when it is awaited: errors come where results would."""
    return Posted(_raise(error), _nothing, "a refused call")


def when_awaited(method: Callable[P, Posted[T]]) -> Callable[P, Posted[T]]:
    """What the method refuses is raised when its coroutine is awaited, as with a coroutine function."""

    @functools.wraps(method)
    def made(*args: P.args, **kwargs: P.kwargs) -> Posted[T]:
        try:
            return method(*args, **kwargs)
        except AiocollError as error:
            group: Any = args[0]
            group._says(error, method.__name__)
            return failing(error)

    return made


def settled() -> Posted[Any]:
    """What nobody is going to await: a part of a call, which its whole sees to."""
    posted = Posted(_raise(AssertionError("a part of another call is awaited with that")), _nothing, "a part of a call")
    posted.close()
    return posted


async def _raise(error: BaseException) -> Any:
    raise error


def _nothing(how: str) -> None:
    return
