"""Exchange of parcels: every rank gives every other one a parcel, of which only its sender knows the size.

The rule: ``run(channel, parcels, place)`` takes one parcel per rank and gives those that came, by source;
``place(source, meta, nbytes)``, if given, says where one is to lie, and the own parcel comes back as it was given.
``n`` is the bytes of all parcels of one rank, ``meta`` included.
"""

from __future__ import annotations

from collections.abc import Awaitable, Container, Mapping, Sequence
from functools import partial
from time import perf_counter

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import algorithm, bundle, pace, reading
from aiocoll.algorithms.all_to_all import relay, relay_messages
from aiocoll.algorithms.channel import WINDOW, Array, Channel, Parcel, PlaceFrom, Rivals, finish
from aiocoll.algorithms.gather import placed
from aiocoll.algorithms.spread import TOTAL, Coming, address_of, block_length, block_of, first_of, head_of
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
    outgoing = [parcel.data for parcel in parcels]
    leaving, coming = Leaving(ch, outgoing), Coming(ch, place)
    sending = [ch.expose(leaving.first[peer], head_of(parcels[peer].meta, outgoing[peer]), peer) for peer in peers]
    arrived = {peer: await coming.take(peer) for peer in peers}
    await finish(sending)
    await _go_on(ch, leaving.in_blocks, coming.in_blocks)
    await leaving.settle(ch, coming.read)
    return [parcels[source] if source == rank else arrived[source] for source in range(ch.size)]


async def again(
    ch: Channel, head: bytes, outgoing: Sequence[Array], places: Sequence[Array], place: PlaceFrom
) -> list[Parcel | None]:
    """The same where most likely all parcels are alike: what comes with ``head`` goes into ``places``, as does mine;
    other parcels are the answer."""
    peers, rank = patterns.around(ch.rank, ch.size), ch.rank
    leaving, coming = Leaving(ch, outgoing), Coming(ch, place)
    sending = [ch.expose(leaving.first[peer], head, peer) for peer in peers]
    arrived: list[Parcel | None] = [None] * ch.size
    for peer in peers:
        arrived[peer] = await coming.take_likely(peer, head, places[peer])
    await finish(sending)
    await pace.copy(ch, outgoing[rank], places[rank])
    if ch.size == 2 and leaving.in_blocks and coming.in_blocks and arrived[peers[0]] is None:
        (peer,) = peers
        length = block_length(outgoing[peer])
        for start in range(0, len(outgoing[peer]), length):
            stop = start + length
            await ch.exchange(peer, outgoing[peer][start:stop], peer, places[peer][start:stop])
            await ch.breathe()
    else:
        await _go_on(ch, leaving.in_blocks, coming.in_blocks)
    await leaving.settle(ch, coming.read)
    return arrived


class Leaving:
    """A rank's parcels on their way. With their heads travel all of those that are short or read where they lie, the
    address of those that are longer and quicker read, nothing of others."""

    __slots__ = ("_began", "_record", "_shown", "first", "in_blocks")
    first: dict[int, Array]
    """What goes with each head, by peer."""
    in_blocks: dict[int, Array]
    """What follows, by peer."""

    def __init__(self, ch: Channel, outgoing: Sequence[Array]) -> None:
        self.first, self.in_blocks = {}, {}
        self._shown: dict[int, Array] = {}
        self._record: Rivals | None = None
        self._began = perf_counter()
        for peer in patterns.around(ch.rank, ch.size):
            data = outgoing[peer]
            first = first_of(ch, data, peer)
            if first is not data:
                address = address_of(ch, data, peer)
                self._record = self._record or (ch.rivals("all_to_all", data.nbytes) if address else None)
                if address and self._record is not None and self._record.second():
                    first = np.array([address])
                    self._shown[peer] = data
                else:
                    self.in_blocks[peer] = data
            self.first[peer] = first

    def __repr__(self) -> str:
        return f"<Leaving: blocks for {list(self.in_blocks)}, addresses for {list(self._shown)}>"

    async def settle(self, ch: Channel, read: Sequence[int]) -> None:
        """Everything has gone and come but the word for it, where it was ``read``."""
        await reading.settle(ch, read, self._shown)
        if self._record is not None:
            self._record.took(bool(self._shown), perf_counter() - self._began)


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
