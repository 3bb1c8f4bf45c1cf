"""Show: every rank's parcel on every rank; only its sender knows the size of one.

The rule: ``run(channel, meta, data, place, likely, own)`` gives all parcels in rank order. ``place(source, meta,
nbytes)`` says where another rank's is to lie, ``own`` where a copy of mine goes. ``likely`` holds one array per rank,
for parcels like mine, as they have come before; where such a one has come, None stands for it. ``n`` is the bytes of
all parcels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import algorithm, pace, reading
from aiocoll.algorithms.channel import EMPTY, Array, Channel, Parcel, PlaceFrom, finish
from aiocoll.algorithms.spread import TOTAL, address_of, block_length, block_of, first_of, follow, guessed, head_of


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
    likely: Sequence[Array] | None = None,
    own: Array | None = None,
) -> list[Parcel | None]:
    """Everybody shows its parcel, and copies those of the others: one round, however long they are."""
    first, head, peers = first_of(ch, data), head_of(meta, data), patterns.around(ch.rank, ch.size)
    record, began = None, perf_counter()
    if first is not data and (address := address_of(ch, data)):
        record = ch.rivals("all_gather", data.nbytes)
        first = np.array([address]) if record.second() else EMPTY
    in_blocks = first is not data and not len(first)
    shown = [ch.expose(first, head)] if peers else []
    parcels: list[Parcel | None] = [None] * ch.size
    if likely is None:
        parcels[ch.rank] = Parcel(meta, data if own is None else own)
    if own is not None and not in_blocks:
        await pace.copy(ch, data, own)
    long: dict[int, Array] = {}
    read: list[int] = []
    for peer in peers:
        came = None if likely is None else guessed(ch, peer, head, likely[peer])
        if likely is None or came is None:
            parcels[peer] = await take_any(ch, peer, place, long, read)
        elif came is not likely[peer]:
            await rest(ch, peer, came, likely[peer], long, read)
    for each in shown:
        await each
    if long or in_blocks:
        await _go_on(ch, data, own, long, in_blocks)
    await reading.settle(ch, read, {} if first is data or in_blocks else dict.fromkeys(peers, data))
    if record is not None:
        record.took(not in_blocks, perf_counter() - began)
    return parcels


async def again(
    ch: Channel, head: bytes, data: Array, places: Sequence[Array], place: PlaceFrom
) -> list[Parcel | None]:
    """The same for short data where most likely all ranks have such: theirs go into ``places``, as does mine."""
    shown, rank = ch.publish(data, head), ch.rank
    places[rank][...] = data
    others = [peer for peer in range(ch.size) if peer != rank and not ch.guess(peer, head, places[peer])]
    await shown
    if not others:
        return []
    parcels: list[Parcel | None] = [None] * ch.size
    long: dict[int, Array] = {}
    read: list[int] = []
    for peer in others:
        parcels[peer] = await take_any(ch, peer, place, long, read)
    await _go_on(ch, data, None, long, False)
    await reading.settle(ch, read, {})
    return parcels


async def take_any(ch: Channel, peer: int, place: PlaceFrom | None, long: dict[int, Array], read: list[int]) -> Parcel:
    """A parcel of any size; ``long`` and ``read`` as in ``rest``."""
    came = await ch.take(peer, partial(_first, place, peer))
    (total,) = TOTAL.unpack_from(came.meta)
    meta, data = came.meta[TOTAL.size :], came.data
    if total != data.nbytes:
        data = _placed(place, peer, meta, total)
        await rest(ch, peer, came.data, data, long, read)
    return Parcel(meta, data)


async def rest(ch: Channel, peer: int, came: Array, data: Array, long: dict[int, Array], read: list[int]) -> None:
    """What did not come with its head: ``data`` is added to ``long`` if it follows in blocks; if it was read where the
    peer says that it lies, the peer is added to ``read``."""
    if len(came):
        await follow(ch, peer, came, data)
        read.append(peer)
    else:
        long[peer] = data


async def _go_on(ch: Channel, data: Array, own: Array | None, coming: dict[int, Array], show: bool) -> None:
    """The blocks of long parcels: one of mine, then one of each of the others."""
    blocks = [-(-len(array) // block_length(array)) for array in (*coming.values(), *([data] if show else []))]
    shown = []
    for number in range(max(blocks, default=0)):
        mine = block_of(data, number) if show else EMPTY
        if len(mine):
            shown.append(ch.publish(mine))
            if own is not None:
                block_of(own, number)[...] = mine
        for peer, array in coming.items():
            block = block_of(array, number)
            if len(block):
                await ch.recv(peer, block)
        await finish(shown)
        shown.clear()
        await ch.breathe()


def _first(place: PlaceFrom | None, source: int, meta: bytes, nbytes: int) -> Array:
    (total,) = TOTAL.unpack_from(meta)
    return np.empty(nbytes, np.uint8) if total != nbytes else _placed(place, source, meta[TOTAL.size :], nbytes)


def _placed(place: PlaceFrom | None, source: int, meta: bytes, nbytes: int) -> Array:
    return np.empty(nbytes, np.uint8) if place is None else place(source, meta, nbytes)
