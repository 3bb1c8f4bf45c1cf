"""Point-to-point messages of one group: FIFO per (source, tag), any source, any tag.

A message belongs to the receive that it was matched with when its header arrived (or when the receive was posted);
a receive that is withdrawn gives it back, whole and in its old place. Arrays and objects are matched apart. The rule:
whatever order things are withdrawn in, receives get messages in the order in which both were made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..errors import AiocollError, WireError
from ..wire import frame
from ..wire.frame import Landing
from ..wire.rope import Payload, Rope
from .message import TAG_MASK, Message, MessageReceive, MessageSend, Wanted, by_order
from .operations import DONE, Done, cost

if TYPE_CHECKING:
    from .core import Endpoint
    from .scope import Scope

ARRAY: Final = 0x41  # meta starts with b"A": an array follows
OBJECT: Final = 0x4F  # meta starts with b"O": an object follows
REFUSED: Final = 0x52  # meta starts with b"R": the sender could not serialise what should stand here
_STEP_MASK: Final = (1 << 32) - 1


class Mailbox:
    """The messages of one group on one rank."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.scope: Scope | None = None  # messages may come before this rank has made its group
        self.wanted: Wanted = Wanted()
        self.taking: dict[MessageReceive, None] = {}
        """Receives whose message is not whole yet."""
        self.kept: dict[tuple[int, int, int], deque[Message]] = {}
        self.sends: dict[MessageSend, None] = {}
        """Sends that are not over."""
        self._order = 0
        self._steps: dict[tuple[int, int], int] = {}

    def __repr__(self) -> str:
        return f"<Mailbox of {self.scope!r}: {len(self.wanted)} receives, {sum(map(len, self.kept.values()))} kept>"

    def next_order(self) -> int:
        """A number that says which message came first, and which receive."""
        self._order += 1
        return self._order

    # -- sending

    def send(
        self, peer: int, tag: int, meta: bytes, payload: Payload | None, timeout: float, offered: bool = False
    ) -> MessageSend | Done:
        """Sends one message to a world rank; ``offered``: not before a receive takes it."""
        scope, endpoint = self.scope, self.endpoint
        assert scope is not None
        step = self._steps.get((peer, tag), 0)
        self._steps[(peer, tag)] = (step + 1) & _STEP_MASK
        if peer in endpoint.failure.absent:
            failed = MessageSend(scope, peer, tag, step, timeout, offered)
            failed.finish(endpoint.failure.loss(peer, scope, failed.describe()))
            return failed
        if type(payload) is Rope and not getattr(endpoint.link(peer), "gathers", False):
            payload = memoryview(bytes(payload))
        key = (scope.id, tag & TAG_MASK, step)

        def ticket() -> MessageSend:
            return MessageSend(scope, peer, tag, step, timeout, offered)

        operation = endpoint.inbox.send(frame.MESSAGE, peer, key, meta, payload, ticket, offered)
        if operation is None:
            return DONE
        assert isinstance(operation, MessageSend)
        if not operation.done:
            self.sends[operation] = None
        return operation

    def keep_sending(self, send: MessageSend) -> None:
        """Nobody awaits ``send`` any more, and its array may change: what is left travels from a copy."""
        inbox = self.endpoint.inbox
        offer = inbox.offers.get(send.key)
        if offer is not None:
            inbox.offers[send.key] = (send, memoryview(bytes(offer[1])))
        else:
            self.endpoint.link(send.peer).withdraw(send, keep=True)
            self.sends.pop(send, None)

    def stop_sending(self, send: MessageSend, error: BaseException) -> None:
        """``send`` ends with ``error``: what has not begun is not sent, what has goes on from a copy."""
        inbox = self.endpoint.inbox
        if inbox.offers.pop(send.key, None) is None:
            inbox.retract(send)
        send.finish(error)

    def rejected(self, key: tuple[int, int, int, int, int], error: BaseException) -> None:
        """The receiver has no use for the message with ``key``."""
        for send in [send for send in self.sends if send.key == key]:
            self.stop_sending(send, error)

    # -- receiving

    def receive(self, receive: MessageReceive) -> MessageReceive:
        """Wants a message: takes the oldest that fits, or waits for one."""
        message = self._oldest(receive)
        if message is not None:
            self._unfile(message)
            self._match(message, receive)
        elif receive.source is not None and receive.source in self.endpoint.failure.absent:
            receive.finish(self.endpoint.failure.loss(receive.source, receive.scope, receive.describe()))
        else:
            self.wanted.add(receive)
            if receive.source is None:
                self.endpoint.link_all(receive.scope)  # or the end of one of them would go unnoticed
                if self._deserted(receive):
                    self.depart(receive.scope.others()[-1])
        return receive

    def _oldest(self, receive: MessageReceive) -> Message | None:
        if receive.source is not None and receive.tag is not None:
            queue = self.kept.get((receive.source, receive.tag, receive.kind))
            return queue[0] if queue else None
        heads = [queue[0] for queue in self.kept.values() if receive.wants(queue[0])]
        return min(heads, key=by_order, default=None)

    def arriving(self, source: int, tag: int, step: int, meta: bytes, length: int, *, offered: bool) -> Landing:
        """A message's header is here."""
        if not meta or meta[0] not in (ARRAY, OBJECT, REFUSED):
            raise WireError(f"a message with meta {meta[:20]!r}")
        tag = tag - (1 << 64) if tag >> 63 else tag
        message = Message(self, source, tag, step, meta, length)
        message.offered = offered
        if message.kind == REFUSED:
            message.kind, message.meta = OBJECT, b"R" + message.meta
        inbox, price = self.endpoint.inbox, 0 if offered else cost(meta, length)
        receive = self.wanted.first_for(message)
        if receive is not None:
            self.wanted.remove(receive)
            inbox.consumed(source, price)
            self._match(message, receive)
            return message
        inbox.hold(source, price)
        message.held = price
        if not offered:
            message.make_room()
        self._file(message)
        return message

    def _file(self, message: Message) -> None:
        """Keeps a message among those of its (source, tag), in order of arrival."""
        queue = self.kept.setdefault((message.source, message.tag, message.kind), deque())
        position = len(queue)
        while position and queue[position - 1].order > message.order:
            position -= 1
        queue.insert(position, message)

    def _unfile(self, message: Message) -> None:
        """A kept message is taken out, and its sender may send as much again."""
        key = (message.source, message.tag, message.kind)
        queue = self.kept[key]
        if queue[0] is message:
            queue.popleft()
        else:
            queue.remove(message)
        if not queue:
            del self.kept[key]
        self.endpoint.inbox.release(message.source, message.held)
        message.held = 0

    def _match(self, message: Message, receive: MessageReceive) -> None:
        scope = receive.scope
        try:
            into = receive.fit(message.meta, message.length)
        except Exception as error:
            # The message is consumed: the next receive gets the next one. Its sender may still be at it.
            if not message.whole:
                self.endpoint.failure.reject(scope, message, str(error))
            message.drop()
            if isinstance(error, AiocollError):
                error.rank, error.world_rank = scope.who(message.source).values()
            receive.finish(error)
            return
        receive.message, message.receive = message, receive
        if message.offered:
            message.offered = False
            message.make_room(into)
            self.taking[receive] = None
            key = (message.source, scope.id, message.tag & TAG_MASK, message.step)
            self.endpoint.inbox.grant(frame.BODY_MESSAGE, message, key, message.length)
        elif message.data is None:
            message.make_room(into)
            self.taking[receive] = None
        elif message.whole:
            self.deliver(message, receive)
        else:
            message.move_in(into)
            self.taking[receive] = None

    def deliver(self, message: Message, receive: MessageReceive) -> None:
        """All bytes are here. They are the receiver's from now on, and its last reference to them is the last."""
        receive.value, message.receive = message, None
        receive.message = None
        self.taking.pop(receive, None)
        receive.finish()

    def withdraw(self, receive: MessageReceive) -> None:
        """The receive is not wanted any more; a message that it had begun to take goes to the next one."""
        if receive.done and receive.value is None:
            return
        message = receive.message if receive.message is not None else receive.value
        if message is None:
            self.wanted.remove(receive)
            return
        self.taking.pop(receive, None)
        receive.message = receive.value = None
        if receive.scope.closed or receive.scope.broken is not None:
            message.drop()
            return
        while message is not None:
            message.receive = None
            message.move_out()
            message = self._hand_on(message)

    def _hand_on(self, message: Message) -> Message | None:
        """Gives a message back to the receives; returns the later one that it takes the place of, if any."""
        first = self.wanted.first_for(message)
        heirs = [each for each in self.taking if each.wants(message) and each.message is not None
                 and each.message.order > message.order]  # fmt: skip
        if first is not None:
            heirs.append(first)
        if not heirs:
            self._file(message)
            return None
        heir = min(heirs, key=by_order)
        later, heir.message = heir.message, None
        if later is None:
            self.wanted.remove(heir)
        else:
            del self.taking[heir]
        self._match(message, heir)
        return later

    # -- the end

    def rescind(self, message: Message) -> None:
        """A message that was granted will not come: its receive waits for the next one."""
        receive, message.receive = message.receive, None
        if receive is not None:
            receive.message = None
            self.taking.pop(receive, None)
            self.receive(receive)
        elif message in self.kept.get((message.source, message.tag, message.kind), ()):
            self._unfile(message)
        message.drop()

    def depart(self, peer: int) -> None:
        """``peer`` is gone: what was to come from it will not come."""
        for message in [each for queue in self.kept.values() for each in queue if each.source == peer]:
            if not message.whole:
                self._unfile(message)
                message.drop()
        for message in [each.message for each in self.taking if each.message is not None]:
            if message.source == peer:
                self.rescind(message)
        for wanted in [each for each in self.wanted if each.source == peer]:
            self.wanted.remove(wanted)
            wanted.finish(self.endpoint.failure.loss(peer, wanted.scope, wanted.describe()))
        for wanted in [each for each in self.wanted if each.source is None and self._deserted(each)]:
            self.wanted.remove(wanted)
            wanted.finish(self.endpoint.failure.loss(peer, wanted.scope, wanted.describe()))

    def _deserted(self, receive: MessageReceive) -> bool:
        """Whether nobody is left from whom a receive from anyone could get something."""
        absent, others = self.endpoint.failure.absent, receive.scope.others()
        return bool(others) and all(peer in absent for peer in others)

    def close(self, ending: Callable[[MessageReceive | MessageSend], BaseException]) -> int:
        """Pending receives and sends each end with an error of their own; kept messages are forgotten. Returns how
        many were pending."""
        receives, self.wanted = [*self.wanted, *self.taking], Wanted()
        self.taking.clear()
        for receive in receives:
            if receive.message is not None:
                receive.message.drop()
                receive.message = None
            receive.finish(ending(receive))
        sends = list(self.sends)
        for send in sends:
            self.stop_sending(send, ending(send))
        for message in [message for queue in self.kept.values() for message in queue]:
            self._unfile(message)
            message.drop()
        return len(receives) + len(sends)
