"""Show: every rank's parcel on every rank; only its sender knows the size of one.

The rule: ``run(channel, meta, data, place, likely, own)`` gives all parcels in rank order. ``place(source, meta,
nbytes)`` says where another rank's is to lie, ``own`` where a copy of mine goes, ``likely`` is one pair (meta, array)
per rank of what has come before and will often come again. ``n`` is the bytes of all parcels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import algorithm
from aiocoll.algorithms.channel import EMPTY, Array, Channel, Parcel, PlaceFrom, finish
from aiocoll.algorithms.spread import TOTAL, Likely, block_length, first_of


@algorithm(
    "show",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1) / p + TOTAL.size * (p - 1),
    path=lambda p, n: 2 * n * (p > 1),
    on="memory",
    blocked=True,
)
async def direct(
    ch: Channel,
    meta: bytes,
    data: Array,
    place: PlaceFrom | None = None,
    likely: Sequence[Likely] | None = None,
    own: Array | None = None,
) -> list[Parcel]:
    """Everybody shows its parcel, and copies those of the others: one round, however long they are."""
    first, peers = first_of(data), patterns.around(ch.rank, ch.size)
    shown = [ch.publish(first, TOTAL.pack(data.nbytes) + meta)] if peers else []
    mine = Parcel(meta, data if own is None else own)
    if own is not None and (first is data or not peers):
        own[...] = data
    parcels = {ch.rank: mine}
    long: list[int] = []
    for peer in peers:
        expected = None if likely is None else likely[peer]
        head = None if expected is None else (TOTAL.pack(expected[1].nbytes) + expected[0], first_of(expected[1]))
        came = await ch.take(peer, partial(_first, place, peer), head)
        (total,) = TOTAL.unpack_from(came.meta)
        meta, block = came.meta[TOTAL.size :], came.data
        if total != block.nbytes:
            same = expected is not None and expected[0] == meta
            block = expected[1] if same and expected is not None else _placed(place, peer, meta, total)
            long.append(peer)
        parcels[peer] = Parcel(meta, block)
    await finish(shown)
    if long or first is not data:
        await _go_on(ch, data, own, {peer: parcels[peer].data for peer in long}, first is not data)
    return [parcels[rank] for rank in range(ch.size)]


async def _go_on(ch: Channel, data: Array, own: Array | None, coming: dict[int, Array], show: bool) -> None:
    """The blocks of long parcels: one of mine, then one of each of the others."""
    blocks = [-(-len(array) // block_length(array)) for array in (*coming.values(), *([data] if show else []))]
    shown = []
    for number in range(max(blocks, default=0)):
        mine = _block(data, number) if show else EMPTY
        if len(mine):
            shown.append(ch.publish(mine))
            if own is not None:
                _block(own, number)[...] = mine
        for peer, array in coming.items():
            block = _block(array, number)
            if len(block):
                await ch.recv(peer, block)
        await finish(shown)
        shown.clear()
        await ch.breathe()


def _block(array: Array, number: int) -> Array:
    length = block_length(array)
    return array[number * length : (number + 1) * length]


def _first(place: PlaceFrom | None, source: int, meta: bytes, nbytes: int) -> Array:
    (total,) = TOTAL.unpack_from(meta)
    return EMPTY if total != nbytes else _placed(place, source, meta[TOTAL.size :], nbytes)


def _placed(place: PlaceFrom | None, source: int, meta: bytes, nbytes: int) -> Array:
    return np.empty(nbytes, np.uint8) if place is None else place(source, meta, nbytes)
