"""Spread: root's parcel on every rank, of which root alone knows the size.

The rule: ``run(channel, meta, data, root, place, likely)`` gives every rank its Parcel(meta, data), or None where what
came is ``likely``: a pair (head, array) of what has come before and will often come again. Only root's ``meta`` and
``data`` count. ``place(meta, nbytes)``, if given, says where what comes is to lie. ``n`` is the bytes of the parcel.
"""

from __future__ import annotations

import struct
from time import perf_counter

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import algorithm, reading
from aiocoll.algorithms.channel import EMPTY, Array, Channel, Parcel, Place, finish

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


def guessed(ch: Channel, peer: int, head: bytes, data: Array) -> Array | None:
    """What came with its ``head`` of an array that has come before: ``data``, nothing (blocks follow), or an address of
    eight bytes. None: it is to be taken."""
    if ch.guess(peer, head, data):
        return data
    if data.nbytes <= BLOCK_BYTES:
        return None
    if ch.guess(peer, head, EMPTY):
        return EMPTY
    address = np.zeros(1, np.int64)
    return address if ch.guess(peer, head, address) else None


async def follow(ch: Channel, peer: int, address: Array, data: Array) -> None:
    """Reads ``data`` where the peer says that it lies."""
    await reading.copied(ch, peer, int(address.view(np.int64)[0]), data)


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
        came = guessed(ch, root, *likely)
        if came is not None:
            if came is not likely[1]:
                await _rest(ch, root, came, likely[1])
            return None

    def first(head: bytes, nbytes: int) -> Array:
        (total,) = TOTAL.unpack_from(head)
        return np.empty(nbytes, np.uint8) if total != nbytes else _placed(place, head[TOTAL.size :], nbytes)

    parcel = await ch.take(root, first)
    (total,) = TOTAL.unpack_from(parcel.meta)
    meta = parcel.meta[TOTAL.size :]
    if total == parcel.data.nbytes:
        return Parcel(meta, parcel.data)
    data = _placed(place, meta, total)
    await _rest(ch, root, parcel.data, data)
    return Parcel(meta, data)


async def _rest(ch: Channel, root: int, came: Array, data: Array) -> None:
    """What did not come with its head: it lies at an address, or follows in blocks."""
    if len(came):
        await follow(ch, root, came, data)
        await reading.settle(ch, [root], {})
    else:
        await receive(ch, root, data)


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


async def receive(ch: Channel, root: int, data: Array) -> None:
    """The blocks of what was too long to come with its head."""
    length = block_length(data)
    for start in range(0, len(data), length):
        await ch.recv(root, data[start : start + length])
        await ch.breathe()


def _placed(place: Place | None, meta: bytes, nbytes: int) -> Array:
    return np.empty(nbytes, np.uint8) if place is None else place(meta, nbytes)
