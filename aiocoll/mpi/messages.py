"""Messages between two ranks: Send, Recv and their kin for buffers, send, recv and theirs for objects.

The rule: buffers and objects are matched apart; a message that a probe has seen lies in ``Seen`` until a receive of
this communicator takes it, before any that came later.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from .calling import Calling, Plan, blocking, followed_by, started
from .constants import ANY_SOURCE, ANY_TAG, PROC_NULL, TAG_MAX
from .exceptions import RankError, TagError, UsageError
from .requests import Arrival, MatchedMessage, Request
from .seen import Seen, arrived, as_object, bytes_of, exchange, landed
from .specs import Region, reading, writing
from .status import Status

Sending = Callable[..., Plan]
"""Of (data, dest, tag, what, timeout), where the data are a buffer or an object."""
_NOBODY = Arrival(None, PROC_NULL, ANY_TAG, 0)


class Messages(Calling):
    """See the module's docstring; what a communicator mixes in."""

    _seen: Seen

    # ------------------------------------------------------------------------------------------ buffers

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Sends a buffer; returns when it may be changed, without waiting for the receiver (up to 64 MiB)."""
        self._blocked("Send", dest, self._sending, buf, tag)

    Bsend = Send
    Rsend = Send

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Starts to send a buffer, which must not be changed until the request is over."""
        return self._begun("Isend", dest, self._sending, buf, tag)

    Ibsend = Isend
    Irsend = Isend

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Sends a buffer; returns when a receive, or a probe that has seen it, has taken the message."""
        self._blocked("Ssend", dest, self._sending, buf, tag, synchronous=True)

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Starts to; the request is over when the message has been taken."""
        return self._begun("Issend", dest, self._sending, buf, tag, synchronous=True)

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        """Receives into a buffer, which may be longer than the message; ``status`` says by how much."""
        arrival = self._receive("Recv", source, tag, writing(buf, "Recv", self._group.rank))
        _note(status, arrival)

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Starts to receive into a buffer."""
        return self._start_receive("Irecv", source, tag, writing(buf, "Irecv", self._group.rank))

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Sends one buffer and receives into another at the same time, so that no ring can deadlock."""
        rank = self._group.rank
        region = writing(recvbuf, "Sendrecv", rank)
        sending = None
        if self._peer(dest, "Sendrecv", "dest") != PROC_NULL:
            sending = self._sending(sendbuf, dest, sendtag, "Sendrecv")
        _note(status, self._both("Sendrecv", sending, source, recvtag, region))

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        """Starts both; the request is over when both are."""
        region = writing(recvbuf, "Isendrecv", self._group.rank)
        if self._peer(dest, "Isendrecv", "dest") == PROC_NULL:
            return self._start_receive("Isendrecv", source, recvtag, region)
        sending = self._sending(sendbuf, dest, sendtag, "Isendrecv", math.inf)
        peer, number = self._wanted(source, recvtag, "Isendrecv")
        if peer == PROC_NULL:
            return self._start("Isendrecv", followed_by(sending, lambda _: _NOBODY), f" to rank {dest}")
        seen = self._seen.take(source, recvtag, True)
        if seen is not None:
            return self._start("Isendrecv", followed_by(sending, lambda _: landed(seen[1], region)), f" to rank {dest}")
        return self._start("Isendrecv", exchange(sending, self._receiving(peer, number, region, math.inf)))

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> Request:
        """The same with one buffer for both."""
        outgoing = writing(buf, "Isendrecv_replace", self._group.rank).flat.copy()
        return self.Isendrecv(outgoing, dest, sendtag, buf, source, recvtag)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """The same with one buffer for both."""
        region = writing(buf, "Sendrecv_replace", self._group.rank)
        self.Sendrecv(region.flat.copy(), dest, sendtag, buf, source, recvtag, status)

    # ------------------------------------------------------------------------------------------ objects

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Sends an object."""
        self._blocked("send", dest, self._sending_object, obj, tag)

    bsend = send

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Sends an object as it is now, without waiting."""
        return self._begun("isend", dest, self._sending_object, obj, tag)

    ibsend = isend

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Sends an object; returns when it has been taken, as Ssend does."""
        self._blocked("ssend", dest, self._sending_object, obj, tag, synchronous=True)

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Sends an object as it is now; the request is over when it has been taken."""
        return self._begun("issend", dest, self._sending_object, obj, tag, synchronous=True)

    def recv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        """Receives an object and returns it; ``buf`` is accepted and not needed."""
        arrival = self._receive("recv", source, tag, None)
        _note(status, arrival)
        return arrival.value

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Starts to receive an object, which the request's ``wait()`` gives."""
        return self._start_receive("irecv", source, tag, None)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Sends one object and receives another at the same time."""
        sending = None
        if self._peer(dest, "sendrecv", "dest") != PROC_NULL:
            sending = self._sending_object(sendobj, dest, sendtag, "sendrecv")
        arrival = self._both("sendrecv", sending, source, recvtag, None)
        _note(status, arrival)
        return arrival.value

    # ------------------------------------------------------------------------------------------ probing

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Blocks until a message is there, which the next receive that it fits will get; True."""
        self._probed("Probe", source, tag, status, wait=True, keep=True)
        return True

    probe = Probe

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Whether a message is there; never blocks."""
        return self._probed("Iprobe", source, tag, status, wait=False, keep=True) is not None

    iprobe = Iprobe

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> MatchedMessage:
        """Blocks until a message is there, and takes it: only what is returned can receive it."""
        found = self._probed("Mprobe", source, tag, status, wait=True, keep=False)
        assert found is not None
        return found

    mprobe = Mprobe

    def Improbe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> MatchedMessage | None:
        """The same, if one is there; None if not."""
        return self._probed("Improbe", source, tag, status, wait=False, keep=False)

    improbe = Improbe

    # ------------------------------------------------------------------------------------------ how

    def _peer(self, rank: Any, what: str, name: str) -> int:
        """A rank argument, checked; PROC_NULL is one."""
        size = self._group.size
        try:
            number = operator.index(rank)
        except TypeError:
            number = size
        if number != PROC_NULL and not 0 <= number < size:
            raise RankError(
                f"{what} on rank {self._group.rank}: {name}={rank!r} is no rank of this communicator of {size}; "
                "ranks begin at 0, and MPI.PROC_NULL is nobody"
            )
        return number

    def _tag_of(self, tag: Any, what: str) -> int:
        try:
            number = operator.index(tag)
        except TypeError:
            number = -1
        if not 0 <= number <= TAG_MAX:
            raise TagError(f"{what} on rank {self._group.rank}: tag={tag!r} must be from 0 to {TAG_MAX}")
        return number

    def _wanted(self, source: Any, tag: Any, what: str) -> tuple[int | None, int | None]:
        """Source and tag of a receive, as aiocoll's group takes them: None for any."""
        any_tag = not isinstance(tag, bool) and hasattr(tag, "__index__") and operator.index(tag) == ANY_TAG
        number = None if any_tag else self._tag_of(tag, what)
        if hasattr(source, "__index__") and operator.index(source) == ANY_SOURCE:
            return None, number
        return self._peer(source, what, "source"), number

    def _sending(
        self, buf: Any, dest: int, tag: int, what: str, timeout: float | None = None, *, synchronous: bool = False
    ) -> Plan:
        region, number = reading(buf, what, self._group.rank), self._tag_of(tag, what)
        return lambda group: group.send(region.flat, dest, number, timeout=timeout, synchronous=synchronous)

    def _sending_object(
        self, obj: Any, dest: int, tag: int, what: str, timeout: float | None = None, *, synchronous: bool = False
    ) -> Plan:
        """What is started (it has no deadline) takes the object as it is now."""
        number, started = self._tag_of(tag, what), timeout == math.inf
        return lambda group: group.send_object(
            obj, dest, number, timeout=timeout, synchronous=synchronous, buffered=started
        )

    def _blocked(self, what: str, dest: int, sending: Sending, data: Any, tag: int, **how: bool) -> None:
        if self._peer(dest, what, "dest") != PROC_NULL:
            blocking(self._group, sending(data, dest, tag, what, **how))

    def _begun(self, what: str, dest: int, sending: Sending, data: Any, tag: int, **how: bool) -> Request:
        if self._peer(dest, what, "dest") == PROC_NULL:
            return Request(None, 0.0, _NOBODY)
        return self._start(what, sending(data, dest, tag, what, math.inf, **how), f" to rank {dest}")

    def _start(self, what: str, plan: Plan, whom: str = "") -> Request:
        group = self._group
        return Request(started(group, plan, what + whom), group.timeout)

    def _receiving(
        self, source: int | None, tag: int | None, region: Region | None, timeout: float | None = None
    ) -> Plan:
        """A receive into a region, or (None) of an object."""
        if region is None:
            return followed_by(lambda group: group.recv_object_message(source, tag, timeout=timeout), as_object)
        return followed_by(
            lambda group: group.recv_message(source, tag, timeout=timeout), lambda message: landed(message, region)
        )

    def _receive(self, what: str, source: Any, tag: Any, region: Region | None) -> Arrival:
        peer, number = self._wanted(source, tag, what)
        if peer == PROC_NULL:
            return _NOBODY
        seen = self._seen.take(source, tag, region is not None)
        if seen is not None:
            return as_object(seen[1]) if region is None else landed(seen[1], region)
        arrival: Arrival = blocking(self._group, self._receiving(peer, number, region))
        return arrival

    def _start_receive(self, what: str, source: Any, tag: Any, region: Region | None) -> Request:
        peer, number = self._wanted(source, tag, what)
        if peer == PROC_NULL:
            return Request(None, 0.0, _NOBODY)
        seen = self._seen.take(source, tag, region is not None)
        if seen is not None:
            return Request(None, 0.0, as_object(seen[1]) if region is None else landed(seen[1], region))
        whom = " from anyone" if peer is None else f" from rank {peer}"
        return self._start(what, self._receiving(peer, number, region, math.inf), whom)

    def _both(self, what: str, sending: Plan | None, source: Any, tag: Any, region: Region | None) -> Arrival:
        """Sends and receives at the same time."""
        peer, number = self._wanted(source, tag, what)
        if sending is None:
            return self._receive(what, source, tag, region)
        if peer == PROC_NULL or self._seen.take(source, tag, region is not None, keep=True) is not None:
            blocking(self._group, sending)
            return self._receive(what, source, tag, region)
        arrival: Arrival = blocking(self._group, exchange(sending, self._receiving(peer, number, region)))
        return arrival

    def _probed(
        self, what: str, source: Any, tag: Any, status: Status | None, *, wait: bool, keep: bool
    ) -> MatchedMessage | None:
        peer, number = self._wanted(source, tag, what)
        if peer == PROC_NULL:
            _note(status, _NOBODY)
            return MatchedMessage(lambda buf: _NOBODY, 0)
        found = self._seen.take(source, tag, None, keep=keep)
        if found is None:
            self._seen.add(blocking(self._group, arrived(peer, number, wait)))
            found = self._seen.take(source, tag, None, keep=keep)
        if found is None:
            return None
        is_array, message = found
        nbytes = bytes_of(message)
        _note(status, Arrival(None, message.source, message.tag, nbytes))
        rank = self._group.rank

        def take(buf: Any) -> Arrival:
            if is_array != (buf is not None):
                kind = "a buffer: receive it with Recv" if is_array else "an object: receive it with recv"
                raise UsageError(f"{what} on rank {rank}: the message is {kind}")
            return landed(message, writing(buf, "Recv", rank)) if is_array else as_object(message)

        return MatchedMessage(take, nbytes)


def _note(status: Status | None, arrival: Arrival) -> None:
    if status is not None:
        status.note(arrival.source, arrival.tag, arrival.nbytes)
