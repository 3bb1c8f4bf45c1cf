"""What arrived before it was wanted, and the bound on it.

Small payloads are sent at once and counted at the sender until the receiver has consumed them; what would pass the
bound is offered (its key and size travel, its bytes stay) and sent when a receive takes it. So memory for unexpected
data is bounded, nothing blocks what is behind it, and whether a program deadlocks never depends on sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from ..buffers import flat_bytes
from ..errors import WireError
from ..wire import frame
from ..wire.frame import Drain, Landing, pour
from ..wire.rope import Payload
from .mailbox import Mailbox
from .message import Message
from .operations import EMPTY, Outgoing, Receive, cost
from .scope import bound

if TYPE_CHECKING:
    from .channel import Call
    from .core import Endpoint
    from .scope import Scope

Key = tuple[int, int, int, int]
"""(source world rank, group, call, step)"""
Ticket = tuple[int, int, int, int, int]
"""(peer, frame kind, group, call, step)"""

_SIZE: Final = struct.Struct("<Q")
_GONE_MAX: Final = 4096


class Arrival:
    """Data that came before its receive was posted; later the stand-in for the receive that takes it."""

    __slots__ = ("_data", "_forward", "_position", "length", "meta", "offered", "price")
    meta: bytes
    length: int
    offered: bool
    price: int

    def __init__(self, meta: bytes, length: int, *, offered: bool) -> None:
        self.meta, self.length, self.offered = meta, length, offered
        self._data = EMPTY if offered or not length else flat_bytes(np.empty(length, np.uint8))
        self._position = self.price = 0
        self._forward: Landing | None = None

    @property
    def whole(self) -> bool:
        return self._position == self.length

    def window(self) -> memoryview:
        return self._forward.window() if self._forward is not None else self._data[self._position :]

    def advance(self, nbytes: int) -> None:
        self._position += nbytes
        if self._forward is not None:
            self._forward.advance(nbytes)

    def complete(self) -> None:
        if self._forward is not None:
            self._forward.complete()

    def pour(self, landing: Landing) -> None:
        """Hands what is here, and what still comes, to the receive that wanted it."""
        pour(self._data[: self._position], landing)
        self._data = EMPTY
        self._forward = landing
        if self.whole:
            landing.complete()


class Inbox:
    """Matches the frames of all peers with the receives of all calls."""

    unreceived: list[int]
    owed: list[int]

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.expected: dict[Key, Receive] = {}
        self.arrived: dict[Key, Arrival] = {}
        self.offers: dict[Ticket, tuple[Outgoing, Payload]] = {}
        self._granted: dict[Ticket, tuple[Receive | Message, int]] = {}
        self._landing: dict[int, Receive] = {}
        self.gone: dict[int, int] = {}
        """Groups that this rank has left, and how many numbered calls it made there."""
        self._early: dict[int, Mailbox] = {}
        size = endpoint.size
        self.unreceived, self._held, self.owed = [0] * size, [0] * size, [0] * size
        self.bound: int = endpoint.settings.unreceived_bytes_max
        self.credit_step: int = max(self.bound // 128, 1)

    def __repr__(self) -> str:
        return f"<Inbox: {len(self.expected)} expected, {len(self.arrived)} arrived, {len(self.offers)} offers>"

    def unreceived_bytes(self) -> int:
        """Bytes that peers sent and that no receive has taken yet."""
        return sum(self._held)

    # -- sending

    def send(
        self, kind: int, peer: int, key: tuple[int, int, int], meta: bytes, payload: Payload | None,
        ticket: Callable[[], Outgoing], offered: bool = False,
    ) -> Outgoing | None:  # fmt: skip
        """Sends DATA or MESSAGE number ``key`` = (group, call, step); None when the payload may be reused already.
        ``offered``: its bytes stay here until somebody wants them, however few they are."""
        price = cost(meta, 0 if payload is None else len(payload))
        group, call, step = key
        link = self.endpoint.link(peer)
        if not offered and self.count(peer, price):
            queued = link.submit(kind, group, call, step, meta, payload)
            if queued is None:
                return None
            queued.sent = operation = ticket()
            operation.price = price
            return operation
        operation, data = ticket(), EMPTY if payload is None else payload
        self.offers[(peer, kind, group, call, step)] = (operation, data)
        offer = frame.OFFER_DATA if kind == frame.DATA else frame.OFFER_MESSAGE
        link.submit(offer, group, call, step, _SIZE.pack(len(data)) + meta, None)
        return operation

    def count(self, peer: int, price: int) -> bool:
        """Counts what is about to be sent at once; False if the bound has no room for it."""
        if self.unreceived[peer] + price > self.bound:
            self.credited(peer, 0 if (memory := self.endpoint.near[peer]) is None else memory.credit())
            if self.unreceived[peer] + price > self.bound:
                return False
        self.unreceived[peer] += price
        return True

    def retract(self, operation: Outgoing) -> None:
        """A send is not wanted any more: what has not begun is not sent, what has goes on from a copy, since its
        receiver may be through before it hears that anything is wrong."""
        if self.endpoint.link(operation.peer).withdraw(operation, keep=False):
            self.credited(operation.peer, operation.price)

    def granted(self, peer: int, kind: int, group: int, call: int, step: int) -> None:
        """The receiver has a place for what was offered."""
        data = kind == frame.GRANT_DATA
        offer = self.offers.pop((peer, frame.DATA if data else frame.MESSAGE, group, call, step), None)
        if offer is None:  # its call has failed here since, or its send gave up
            if not data:
                self.endpoint.failure.tell(peer, group, call, {"t": "rescinded", "step": step})
            return
        operation, payload = offer
        body = frame.BODY_DATA if data else frame.BODY_MESSAGE
        queued = self.endpoint.link(peer).submit(body, group, call, step, b"", payload if len(payload) else None)
        if queued is None:
            operation.finish()
        else:
            queued.sent = operation

    def credited(self, peer: int, nbytes: int) -> None:
        """The receiver has consumed that much of what was sent to it."""
        self.unreceived[peer] = max(self.unreceived[peer] - nbytes, 0)

    # -- receiving

    def post(self, receive: Receive) -> None:
        """Wants a step of a collective."""
        arrival = self.arrived.pop(receive.key, None)
        if arrival is None:
            self.expected[receive.key] = receive
            return
        peer = receive.peer
        self.release(peer, arrival.price)
        if not self._begin(receive, arrival.meta, arrival.length):
            if not arrival.offered:
                arrival.pour(Drain())
        elif arrival.offered:
            self.grant(frame.BODY_DATA, receive, receive.key, arrival.length)
        else:
            if not arrival.whole:
                self._landing[peer] = receive
            arrival.pour(receive)

    def data(self, peer: int, group: int, call: int, step: int, meta: bytes, length: int) -> Landing | None:
        """A step of a collective arrives."""
        key = (peer, group, call, step)
        receive = self.expected.pop(key, None)
        if receive is not None:
            self.consumed(peer, cost(meta, length))
            if not self._begin(receive, meta, length):
                return Drain()
            self._landing[peer] = receive
            return receive
        if self.unwanted(peer, group, call, step, meta):
            self.consumed(peer, cost(meta, length))
            return Drain()
        return self._keep(key, meta, length, offered=False)

    def offered_data(self, peer: int, group: int, call: int, step: int, meta: bytes) -> None:
        """A step of a collective waits at its sender."""
        meta, length = split_offer(meta)
        key = (peer, group, call, step)
        receive = self.expected.pop(key, None)
        if receive is not None:
            if self._begin(receive, meta, length):
                self.grant(frame.BODY_DATA, receive, key, length)
        elif not self.unwanted(peer, group, call, step, meta):
            self._keep(key, meta, length, offered=True)

    def grant(self, kind: int, landing: Receive | Message, key: Key, length: int) -> None:
        """Asks for the body of an offer; it will go to ``landing``."""
        peer, group, call, step = key
        self._granted[(peer, kind, group, call, step)] = (landing, length)
        answer = frame.GRANT_DATA if kind == frame.BODY_DATA else frame.GRANT_MESSAGE
        self.endpoint.link(peer).submit(answer, group, call, step, b"", None)

    def body(self, peer: int, kind: int, group: int, call: int, step: int, length: int) -> Landing:
        """The body of an offer arrives."""
        landing, promised = self._granted.pop((peer, kind, group, call, step), (None, length))
        if length != promised:
            raise WireError(f"a body of {length} bytes follows an offer of {promised} bytes")
        if landing is None:
            return Drain()  # its call has failed here since
        if isinstance(landing, Receive):
            self._landing[peer] = landing
        return landing

    def message(self, peer: int, group: int, tag: int, step: int, meta: bytes, length: int) -> Landing:
        """A point-to-point message arrives."""
        if self.unwanted(peer, group, -1, step, meta):
            self.consumed(peer, cost(meta, length))
            return Drain()
        return self._mail(group).arriving(peer, tag, step, meta, length, offered=False)

    def offered_message(self, peer: int, group: int, tag: int, step: int, meta: bytes) -> None:
        """A point-to-point message waits at its sender."""
        meta, length = split_offer(meta)
        if not self.unwanted(peer, group, -1, step, meta):
            self._mail(group).arriving(peer, tag, step, meta, length, offered=True)

    def _mail(self, group: int) -> Mailbox:
        scope = self.endpoint.scopes.get(group)
        if scope is not None:
            return scope.mailbox
        mailbox = self._early.get(group)
        if mailbox is None:
            mailbox = self._early[group] = Mailbox(self.endpoint)
        return mailbox

    def mailbox_of(self, group: int) -> Mailbox:
        """The mailbox of a group that is being entered, with the messages that came before."""
        return self._early.pop(group, None) or Mailbox(self.endpoint)

    def rescinded(self, peer: int, group: int, tag: int, step: int) -> None:
        """A granted message will not come: its sender gave up. The receive waits for the next one."""
        message, _ = self._granted.pop((peer, frame.BODY_MESSAGE, group, tag, step), (None, 0))
        if isinstance(message, Message):
            message.mailbox.rescind(message)

    def _begin(self, receive: Receive, meta: bytes, length: int) -> bool:
        """Checks the first frame's description and hands the header to the receive."""
        if receive.key[3] == 0:
            call = receive.call
            if not meta.startswith(call.greeting):
                self.endpoint.failure.differ(call.scope, call.number, call.description, receive.peer, meta)
                return False
            call.scope.seen[receive.peer] = call.number
            meta = meta[len(call.greeting) :]
        return receive.begin(meta, length)

    def _keep(self, key: Key, meta: bytes, length: int, *, offered: bool) -> Arrival:
        price = 0 if offered else cost(meta, length)  # an offer's bytes lie at its sender, and are not counted there
        self.hold(key[0], price)
        arrival = self.arrived[key] = Arrival(meta, length, offered=offered)
        arrival.price = price
        return arrival

    def unwanted(self, peer: int, group: int, call: int, step: int, meta: bytes) -> bool:
        """Whether what arrives belongs to nothing that this rank will ever ask for."""
        scope = self.endpoint.scopes.get(group)
        if scope is None:
            return group in self.gone
        if scope.broken is not None and not 0 <= call < scope.sound_until:
            self.endpoint.failure.tell_again(scope, peer)
            return True
        if call in scope.failed:
            return True
        over = scope.over.get(call)
        if over is not None:
            if step == 0:
                self.endpoint.failure.differ(scope, call, over, peer, meta)
            return True
        under_way = scope.calls.get(call)
        if under_way is not None and under_way.error is not None:
            return True  # it has failed, and whoever made it has not come to know yet
        if under_way is None or step or meta.startswith(under_way.greeting):
            return False
        self.endpoint.failure.differ(scope, call, under_way.description, peer, meta)
        return True

    def compare(self, call: Call) -> None:
        """What lies here for a call that began later, and whose sender this rank may never wait for."""
        scope = call.scope
        for peer in scope.others():
            arrival = self.arrived.get((peer, scope.id, call.number, 0))
            if arrival is not None and not arrival.meta.startswith(call.greeting):
                self.endpoint.failure.differ(scope, call.number, call.description, peer, arrival.meta)
                return

    def leftovers(self, call: Call) -> None:
        """A call is through: whoever sent what still lies here for it made another call under its number."""
        scope = call.scope
        for peer in scope.others():
            arrival = self.arrived.get((peer, scope.id, call.number, 0))
            if arrival is not None:
                self.endpoint.failure.differ(scope, call.number, call.description, peer, arrival.meta)
                return

    # -- the bound

    def hold(self, peer: int, price: int) -> None:
        """Unexpected data of ``peer`` is kept; a peer that ignores the bound is cut off."""
        self._held[peer] += price
        if self._held[peer] > 2 * self.bound + (1 << 20):
            raise WireError(f"more than {2 * self.bound} unreceived bytes, though {self.bound} are the bound")

    def release(self, peer: int, price: int) -> None:
        """Kept data is taken (or dropped): its sender may send as much again."""
        if price:
            self._held[peer] -= price
            self.consumed(peer, price)

    def consumed(self, peer: int, price: int) -> None:
        """Data of ``peer`` needs no memory any more; says so now and then, so that the peer may send on."""
        owed = self.owed[peer] + price
        if owed < self.credit_step:
            self.owed[peer] = owed
        else:
            self.owed[peer] = 0
            memory = self.endpoint.near[peer]
            if memory is not None:
                memory.consumed(owed)
            else:
                self.endpoint.link(peer).submit(frame.CREDIT, 0, owed, 0, b"", None)

    # -- forgetting

    def forget_call(self, call: Call) -> None:
        """A call has failed: nothing of it may touch the caller's memory from now on."""
        mine = (call.scope.id, call.number)
        for key in [key for key in self.expected if key[1:3] == mine]:
            del self.expected[key]
        for ticket in [ticket for ticket in self._granted if ticket[2:4] == mine and ticket[1] == frame.BODY_DATA]:
            del self._granted[ticket]
        for ticket in [ticket for ticket in self.offers if ticket[2:4] == mine and ticket[1] == frame.DATA]:
            del self.offers[ticket]
        for peer in [peer for peer, receive in self._landing.items() if receive.call is call]:
            self._landing.pop(peer).detach()
        self._drop([key for key in self.arrived if key[1:3] == mine])

    def forget_call_number(self, scope: Scope, number: int) -> None:
        """A call was refused before this rank made it: what came for it is dropped."""
        self._drop([key for key in self.arrived if key[1:3] == (scope.id, number)])

    def depart(self, peer: int) -> list[Call]:
        """``peer`` is gone: forgets what it offered; gives the calls that wait for something of it."""
        waiting = [receive.call for key, receive in self.expected.items() if key[0] == peer]
        for ticket in [ticket for ticket in self._granted if ticket[0] == peer]:
            landing, _ = self._granted.pop(ticket)
            if isinstance(landing, Receive):
                waiting.append(landing.call)
        self._drop([key for key, arrival in self.arrived.items() if key[0] == peer and arrival.offered])
        return waiting

    def forget_group(self, scope: Scope) -> None:
        """This rank has left a group for good."""
        self._drop([key for key in self.arrived if key[1] == scope.id])
        self._early.pop(scope.id, None)
        self.gone[scope.id] = scope.next_call
        bound(self.gone, _GONE_MAX)

    def _drop(self, keys: list[Key]) -> None:
        for key in keys:
            arrival = self.arrived.pop(key)
            self.release(key[0], arrival.price)
            if not arrival.offered:
                arrival.pour(Drain())


def split_offer(meta: bytes) -> tuple[bytes, int]:
    """An offer's own meta, and the size of what it offers."""
    if len(meta) < _SIZE.size:
        raise WireError(f"an offer without a size: {meta!r}")
    length: int = _SIZE.unpack_from(meta)[0]
    if length > frame.PAYLOAD_BYTES_MAX:
        raise WireError(f"an offer of {length} bytes")
    return meta[_SIZE.size :], length
