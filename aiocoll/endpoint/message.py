"""The records of point-to-point messages: one that comes, one that is sent, one that is waited for.

The rule: a message lands where its receive says, and only as long as that receive wants it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..buffers import flat_bytes
from ..wire import frame
from ..wire.frame import DRAIN
from .operations import EMPTY, Operation, Outgoing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .mailbox import Mailbox
    from .scope import Scope

TAG_MASK: Final = (1 << 64) - 1
by_order: Callable[[Any], int] = attrgetter("order")


class Message:
    """One message that has arrived, or is arriving, or waits at its sender (``offered``)."""

    __slots__ = (
        "_position", "_view", "data", "direct", "held", "kind", "length", "mailbox", "meta", "offered", "order",
        "receive", "source", "step", "tag", "whole",
    )  # fmt: skip
    mailbox: Mailbox
    source: int
    tag: int
    step: int
    kind: int
    meta: bytes
    length: int

    def __init__(self, mailbox: Mailbox, source: int, tag: int, step: int, meta: bytes, length: int) -> None:
        self.mailbox, self.source, self.tag, self.step = mailbox, source, tag, step
        self.kind, self.meta, self.length = meta[0], meta[1:], length
        self.order: int = mailbox.next_order()
        self.offered: bool = False
        self.whole: bool = False
        self.direct: bool = False
        self.held: int = 0
        """What it counts against the bound while it is kept."""
        self.data: NDArray[Any] | None = None
        self.receive: MessageReceive | None = None
        self._view: memoryview | None = None
        self._position = 0

    def __repr__(self) -> str:
        return f"<Message from world rank {self.source}, tag {self.tag}, {self.length} bytes>"

    def make_room(self, into: NDArray[Any] | None = None) -> None:
        """Chooses where the bytes go: ``into`` (the receiver's own array) or new memory."""
        self.direct = into is not None
        self.data = np.empty(self.length, np.uint8) if into is None else into
        self._view = flat_bytes(self.data) if self.length else EMPTY
        self._position = 0

    def move_in(self, into: NDArray[Any] | None) -> None:
        """A receive takes the message in the middle: the rest goes straight into its array, if it has one."""
        if into is not None:
            self._move(into)

    def move_out(self) -> None:
        """The receiver takes its array back: what is there already is kept in new memory."""
        if self.direct:
            self._move(None)

    def _move(self, into: NDArray[Any] | None) -> None:
        begun, view = self._position, self._view
        self.make_room(into)
        if view is not None and self._view is not None:
            self._view[:begun] = view[:begun]
        self._position = begun

    def drop(self) -> None:
        """Nobody will want it: what still comes is thrown away, and no array is touched any more."""
        self.receive = self.data = self._view = None
        self.direct = False

    def window(self) -> memoryview:
        return DRAIN if self._view is None else self._view[self._position :]

    def advance(self, nbytes: int) -> None:
        self._position += nbytes

    def complete(self) -> None:
        self.whole = True
        if self.receive is not None:
            self.mailbox.deliver(self, self.receive)


class MessageSend(Outgoing):
    """A send whose payload is not with the kernel yet."""

    __slots__ = ("began", "key", "looked", "offered", "scope", "tag", "timeout")
    scope: Scope
    tag: int
    began: float
    timeout: float
    offered: bool

    def __init__(self, scope: Scope, peer: int, tag: int, step: int, timeout: float, offered: bool = False) -> None:
        """``offered``: it is over when a receive has taken it, and not before."""
        now = scope.endpoint.loop.time()
        super().__init__(scope.endpoint, peer, now + timeout)
        self.scope, self.tag, self.began, self.timeout, self.offered = scope, tag, now, timeout, offered
        self.looked: bool = False
        """Whether its receiver was asked whether it is still in the group."""
        self.key: tuple[int, int, int, int, int] = (peer, frame.MESSAGE, scope.id, tag & TAG_MASK, step)

    def describe(self) -> str:
        return f"send to rank {self.scope.index.get(self.peer)} with tag {self.tag}"

    def finish(self, error: BaseException | None = None) -> None:
        if type(error) is ConnectionError and not self.done:
            error = self.endpoint.failure.loss(self.peer, self.scope, self.describe())
        self.scope.mailbox.sends.pop(self, None)
        super().finish(error)


class MessageReceive(Operation):
    """A receive of one message; ``fit(meta, length)`` says where it goes, or raises MismatchError."""

    __slots__ = ("began", "fact", "fit", "kind", "looked", "message", "order", "scope", "source", "tag", "timeout")
    scope: Scope
    source: int | None
    tag: int | None
    kind: int
    fit: Callable[[bytes, int], NDArray[Any] | None]
    began: float
    timeout: float

    def __init__(
        self, scope: Scope, source: int | None, tag: int | None, kind: int, timeout: float,
        fit: Callable[[bytes, int], NDArray[Any] | None],
    ) -> None:  # fmt: skip
        now = scope.endpoint.loop.time()
        super().__init__(scope.endpoint, -1 if source is None else source, now + timeout)
        self.scope, self.source, self.tag, self.kind, self.fit = scope, source, tag, kind, fit
        self.began, self.timeout = now, timeout
        self.message: Message | None = None
        self.looked: bool = False
        """Whether its sender was asked whether it is still in the group."""
        self.fact: Any = None
        """What the flight recorder keeps of it."""
        self.order: int = scope.mailbox.next_order()

    def describe(self) -> str:
        source = "any rank" if self.source is None else f"rank {self.scope.index.get(self.source)}"
        return f"recv from {source} with {'any tag' if self.tag is None else f'tag {self.tag}'}"

    def wants(self, message: Message) -> bool:
        return (
            (self.source is None or self.source == message.source)
            and (self.tag is None or self.tag == message.tag)
            and self.kind == message.kind
        )


class Wanted:
    """Receives without a message; those that know source and tag are found without looking at the others."""

    def __init__(self) -> None:
        self._exact: dict[tuple[int, int, int], deque[MessageReceive]] = {}
        self._others: list[MessageReceive] = []

    def __repr__(self) -> str:
        return f"<Wanted: {len(self)} receives>"

    def __len__(self) -> int:
        return sum(map(len, self._exact.values())) + len(self._others)

    def __iter__(self) -> Iterator[MessageReceive]:
        """All of them, in no particular order."""
        for queue in list(self._exact.values()):
            yield from list(queue)
        yield from list(self._others)

    def add(self, receive: MessageReceive) -> None:
        """One more, in its place by the order of posting."""
        queue: Any = self._others
        if receive.source is not None and receive.tag is not None:
            key = (receive.source, receive.tag, receive.kind)
            queue = self._exact.get(key)
            if queue is None:
                self._exact[key] = deque((receive,))
                return
        position = len(queue)
        while position and queue[position - 1].order > receive.order:  # only one that waits again: its message fell out
            position -= 1
        queue.insert(position, receive)

    def remove(self, receive: MessageReceive) -> bool:
        """Takes one out; False if it is not here."""
        others: Any = self._others
        queue, key = others, None
        if receive.source is not None and receive.tag is not None:
            key = (receive.source, receive.tag, receive.kind)
            queue = self._exact.get(key, others)
        try:
            queue.remove(receive)
        except ValueError:
            return False
        if not queue and key is not None:
            self._exact.pop(key, None)
        return True

    def first_for(self, message: Message) -> MessageReceive | None:
        """The oldest receive that ``message`` fits."""
        queue = self._exact.get((message.source, message.tag, message.kind))
        first = queue[0] if queue else None
        if self._others:
            for receive in self._others:
                if receive.wants(message):
                    return receive if first is None or receive.order < first.order else first
        return first
