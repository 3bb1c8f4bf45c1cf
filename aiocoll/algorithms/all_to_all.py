"""All-to-all: every rank gives every other one a block; both sides know its size.

The rule: ``run(channel, outgoing, incoming)`` with one uint8 array per rank in each list; the own ones are left
alone. ``n`` is the bytes of all blocks that one rank sends, its own included.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiocoll import patterns
from aiocoll.algorithms import algorithm, bundle
from aiocoll.algorithms.channel import WINDOW, Array, Channel, Parcel, finish
from aiocoll.errors import WireError
from aiocoll.patterns import log2_ceil


@algorithm(
    "all_to_all",
    rounds=lambda p: -(-(p - 1) // WINDOW),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1) / p,
)
async def post_all(ch: Channel, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
    """Everything at once, a window of peers after the other."""
    steps = list(patterns.pairwise(ch.rank, ch.size))
    for start in range(0, len(steps), WINDOW):
        window = steps[start : start + WINDOW]
        arrivals = [ch.recv(source, incoming[source]) for _, source in window]
        await finish([*arrivals, *[ch.send(to, outgoing[to]) for to, _ in window]])


@algorithm("all_to_all", rounds=lambda p: p - 1, sent=lambda p, n: n * (p - 1) / p)
async def pairwise(ch: Channel, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
    """Step i: to rank + i, from rank - i, one after the other: no link carries two blocks at once."""
    for to, source in patterns.pairwise(ch.rank, ch.size):
        await ch.exchange(to, outgoing[to], source, incoming[source])


def relay_messages(p: int) -> float:
    """The messages of a relay; packing and unpacking an item costs about a quarter of one."""
    return log2_ceil(p) + patterns.bruck_items(p) / 4


async def relay(ch: Channel, outgoing: Sequence[Parcel | None]) -> list[Parcel | None]:
    """Bruck's pattern for parcels of any size; ``outgoing`` by rank, the result by source."""
    held = [outgoing[(ch.rank + distance) % ch.size] for distance in range(ch.size)]
    for to, source, distances in patterns.bruck(ch.rank, ch.size):
        arrival, sending = ch.take(source), ch.send(to, bundle.pack(held[distance] for distance in distances))
        arrived = bundle.unpack((await arrival).data, len(distances))
        await finish([sending])
        for distance, parcel in zip(distances, arrived, strict=True):
            held[distance] = parcel
    return [held[(ch.rank - source) % ch.size] for source in range(ch.size)]


@algorithm(
    "all_to_all",
    rounds=log2_ceil,
    messages=relay_messages,
    sent=lambda p, n: patterns.bruck_items(p) * (n / p + bundle.HEAD_BYTES),
    when=lambda p, n: n <= p * 64 << 10,
    needs="blocks of at most 64 KiB on average",
)
async def bruck(ch: Channel, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
    """Blocks travel along the one-bits of their distance, in bundles: for tiny blocks (Bruck et al. 1997)."""
    for source, parcel in enumerate(await relay(ch, [Parcel(b"", block) for block in outgoing])):
        if source == ch.rank or parcel is None:
            continue
        if len(parcel.data) != len(incoming[source]):
            raise WireError(
                f"rank {ch.rank} expected {len(incoming[source])} bytes from rank {source} and got {len(parcel.data)}"
            )
        incoming[source][...] = parcel.data
