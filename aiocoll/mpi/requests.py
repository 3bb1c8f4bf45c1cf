"""Request: a call on its way, waited for or tested; the rule: a request that is over is as good as REQUEST_NULL.

A wait is given the communicator's timeout and leaves the call running when that is too short.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import AiocollError
from ..sync import Work
from ..sync.work import wait_for_first
from .constants import ANY_SOURCE, ANY_TAG, UNDEFINED
from .exceptions import CollectiveTimeoutError, UsageError, outside, translated
from .status import Status


class Arrival(NamedTuple):
    """What a receive gives: the object (None where a buffer was filled) and what its status says."""

    value: Any
    source: int
    tag: int
    nbytes: int


class Request:
    """A call that goes on by itself; its buffers belong to it until it is over."""

    __slots__ = ("_arrival", "_timeout", "_withdrawn", "_work")

    def __init__(self, work: Work[Any] | None, timeout: float, arrival: Arrival | None = None) -> None:
        """``work`` gives an Arrival, or anything else for a call that is no receive; with ``arrival`` it is over."""
        self._work, self._timeout, self._arrival = work, timeout, arrival
        self._withdrawn = False

    # ------------------------------------------------------------------------------------------ one

    def Wait(self, status: Status | None = None) -> bool:
        """Blocks until it is over; True."""
        self.wait(status)
        return True

    def wait(self, status: Status | None = None) -> Any:
        """The same; gives the object that came, or None."""
        if self._work is not None and not self._withdrawn:
            try:
                self._work.wait(self._timeout)
            except AiocollError as error:
                if self._work.done():
                    self._work = None
                raise translated(error) from error.__cause__
        return self._finished(status)

    def Test(self, status: Status | None = None) -> bool:
        """Whether it is over; never blocks."""
        return self.test(status)[0]

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """The same, and the object that came, or None."""
        if not self._over():
            return False, None
        return True, self.wait(status)

    def Cancel(self) -> None:
        """Withdraws a receive; a send goes on. It is over then, and its status says whether it was cancelled."""
        if self._work is not None and not self._withdrawn:
            # Whoever withdraws what has failed already does not want to hear of it.
            self._withdrawn = self._work.cancel() or self._work.exception() is not None

    cancel = Cancel

    def Free(self) -> None:
        """Lets the call go on without this handle."""
        self._work, self._arrival = None, None

    free = Free

    def Get_status(self, status: Status | None = None) -> bool:
        """Whether it is over; it stays a request."""
        if not self._over():
            return False
        self._fill(status, self._come())
        return True

    def get_status(self, status: Status | None = None) -> bool:
        """The same."""
        return self.Get_status(status)

    @property
    def _active(self) -> bool:
        """Whether there is a call whose end nobody has been told."""
        return self._work is not None or self._arrival is not None

    def _over(self) -> bool:
        return self._work is None or self._withdrawn or self._work.done()

    def _come(self) -> Arrival | None:
        """What a receive that is over has got."""
        if self._work is None or self._withdrawn:
            return self._arrival
        try:
            result = self._work.result()
        except AiocollError as error:
            raise translated(error) from error.__cause__
        return result if isinstance(result, Arrival) else None

    def _fill(self, status: Status | None, arrival: Arrival | None) -> None:
        _note(status, arrival)
        if self._withdrawn and status is not None:
            status.cancelled = True

    def _finished(self, status: Status | None) -> Any:
        arrival = self._come()
        self._fill(status, arrival)
        self._work, self._arrival, self._withdrawn = None, None, False
        return None if arrival is None else arrival.value

    # ------------------------------------------------------------------------------------------ several

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Blocks until all are over; True."""
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        """The same; gives what came, in the order of the requests. One that failed is raised once all are over."""
        _make_room(statuses, len(requests))
        values, failed = [], None
        for number, request in enumerate(requests):
            try:
                values.append(request.wait(statuses[number] if statuses is not None else None))
            except AiocollError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return values

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Whether all are over; if not, none is touched."""
        return cls.testall(requests, statuses)[0]

    @classmethod
    def testall(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """The same, and what came."""
        if not all(request._over() for request in requests):
            return False, None
        return True, cls.waitall(requests, statuses)

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Blocks until one is over; its index, or UNDEFINED if there is none that is not over already."""
        return cls.waitany(requests, status)[0]

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """The same, and what came."""
        _wait_for_one(requests)
        number, _, value = cls.testany(requests, status)
        return number, value

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """The index of one that is over and True; UNDEFINED and False if none is, and True if there is none left."""
        number, flag, _ = cls.testany(requests, status)
        return number, flag

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """The same, and what came."""
        active = [number for number, request in enumerate(requests) if request._active]
        for number in active:
            if requests[number]._over():
                return number, True, requests[number].wait(status)
        return UNDEFINED, not active, None

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Blocks until some are over; their indices, or None if there is none that is not over already."""
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """The same, and what came."""
        _wait_for_one(requests)
        return cls.testsome(requests, statuses)

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """The indices of those that are over; None if there is none left."""
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """The same, and what came."""
        active = [number for number, request in enumerate(requests) if request._active]
        if not active:
            return None, None
        over = [number for number in active if requests[number]._over()]
        _make_room(statuses, len(over))
        values = [
            requests[number].wait(statuses[place] if statuses is not None else None)
            for place, number in enumerate(over)
        ]
        return over, values

    def __bool__(self) -> bool:
        return self._active

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Request) and not self and not other)

    def __hash__(self) -> int:
        return id(self)

    def __getattr__(self, name: str) -> Any:
        raise outside("Request", name)

    def __repr__(self) -> str:
        return f"Request({self._work!r})" if self else "REQUEST_NULL"


REQUEST_NULL = Request(None, 0.0)


class MatchedMessage:
    """What Mprobe and Improbe give: a message that only this object receives; MESSAGE_NULL once it has."""

    __slots__ = ("_taken", "nbytes")

    def __init__(self, take: Callable[[Any], Arrival] | None = None, nbytes: int = 0) -> None:
        """``take(buffer)`` gives what the message is; None for an object."""
        self._taken: Callable[[Any], Arrival] | None = take
        self.nbytes: int = nbytes

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        """Receives it into a buffer."""
        _note(status, self._take(buf))

    def recv(self, status: Status | None = None) -> Any:
        """Receives it as an object."""
        arrival = self._take(None)
        _note(status, arrival)
        return arrival.value

    def Irecv(self, buf: Any) -> Request:
        """The same as a request, which is over at once."""
        return Request(None, 0.0, self._take(buf))

    def irecv(self) -> Request:
        """The same for an object."""
        return Request(None, 0.0, self._take(None))

    @classmethod
    def Probe(
        cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> MatchedMessage:
        """``comm.Mprobe(…)``."""
        found: MatchedMessage = comm.Mprobe(source, tag, status)
        return found

    probe = Probe

    @classmethod
    def Iprobe(
        cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> MatchedMessage | None:
        """``comm.Improbe(…)``."""
        found: MatchedMessage | None = comm.Improbe(source, tag, status)
        return found

    iprobe = Iprobe

    def free(self) -> None:
        """It is not used any more, and its message is lost."""
        self._taken = None

    def _take(self, buf: Any) -> Arrival:
        take = self._taken
        if take is None:
            raise UsageError("MPI.MESSAGE_NULL: this message has been received already; Mprobe for the next one")
        arrival = take(buf)
        self._taken = None
        return arrival

    def __bool__(self) -> bool:
        return self._taken is not None

    def __getattr__(self, name: str) -> Any:
        raise outside("Message", name)

    def __repr__(self) -> str:
        return f"Message({self.nbytes} bytes)" if self else "MESSAGE_NULL"


MESSAGE_NULL = MatchedMessage()


def _note(status: Status | None, arrival: Arrival | None) -> None:
    if status is None:
        return
    if arrival is None:
        status.note(ANY_SOURCE, ANY_TAG, 0)
    else:
        status.note(arrival.source, arrival.tag, arrival.nbytes)


def _make_room(statuses: list[Status] | None, count: int) -> None:
    if statuses is not None:
        statuses.extend(Status() for _ in range(count - len(statuses)))


def _wait_for_one(requests: Sequence[Request]) -> None:
    active = [request for request in requests if request._active]
    if not active or any(request._over() for request in active):
        return
    timeout, since = max(request._timeout for request in active), time.monotonic()
    wait_for_first([request._work for request in active if request._work is not None], timeout)
    if not any(request._over() for request in active):
        raise CollectiveTimeoutError(
            f"none of {len(active)} requests was over after {time.monotonic() - since:.3f} s: "
            f"{', '.join(map(repr, active[:4]))}; they go on: wait again, or set AIOCOLL_TIMEOUT",
            operation="Waitany",
            collective="Waitany",
            elapsed=time.monotonic() - since,
        )
