"""The quick way through shared memory: frames of calls that come again go from memory to memory without an operation.

The rule: it is a short cut and nothing else. What it cannot do at once the usual verbs do; nobody sees a difference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from ..transport.shm.segment import INLINE_BYTES
from ..transport.shm.stamp import Stamp, Views
from ..wire import frame
from .operations import DONE, Done, Operation, Receive, Sending, cost

if TYPE_CHECKING:
    from ..ops import Op
    from .channel import Call

_STEPS_MAX: Final = 1 << 14
"""Frames of one call to one peer that may go the quick way."""
LENT_BYTES_MIN: Final = 64 << 10
"""Shorter payloads are copied, wherever they lie: that is quicker than to wait until they are read."""
_WITH_META: Final = 1 << 32
"""Is added to the step in the key of a stamp: a message with a meta is another one than that without, of equal length.
"""
_UNKNOWN: Final = Stamp(frame.DATA, 0, 0, b"", Views(np.dtype(np.uint8), 0))
_NOTHING_LEFT: Final = cast("Generator[Any, None, None]", iter(()))
"""What an awaitable that is over gives: any iterator will do."""


class All:
    """Several operations, awaited one after the other; all of them are under way already."""

    __slots__ = ("_operations",)

    def __init__(self, *operations: Operation | Done) -> None:
        self._operations = operations

    def __await__(self) -> Generator[Any, None, None]:
        for operation in self._operations:
            yield from operation.__await__()


class Wanted:
    """A receive that may go the quick way: it is looked for when it is awaited, and posted where it must be waited
    for."""

    __slots__ = ("_channel", "_into", "_left", "_op", "_peer", "_step", "receive")

    def __init__(self, channel: Near, peer: int, step: int, into: NDArray[Any], op: Op | None, left: bool) -> None:
        self._channel, self._peer, self._step = channel, peer, step
        self._into, self._op, self._left = into, op, left
        self.receive: Receive | Done | None = None

    def __repr__(self) -> str:
        return f"<Wanted of {self._peer}, {'posted' if self.receive else 'not posted'}>"

    def __await__(self) -> Generator[Any, None, None]:
        if self.receive is None:
            if self._channel.look(self._peer, self._step, self._into, self._op, self._left, True):
                self.receive = DONE
                wanted = self._channel.call.wanted
                if wanted and wanted[-1] is self:
                    wanted.pop()
                return _NOTHING_LEFT
            self.post()
        assert self.receive is not None
        return self.receive.__await__()

    def post(self) -> None:
        """Makes it a receive as any other."""
        if self.receive is None:
            self.receive = self._channel.usual(self._peer, self._step, self._into, self._op, self._left)


class Near:
    """The short cuts of a channel."""

    __slots__ = ()
    call: Call
    ranks: tuple[int, ...]
    rank: int
    size: int

    def usual(self, peer: int, step: int, into: NDArray[Any], op: Op | None, left: bool) -> Receive:
        """A receive of one step that is matched as any other."""
        raise NotImplementedError

    def send_usual(self, peer: int, data: Any, meta: bytes = b"") -> Operation | None:
        """A send as any other; None if it is over."""
        raise NotImplementedError

    def near(self, peer: int, into: NDArray[Any], op: Op | None = None, left: bool = False) -> Wanted | Done | None:
        """A receive that looks before it is posted; None where nothing is to be had by looking."""
        call = self.call
        world = self.ranks[peer]
        if call.endpoint.near[world] is None:
            return None
        step = call.received.get(world, 0)
        stamp = call.stamps.get((step, into.nbytes), _UNKNOWN)
        if stamp is _UNKNOWN:
            stamp = self._stamp(step, into)
        if stamp is None:
            return None
        call.received[world] = step + 1
        if self.look(peer, step, into, op, left, False):
            return DONE
        wanted = Wanted(self, peer, step, into, op, left)
        call.wanted.append(wanted)
        return wanted

    def combine_near(self, peer: int, x: NDArray[Any], op: Op, left: bool) -> Awaitable[None] | None:
        """Sends ``x`` and folds what comes into it, all in one go; None where that cannot be."""
        call = self.call
        endpoint, world = call.endpoint, self.ranks[peer]
        link, inbox = endpoint.near[world], endpoint.inbox
        if link is None or not link.ready or call.error is not None:
            return None
        step = call.sent.get(world, 0)
        stamp = call.stamps.get((step, x.nbytes), _UNKNOWN)
        if stamp is _UNKNOWN:
            stamp = self._stamp(step, x)
        if stamp is None or stamp.dtype is not x.dtype or call.received.get(world, 0) != step:
            return None
        price = stamp.price
        unreceived = inbox.unreceived[world] + price
        if unreceived > inbox.bound or not link.outlane.post(stamp, call.number, x):
            return None
        inbox.unreceived[world] = unreceived
        call.sent[world] = call.received[world] = step + 1
        inlane = link.inlane
        theirs = inlane.fetch(stamp, call.number, True)
        if theirs is None:
            return self.usual(peer, step, x, op, left)
        if left:
            op.fold(theirs, x, x)
        else:
            op.fold(x, theirs, x)
        if not inlane.took(stamp.nbytes):
            return self.usual(peer, step, x, op, left)
        call.scope.seen[world] = call.number
        owed = inbox.owed[world] + price
        if owed < inbox.credit_step:
            inbox.owed[world] = owed
        else:
            inbox.consumed(world, price)
        return DONE

    def fetch(self, peer: int, into: NDArray[Any], op: Op | None, left: bool) -> Awaitable[None]:
        """A receive that looks at once, for as long as it may: nothing else is left to do."""
        call = self.call
        world = self.ranks[peer]
        step = call.received.get(world, 0)
        call.received[world] = step + 1
        if self.look(peer, step, into, op, left, True):
            return DONE
        return self.usual(peer, step, into, op, left)

    def guess(self, peer: int, meta: bytes, into: NDArray[Any]) -> bool:
        """Receives what came with ``meta`` before, if the same comes again while this rank may look."""
        call = self.call
        if not call.again:
            return False
        world = self.ranks[peer]
        step = call.received.get(world, 0)
        stamp = call.stamps.get((step + _WITH_META if meta else step, into.nbytes), _UNKNOWN)
        if stamp is _UNKNOWN:
            stamp = self._stamp(step, into, meta)
        if stamp is None:  # too long for a cell, or nobody shares memory
            link = call.endpoint.near[world]
            stamp = self._stamp(step, into, meta, True) if link is not None and link.inlane.private else None
            if stamp is None:
                return False
        if not self.look(peer, step, into, None, False, True, stamp):
            return False
        call.received[world] = step + 1
        return True

    def show(self, data: NDArray[Any], meta: bytes = b"") -> Awaitable[None]:
        """Sends the same to every other member: what is longer than a slot is written once for all."""
        others: Sequence[int] = [peer for peer in range(self.size) if peer != self.rank]
        if self.size > 2 and data.nbytes > INLINE_BYTES and not self._may_lend(data):
            others = self._show_cell(data, others, meta)
        waiting: list[Operation | Done] = []
        for peer in others:
            lent = self.lend(peer, data, meta)
            if lent is not None:
                waiting.append(lent)
            elif not self.post(peer, data, meta):
                sending = self.send_usual(peer, data, meta)
                if sending is not None:
                    waiting.append(sending)
        return All(*waiting) if waiting else DONE

    def _show_cell(self, data: NDArray[Any], others: Sequence[int], meta: bytes) -> list[int]:
        """Puts ``data`` into one cell for all who share memory; the others that are left."""
        call, left, cell = self.call, [], -1
        endpoint, memory = call.endpoint, call.endpoint.memory
        for peer in others:
            world = self.ranks[peer]
            link, step = endpoint.near[world], call.sent.get(world, 0)
            stamp = None if link is None or not link.ready else self._stamp_of(step, data, meta)
            if link is not None and stamp is not None and memory is not None and call.error is None:
                if cell < 0:
                    cell = memory.stage(stamp, data)
                if cell >= 0 and endpoint.inbox.count(world, stamp.price):
                    if link.outlane.post_cell(stamp, call.number, cell):
                        call.sent[world] = step + 1
                        continue
                    endpoint.inbox.credited(world, stamp.price)
            left.append(peer)
        if cell >= 0 and memory is not None:
            memory.segment.release(cell)
        return left

    def post(self, peer: int, data: NDArray[Any], meta: bytes = b"") -> bool:
        """Sends ``data`` at once into the memory of a rank that shares it; False, and nothing done, if it cannot."""
        call = self.call
        endpoint = call.endpoint
        world = self.ranks[peer]
        link = endpoint.near[world]
        if link is None or not link.ready or call.error is not None:
            return False
        step = call.sent.get(world, 0)
        stamp = call.stamps.get((step + _WITH_META if meta else step, data.nbytes), _UNKNOWN)
        if stamp is _UNKNOWN:
            stamp = self._stamp(step, data, meta)
        if stamp is None or stamp.dtype is not data.dtype or not endpoint.inbox.count(world, stamp.price):
            return False
        if not link.outlane.post(stamp, call.number, data):
            endpoint.inbox.credited(world, stamp.price)
            return False
        call.sent[world] = step + 1
        return True

    def look(
        self, peer: int, step: int, into: NDArray[Any], op: Op | None, left: bool, wait: bool,
        stamp: Stamp | None = None,
    ) -> bool:  # fmt: skip
        """Receives into (or folds into) ``into`` what lies in the memory of a rank that shares it, if it is there, or
        comes while this rank may look."""
        call = self.call
        endpoint = call.endpoint
        world = self.ranks[peer]
        link = endpoint.near[world]
        if link is None or not link.ready or call.error is not None:
            return False
        if stamp is None:
            stamp = call.stamps.get((step, into.nbytes), _UNKNOWN)
        if stamp is _UNKNOWN:
            stamp = self._stamp(step, into)
        if stamp is None or stamp.dtype is not into.dtype:
            return False
        inlane = link.inlane
        theirs = inlane.fetch(stamp, call.number, wait, into if op is None else None)
        if theirs is None:
            return False
        if op is None:
            if stamp.nbytes and theirs is not into:
                into[...] = theirs
        elif left:
            op.fold(theirs, into, into)
        else:
            op.fold(into, theirs, into)
        if not inlane.took(stamp.nbytes):
            return False  # what its sender says next makes this call fail
        call.scope.seen[world] = call.number
        endpoint.inbox.consumed(world, stamp.price)
        return True

    def lends(self, data: NDArray[Any]) -> bool:
        """Whether the others can read ``data`` where it lies, so that sending it copies nothing."""
        memory = self.call.endpoint.memory
        return self._may_lend(data) and memory is not None and memory.heap.find(data) is not None

    def _may_lend(self, data: NDArray[Any]) -> bool:
        """Whether ``data`` may lie in memory that others can read."""
        memory = self.call.endpoint.memory
        return data.nbytes >= LENT_BYTES_MIN and memory is not None and bool(memory.heap.arenas)

    def lend(self, peer: int, data: NDArray[Any], meta: bytes = b"") -> Sending | None:
        """Sends a reference to ``data``, which must not change before that is awaited; None where it must be copied."""
        if not self._may_lend(data):
            return None
        call = self.call
        endpoint = call.endpoint
        world = self.ranks[peer]
        link, step = endpoint.near[world], call.sent.get(world, 0)
        if link is None or not link.ready or call.error is not None:
            return None
        stamp = self._stamp_of(step, data, meta)
        place = None if stamp is None else link.outlane.place_of(data)
        if stamp is None or place is None or not endpoint.inbox.count(world, stamp.price):
            return None
        sending = Sending(call, world)
        sending.price = stamp.price
        if not link.outlane.lend(stamp, call.number, data, place, sending):
            endpoint.inbox.credited(world, stamp.price)
            return None
        call.sent[world] = step + 1
        call.sendings.append(sending)
        return sending

    def _stamp_of(self, step: int, data: NDArray[Any], meta: bytes) -> Stamp | None:
        """The stamp of such frames, if they have one."""
        stamp = self.call.stamps.get((step + _WITH_META if meta else step, data.nbytes), _UNKNOWN)
        if stamp is _UNKNOWN:
            stamp = self._stamp(step, data, meta)
        return stamp if stamp is not None and stamp.dtype is data.dtype else None

    def _stamp(self, step: int, data: NDArray[Any], meta: bytes = b"", private: bool = False) -> Stamp | None:
        """What such frames have in common; None where they are none for the quick way. Those whose receiver reads
        ``private`` memory have stamps of their own, since they may be longer."""
        call = self.call
        stamps, memory = call.stamps, call.endpoint.memory
        place = step + _WITH_META if meta else step
        key, stamp = (-1 - place if private else place, data.nbytes), None
        if private and key in stamps:
            return stamps[key]
        if call.again and memory is not None and step < _STEPS_MAX:
            meta = call.greeting + meta if step == 0 else meta
            stamp = memory.stamp(frame.DATA, call.scope.id, step, meta, data.dtype, data.size, private)
            if stamp is not None:
                stamp.price = cost(meta, data.nbytes)
            stamps[key] = stamp
        return stamp
