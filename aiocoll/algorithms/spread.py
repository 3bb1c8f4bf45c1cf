"""Spread: root's parcel on every rank, of which root alone knows the size.

The rule: ``run(channel, meta, data, root, place, likely)`` gives every rank its Parcel(meta, data), or None where what
came is ``likely``: a pair (head, array) of what has come before and will often come again. Only root's ``meta`` and
``data`` count. ``place(meta, nbytes)``, if given, says where what comes is to lie. ``n`` is the bytes of the parcel.
"""

from __future__ import annotations

import struct
from functools import partial
from time import perf_counter

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import algorithm, reading
from aiocoll.algorithms.channel import EMPTY, Array, Channel, Parcel, Place, PlaceFrom, finish

BLOCK_BYTES = 256 << 10
"""Longer data go in blocks, which a receiver copies out while the next ones come in."""
READ_BYTES_MIN = 1 << 20
"""Data from this length on are read where they lie instead, if that has been quicker of late."""
TOTAL = struct.Struct("<Q")
"""Goes before the meta: how many bytes there are in all."""
Likely = tuple[bytes, Array]


def head_of(meta: bytes, data: Array) -> bytes:
    """What travels before the data."""
    return TOTAL.pack(data.nbytes) + meta


def block_length(data: Array) -> int:
    """Elements of a block."""
    return max(BLOCK_BYTES // max(data.itemsize, 1), 1)


def block_of(data: Array, number: int) -> Array:
    """One of its blocks; nothing where there are fewer."""
    length = block_length(data)
    return data[number * length : (number + 1) * length]


def first_of(ch: Channel, data: Array, to: int | None = None) -> Array:
    """What travels with the meta: all of a short array, or of one that is read where it lies; else nothing."""
    return data if data.nbytes <= BLOCK_BYTES or ch.exposes(data, to) else EMPTY


def address_of(ch: Channel, data: Array, to: int | None = None) -> int:
    """Where the others (or ``to`` alone) may read what would go in blocks; 0 if it has to go."""
    return ch.reach(data, to) if data.nbytes >= READ_BYTES_MIN and not ch.lends(data) else 0


class Coming:
    """Parcels of any size on their way to this rank. What did not come with its head was read where it lies, or follows
    in blocks."""

    __slots__ = ("_ch", "_place", "in_blocks", "read")
    in_blocks: dict[int, Array]
    """What follows, by peer."""
    read: list[int]
    """The peers that wait for the word that theirs was read."""

    def __init__(self, ch: Channel, place: PlaceFrom | None = None) -> None:
        self._ch, self._place = ch, place
        self.in_blocks, self.read = {}, []

    def __repr__(self) -> str:
        return f"<Coming: blocks of {list(self.in_blocks)}, read of {self.read}>"

    async def take(self, peer: int) -> Parcel:
        """A parcel of any size."""
        came = await self._ch.take(peer, partial(self._first, peer))
        (total,) = TOTAL.unpack_from(came.meta)
        meta, data = came.meta[TOTAL.size :], came.data
        if total != data.nbytes:
            data = self._placed(peer, meta, total)
            await self._rest(peer, came.data, data)
        return Parcel(meta, data)

    async def take_likely(self, peer: int, head: bytes, data: Array) -> Parcel | None:
        """The same where most likely one comes that has ``head`` and fits ``data``: then it goes there, and the answer
        is None."""
        if self._ch.guess(peer, head, data):
            return None
        if data.nbytes > BLOCK_BYTES:
            for first in (EMPTY, np.zeros(1, np.int64)):
                if self._ch.guess(peer, head, first):
                    await self._rest(peer, first, data)
                    return None
        return await self.take(peer)

    async def _rest(self, peer: int, first: Array, data: Array) -> None:
        """What did not come with its head: it lies at an address, or follows."""
        if len(first):
            await self._ch.read(peer, int(first.view(np.int64)[0]), data)
            self.read.append(peer)
        else:
            self.in_blocks[peer] = data

    def _first(self, peer: int, head: bytes, nbytes: int) -> Array:
        (total,) = TOTAL.unpack_from(head)
        return np.empty(nbytes, np.uint8) if total != nbytes else self._placed(peer, head[TOTAL.size :], nbytes)

    def _placed(self, peer: int, meta: bytes, nbytes: int) -> Array:
        return np.empty(nbytes, np.uint8) if self._place is None else self._place(peer, meta, nbytes)


@algorithm(
    "spread",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: (n + TOTAL.size) * (p - 1),
    path=lambda p, n: 2 * n * (p > 1),
    on="memory",
    blocked=True,
)
async def direct(
    ch: Channel, meta: bytes, data: Array, root: int, place: Place | None = None, likely: Likely | None = None
) -> Parcel | None:
    """Root shows its parcel, and everybody copies it: one round, however long it is."""
    if ch.rank == root:
        if ch.size > 1:
            await give(ch, head_of(meta, data), data)
        return Parcel(meta, data)
    coming = Coming(ch, None if place is None else lambda source, meta, nbytes: place(meta, nbytes))
    parcel = await (coming.take(root) if likely is None else coming.take_likely(root, *likely))
    for long in coming.in_blocks.values():
        await _receive_blocks(ch, root, long)
    await reading.settle(ch, coming.read, {})
    return parcel


async def give(ch: Channel, head: bytes, data: Array) -> None:
    """Root's part."""
    if data.nbytes <= BLOCK_BYTES:
        await ch.publish(data, head)
        return
    address = address_of(ch, data)
    if not address:
        await _give_blocks(ch, head, data)
        return
    record = ch.rivals("broadcast", data.nbytes)
    read, began = record.second(), perf_counter()
    if read:
        await ch.publish(np.array([address]), head)
        await reading.settle(ch, (), dict.fromkeys(patterns.around(ch.rank, ch.size), data))
    else:
        await _give_blocks(ch, head, data)
    record.took(read, perf_counter() - began)


async def _give_blocks(ch: Channel, head: bytes, data: Array) -> None:
    shown = [ch.publish(EMPTY, head)]
    length = block_length(data)
    for start in range(0, len(data), length):
        shown.append(ch.publish(data[start : start + length]))
        await shown.pop(0)
        await ch.breathe()
    await finish(shown)


async def _receive_blocks(ch: Channel, root: int, data: Array) -> None:
    length = block_length(data)
    for start in range(0, len(data), length):
        await ch.recv(root, data[start : start + length])
        await ch.breathe()
