"""Spread: root's parcel on every rank, of which root alone knows the size.

The rule: ``run(channel, meta, data, root, place, likely)`` gives every rank its Parcel(meta, data), or None where what
came is ``likely``: a pair (head, array) of what has come before and will often come again. Only root's ``meta`` and
``data`` count. ``place(meta, nbytes)``, if given, says where what comes is to lie. ``n`` is the bytes of the parcel.
"""

from __future__ import annotations

import struct

import numpy as np

from aiocoll.algorithms import algorithm
from aiocoll.algorithms.channel import EMPTY, Array, Channel, Parcel, Place, finish

BLOCK_BYTES = 256 << 10
"""Longer data go in blocks, which a receiver copies out while the next ones come in."""
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


def guessed(ch: Channel, peer: int, head: bytes, data: Array) -> Array | None:
    """What came with its ``head`` of an array that has come before: ``data`` or nothing. None: it is to be taken."""
    if ch.guess(peer, head, data):
        return data
    return EMPTY if data.nbytes > BLOCK_BYTES and ch.guess(peer, head, EMPTY) else None


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
    if likely is not None:
        short = likely[1].nbytes <= BLOCK_BYTES
        if ch.guess(root, likely[0], likely[1] if short else EMPTY):
            if not short:
                await receive(ch, root, likely[1])
            return None

    def first(head: bytes, nbytes: int) -> Array:
        (total,) = TOTAL.unpack_from(head)
        return EMPTY if total != nbytes else _placed(place, head[TOTAL.size :], nbytes)

    came = await ch.take(root, first)
    (total,) = TOTAL.unpack_from(came.meta)
    meta = came.meta[TOTAL.size :]
    if total == came.data.nbytes:
        return Parcel(meta, came.data)
    data = _placed(place, meta, total)
    await receive(ch, root, data)
    return Parcel(meta, data)


async def give(ch: Channel, head: bytes, data: Array) -> None:
    """Root's part."""
    if data.nbytes <= BLOCK_BYTES:
        await ch.publish(data, head)
        return
    shown = [ch.publish(EMPTY, head)]
    length = block_length(data)
    for start in range(0, len(data), length):
        shown.append(ch.publish(data[start : start + length]))
        await shown.pop(0)
        await ch.breathe()
    await finish(shown)


async def receive(ch: Channel, root: int, data: Array) -> None:
    """The blocks of what was too long to come with its head."""
    length = block_length(data)
    for start in range(0, len(data), length):
        await ch.recv(root, data[start : start + length])
        await ch.breathe()


def _placed(place: Place | None, meta: bytes, nbytes: int) -> Array:
    return np.empty(nbytes, np.uint8) if place is None else place(meta, nbytes)
