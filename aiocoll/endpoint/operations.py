"""One awaitable object per send or receive, which is also the landing of the payload it receives.

The rule: an operation that was detached (its call failed) never touches the caller's memory again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..buffers import flat_bytes
from ..errors import MismatchError
from ..wire.frame import DRAIN

if TYPE_CHECKING:
    from ..ops import Op
    from .channel import Call
    from .core import Endpoint

EMPTY: Final = memoryview(bytearray())
NOTHING: Final = np.empty(0, np.uint8)
FRAME_COST: Final = 128


def cost(meta: bytes, length: int) -> int:
    """What a frame counts against the bound on unreceived bytes; both sides count alike."""
    return FRAME_COST + len(meta) + length


class Parcel(NamedTuple):
    """What a sender chose to send: a short description and the bytes."""

    meta: bytes
    data: NDArray[np.uint8]


class Operation:
    """A send or receive that may still be under way; awaiting it gives its value or raises its error."""

    __slots__ = ("deadline", "done", "endpoint", "error", "peer", "value", "waiter")
    endpoint: Endpoint
    peer: int
    deadline: float

    call: Call | None = None
    """The collective call that it belongs to, if any."""

    def __init__(self, endpoint: Endpoint, peer: int, deadline: float) -> None:
        self.endpoint, self.peer, self.deadline = endpoint, peer, deadline
        self.done: bool = False
        self.error: BaseException | None = None
        self.value: Any = None
        self.waiter: asyncio.Future[None] | None = None

    def is_done(self) -> bool:
        """Whether it is over."""
        return self.done

    def describe(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        return f"<{self.describe()}{' (done)' if self.done else ''}>"

    def finish(self, error: BaseException | None = None) -> None:
        """Ends the operation and wakes whoever awaits it."""
        if self.done:
            return
        self.done, self.error = True, error
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            self.endpoint.parked.pop(self, None)
            if not waiter.done():
                waiter.set_result(None)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done:
            endpoint = self.endpoint
            endpoint.hurry(self)
            call = self.call
            if call is not None and call.error is not None:  # it failed before anybody slept on this operation
                self.finish(call.error)
            if not self.done:
                waiter = self.waiter = endpoint.loop.create_future()
                endpoint.park(self)  # which may finish it
                try:
                    yield from waiter
                finally:
                    endpoint.unpark(self)
        if self.error is not None:
            raise self.error
        return self.value


class Outgoing(Operation):
    """A send whose payload is not with the kernel yet; ``price`` is what it counts against the bound."""

    __slots__ = ("price",)

    def __init__(self, endpoint: Endpoint, peer: int, deadline: float) -> None:
        super().__init__(endpoint, peer, deadline)
        self.price: int = 0


class Sending(Outgoing):
    """A send of a collective whose payload is not with the kernel yet."""

    __slots__ = ("call",)
    call: Call

    def __init__(self, call: Call, peer: int) -> None:
        super().__init__(call.endpoint, peer, math.inf)  # its call's, from the moment it has to wait
        self.call = call

    def describe(self) -> str:
        return f"send of {self.call.label} to world rank {self.peer}"

    def finish(self, error: BaseException | None = None) -> None:
        if error is not None and not self.done:
            error = self.call.error or self.endpoint.failure.loss(self.peer, self.call.scope, self.call.label)
        super().finish(error)


class Done:
    """The awaitable of what has happened already."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE: Final = Done()


