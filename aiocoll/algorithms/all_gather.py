"""All-gather: every rank gets every rank's block.

The rule: ``run(channel, buf, counts)``; ``buf`` holds all blocks as bytes, ``counts`` are bytes per rank, the own
block is in its place before and all are afterwards. ``n`` is the bytes of ``buf``.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiocoll import patterns
from aiocoll.algorithms import Part, algorithm, hosts, pace, pipeline
from aiocoll.algorithms.channel import Array, Channel, finish
from aiocoll.patterns import log2_ceil


def as_bytes(x: Array, counts: Sequence[int]) -> tuple[Array, list[int]]:
    """A vector and its elements per rank, in bytes."""
    return x.view("u1"), [count * x.itemsize for count in counts]


@algorithm(
    "all_gather",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1) / p,
)
async def full_mesh(ch: Channel, buf: Array, counts: Sequence[int]) -> None:
    """Everybody sends everybody its block at once: one round, for few ranks."""
    at = patterns.offsets(counts)
    if ch.size > 1:
        arrivals = [ch.recv(peer, buf[at[peer] : at[peer + 1]]) for peer in patterns.around(ch.rank, ch.size)]
        await finish([*arrivals, ch.publish(buf[at[ch.rank] : at[ch.rank + 1]])])


@algorithm("all_gather", rounds=log2_ceil, sent=lambda p, n: n * (p - 1) / p)
async def circulant(ch: Channel, buf: Array, counts: Sequence[int], full: int | None = None) -> None:
    """Double the blocks that I hold each round, for any number of ranks (Bruck et al. 1997, as in Traeff 2024).

    The rounds of the reduce-scatter backwards. Rank ``full`` has all blocks to begin with: nobody sends it any.
    """
    at = patterns.offsets(counts)
    for ahead, behind, skip, span in reversed(patterns.circulant(ch.rank, ch.size)):
        news, held = patterns.arc(at, ch.rank + skip, span - skip), patterns.arc(at, ch.rank, span - skip)
        arrivals = [ch.recv(ahead, buf[part]) for part in news] if ch.rank != full else []
        await finish([*arrivals, *[ch.send(behind, buf[part]) for part in held if behind != full]])


@algorithm("all_gather", rounds=lambda p: p - 1, sent=lambda p, n: n * (p - 1) / p)
async def ring(ch: Channel, buf: Array, counts: Sequence[int]) -> None:
    """Blocks travel round the ring in segments that are passed on as soon as they are here: for long blocks.

    Step s: block rank-s goes ahead, block rank-1-s comes from behind.
    """
    behind = (ch.rank - 1) % ch.size
    await pipeline.ring(ch, buf, patterns.offsets(counts), ch.rank, lambda lane: ch.recv(behind, lane))


@algorithm(
    "all_gather",
    on="hosts",
    parts=(
        Part("local", "gather", "linear"),
        Part("hosts", "all_gather", "circulant"),
        Part("local", "broadcast", "linear"),
    ),
)
async def leaders(ch: Channel, buf: Array, counts: Sequence[int]) -> None:
    """One rank per host collects its neighbours' blocks, all-gathers with the others and shows its neighbours all."""
    await _over(ch, buf, counts, hosts.Near(ch, one_lane=True))


@algorithm(
    "all_gather",
    on="hosts",
    parts=(
        Part("local", "gather", "linear"),
        Part("hosts", "all_gather", "circulant", shared=True),
        Part("local", "all_gather", "full_mesh"),
    ),
)
async def lanes(ch: Channel, buf: Array, counts: Sequence[int]) -> None:
    """All-gathers of one rank of each host side by side, each with the blocks it carries, then within each host."""
    await _over(ch, buf, counts, hosts.Near(ch))


async def _over(ch: Channel, buf: Array, counts: Sequence[int], near: hosts.Near) -> None:
    at = patterns.offsets(counts)

    def block(rank: int) -> Array:
        return buf[at[rank] : at[rank + 1]]

    def carried(lane: int) -> list[int]:
        """The ranks whose blocks a lane brings, in the order in which they lie there."""
        return [rank for island in range(len(near.islands)) for rank in near.carried(lane, island)]

    lane = near.place % near.lanes
    joined = {i: hosts.room(ch, sum(counts[rank] for rank in carried(i))) for i in range(near.lanes)}

    def places(lane: int) -> dict[int, Array]:
        ends = patterns.offsets([counts[rank] for rank in carried(lane)])
        return {rank: joined[lane][ends[i] : ends[i + 1]] for i, rank in enumerate(carried(lane))}

    if near.speaks:
        mine = places(lane)
        mine[ch.rank][...] = block(ch.rank)
        local = near.islands[near.home]
        others = [rank for rank in near.carried(lane, near.home) if rank != ch.rank]
        await finish([near.local.recv(local.index(rank), mine[rank]) for rank in others])
        shares = [sum(counts[rank] for rank in near.carried(lane, island)) for island in range(len(near.islands))]
        await circulant(near.across, joined[lane], shares)
        shown = near.local.publish(joined[lane])
    else:
        await near.local.send(lane, block(ch.rank))
        shown = None
    arrivals = [near.local.recv(i, joined[i]) for i in range(near.lanes) if i != near.place]
    await finish(arrivals if shown is None else [*arrivals, shown])
    for i in range(near.lanes):
        for rank, data in places(i).items():
            if rank != ch.rank:
                await pace.copy(ch, data, block(rank))
