"""Exchange of parcels: every rank gives every other one a parcel, of which only its sender knows the size.

The rule: ``run(channel, parcels, place)`` takes one parcel per rank and gives those that came, by source;
``place(source, meta, nbytes)``, if given, says where one is to lie, and the own parcel comes back as it was given.
``n`` is the bytes of all parcels of one rank, ``meta`` included.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial

from aiocoll import patterns
from aiocoll.algorithms import algorithm, bundle
from aiocoll.algorithms.all_to_all import relay, relay_messages
from aiocoll.algorithms.channel import WINDOW, Channel, Parcel, PlaceFrom, finish
from aiocoll.algorithms.gather import placed
from aiocoll.patterns import log2_ceil


async def _straight(
    ch: Channel, parcels: Sequence[Parcel], to: Container[int], arrived: list[Parcel | None], place: PlaceFrom | None
) -> list[Parcel]:
    """Sends parcels to the ranks ``to`` and fills the gaps in ``arrived``.

    Both sides go through distances in the same windows, so that a send and its receive always stand in the same one.
    """
    steps = list(patterns.pairwise(ch.rank, ch.size))
    for start in range(0, len(steps), WINDOW):
        window = steps[start : start + WINDOW]
        sources = [source for _, source in window if arrived[source] is None]
        arrivals = [ch.take(source, partial(place, source) if place else None) for source in sources]
        sending = [ch.send(peer, parcels[peer].data, parcels[peer].meta) for peer, _ in window if peer in to]
        for source, arrival in zip(sources, arrivals, strict=True):
            message = await arrival
            arrived[source] = Parcel(message.meta, message.data)
        await finish(sending)
    return [parcel for parcel in arrived if parcel is not None]


@algorithm(
    "exchange_all",
    rounds=lambda p: -(-(p - 1) // WINDOW),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1) / p,
)
async def post_all(ch: Channel, parcels: Sequence[Parcel], place: PlaceFrom | None = None) -> list[Parcel]:
    """Everything at once, a window of peers after the other."""
    arrived: list[Parcel | None] = [None] * ch.size
    arrived[ch.rank] = parcels[ch.rank]
    return await _straight(ch, parcels, range(ch.size), arrived, place)


def _sent(p: int, n: int) -> float:
    heads = patterns.bruck_items(p) * bundle.HEAD_BYTES
    return heads + (n * (p - 1) / p if n / p > bundle.INLINE_BYTES else patterns.bruck_items(p) * n / p)


@algorithm("exchange_all", rounds=log2_ceil, messages=relay_messages, sent=_sent)
async def bruck(ch: Channel, parcels: Sequence[Parcel], place: PlaceFrom | None = None) -> list[Parcel]:
    """Small parcels travel along the one-bits of their distance, in bundles; big ones go straight afterwards."""
    big = {rank for rank, parcel in enumerate(parcels) if not bundle.is_small(parcel)}
    arrived = await relay(ch, [None if rank in big else parcel for rank, parcel in enumerate(parcels)])
    for source, parcel in enumerate(arrived):
        if parcel is not None and source != ch.rank:
            arrived[source] = placed(source, parcel, place)
    arrived[ch.rank] = parcels[ch.rank]
    return await _straight(ch, parcels, big - {ch.rank}, arrived, place)
