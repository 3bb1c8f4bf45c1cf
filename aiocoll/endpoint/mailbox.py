"""Point-to-point messages of one group: FIFO per (source, tag), any source, any tag.

A message belongs to the receive that it was matched with when its header arrived (or when the receive was posted);
a receive that is withdrawn gives it back, whole and in its old place. Arrays and objects are matched apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..buffers import flat_bytes
from ..errors import MismatchError, WireError
from ..wire import frame
from ..wire.frame import Landing
from .operations import DONE, EMPTY, Done, Operation, cost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .core import Endpoint
    from .scope import Scope

ARRAY: Final = 0x41  # meta starts with b"A": an array follows
OBJECT: Final = 0x4F  # meta starts with b"O": an object follows
REFUSED: Final = 0x52  # meta starts with b"R": the sender could not serialise what should stand here
_TAG_MASK: Final = (1 << 64) - 1
_STEP_MASK: Final = (1 << 32) - 1


class Message:
    """One message that has arrived, or is arriving, or waits at its sender (``offered``)."""

    __slots__ = (
        "_mailbox", "_position", "_view", "data", "direct", "kind", "length", "meta", "offered", "order", "receive",
        "source", "step", "tag", "whole",
    )  # fmt: skip

    def __init__(self, mailbox: Mailbox, source: int, tag: int, step: int, meta: bytes, length: int) -> None:
        self._mailbox, self.source, self.tag, self.step = mailbox, source, tag, step
        self.kind, self.meta, self.length = meta[0], meta[1:], length
        self.order = mailbox.next_order()
        self.offered = False
        self.whole = False
        self.direct = False
        self.data: NDArray[Any] | None = None
        self.receive: MessageReceive | None = None
        self._view = EMPTY
        self._position = 0

    def __repr__(self) -> str:
        return f"<Message from world rank {self.source}, tag {self.tag}, {self.length} bytes>"

    def make_room(self, into: NDArray[Any] | None = None) -> None:
        """Chooses where the bytes go: ``into`` (the receiver's own array) or new memory."""
        self.direct = into is not None
        self.data = np.empty(self.length, np.uint8) if into is None else into
        self._view = flat_bytes(self.data) if self.length else EMPTY
        self._position = 0

    def move_out(self) -> None:
        """The receiver takes its array back: what is there already is kept in new memory."""
        if self.direct:
            begun, view = self._position, self._view
            self.make_room()
            self._view[:begun] = view[:begun]
            self._position = begun

    def window(self) -> memoryview:
        return self._view[self._position :]

    def advance(self, nbytes: int) -> None:
        self._position += nbytes

    def complete(self) -> None:
        self.whole = True
        if self.receive is not None:
            self._mailbox.deliver(self, self.receive)


class MessageSend(Operation):
    """A send whose payload is not with the kernel yet."""

    __slots__ = ("began", "key", "scope", "tag", "timeout")

    def __init__(self, scope: Scope, peer: int, tag: int, step: int, timeout: float) -> None:
        now = scope.endpoint.loop.time()
        super().__init__(scope.endpoint, peer, now + timeout)
        self.scope, self.tag, self.began, self.timeout = scope, tag, now, timeout
        self.key = (peer, frame.MESSAGE, scope.id, tag & _TAG_MASK, step)

    def describe(self) -> str:
        return f"send to rank {self.scope.index.get(self.peer)} with tag {self.tag}"

    def finish(self, error: BaseException | None = None) -> None:
        if isinstance(error, ConnectionError) and not self.done and type(error) is ConnectionError:
            error = self.endpoint.failure.loss(self.peer, self.scope, self.describe())
        super().finish(error)


class MessageReceive(Operation):
    """A receive of one message; ``fit(meta, length)`` says where it goes, or raises MismatchError."""

    __slots__ = ("began", "fit", "kind", "message", "scope", "source", "tag", "timeout")

    def __init__(
        self, scope: Scope, source: int | None, tag: int | None, kind: int, timeout: float,
        fit: Callable[[bytes, int], NDArray[Any] | None],
    ) -> None:  # fmt: skip
        now = scope.endpoint.loop.time()
        super().__init__(scope.endpoint, -1 if source is None else source, now + timeout)
        self.scope, self.source, self.tag, self.kind, self.fit = scope, source, tag, kind, fit
        self.began, self.timeout = now, timeout
        self.message: Message | None = None

    def describe(self) -> str:
        source = "any rank" if self.source is None else f"rank {self.scope.index.get(self.source)}"
        return f"recv from {source} with {'any tag' if self.tag is None else f'tag {self.tag}'}"

    def wants(self, message: Message) -> bool:
        return (
            (self.source is None or self.source == message.source)
            and (self.tag is None or self.tag == message.tag)
            and self.kind == message.kind
        )


class Mailbox:
    """The messages of one group on one rank."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.scope: Scope | None = None  # messages may come before this rank has made its group
        self.wanted: list[MessageReceive] = []
        self.kept: dict[tuple[int, int, int], deque[Message]] = {}
        self._order = 0
        self._steps: dict[tuple[int, int], int] = {}
        self.sends: set[MessageSend] = set()

    def __repr__(self) -> str:
        return f"<Mailbox of {self.scope!r}: {len(self.wanted)} receives, {sum(map(len, self.kept.values()))} kept>"

    def next_order(self) -> int:
        """A number that says which message came first."""
        self._order += 1
        return self._order

    # -- sending

    def send(
        self, peer: int, tag: int, meta: bytes, payload: memoryview | None, timeout: float
    ) -> MessageSend | Done:
        """Sends one message to a world rank."""
        scope, endpoint = self.scope, self.endpoint
        assert scope is not None
        step = self._steps.get((peer, tag), 0)
        self._steps[(peer, tag)] = (step + 1) & _STEP_MASK
        if peer in endpoint.failure.absent:
            failed = MessageSend(scope, peer, tag, step, timeout)
            failed.finish(endpoint.failure.loss(peer, scope, failed.describe()))
            return failed
        key = (scope.id, tag & _TAG_MASK, step)
        make: Callable[[], MessageSend] = lambda: MessageSend(scope, peer, tag, step, timeout)  # noqa: E731
        operation = endpoint.inbox.send(frame.MESSAGE, peer, key, meta, payload, make)
        if operation is None:
            return DONE
        assert isinstance(operation, MessageSend)
        self.sends = {send for send in self.sends if not send.done}
        self.sends.add(operation)
        return operation

    def keep_sending(self, send: MessageSend) -> None:
        """Nobody awaits ``send`` any more, and its array may change: what is left travels from a copy."""
        inbox = self.endpoint.inbox
        offer = inbox.offers.get(send.key)
        if offer is not None:
            inbox.offers[send.key] = (send, memoryview(bytes(offer[1])))
        else:
            self.endpoint.link(send.peer).withdraw(send, keep=True)

    # -- receiving

    def receive(self, receive: MessageReceive) -> MessageReceive:
        """Wants a message: takes the oldest that fits, or waits for one."""
        message = self._oldest(receive)
        if message is None:
            if receive.source is not None and receive.source in self.endpoint.failure.absent:
                receive.finish(self.endpoint.failure.loss(receive.source, receive.scope, receive.describe()))
            else:
                self.wanted.append(receive)
            return receive
        key = (message.source, message.tag, message.kind)
        queue = self.kept[key]
        queue.popleft()
        if not queue:
            del self.kept[key]
        self.endpoint.inbox.release(message.source, _price(message))
        self._match(message, receive)
        return receive

    def _oldest(self, receive: MessageReceive) -> Message | None:
        if receive.source is not None and receive.tag is not None:
            queue = self.kept.get((receive.source, receive.tag, receive.kind))
            return queue[0] if queue else None
        heads = [queue[0] for queue in self.kept.values() if receive.wants(queue[0])]
        return min(heads, key=lambda message: message.order, default=None)

    def arriving(self, source: int, tag: int, step: int, meta: bytes, length: int, *, offered: bool) -> Landing:
        """A message's header is here."""
        if not meta or meta[0] not in (ARRAY, OBJECT, REFUSED):
            raise WireError(f"a message with meta {meta[:20]!r}")
        tag = tag - (1 << 64) if tag >> 63 else tag
        message = Message(self, source, tag, step, meta, length)
        message.offered = offered
        if message.kind == REFUSED:
            message.kind, message.meta = OBJECT, b"R" + message.meta
        for position, receive in enumerate(self.wanted):
            if receive.wants(message):
                del self.wanted[position]
                self.endpoint.inbox.consumed(source, cost(meta, 0 if offered else length))
                self._match(message, receive)
                return message
        self._keep(message)
        if not offered:
            message.make_room()
        return message

    def _keep(self, message: Message) -> None:
        """Files a message under (source, tag) in its order of arrival."""
        self.endpoint.inbox.hold(message.source, _price(message))
        queue = self.kept.setdefault((message.source, message.tag, message.kind), deque())
        if queue and queue[0].order > message.order:
            queue.appendleft(message)
        else:
            queue.append(message)

    def _match(self, message: Message, receive: MessageReceive) -> None:
        scope = receive.scope
        try:
            into = receive.fit(message.meta, message.length)
        except MismatchError as error:
            # The message is consumed: the next receive gets the next one.
            if message.offered:
                self.endpoint.failure.reject(scope, message, str(error))
            elif message.data is None:
                message.make_room()
            receive.finish(error)
            return
        except Exception as error:
            if message.data is None and not message.offered:
                message.make_room()
            receive.finish(error)
            return
        receive.message, message.receive = message, receive
        if message.offered:
            message.offered = False
            message.make_room(into)
            key = (message.source, scope.id, message.tag & _TAG_MASK, message.step)
            self.endpoint.inbox.grant(frame.BODY_MESSAGE, message, key, message.length)
        elif message.data is None:
            message.make_room(into)
        elif message.whole:
            self.deliver(message, receive)

    def deliver(self, message: Message, receive: MessageReceive) -> None:
        """All bytes are here."""
        receive.value = message
        receive.message = None
        receive.finish()

    def withdraw(self, receive: MessageReceive) -> None:
        """The receive is not wanted any more; a message that it had begun to take goes to the next one."""
        if receive.done and receive.value is None:
            return
        if receive in self.wanted:
            self.wanted.remove(receive)
            return
        message = receive.message if receive.message is not None else receive.value
        if message is None:
            return
        receive.message = receive.value = message.receive = None
        message.move_out()
        for position, other in enumerate(self.wanted):
            if other.wants(message):
                del self.wanted[position]
                self._match(message, other)
                return
        self._keep(message)

    def close(self, error: BaseException) -> None:
        """Pending receives and sends end with ``error``; kept messages are forgotten."""
        wanted, self.wanted = self.wanted, []
        for receive in wanted:
            receive.finish(error)
        for operation in list(self.endpoint.parked):
            if isinstance(operation, (MessageReceive, MessageSend)) and operation.scope is self.scope:
                if isinstance(operation, MessageReceive) and operation.message is not None:
                    operation.message.move_out()
                    operation.message.receive = None
                operation.finish(error)
        for queue in self.kept.values():
            for message in queue:
                self.endpoint.inbox.release(message.source, _price(message))
        self.kept.clear()


def _price(message: Message) -> int:
    return cost(message.meta, 0 if message.offered else message.length) + 1
