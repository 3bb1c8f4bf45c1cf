"""Scatter: every rank gets its parcel from root, which alone knows the sizes.

The rule: ``run(channel, parcels, root, place)`` gives this rank's parcel; only root's ``parcels`` (one per rank)
count. ``place(meta, nbytes)``, if given, says where a parcel that comes from root is to lie; root gets its own as it
was given. ``n`` is the bytes of all parcels together, ``meta`` included.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiocoll import patterns
from aiocoll.algorithms import algorithm, bundle
from aiocoll.algorithms.channel import WINDOW, Channel, Parcel, Place, finish
from aiocoll.algorithms.gather import placed
from aiocoll.patterns import log2_ceil, log2_floor


async def _take(ch: Channel, root: int, place: Place | None) -> Parcel:
    message = await ch.take(root, place)
    return Parcel(message.meta, message.data)


async def _send_all(ch: Channel, ranks: Sequence[int], parcels: Sequence[Parcel]) -> None:
    for start in range(0, len(ranks), WINDOW):
        window = ranks[start : start + WINDOW]
        await finish([ch.send(rank, parcels[rank].data, parcels[rank].meta) for rank in window])


@algorithm(
    "scatter",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: (p - 1) / 2,
    sent=lambda p, n: n * (p - 1) / p,
)
async def linear(ch: Channel, parcels: Sequence[Parcel] | None, root: int, place: Place | None = None) -> Parcel:
    """Root sends everybody its parcel."""
    if ch.rank != root:
        return await _take(ch, root, place)
    assert parcels is not None
    await _send_all(ch, patterns.around(root, ch.size), parcels)
    return parcels[root]


def _sent(p: int, n: int) -> float:
    return n * (p - 1) / p + (p - 1) * bundle.HEAD_BYTES


@algorithm("scatter", rounds=log2_floor, messages=log2_ceil, sent=_sent)
async def binomial(ch: Channel, parcels: Sequence[Parcel] | None, root: int, place: Place | None = None) -> Parcel:
    """Small parcels go down a binomial tree in bundles; big ones come straight from root, as the bundle says."""
    node = patterns.binomial(patterns.turned(ch.rank, root, ch.size), ch.size)
    own = patterns.turned(ch.rank, root, ch.size)
    entries: list[Parcel | None]
    if node.parent is not None:
        arrived = await ch.take(patterns.unturned(node.parent, root, ch.size))
        entries = bundle.unpack(arrived.data, node.stop - own)
    else:
        assert parcels is not None
        ordered = [parcels[patterns.unturned(place_in_tree, root, ch.size)] for place_in_tree in range(ch.size)]
        entries = [parcel if bundle.is_small(parcel) else None for parcel in ordered]
    sending = [
        ch.send(patterns.unturned(child.rank, root, ch.size), bundle.pack(entries[child.rank - own : child.stop - own]))
        for child in reversed(node.children)
    ]
    if node.parent is None:
        assert parcels is not None
        big = [patterns.unturned(i, root, ch.size) for i, entry in enumerate(entries) if i and entry is None]
        await _send_all(ch, big, parcels)
        await finish(sending)
        return parcels[root]
    await finish(sending)
    if entries[0] is None:
        return await _take(ch, root, place)
    return placed(root, entries[0], (lambda source, meta, nbytes: place(meta, nbytes)) if place else None)
