"""Exchange of parcels: every rank gives every other one a parcel, of which only its sender knows the size.

The rule: ``run(channel, parcels, place)`` takes one parcel per rank and gives those that came, by source;
``place(source, meta, nbytes)``, if given, says where one is to lie, and the own parcel comes back as it was given.
``n`` is the bytes of all parcels of one rank, ``meta`` included.
"""

from __future__ import annotations

from collections.abc import Awaitable, Container, Mapping, Sequence
from functools import partial

from aiocoll import patterns
from aiocoll.algorithms import algorithm, bundle, pace
from aiocoll.algorithms.all_to_all import relay, relay_messages
from aiocoll.algorithms.channel import WINDOW, Array, Channel, Parcel, PlaceFrom, finish
from aiocoll.algorithms.gather import placed
from aiocoll.algorithms.show import take_any
from aiocoll.algorithms.spread import TOTAL, block_length, block_of, first_of, guessed, head_of
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


@algorithm(
    "exchange_all",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1) / p + TOTAL.size * (p - 1),
    path=lambda p, n: 2 * n * (p - 1) / p,
    on="memory",
    blocked=True,
)
async def direct(ch: Channel, parcels: Sequence[Parcel], place: PlaceFrom | None = None) -> list[Parcel]:
    """Everybody shows each rank its parcel, and copies those meant for itself: one round, however long they are."""
    peers, rank = patterns.around(ch.rank, ch.size), ch.rank
    firsts = {peer: first_of(ch, parcels[peer].data, peer) for peer in peers}
    sending = [ch.expose(firsts[peer], head_of(parcels[peer].meta, parcels[peer].data), peer) for peer in peers]
    coming: dict[int, Array] = {}
    arrived = {peer: await take_any(ch, peer, place, coming) for peer in peers}
    await finish(sending)
    leaving = {peer: parcels[peer].data for peer in peers if firsts[peer] is not parcels[peer].data}
    await _go_on(ch, leaving, coming)
    return [parcels[source] if source == rank else arrived[source] for source in range(ch.size)]


async def again(
    ch: Channel, head: bytes, outgoing: Sequence[Array], places: Sequence[Array], place: PlaceFrom
) -> list[Parcel | None]:
    """The same where most likely all parcels are alike: what comes with ``head`` goes into ``places``, as does mine;
    other parcels are the answer."""
    peers, rank = patterns.around(ch.rank, ch.size), ch.rank
    firsts = {peer: first_of(ch, outgoing[peer], peer) for peer in peers}
    sending = [ch.expose(firsts[peer], head, peer) for peer in peers]
    arrived: list[Parcel | None] = [None] * ch.size
    coming: dict[int, Array] = {}
    for peer in peers:
        came = guessed(ch, peer, head, places[peer])
        if came is None:
            arrived[peer] = await take_any(ch, peer, place, coming)
        elif came is not places[peer]:
            coming[peer] = places[peer]
    await finish(sending)
    leaving = {peer: outgoing[peer] for peer in peers if firsts[peer] is not outgoing[peer]}
    await pace.copy(ch, outgoing[rank], places[rank])
    if ch.size == 2 and len(leaving) == len(coming) == 1 and arrived[peers[0]] is None:
        (peer,) = peers
        length = block_length(outgoing[peer])
        for start in range(0, len(outgoing[peer]), length):
            stop = start + length
            await ch.exchange(peer, outgoing[peer][start:stop], peer, places[peer][start:stop])
            await ch.breathe()
        return arrived
    await _go_on(ch, leaving, coming)
    return arrived


async def _go_on(ch: Channel, leaving: Mapping[int, Array], coming: Mapping[int, Array]) -> None:
    """The blocks of long parcels: one to each, one from each."""
    arrays = [*leaving.values(), *coming.values()]
    sending: list[Awaitable[None]] = []
    for number in range(max((-(-len(array) // block_length(array)) for array in arrays), default=0)):
        for peer, array in leaving.items():
            block = block_of(array, number)
            if len(block):
                sending.append(ch.send(peer, block))
        for peer, array in coming.items():
            block = block_of(array, number)
            if len(block):
                await ch.recv(peer, block)
        await finish(sending)
        sending.clear()
        await ch.breathe()
