"""Exchanges among all ranks: all_to_all, and what all calls share that move a part per rank.

The rule: what comes from other ranks goes straight into the arrays that the caller gets; a copy is made of the own part
only, since what aiocoll returns is the caller's.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any, Final, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from .. import patterns
from ..algorithms import Algorithm, all_of, exchange_all
from ..algorithms.channel import Parcel
from ..algorithms.spread import head_of
from ..buffers import as_array
from ..endpoint import Channel
from ..errors import UsageError
from .calls import Again, Calls
from .packing import Packed, comes_again, value_of
from .posted import Posted
from .ready import Ready
from .typed import Blocks, Dtype, Limits

Array = NDArray[Any]
Body = Callable[[Channel], Awaitable[Any]]

_KEPT_BYTES_MAX: Final = 64 << 20
"""The memory of results of up to this is kept for the next call, in case that their owner does not keep them."""
_KEPT_TWICE_BYTES_MAX: Final = 16 << 20
"""That of results of up to this even of two calls: a name still holds the last result while the next is made."""
_BLIND_BYTES: Final = 1024
"""What a rank is taken to send another where nobody knows sizes but the senders."""


class Exchanges(Calls):
    """See API: all_to_all."""

    _keeper: Ready | None = None

    @overload
    def all_to_all(self, parts: Blocks[Dtype], **limits: Unpack[Limits]) -> Posted[list[NDArray[Dtype]]]: ...
    @overload
    def all_to_all(self, parts: Any, **limits: Unpack[Limits]) -> Posted[list[Any]]: ...

    def all_to_all(self, parts: Any, *, timeout: float | None = None, name: str | None = None) -> Posted[list[Any]]:
        """What every rank has for me: a list in rank order. ``parts``: one array per rank, of any shapes and dtypes;
        an array is split along axis 0 as numpy.array_split does."""
        if timeout is None and name is None and self._at_home():
            again = self.all_to_all_again(parts)
            if again is not None:
                return self._posted_again(*again)
        turn = self._turn("all_to_all", name)

        def prepare() -> tuple[str, Body]:
            rank, size = self._scope.rank, self._scope.size
            given = parts
            if not isinstance(parts, (list, tuple)):
                array, _ = as_array(parts, what="all_to_all", rank=rank)
                if array.ndim == 0:
                    raise UsageError(f"all_to_all on rank {rank}: a number cannot be split; pass one array per rank")
                given = rows_of(array, patterns.even(array.shape[0], size))
            packed = self._packed_parts(given, "all_to_all")
            self._keep_exchange_ready(parts, packed)

            async def body(ch: Channel) -> Any:
                parcels = [Parcel(each.meta, await each.data(ch)) for each in packed]
                return await values_of(ch, await self._exchanged(ch, parcels), packed[rank])

            return "all_to_all", body

        return self._made(turn, timeout, prepare)

    def _exchange(self) -> Algorithm | None:
        """How parcels go; None if AIOCOLL_ALGORITHM's choice for all_to_all is one for sizes that both sides know."""
        name = self._settings.algorithm.get("all_to_all")
        if name is None or any(each.name == name for each in all_of("exchange_all")):
            return self._blind("exchange_all", "all_to_all")
        return None

    async def _exchanged(self, ch: Channel, parcels: list[Parcel]) -> list[Any]:
        """What every rank has for me."""
        exchange = self._exchange()
        if exchange is not None:
            came: list[Any] = await exchange.run(ch, parcels)
            return came
        # An algorithm for sizes that both sides know: they travel first.
        algorithm = self._chosen("all_to_all", 0)
        sizes = [Parcel(each.meta, np.array([each.data.nbytes], "<u8").view(np.uint8)) for each in parcels]
        heads = await self._blind("exchange_all").run(ch, sizes)
        incoming = [np.empty(int(head.data.view("<u8")[0]), np.uint8) for head in heads]
        incoming[ch.rank] = parcels[ch.rank].data
        await algorithm.run(ch, [each.data for each in parcels], incoming)
        return [Parcel(head.meta, data) for head, data in zip(heads, incoming, strict=True)]

    def _keep_exchange_ready(self, parts: Any, packed: Sequence[Packed]) -> None:
        """Exchanges of parts like these come again, if all are alike."""
        first = packed[0]
        if self._scope.size == 1 or any(each.meta != first.meta for each in packed) or not comes_again(first.array):
            return
        exchange = self._exchange()
        if exchange is not None and exchange.run is exchange_all.direct and _alike(parts, self._scope.size):
            key = ("all_to_all", first.array.dtype, first.array.shape)
            self._keep_ready(key, "all_to_all", "all_to_all", self._into_places_of, first.meta)

    def all_to_all_again(self, parts: Any) -> Again | None:
        """The same for parts like those of a call before; None for others."""
        outgoing = _alike(parts, self._scope.size)
        if outgoing is None:
            return None
        shape, dtype = outgoing[0].shape, outgoing[0].dtype
        ready = self._ready(("all_to_all", dtype, shape))
        if ready is None:
            return None
        results = self._results(ready, outgoing[0])
        channel = ready.channel(self.timeout, results)
        return channel, self._live(channel.call, ready.run, channel, outgoing, results, ready.meta)

    def _results(self, ready: Ready, like: Array) -> list[Any]:
        """New arrays for what comes: most likely in the memory of those of a call before, if nobody has them any more.

        Memory that is new to the process costs more than what is copied into it. Whoever holds such an array, or
        any view or buffer of it, refers to its memory, so nobody has what only ``ready`` refers to.
        """
        size = self._scope.size
        if self._keeper is not ready:  # one kind of call keeps results, and no more than that
            if self._keeper is not None:
                self._keeper.kept.clear()
            self._keeper = ready
        if size * like.nbytes > _KEPT_BYTES_MAX:
            return [np.empty(like.shape, like.dtype) for _ in range(size)]
        found = None
        for kept in ready.kept:
            if _references(kept) <= _NOBODYS:
                found = kept
                break
        if found is None:
            found = [np.empty(like.nbytes, np.uint8) for _ in range(size)]
            ready.kept = [found, *ready.kept[: size * like.nbytes <= _KEPT_TWICE_BYTES_MAX]]
        return [memory.view(like.dtype).reshape(like.shape) for memory in found]

    async def _into_places_of(self, ch: Channel, outgoing: Sequence[Array], results: list[Any], meta: bytes) -> None:
        """What every rank has for me: most likely what I have for them, as before."""

        def place(source: int, came: bytes, nbytes: int) -> Array:
            return np.empty(nbytes, np.uint8)

        flat, places = [part.reshape(-1) for part in outgoing], [result.reshape(-1) for result in results]
        arrived = await exchange_all.again(ch, head_of(meta, flat[0]), flat, places, place)
        for source, parcel in enumerate(arrived):
            if parcel is not None:
                results[source] = value_of(parcel.meta, parcel.data)

    def _blind(self, collective: str, named: str = "") -> Algorithm:
        """The algorithm for data whose sizes differ per rank, so that only the number of ranks counts."""
        nbytes = _BLIND_BYTES * self._scope.size
        return self._plan((collective, named), lambda: self._chosen(collective, nbytes, named=named))

    def _packed_parts(self, parts: Any, what: str) -> list[Packed]:
        rank, size = self._scope.rank, self._scope.size
        if parts is None or isinstance(parts, (str, bytes)):
            raise UsageError(f"{what} on rank {rank}: parts must be a sequence of one array per rank ({size})")
        try:
            given = list(parts)
        except TypeError:
            given = [parts]
        if len(given) != size:
            needed = f"{size} rank{'s' * (size > 1)}; give one array per rank"
            raise UsageError(f"{what} on rank {rank}: {len(given)} parts for {needed}")
        return [Packed(part, f"{what}, part {number}", rank) for number, part in enumerate(given)]


