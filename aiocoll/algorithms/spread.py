"""Spread: root's parcel on every rank, of which root alone knows the size.

The rule: ``run(channel, meta, data, root, place, likely)`` gives every rank (meta, data); only root's count.
``place(meta, nbytes)``, if given, says where what comes is to lie; ``likely`` is a pair (meta, array) of what has come
before and will often come again. ``n`` is the bytes of the parcel.
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


def block_length(data: Array) -> int:
    """Elements of a block."""
    return max(BLOCK_BYTES // max(data.itemsize, 1), 1)


def first_of(data: Array) -> Array:
    """What travels with the meta: all of a short array, nothing of a long one."""
    return data if data.nbytes <= BLOCK_BYTES else EMPTY


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
) -> Parcel:
    """Root shows its parcel, and everybody copies it: one round, however long it is."""
    if ch.rank == root:
        if ch.size > 1:
            await _give(ch, meta, data)
        return Parcel(meta, data)
    expected = None if likely is None else (TOTAL.pack(likely[1].nbytes) + likely[0], first_of(likely[1]))

    def first(meta: bytes, nbytes: int) -> Array:
        (total,) = TOTAL.unpack_from(meta)
        return EMPTY if total != nbytes else _placed(place, meta[TOTAL.size :], nbytes)

    came = await ch.take(root, first, expected)
    (total,) = TOTAL.unpack_from(came.meta)
    meta = came.meta[TOTAL.size :]
    if total == came.data.nbytes:
        return Parcel(meta, came.data)
    data = likely[1] if likely is not None and likely[0] == meta else _placed(place, meta, total)
    length = block_length(data)
    for start in range(0, len(data), length):
        await ch.recv(root, data[start : start + length])
        await ch.breathe()
    return Parcel(meta, data)


async def _give(ch: Channel, meta: bytes, data: Array) -> None:
    first = first_of(data)
    shown = [ch.publish(first, TOTAL.pack(data.nbytes) + meta)]
    if first is not data:
        length = block_length(data)
        for start in range(0, len(data), length):
            shown.append(ch.publish(data[start : start + length]))
            if len(shown) > 1:
                await shown.pop(0)
            await ch.breathe()
    await finish(shown)


def _placed(place: Place | None, meta: bytes, nbytes: int) -> Array:
    return np.empty(nbytes, np.uint8) if place is None else place(meta, nbytes)
