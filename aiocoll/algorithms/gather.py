"""Gather: root gets every rank's parcel, of which only its sender knows the size.

The rule: ``run(channel, meta, data, root, place)`` gives root the parcels in rank order, and None to the others.
``data`` is uint8; ``place(source, meta, nbytes)``, if given, says where a parcel from another rank is to lie; root's
own comes back as it was given. ``n`` is the bytes of all parcels together, ``meta`` included.
"""

from __future__ import annotations

from functools import partial

from aiocoll import patterns
from aiocoll.algorithms import algorithm, bundle
from aiocoll.algorithms.channel import WINDOW, Array, Channel, Parcel, PlaceFrom, finish
from aiocoll.patterns import log2_ceil, log2_floor


async def _fill(ch: Channel, parcels: list[Parcel | None], place: PlaceFrom | None) -> list[Parcel]:
    """Receives a parcel from every rank of which there is none yet, so many at once as fit the window."""
    sources = [source for source in patterns.around(ch.rank, ch.size) if parcels[source] is None]
    for start in range(0, len(sources), WINDOW):
        window = sources[start : start + WINDOW]
        arrivals = [ch.take(source, partial(place, source) if place else None) for source in window]
        for source, arrival in zip(window, arrivals, strict=True):
            message = await arrival
            parcels[source] = Parcel(message.meta, message.data)
    return [parcel for parcel in parcels if parcel is not None]


def placed(source: int, parcel: Parcel, place: PlaceFrom | None) -> Parcel:
    """A parcel out of a bundle, in memory of its own."""
    if place is None:
        return Parcel(parcel.meta, parcel.data.copy())
    data = place(source, parcel.meta, parcel.data.nbytes)
    data[...] = parcel.data
    return Parcel(parcel.meta, data)


@algorithm(
    "gather",
    rounds=lambda p: -(-(p - 1) // WINDOW),
    messages=lambda p: (p - 1) / 2,
    sent=lambda p, n: n / p * (p > 1),
    path=lambda p, n: n * (p - 1) / p,
)
async def linear(
    ch: Channel, meta: bytes, data: Array, root: int, place: PlaceFrom | None = None
) -> list[Parcel] | None:
    """Everybody sends root its parcel."""
    if ch.rank != root:
        await ch.send(root, data, meta)
        return None
    parcels: list[Parcel | None] = [None] * ch.size
    parcels[root] = Parcel(meta, data)
    return await _fill(ch, parcels, place)


def largest_branch(size: int) -> int:
    """The ranks in the largest subtree below root."""
    return max((child.stop - child.rank for child in patterns.binomial(0, size).children), default=0)


def _sent(p: int, n: int) -> float:
    straight = n / p > bundle.INLINE_BYTES
    return largest_branch(p) * bundle.HEAD_BYTES + (n / p if straight else largest_branch(p) * n / p) * (p > 1)


@algorithm(
    "gather",
    rounds=log2_floor,
    messages=log2_ceil,
    sent=_sent,
    path=lambda p, n: n * (p - 1) / p + (p - 1) * bundle.HEAD_BYTES,
)
async def binomial(
    ch: Channel, meta: bytes, data: Array, root: int, place: PlaceFrom | None = None
) -> list[Parcel] | None:
    """Small parcels go up a binomial tree in bundles, which also say whose are big: those go straight to root."""
    mine = Parcel(meta, data)
    node = patterns.binomial(patterns.turned(ch.rank, root, ch.size), ch.size)
    arrivals = [ch.take(patterns.unturned(child.rank, root, ch.size)) for child in node.children]
    bundles = [(await arrival).data for arrival in arrivals]
    if node.parent is not None:
        # A subtree is a range of places: bundles one after the other are the bundle of the range.
        head = bundle.pack([mine if bundle.is_small(mine) else None])
        joined = b"".join([head, *[packed.data for packed in bundles]])
        sending = [ch.send(patterns.unturned(node.parent, root, ch.size), joined)]
        if not bundle.is_small(mine):
            sending.append(ch.send(root, data, meta))
        await finish(sending)
        return None
    parcels: list[Parcel | None] = [None] * ch.size
    parcels[root] = mine
    for child, packed in zip(node.children, bundles, strict=True):
        for position, parcel in enumerate(bundle.unpack(packed, child.stop - child.rank), child.rank):
            if parcel is not None:
                source = patterns.unturned(position, root, ch.size)
                parcels[source] = placed(source, parcel, place)
    return await _fill(ch, parcels, place)
