"""The verbs that algorithms are written in: one call's slice of an endpoint, ranks renumbered to the group.

The rule: every verb starts synchronously when it is called, and awaiting it means that it is over. The k-th send to a
peer within one call meets that peer's k-th receive from me. A big send may end only once its receive is posted, so an
algorithm never awaits a send before it has posted the receives that its peers' sends wait for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aiocoll.ops import Op

Array = NDArray[Any]
Data = Array | bytes | bytearray | memoryview
Place = Callable[[bytes, int], Array]
"""place(meta, nbytes) -> a contiguous uint8 array of nbytes to receive into."""
PlaceFrom = Callable[[int, bytes, int], Array]
"""place(source, meta, nbytes), where data of several ranks arrive."""

EMPTY: Array = np.empty(0, np.uint8)
"""What a message without content is sent from and received into."""
WINDOW = 32
"""Peers that one rank talks to at once where it talks to all of them."""


class Message(Protocol):
    """What ``take`` gives."""

    @property
    def meta(self) -> bytes: ...
    @property
    def data(self) -> Array: ...


class Rivals(Protocol):
    """What is known of two ways of doing the same."""

    def second(self) -> bool:
        """Whether the second way is to be taken rather than the first."""

    def took(self, second: bool, seconds: float) -> None:
        """So long it took, whoever had chosen."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Data whose size only its sender knows: ``meta`` says what it is, ``data`` is a contiguous uint8 array."""

    meta: bytes
    data: Array


class Channel(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...

    def send(self, peer: int, data: Data, meta: bytes = b"") -> Awaitable[None]:
        """Over when ``data`` may be changed."""

    def recv(self, peer: int, into: Array) -> Awaitable[None]:
        """Fills ``into`` (contiguous); the message has exactly its length."""

    def recv_fold(self, peer: int, into: Array, op: Op, *, left: bool = False) -> Awaitable[None]:
        """into = op(into, incoming); with ``left`` op(incoming, into)."""

    def exchange(
        self, to: int, data: Data, source: int, into: Array, op: Op | None = None, *, left: bool = False
    ) -> Awaitable[None]:
        """Send and receive (and fold) at once; ``data`` and ``into`` share no memory."""

    def combine(self, peer: int, x: Array, op: Op) -> Awaitable[None]:
        """x = op(mine, the peer's) on both ranks, the lower rank's as the left operand."""

    def take(self, peer: int, place: Place | None = None) -> Awaitable[Message]:
        """Receives a message of any length, where ``place`` wants it."""

    def guess(self, peer: int, meta: bytes, into: Array) -> bool:
        """Receives a message with exactly this meta and length, if it can be had at once; else False, and nothing is
        done: then it is to be taken."""

    def publish(self, data: Data, meta: bytes = b"") -> Awaitable[None]:
        """The same message to every other member; counts as one send to each."""

    def lends(self, data: Array) -> bool:
        """Whether the others can read ``data`` where it lies, so that sending it copies nothing."""

    def exposes(self, data: Array, to: int | None = None) -> bool:
        """Whether ``expose`` would copy nothing: the others (or ``to`` alone) read ``data`` where it lies, whole."""

    def expose(self, data: Data, meta: bytes = b"", to: int | None = None) -> Awaitable[None]:
        """Sends the same message to every other member (or ``to`` alone), and may end only once they have read it:
        data that are copied anyway, being short, or that this rank ``exposes``. Whoever folds must not be sent to in
        this way, since that would copy once more."""

    def reach(self, data: Array, to: int | None = None) -> int:
        """Where all others (or ``to`` alone) can ``read`` what lies in ``data`` (contiguous); 0 if they cannot."""

    def read(self, peer: int, address: int, into: Array) -> Awaitable[None]:
        """Copies what lies at a peer's ``address``; where others need the event loop, they get their turns. It counts
        only if the peer says later that it is still in the call."""

    def place(self, data: Array, to: int) -> int:
        """Where ``to`` finds ``data`` (contiguous) in shared memory; -1 if it does not lie there."""

    async def lent(self, peer: int, place: int, nbytes: int) -> Array:
        """What lies at a peer's ``place``, as bytes that are only read."""
        ...

    def counted(self, peer: int, sent: int, received: int) -> None:
        """So many bytes a peer has read of mine, and I of its, for the statistics."""

    def rivals(self, what: str, nbytes: int) -> Rivals:
        """What this rank remembers of two ways of doing ``what`` with about so many bytes among these members."""

    def scratch(self, like: Array) -> Array:
        """An uninitialised array of the shape and dtype of ``like`` that is freed with the call."""

    def borrow(self, nbytes: int) -> Array:
        """So many uninitialised bytes that are freed with the call."""

    @property
    def islands(self) -> Sequence[Sequence[int]]:
        """The ranks of each host (of those on it that share memory), in the order of their first ranks."""

    def narrow(self, ranks: Sequence[int]) -> Channel:
        """The same call among some of its members, renumbered in the order given; ``rank`` is -1 for the others."""

    async def breathe(self) -> None:
        """Gives the event loop a turn, where anybody else needs it."""


async def finish(started: Iterable[Awaitable[object]]) -> None:
    """Waits for verbs that run already."""
    for each in started:
        await each