class Receive(Operation):
    """A receive of known length, straight into the caller's array."""

    __slots__ = ("_position", "_view", "call", "drain", "key", "nbytes")
    nbytes: int
    call: Call

    def __init__(self, call: Call, peer: int, step: int, nbytes: int, view: memoryview | None) -> None:
        super().__init__(call.endpoint, peer, math.inf)  # its call's, from the moment it has to wait
        self.call, self.nbytes, self._view = call, nbytes, view
        self.key: tuple[int, int, int, int] = (peer, call.scope.id, call.number, step)
        self._position = 0
        self.drain: bool = False

    def describe(self) -> str:
        return f"{self.call.label} from world rank {self.peer}"

    def begin(self, meta: bytes, length: int) -> bool:
        """The header is in: False if this is not what was wanted (the call has been failed)."""
        if length == self.nbytes:
            return True
        call = self.call
        call.endpoint.failure.mismatch(
            call,
            f"{call.label}: rank {call.scope.rank} waits for {self.nbytes} bytes of rank "
            f"{call.scope.index.get(self.peer)}, which sent {length} bytes",
        )
        return False

    def window(self) -> memoryview:
        if self.drain or self._view is None:
            return DRAIN
        return self._view[self._position :]

    def advance(self, nbytes: int) -> None:
        self._position += nbytes

    def absorb(self, piece: NDArray[np.uint8]) -> bool:
        """Takes the next piece straight out of the transport's memory; False: it is to be poured as any other."""
        return False

    def complete(self) -> None:
        self._view = None
        self.finish(self.call.error)

    def detach(self) -> None:
        """The call has failed: what still comes is dropped, and the caller's memory is let go."""
        self.drain, self._view = True, None


class Take(Receive):
    """A receive of unknown length; its value is (meta, data)."""

    __slots__ = ("_data", "_meta", "_place")
    value: Any

    def __init__(
        self, call: Call, peer: int, step: int, place: Callable[[bytes, int], NDArray[np.uint8]] | None
    ) -> None:
        super().__init__(call, peer, step, -1, None)
        self._place = place

    def begin(self, meta: bytes, length: int) -> bool:
        try:
            data = np.empty(length, np.uint8) if self._place is None else self._place(meta, length)
        except MismatchError as error:
            self.call.endpoint.failure.mismatch(self.call, str(error))
            return False
        self._meta, self._data = meta, data
        self._view = flat_bytes(data)
        return True

    def complete(self) -> None:
        if not self.drain:
            self.value = Parcel(self._meta, self._data)
        super().complete()


class FoldReceive(Receive):
    """A receive that reduces what arrives into the caller's array, segment by segment while it is in cache."""

    __slots__ = ("_folded", "_have", "_into", "_left", "_limit", "_op", "_segment")

    def __init__(self, call: Call, peer: int, step: int, into: NDArray[Any], op: Op, left: bool) -> None:
        super().__init__(call, peer, step, into.nbytes, None)
        self._into, self._op, self._left = into, op, left
        self._segment: NDArray[np.uint8] | None = None
        self._have = self._folded = 0
        self._limit = 0

    def window(self) -> memoryview:
        if self.drain or self.done:
            return DRAIN
        if self._view is None:
            size = self.nbytes if not self._op.splittable else min(self.nbytes, self.endpoint.settings.segment_bytes)
            # Whole items only, so that every full segment can be folded.
            size = max(size // self._into.itemsize, 1) * self._into.itemsize
            self._segment = self.endpoint.segments.get(size)
            self._limit = size
            self._view = flat_bytes(self._segment)
        return self._view[self._have : self._limit]

    def advance(self, nbytes: int) -> None:
        self._have += nbytes
        if self.drain or self._segment is None:
            return
        itemsize = self._into.itemsize
        if self._have == self._limit or self._folded * itemsize + self._have == self.nbytes:
            self._fold(self._segment[: self._have])
            self._have = 0

    def absorb(self, piece: NDArray[np.uint8]) -> bool:
        whole = self._op.splittable or len(piece) == self.nbytes
        if self.drain or self._have or not whole or len(piece) % self._into.itemsize:
            return False
        self._fold(piece)
        return True

    def _fold(self, incoming: NDArray[np.uint8]) -> None:
        theirs = incoming.view(self._into.dtype)
        mine = self._into[self._folded : self._folded + len(theirs)]
        try:
            if self._left:
                self._op.fold(theirs, mine, mine)
            else:
                self._op.fold(mine, theirs, mine)
        except Exception as error:  # a user's function failed, in the middle of somebody else's callback
            self.call.endpoint.failure.refuse(self.call, error)
            self.detach()
            return
        except BaseException as error:  # Ctrl-C: whoever awaits the call gets it, and the others hear of it now
            self.call.endpoint.failure.failed(self.call, error)
            self.detach()
            return
        self._folded += len(theirs)

    def complete(self) -> None:
        segment, self._segment, self._view = self._segment, None, None
        if segment is not None and not self.drain:
            self.endpoint.segments.give(segment)
        self._into = NOTHING
        self.finish(self.call.error)
