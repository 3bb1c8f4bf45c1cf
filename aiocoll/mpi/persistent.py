"""Prequest: a message that is described once and started again and again.

The rule: between two starts it is a request that is over; each start reads the buffer as it is then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .constants import ANY_SOURCE, ANY_TAG
from .exceptions import UsageError
from .messages import Messages
from .requests import Request
from .specs import writing


class Prequest(Request):
    """What ``Send_init`` and its kin give."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Callable[[], Request] | None = None) -> None:
        """``begin()`` makes the call once and gives its request."""
        super().__init__(None, 0.0)
        self._begin = begin

    def Start(self) -> None:
        """Makes the call; the one before must be over."""
        if self._begin is None:
            raise UsageError("Start: this request was freed, or nothing gave it a call; make one with Send_init")
        if self._active:
            raise UsageError(f"Start: {self!r} has been started and not been waited for: Wait() before the next")
        begun = self._begin()
        self._work, self._timeout, self._arrival, self._withdrawn = begun._work, begun._timeout, begun._arrival, False

    @classmethod
    def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Starts them in this order."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """It is REQUEST_NULL from now on; a call on its way goes on."""
        super().Free()
        self._begin = None

    free = Free

    def __bool__(self) -> bool:
        return self._begin is not None

    def __repr__(self) -> str:
        if self._begin is None:
            return "REQUEST_NULL"
        return f"Prequest({self._work!r})" if self._active else "Prequest(not started)"


class PersistentMessages(Messages):
    """See the module's docstring; what a communicator mixes in."""

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """An Isend to be started."""
        return self._sends(self.Isend, "Send_init", buf, dest, tag)

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """An Ibsend to be started."""
        return self._sends(self.Ibsend, "Bsend_init", buf, dest, tag)

    def Rsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """An Irsend to be started."""
        return self._sends(self.Irsend, "Rsend_init", buf, dest, tag)

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """An Issend to be started."""
        return self._sends(self.Issend, "Ssend_init", buf, dest, tag)

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """An Irecv to be started."""
        writing(buf, "Recv_init", self._group.rank)
        self._wanted(source, tag, "Recv_init")
        return Prequest(lambda: self.Irecv(buf, source, tag))

    def _sends(self, send: Callable[[Any, int, int], Request], what: str, buf: Any, dest: int, tag: int) -> Prequest:
        """What is wrong with the arguments is said now, not when it is started."""
        self._peer(dest, what, "dest")
        self._sending(buf, dest, tag, what)
        return Prequest(lambda: send(buf, dest, tag))
