"""Point-to-point: send, recv, and the same for objects.

The rule: a message is sent, and a receive is posted, when the method is called, so that order is the order of calls;
what is dropped or cancelled before its end is taken back (a receive) or goes on from a copy (a send).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import index
from typing import Any, NamedTuple, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ..buffers import as_out, copy, native
from ..buffers.layout import slices
from ..endpoint.mailbox import ARRAY, OBJECT
from ..endpoint.message import MessageReceive, MessageSend
from ..endpoint.operations import Done
from ..errors import AiocollError, MismatchError, SerializationError, UsageError
from ..observe.flight import Entry
from ..wire.codec import parse
from ..wire.rope import Rope
from .objects import Objects
from .packing import Packed, array_of, direct, value_of
from .posted import Posted, when_awaited
from .typed import Out, Timeout

Array = NDArray[Any]
_OBJECT_META = b"O"
_REFUSED_META = b"R"
_COPIED_AT_ONCE_BYTES_MAX = 8 << 20


class Message(NamedTuple):
    """What ``recv_message`` gives: the array, the sender's rank in the group, and the tag."""

    data: Any
    source: int
    tag: int


class Messages(Objects):
    """See API: point to point."""

    @when_awaited
    def send(
        self, x: Any, dst: int, tag: int = 0, *, timeout: float | None = None, synchronous: bool = False
    ) -> Posted[None]:
        """Sends the array ``x`` to rank ``dst`` (which may be this rank).

        Returns when ``x`` may be changed; never waits for the receiver's call until 64 MiB lie unreceived there, then
        CollectiveTimeoutError names the ranks that wait for one another. A cancelled send arrives whole or not at all.
        ``synchronous``: it returns when a receive has taken the message, not before.
        """
        self._usable("send")
        packed = Packed(x, "send", self._scope.rank)
        return self._sent("send", dst, tag, b"A" + packed.meta, packed.bytes_now(), timeout, synchronous)

    @when_awaited
    def send_object(
        self, obj: Any, dst: int, tag: int = 0, *, timeout: float | None = None, synchronous: bool = False,
        buffered: bool = False,
    ) -> Posted[None]:  # fmt: skip
        """Sends plain data to rank ``dst``, as ``send`` does; a receiver of what cannot be serialised is told so.

        Large arrays in it travel from where they are, or (``buffered``) from a copy that is made now.
        """
        self._usable("send_object")
        try:
            data = self._dumped(obj, "send_object").payload(buffered=buffered)
        except SerializationError as error:
            text = np.frombuffer(str(error).encode()[:4096], np.uint8)
            sending = self._sent("send_object", dst, tag, _REFUSED_META, text, timeout)
            self._says(error, "send_object")
            return Posted(_then_raise(sending, error), lambda _: sending.close(), "send_object")
        return self._sent("send_object", dst, tag, _OBJECT_META, data, timeout, synchronous)

    def _sent(
        self, what: str, dst: int, tag: int, meta: bytes, data: Array | Rope, timeout: float | None,
        offered: bool = False,
    ) -> Posted[None]:  # fmt: skip
        scope = self._scope
        peer = scope.ranks[self._rank_of(dst, what, "dst")]
        number = self._tag(tag, what)
        seconds = self._seconds(timeout, what)
        self._counts[what] = self._counts.get(what, 0) + 1
        payload = data if isinstance(data, Rope) else data.data if data.nbytes else None
        fact = self._endpoint.flight.message(scope.id, what, dst, number)
        operation = scope.mailbox.send(peer, number, meta, payload, seconds, offered)
        return Posted(self._send(what, operation, data, fact), lambda _: self._keep_sending(operation), what)

    async def _send(self, what: str, operation: MessageSend | Done, data: Array | Rope, fact: Entry) -> None:
        try:
            await operation
        except (asyncio.CancelledError, GeneratorExit) as error:
            self._endpoint.flight.over(fact, error)
            self._keep_sending(operation)
            raise
        except AiocollError as error:
            self._endpoint.flight.over(fact, error)
            self._says(error, what)
            raise
        self._endpoint.flight.over(fact)

    def _keep_sending(self, operation: MessageSend | Done) -> None:
        if isinstance(operation, MessageSend) and not operation.done and not self._endpoint.closed:
            self._scope.mailbox.keep_sending(operation)

    @overload
    def recv(
        self, src: int | None = None, tag: int = 0, out: None = None, **limits: Unpack[Timeout]
    ) -> Posted[Any]: ...
    @overload
    def recv(self, src: int | None = None, tag: int = 0, *, out: Out, **limits: Unpack[Timeout]) -> Posted[Out]: ...
    @overload
    def recv(self, src: int | None, tag: int, out: Out, **limits: Unpack[Timeout]) -> Posted[Out]: ...

    @when_awaited
    def recv(
        self, src: int | None = None, tag: int = 0, out: Any = None, *, timeout: float | None = None
    ) -> Posted[Any]:
        """Receives an array from rank ``src`` (None: from anyone) with ``tag``; returns it, or ``out`` filled.

        A late one raises CollectiveTimeoutError and is withdrawn; a message that does not fit ``out`` raises
        MismatchError and is consumed. Cancelled, its ``out`` is not written and the message goes to the next receive.
        """
        return self._received("recv", src, tag, out, timeout, lambda array, message: array)

    @when_awaited
    def recv_message(
        self, src: int | None = None, tag: int | None = None, *, timeout: float | None = None
    ) -> Posted[Message]:
        """Receives an array and says from whom and with which tag it came; None takes any."""

        def both(array: Any, message: Any) -> Message:
            return Message(array, self._scope.index[message.source], message.tag)

        return self._received("recv_message", src, tag, None, timeout, both)

    @when_awaited
    def recv_object(self, src: int | None = None, tag: int = 0, *, timeout: float | None = None) -> Posted[Any]:
        """Receives plain Python data from rank ``src`` (None: from anyone) with ``tag``."""
        return self._received_object("recv_object", src, tag, timeout, lambda obj, source, tag: obj)

    @when_awaited
    def recv_object_message(
        self, src: int | None = None, tag: int | None = None, *, timeout: float | None = None
    ) -> Posted[Message]:
        """Receives plain Python data and says from whom and with which tag it came; None takes any."""
        return self._received_object("recv_object_message", src, tag, timeout, Message)

    def _received_object(
        self, what: str, src: int | None, tag: int | None, timeout: float | None, give: Callable[[Any, int, int], Any]
    ) -> Posted[Any]:
        receive = self._posted(what, src, tag, OBJECT, timeout, lambda meta, nbytes: None)
        return Posted(self._receive_object(what, receive, give), lambda _: self._withdraw(receive), what)

    async def _receive_object(self, what: str, receive: MessageReceive, give: Callable[[Any, int, int], Any]) -> Any:
        message = await self._arrived(receive, what)
        source = self._scope.index[message.source]
        if message.meta[:1] == b"R":
            text = bytes(message.data).decode(errors="replace")
            raise SerializationError(
                f"{what}: rank {source} could not serialise what it wanted to send: {text}",
                group=self.name, collective=what, **self._scope.who(message.source),
            )  # fmt: skip
        return give(self._loaded(message.data, source, what), source, message.tag)

    def _received(
        self, what: str, src: int | None, tag: int | None, out: Any, timeout: float | None,
        give: Callable[[Any, Any], Any],
    ) -> Posted[Any]:  # fmt: skip
        target = None if out is None else as_out(out, what=what, rank=self._scope.rank)
        # Only where nobody can cancel in the middle may the bytes land in the caller's array as they come.
        straight = target if self._endpoint.inline else None

        def fit(meta: bytes, nbytes: int) -> Array | None:
            came = parse(meta)
            if came.nbytes != nbytes:
                raise MismatchError(f"{what}: {nbytes} bytes came for shape {came.shape} of {came.dtype}")
            if target is not None and (came.shape != target.shape or came.dtype != native(target.dtype)):
                raise MismatchError(
                    f"{what} on rank {self._scope.rank}: a message of shape {came.shape} and dtype {came.dtype} does "
                    f"not fit out of shape {target.shape} and dtype {target.dtype}; the message is consumed"
                )
            return direct(straight, came)

        receive = self._posted(what, src, tag, ARRAY, timeout, fit)
        return Posted(self._receive(what, receive, target, out, give), lambda _: self._withdraw(receive), what)

    def _posted(
        self, what: str, src: int | None, tag: int | None, kind: int, timeout: float | None,
        fit: Callable[[bytes, int], Array | None],
    ) -> MessageReceive:  # fmt: skip
        self._usable(what)
        scope = self._scope
        source = None if src is None else scope.ranks[self._rank_of(src, what, "src")]
        number = None if tag is None else self._tag(tag, what)
        seconds = self._seconds(timeout, what)
        self._counts[what] = self._counts.get(what, 0) + 1
        receive = MessageReceive(scope, source, number, kind, seconds, fit)
        receive.fact = self._endpoint.flight.message(scope.id, what, src, tag)
        return scope.mailbox.receive(receive)

    async def _arrived(self, receive: MessageReceive, what: str) -> Any:
        flight = self._endpoint.flight
        try:
            message = await receive
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt) as error:
            flight.over(receive.fact, error)
            self._withdraw(receive)
            raise
        except AiocollError as error:
            flight.over(receive.fact, error)
            self._says(error, what)
            raise
        flight.over(receive.fact)
        return message

    async def _receive(
        self, what: str, receive: MessageReceive, target: Array | None, out: Any, give: Callable[[Any, Any], Any]
    ) -> Any:
        message = await self._arrived(receive, what)
        if target is None:
            return give(value_of(message.meta, message.data), message)
        if not message.direct:
            array = array_of(message.meta, message.data)
            if self._endpoint.inline or array.nbytes <= _COPIED_AT_ONCE_BYTES_MAX:
                copy(array, target)
            else:
                await self._swapped(receive, array, target)
        return give(out, message)

    async def _swapped(self, receive: MessageReceive, array: Array, target: Array) -> None:
        """Fills ``target`` piece by piece from the message, whose memory keeps what stood there: cancelled half-way,
        both are put back."""
        done: list[tuple[Array, Array]] = []
        try:
            for ours, theirs in slices(array, target):
                _swap(ours, theirs)
                done.append((ours, theirs))
                await self._endpoint.breathe()
        except BaseException:
            for ours, theirs in done:
                _swap(ours, theirs)
            self._withdraw(receive)
            raise

    def _withdraw(self, receive: MessageReceive) -> None:
        if not self._endpoint.closed:
            receive.scope.mailbox.withdraw(receive)

    def _tag(self, tag: Any, what: str) -> int:
        try:
            number = 1 << 64 if isinstance(tag, bool) else index(tag)
        except TypeError:
            number = 1 << 64
        if not -(1 << 63) <= number < 1 << 63:
            raise UsageError(f"{what} on rank {self._scope.rank}: tag={tag!r} must be an integer of 64 bits")
        return number


def _swap(ours: Array, theirs: Array) -> None:
    kept = theirs.copy()
    copy(ours, theirs)
    copy(kept, ours)


async def _then_raise(sending: Posted[None], error: BaseException) -> None:
    await sending
    raise error
