"""Show: every rank's parcel on every rank; only its sender knows the size of one.

The rule: ``run(channel, meta, data, place, likely, own)`` gives all parcels in rank order. ``place(source, meta,
nbytes)`` says where another rank's is to lie, ``own`` where a copy of mine goes. ``likely`` holds one array per rank,
for parcels like mine, as they have come before; where such a one has come, None stands for it. ``n`` is the bytes of
all parcels.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import algorithm, pace, reading
from aiocoll.algorithms.channel import EMPTY, Array, Channel, Parcel, PlaceFrom, finish
from aiocoll.algorithms.spread import TOTAL, Coming, address_of, block_length, block_of, first_of, head_of


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
    record, lies, began = None, False, perf_counter()
    if first is not data and (address := address_of(ch, data)):
        record = ch.rivals("all_gather", data.nbytes)
        lies = record.second()
        if lies:
            first = np.array([address])
    in_blocks = not lies and first is not data
    shown = [ch.expose(first, head)] if peers else []
    parcels: list[Parcel | None] = [None] * ch.size
    if likely is None:
        parcels[ch.rank] = Parcel(meta, data if own is None else own)
    if own is not None and not in_blocks:
        await pace.copy(ch, data, own)
    coming = Coming(ch, place)
    for peer in peers:
        parcels[peer] = await (coming.take(peer) if likely is None else coming.take_likely(peer, head, likely[peer]))
    await finish(shown)
    if coming.in_blocks or in_blocks:
        await _go_on(ch, data, own, coming.in_blocks, in_blocks)
    await reading.settle(ch, coming.read, dict.fromkeys(peers, data) if lies else {})
    if record is not None:
        record.took(lies, perf_counter() - began)
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
    coming = Coming(ch, place)
    for peer in others:
        parcels[peer] = await coming.take(peer)
    await _go_on(ch, data, None, coming.in_blocks, False)
    await reading.settle(ch, coming.read, {})
    return parcels


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
