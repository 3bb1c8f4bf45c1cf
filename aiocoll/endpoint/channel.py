"""The verbs: what an algorithm sees of one call, with ranks renumbered to the group.

The k-th send to a peer within one call meets the k-th receive from it. Every verb starts synchronously when it is
called; awaiting what it returns waits for the end. So an algorithm posts first and awaits later, and nothing ever
depends on how much a send buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..buffers import flat_bytes
from ..errors import AiocollError
from ..wire import frame
from .near import LENT_BYTES_MIN, All, Wanted
from .operations import DONE, FoldReceive, Operation, Parcel, Receive, Sending, Take
from .private import Private
from .scope import NAMED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..ops import Op
    from ..transport.shm.stamp import Stamp
    from .core import Endpoint
    from .scope import Scope

_LENGTH: Final = struct.Struct("<H")


@lru_cache(maxsize=1024)
def greeting_of(description: str) -> bytes:
    """What opens the first frame of a call to each peer: what I think this call is."""
    text = description.encode()[:4096]
    return _LENGTH.pack(len(text)) + text


def description_in(meta: bytes) -> str:
    """What a peer thinks its call is, from the first frame of it."""
    if len(meta) < _LENGTH.size:
        return "nothing that can be read"
    return meta[_LENGTH.size : _LENGTH.size + _LENGTH.unpack_from(meta)[0]].decode(errors="replace")


class Call:
    """One collective call of one group under way on this rank; used again for calls alike, once it is over."""

    __slots__ = (
        "_deadline", "_label", "again", "began", "borrowed", "compared", "description", "endpoint", "error", "goes_on",
        "greeting", "looked", "number", "ready", "received", "result", "said", "scope", "sendings", "sent", "stamps",
        "timeout", "wanted",
    )  # fmt: skip
    scope: Scope
    endpoint: Endpoint
    number: int
    description: str
    greeting: bytes
    began: float

    def __init__(
        self, scope: Scope, number: int, label: str, description: str, timeout: float,
        stamps: dict[tuple[int, int], Stamp | None] | None = None,
    ) -> None:  # fmt: skip
        self.scope, self.endpoint, self.number = scope, scope.endpoint, number
        self._label = label
        """Without a number for calls that are used again."""
        self.description, self.greeting = description, greeting_of(description)
        self.said: tuple[int, str, str] = (scope.id, label, description)
        """What the flight recorder keeps of it, beside its number."""
        self.timeout: float = timeout
        self._deadline = self.began = 0.0
        self.error: BaseException | None = None
        self.compared: bool = False
        """Whether what came before it has been looked at for calls of another kind."""
        self.looked: bool = False
        """Whether it has waited long, and asked why."""
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}
        self.sendings: list[Sending] = []
        self.borrowed: list[NDArray[np.uint8]] = []
        self.wanted: list[Wanted] = []
        """Receives that are not posted yet, since they may go the quick way."""
        self.ready: Any = None
        """Where its channel goes when it is over, to be used again."""
        self.result: Any = None
        """What the caller of a ready call gets."""
        self.goes_on: bool = False
        """Whether other algorithms follow in the same call."""
        self.again: bool = stamps is not None
        """Whether many such calls come, so that their frames may go the quick way."""
        self.stamps: dict[tuple[int, int], Stamp | None] = {} if stamps is None else stamps
        """What the frames of such calls have in common, by step and payload bytes."""

    def __repr__(self) -> str:
        return f"<Call {self.label} of {self.scope.label!r}>"

    @property
    def label(self) -> str:
        """The call in messages."""
        return self._label if not self.again else f"{self._label} (call {self.number})"

    @property
    def collective(self) -> str:
        """The first word of its label."""
        return self._label.partition(" ")[0]

    def where(self) -> dict[str, Any]:
        """This call as the one in which an error was raised."""
        number = self.number if self.number < NAMED else None
        return {"group": self.scope.label, "collective": self.collective, "call": number}

    @property
    def deadline(self) -> float:
        """On the loop's clock; it runs from the moment in which the call has to wait for the first time."""
        if not self._deadline:
            self.began = self.endpoint.loop.time()
            self._deadline = self.began + self.timeout
        return self._deadline

    @property
    def waits(self) -> bool:
        """Whether it has had to wait, since ``began``."""
        return self._deadline > 0.0

    def reset(self) -> bool:
        """Makes it ready for the next call, if nothing of this one is left; whether it is."""
        inquiries = self.endpoint.failure.inquiries
        if self.error is not None or self.sendings or self.borrowed:
            return False
        if inquiries and any(inquiry.subject is self for inquiry in inquiries.values()):
            return False  # it waited long, and came through while the others were asked: the answers mean no other call
        self.sent, self.received = {}, {}
        if self.wanted:
            self.wanted.clear()
        if self._deadline:
            self._deadline, self.compared, self.looked = 0.0, False, False
        return True

    def channel(self) -> Channel:
        """The verbs of this call for all members."""
        return Channel(self, self.scope.ranks, self.scope.rank)

    def fail(self, error: BaseException) -> None:
        """Ends the call here: memory first, then whoever waits."""
        if self.error is not None:
            return
        self.error = error
        if isinstance(error, AiocollError):
            error.at(**self.where())
        self.endpoint.inbox.forget_call(self)
        for sending in self.sendings:
            if not sending.done:
                self.endpoint.inbox.retract(sending)
        self.sendings.clear()
        for operation in [operation for operation in self.endpoint.parked if operation.call is self]:
            operation.finish(error)

    def give_back(self) -> None:
        """An algorithm has ended well: what it has borrowed may be lent again."""
        for buffer in self.borrowed:
            self.endpoint.segments.give(buffer)
        self.borrowed.clear()

    def over(self) -> None:
        """The algorithm has ended, well or not."""
        if self._deadline and self.endpoint.stalls.told:
            self.endpoint.stalls.over(self, self.error)
        if self.sendings and all(sending.done for sending in self.sendings):
            self.sendings.clear()
        if self.error is None:
            if self.borrowed:
                self.give_back()
            if not self.sendings:
                del self.scope.calls[self.number]
                self.scope.over.put(self.number, self.description)
                return
        self.borrowed.clear()
        self.scope.retire(self.number, self.description, failed=self.error is not None)