def _references(kept: Sequence[Any]) -> int:
    """How many there are to that of ``kept`` which has most."""
    most = 0
    for memory in kept:
        most = max(most, sys.getrefcount(memory))
    return most


_NOBODYS: Final = _references([bytearray()])
"""What only a list refers to: interpreters differ in whether a call's arguments count."""


def rows_of(array: Array, rows: Sequence[int]) -> list[Array]:
    """Consecutive parts of ``array`` along axis 0, of so many rows."""
    return [array[start:stop] for start, stop in pairwise(patterns.offsets(rows))]


def _alike(parts: Any, size: int) -> list[Array] | None:
    """One array per rank, if all of them are alike and lie as they travel."""
    if type(parts) is np.ndarray:
        if not parts.flags.carray or not parts.ndim or parts.shape[0] % size or not parts.dtype.isnative:
            return None
        rows = parts.shape[0] // size
        return [parts[rank * rows : (rank + 1) * rows] for rank in range(size)]
    if type(parts) is not list or len(parts) != size or type(parts[0]) is not np.ndarray:
        return None
    dtype, shape = parts[0].dtype, parts[0].shape
    for part in parts:
        if type(part) is not np.ndarray or part.dtype is not dtype or part.shape != shape or not part.flags.carray:
            return None
    return parts


async def values_of(ch: Channel, parcels: Sequence[Any], own: Packed) -> list[Any]:
    """What all ranks gave; my own as a copy, since what aiocoll returns is the caller's."""
    return [
        await own.copied(ch) if source == ch.rank else value_of(parcel.meta, parcel.data)
        for source, parcel in enumerate(parcels)
    ]
