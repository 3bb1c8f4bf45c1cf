"""Showing long data where they lie, in private or shared memory: they are copied once, by who gets them, or not at all.

The rule: only these verbs give a peer the address of private memory. What lies there stays as it is until ``expose`` is
over, of which a receiver notices nothing; what ``reach`` and ``place`` give is good until the members' algorithm ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..buffers import address_of, flat_bytes
from ..transport.shm.private import is_shown
from ..transport.shm.slot import PRIVATE
from ..wire import frame
from .near import All, Near
from .operations import DONE, NOTHING, Operation, Sending, cost
from .rivals import Rivals
from .scope import bound

if TYPE_CHECKING:
    from numpy.typing import NDArray

PRIVATE_BYTES_MIN: Final = 1 << 20
"""Shorter payloads are copied twice: in the caches that is quicker than what the kernel does for each page."""
PRIVATE_BYTES_MAX: Final = 16 << 20
"""Longer ones go in blocks, since they count against the bound on unreceived bytes."""
LOOP_READ_BYTES: Final = 1 << 20
"""What is read in one go while others need the loop: some tenths of a millisecond."""
BLOCKING_READ_BYTES: Final = 16 << 20
"""The same while a blocked caller is all there is: some milliseconds."""
_NEVER: Final = (1 << 32) - 1
"""The step of a receive for which nobody sends anything."""
_RIVALS_MAX: Final = 256


class Private(Near):
    """The verbs of a channel that show private memory."""

    __slots__ = ()

    def send(self, peer: int, data: Any, meta: bytes = b"") -> Awaitable[None]:
        """Sends ``data`` in any way."""
        raise NotImplementedError

    async def breathe(self) -> None:
        """Gives the event loop a turn, where anybody needs it."""
        raise NotImplementedError

    def publish(self, data: Any, meta: bytes = b"") -> Awaitable[None]:
        """Sends the same to every other member in any way."""
        raise NotImplementedError

    def exposes(self, data: Any, to: int | None = None) -> bool:
        """Whether ``expose`` would copy nothing: the others (or ``to`` alone) read ``data`` where it lies."""
        if not isinstance(data, np.ndarray) or not PRIVATE_BYTES_MIN <= data.nbytes <= PRIVATE_BYTES_MAX:
            return False
        if data.nbytes > self.call.endpoint.inbox.bound // 4:
            return False
        return not self.lends(data) and self._readable(data, to)

    def expose(self, data: Any, meta: bytes = b"", to: int | None = None) -> Awaitable[None]:
        """Sends the same to every other member (or ``to`` alone): what is short, or what they read where it lies."""
        if data.nbytes < PRIVATE_BYTES_MIN:
            return self.publish(data, meta) if to is None else self.send(to, data, meta)
        started = [self._expose(peer, data, meta) for peer in self._others(to)]
        waiting = [each for each in started if each is not None]
        return All(*waiting) if waiting else DONE

    def reach(self, data: NDArray[Any], to: int | None = None) -> int:
        """Where the others (or ``to`` alone) can read ``data`` (contiguous) in this rank's memory; 0 if they cannot."""
        return address_of(data) if self._readable(data, to) else 0

    def read(self, peer: int, address: int, into: NDArray[Any]) -> Awaitable[None]:
        """Copies what lies at a peer's ``address``, as long as it may be.

        It may be anything if the peer has left the call meanwhile. Where nothing is to be had, the peer's end, or that
        of its call, is about to be heard: that is waited for.
        """
        at_once = BLOCKING_READ_BYTES if self.call.endpoint.inline else LOOP_READ_BYTES
        if into.nbytes <= at_once:
            return self._read(peer, address, into)
        return self._read_on(peer, address, into, at_once)

    async def _read_on(self, peer: int, address: int, into: NDArray[Any], at_once: int) -> None:
        """The same in pieces."""
        length = max(at_once // into.itemsize, 1)
        for start in range(0, len(into), length):
            await self._read(peer, address + start * into.itemsize, into[start : start + length])
            await self.breathe()

    def _read(self, peer: int, address: int, into: NDArray[Any]) -> Awaitable[None]:
        call, world = self.call, self.ranks[peer]
        if call.error is not None:
            raise call.error
        link = call.endpoint.near[world]
        if link is not None and link.ready and link.inlane.read(address, into):
            return DONE
        return self.usual(peer, _NEVER, NOTHING, None, False)

    def place(self, data: NDArray[Any], to: int) -> int:
        """Where ``to`` finds ``data`` (contiguous) in shared memory; -1 if it does not lie there."""
        link = self.call.endpoint.near[self.ranks[to]]
        found = None if link is None or not link.ready else link.outlane.place_of(data)
        return -1 if found is None else found

    async def lent(self, peer: int, place: int, nbytes: int) -> NDArray[np.uint8]:
        """What lies at a peer's ``place`` in shared memory, read-only; what is said of ``read`` holds here, too."""
        call, world = self.call, self.ranks[peer]
        if call.error is not None:
            raise call.error
        link = call.endpoint.near[world]
        view = None if link is None else link.lent(place, nbytes)
        if view is None:
            await self.usual(peer, _NEVER, NOTHING, None, False)
            raise AssertionError("nobody sends that")
        return view

    def counted(self, peer: int, sent: int, received: int) -> None:
        """So many bytes a peer has read of mine, and I of its."""
        link = self.call.endpoint.near[self.ranks[peer]]
        if link is not None:
            link.outlane.bytes_sent += sent
            link.inlane.bytes_received += received

    def rivals(self, what: str, nbytes: int) -> Rivals:
        """What this rank remembers of two ways of doing ``what`` with about so many bytes among these members."""
        key = (what, nbytes.bit_length(), self.ranks)
        kept = self.call.scope.rivals
        found = kept.get(key)
        if found is None:
            bound(kept, _RIVALS_MAX - 1)
            found = kept[key] = Rivals()
        return found

    def _readable(self, data: NDArray[Any], to: int | None) -> bool:
        """Whether the others (or ``to`` alone) can read ``data`` (contiguous) in this rank's private memory."""
        near = self.call.endpoint.near
        links = [near[self.ranks[peer]] for peer in self._others(to)]
        theirs = all(link is not None and link.ready and link.outlane.private for link in links)
        return theirs and (not data.nbytes or self.lends(data) or is_shown(data))

    def _others(self, to: int | None) -> Sequence[int]:
        return [peer for peer in range(self.size) if peer != self.rank] if to is None else (to,)

    def _expose(self, peer: int, data: NDArray[Any], meta: bytes) -> Operation | None:
        """Sends the address of ``data``; None if that is over already."""
        call = self.call
        endpoint, world = call.endpoint, self.ranks[peer]
        link, inbox = endpoint.near[world], endpoint.inbox
        if link is None or not link.ready or call.error is not None:
            return self.send_usual(peer, data, meta)
        step = call.sent.get(world, 0)
        stamp = self._stamp(step, data, meta, True)
        price = cost(self._whole(step, meta), data.nbytes) if stamp is None else stamp.price
        if not inbox.count(world, price):
            return self.send_usual(peer, data, meta)
        sending = Sending(call, world)
        sending.price = price
        call.sent[world] = step + 1
        if (
            stamp is None
            or stamp.dtype is not data.dtype
            or not link.outlane.lend(stamp, call.number, data, address_of(data), sending, PRIVATE)
        ):
            whole, view = self._whole(step, meta), flat_bytes(data)
            queued = link.outlane.send(frame.DATA, call.scope.id, call.number, step, whole, view, True)
            if queued is None:
                return None
            queued.sent = sending
        call.sendings.append(sending)
        return sending

    def _whole(self, step: int, meta: bytes) -> bytes:
        """What goes before the data: the first frame to a peer says which call it is."""
        return self.call.greeting + meta if step == 0 else meta