def _payload(data: Any) -> memoryview | None:
    if isinstance(data, np.ndarray):
        return flat_bytes(data) if data.nbytes else None
    view = memoryview(data)
    return view if len(view) else None


class Channel(Private):
    """One call's slice of the endpoint: ``rank`` and ``size``, and the verbs."""

    __slots__ = ("call", "rank", "ranks", "size")
    call: Call
    ranks: tuple[int, ...]
    rank: int
    size: int

    def __init__(self, call: Call, ranks: tuple[int, ...], rank: int) -> None:
        self.call, self.ranks, self.rank, self.size = call, ranks, rank, len(ranks)

    def __repr__(self) -> str:
        return f"<Channel rank {self.rank} of {self.size}, {self.call.label}>"

    def send(self, peer: int, data: Any, meta: bytes = b"") -> Awaitable[None]:
        """Sends ``data`` (contiguous array or bytes); awaiting it means that the data may be changed again."""
        if self.call.again and isinstance(data, np.ndarray):
            lent = self.lend(peer, data, meta)
            if lent is not None:
                return lent
            if self.post(peer, data, meta):
                return DONE
        operation = self.send_usual(peer, data, meta)
        return DONE if operation is None else operation

    def send_usual(self, peer: int, data: Any, meta: bytes = b"") -> Operation | None:
        call = self.call
        if call.error is not None:
            raise call.error
        world = self.ranks[peer]
        if world in call.endpoint.failure.absent:
            call.endpoint.failure.in_vain(call, world)
        step = call.sent.get(world, 0)
        call.sent[world] = step + 1
        if step == 0:
            meta = call.greeting + meta
        inbox = call.endpoint.inbox
        key = (call.scope.id, call.number, step)
        operation = inbox.send(frame.DATA, world, key, meta, _payload(data), partial(Sending, call, world))
        if operation is not None:
            assert isinstance(operation, Sending)
            call.sendings.append(operation)
            if call.error is not None:
                raise call.error
        return operation

    def _post(self, receive: Receive) -> Receive:
        call = self.call
        if call.error is not None:
            raise call.error
        endpoint = call.endpoint
        endpoint.inbox.post(receive)
        if call.error is not None:
            raise call.error
        if receive.peer in endpoint.failure.absent and receive.key in endpoint.inbox.expected:
            endpoint.failure.in_vain(call, receive.peer)
        return receive

    def _step(self, world: int) -> int:
        received = self.call.received
        step = received.get(world, 0)
        received[world] = step + 1
        return step

    def recv(self, peer: int, into: NDArray[Any]) -> Awaitable[None]:
        """Receives exactly ``into.nbytes`` bytes straight into ``into`` (contiguous)."""
        if self.call.again:
            near = self.near(peer, into)
            if near is not None:
                return near
        return self.usual(peer, self._step(self.ranks[peer]), into, None, False)

    def recv_fold(self, peer: int, into: NDArray[Any], op: Op, *, left: bool = False) -> Awaitable[None]:
        """Receives and reduces in one pass: ``into = op(into, incoming)``, or ``op(incoming, into)`` with ``left``."""
        if self.call.again and op.splittable:
            near = self.near(peer, into, op, left)
            if near is not None:
                return near
        return self.usual(peer, self._step(self.ranks[peer]), into, op, left)

    def usual(self, peer: int, step: int, into: NDArray[Any], op: Op | None, left: bool) -> Receive:
        world = self.ranks[peer]
        if op is not None:
            return self._post(FoldReceive(self.call, world, step, into, op, left))
        view = flat_bytes(into) if into.nbytes else None
        return self._post(Receive(self.call, world, step, into.nbytes, view))

    def take(self, peer: int, place: Callable[[bytes, int], NDArray[Any]] | None = None) -> Awaitable[Parcel]:
        """Receives what the sender chose to send: a Parcel(meta, data). ``place(meta, nbytes)`` may choose where the
        data goes, or raise MismatchError."""
        world = self.ranks[peer]
        return self._post(Take(self.call, world, self._step(world), place))

    def exchange(
        self, to: int, data: Any, source: int, into: NDArray[Any], op: Op | None = None, *, left: bool = False
    ) -> Awaitable[None]:
        """Sends and receives at the same time, so that no ring can deadlock; with ``op`` it reduces into ``into``."""
        if self.call.again and isinstance(data, np.ndarray) and self.post(to, data):
            if op is None or op.splittable:
                return self.fetch(source, into, op, left)
            return self.usual(source, self._step(self.ranks[source]), into, op, left)
        receive = self.usual(source, self._step(self.ranks[source]), into, op, left)
        sending = self.send_usual(to, data)
        return receive if sending is None else All(receive, sending)

    def combine(self, peer: int, x: NDArray[Any], op: Op) -> Awaitable[None]:
        """Both send ``x`` and fold what comes into it, the lower rank's as the left operand: equal bits on both."""
        left = peer < self.rank
        if self.call.again and op.splittable:
            both_near = self.combine_near(peer, x, op, left)
            if both_near is not None:
                return both_near
        room = self.call.endpoint.segments.get(x.nbytes)  # not for the whole call: there may be many blocks
        theirs = room.view(x.dtype) if x.nbytes else x
        return self._combined(self.exchange(peer, x, peer, theirs), room, theirs, x, op, left)

    async def _combined(
        self, both: Awaitable[None], room: NDArray[np.uint8], theirs: NDArray[Any], x: NDArray[Any], op: Op, left: bool
    ) -> None:
        await both
        op.fold(*((theirs, x) if left else (x, theirs)), x)
        self.call.endpoint.segments.give(room)

    def publish(self, data: Any, meta: bytes = b"") -> Awaitable[None]:
        """Sends the same to every other member."""
        if self.call.again and isinstance(data, np.ndarray):
            if self.size == 2 and data.nbytes < LENT_BYTES_MIN and self.post(1 - self.rank, data, meta):
                return DONE
            return self.show(data, meta)
        sendings = [self.send_usual(peer, data, meta) for peer in range(self.size) if peer != self.rank]
        waiting = [sending for sending in sendings if sending is not None]
        return All(*waiting) if waiting else DONE

    def narrow(self, ranks: Sequence[int]) -> Channel:
        """The same call among some of its members only; ranks are renumbered in the order given."""
        world = tuple(self.ranks[rank] for rank in ranks)
        mine = self.ranks[self.rank] if self.rank >= 0 else -1
        return Channel(self.call, world, world.index(mine) if mine in world else -1)

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """The members by island (those that share memory, else those of one host), by their first ranks."""
        members = self.call.endpoint.members
        found: dict[str, list[int]] = {}
        for rank, world in enumerate(self.ranks):
            found.setdefault(members[world].island, []).append(rank)
        return tuple(tuple(ranks) for ranks in found.values())

    @property
    def local(self) -> Channel:
        """The members on my island."""
        return self.narrow(next(ranks for ranks in self.islands if self.rank in ranks))

    def scratch(self, like: NDArray[Any]) -> NDArray[Any]:
        """A temporary array like the 1-D ``like``, not initialised; it lives as long as the call."""
        if not like.nbytes:
            return np.empty_like(like)
        return self.borrow(like.nbytes).view(like.dtype)

    def borrow(self, nbytes: int) -> NDArray[np.uint8]:
        """Temporary bytes that live as long as the call."""
        buffer = self.call.endpoint.segments.get(nbytes)
        self.call.borrowed.append(buffer)
        return buffer

    async def breathe(self) -> None:
        """Gives the event loop a turn between two long pieces of local work."""
        await self.call.endpoint.breathe()
