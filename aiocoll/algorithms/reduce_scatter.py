"""Reduce-scatter: every rank gets its own block of the fold of all ranks' vectors.

The rule: ``run(channel, blocks, op, out)``; ``blocks[i]`` (flat, of any length) is what rank i gets reduced. They are
only read; ``out`` gets the own block, and is it or shares no memory with any. ``n`` is the bytes of all blocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import Part, algorithm, gathered, hosts, owner, pace, pipeline, reduce
from aiocoll.algorithms.channel import Array, Channel, finish
from aiocoll.ops import Op
from aiocoll.patterns import log2_ceil, log2_floor


async def _joined(ch: Channel, blocks: Sequence[Array]) -> tuple[Array, list[int]]:
    """All blocks in one private vector, and the elements of each."""
    counts = [len(block) for block in blocks]
    at = patterns.offsets(counts)
    x = ch.borrow(at[-1] * blocks[0].itemsize).view(blocks[0].dtype)
    for i, block in enumerate(blocks):
        await pace.copy(ch, block, x[at[i] : at[i + 1]])
    return x, counts


def _mine(ch: Channel, x: Array, counts: Sequence[int]) -> Array:
    start = sum(counts[: ch.rank])
    return x[start : start + counts[ch.rank]]


@algorithm(
    "reduce_scatter",
    rounds=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    keeps_order=True,
    splits=True,
)
async def pairwise(ch: Channel, blocks: Sequence[Array], op: Op, out: Array) -> None:
    """Give every rank its block, one after the other, and fold mine in rank order as it comes.

    Sources come in descending order with one wrap: those below me extend my block to the left, those above me build a
    tail, and the tail is folded to its right at the end.
    """
    mine = blocks[ch.rank]
    last = ch.size - 1
    if out is not mine:
        await pace.copy(ch, mine, out)
    if ch.rank < last:
        tail = ch.scratch(mine)
    for to, source in patterns.pairwise(ch.rank, ch.size):
        if source < ch.rank:
            await ch.exchange(to, blocks[to], source, out, op, left=True)
        elif source == last:
            await ch.exchange(to, blocks[to], source, tail)
        else:
            await ch.exchange(to, blocks[to], source, tail, op, left=True)
    if ch.rank < last:
        await pace.fold(ch, op, out, tail, out)


@algorithm(
    "reduce_scatter",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    from_left=True,
    splits=True,
    on="memory",
    blocked=True,
    narrow=True,
)
async def direct(ch: Channel, blocks: Sequence[Array], op: Op, out: Array) -> None:
    """Everybody shows every rank its block, which folds all of them in rank order where they lie."""
    mine = blocks[ch.rank]
    if ch.size == 1:
        if out is not mine:
            await pace.copy(ch, mine, out)
        return
    await owner.fold_blocks(ch, blocks, op, out)


@algorithm(
    "reduce_scatter",
    rounds=log2_ceil,
    sent=lambda p, n: n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    splits=True,
)
async def circulant(ch: Channel, blocks: Sequence[Array], op: Op, out: Array) -> None:
    """Halve the blocks that I work on each round, for any number of ranks (Traeff 2024)."""
    x, counts = await _joined(ch, blocks)
    await halve(ch, x, op, counts)
    await pace.copy(ch, _mine(ch, x, counts), out)


async def halve(ch: Channel, x: Array, op: Op, counts: Sequence[int]) -> None:
    """``circulant`` in place: ``counts`` are elements per rank, and ``x`` is work space but for the own block.

    Counted from my own block: send the upper half of what is left to the rank ``skip`` ahead, fold what comes from
    behind into the lower half. Blocks are contiguous round the vector, so a message is one slice, or two where it
    wraps.
    """
    at = patterns.offsets(counts)
    for ahead, behind, skip, span in patterns.circulant(ch.rank, ch.size):
        lower, upper = patterns.arc(at, ch.rank, span - skip), patterns.arc(at, ch.rank + skip, span - skip)
        arrivals = [ch.recv_fold(behind, x[part], op, left=behind < ch.rank) for part in lower]
        await finish([*arrivals, *[ch.send(ahead, x[part]) for part in upper]])


@algorithm(
    "reduce_scatter",
    rounds=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    splits=True,
)
async def ring(ch: Channel, blocks: Sequence[Array], op: Op, out: Array) -> None:
    """Each block travels round the ring in segments and is folded on the way, so that folding hides behind sending."""
    x, counts = await _joined(ch, blocks)
    await go_round(ch, x, op, counts)
    await pace.copy(ch, _mine(ch, x, counts), out)


async def go_round(ch: Channel, x: Array, op: Op, counts: Sequence[int]) -> None:
    """``ring`` in place. Step s: block rank-1-s goes ahead, block rank-2-s comes from behind; the last is my own."""
    behind = (ch.rank - 1) % ch.size

    def receive(lane: Array) -> Awaitable[None]:
        return ch.recv_fold(behind, lane, op, left=behind < ch.rank)

    await pipeline.ring(ch, x, patterns.offsets(counts), behind, receive)


@algorithm(
    "reduce_scatter",
    rounds=lambda p: log2_floor(p) + (p > 1),
    sent=lambda p, n: n * (p > 1),
    path=lambda p, n: n * log2_ceil(p) + n * (p - 1) / p,
    folded=lambda p, n: n * log2_ceil(p),
    messages=lambda p: log2_ceil(p) + p - 1,
    keeps_order=True,
)
async def ordered(ch: Channel, blocks: Sequence[Array], op: Op, out: Array) -> None:
    """Reduce whole vectors to rank 0 in rank order, which hands out the blocks: for ops that want whole vectors."""
    x, counts = await _joined(ch, blocks)
    await reduce.ordered(ch, x, op, 0)
    await _hand_out(ch, x, counts, out)


async def _hand_out(ch: Channel, x: Array, counts: Sequence[int], out: Array) -> None:
    """Rank 0 has all the results."""
    if ch.rank:
        await ch.recv(0, out)
        return
    at = patterns.offsets(counts)
    await finish([ch.send(peer, x[at[peer] : at[peer + 1]]) for peer in patterns.around(0, ch.size)])
    await pace.copy(ch, x[: at[1]], out)


@algorithm(
    "reduce_scatter",
    rounds=lambda p: 2 * min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p > 1),
    path=lambda p, n: n * (p - 1) + n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1),
    from_left=True,
    on="turns",
    blocked=True,
)
async def rooted(ch: Channel, blocks: Sequence[Array], op: Op, out: Array) -> None:
    """Rank 0 folds everybody's vector in rank order and hands out the blocks: for ops that want whole vectors."""
    x, counts = await _joined(ch, blocks)
    await reduce.direct(ch, x, op, 0)
    await _hand_out(ch, x, counts, out)


@algorithm(
    "reduce_scatter",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    from_left=True,
    on="turns",
    splits=True,
    blocked=True,
)
async def owners(ch: Channel, blocks: Sequence[Array], op: Op, out: Array) -> None:
    """Each rank gathers what everybody has for its block, and folds that from rank 0 on."""
    await gathered.to_owners(ch, blocks, op, out, show=False)


@algorithm(
    "reduce_scatter",
    splits=True,
    on="hosts",
    blocked=True,
    parts=(
        Part("local", "reduce", "direct"),
        Part("hosts", "reduce_scatter", "pairwise"),
        Part("local", "scatter", "linear"),
    ),
)
async def leaders(ch: Channel, blocks: Sequence[Array], op: Op, out: Array) -> None:
    """One rank per host folds what its neighbours have, reduce-scatters with the others and hands out the blocks."""
    await _over(ch, blocks, op, out, hosts.Near(ch, one_lane=True))


@algorithm(
    "reduce_scatter",
    splits=True,
    on="hosts",
    blocked=True,
    parts=(
        Part("local", "reduce_scatter", "direct"),
        Part("hosts", "reduce_scatter", "pairwise", shared=True),
        Part("local", "scatter", "linear", shared=True),
    ),
)
async def lanes(ch: Channel, blocks: Sequence[Array], op: Op, out: Array) -> None:
    """Reduce-scatter within each host to its lanes, and along each lane side by side."""
    await _over(ch, blocks, op, out, hosts.Near(ch))


async def _over(ch: Channel, blocks: Sequence[Array], op: Op, out: Array, near: hosts.Near) -> None:
    def share(lane: int) -> tuple[list[int], list[int]]:
        """The ranks that a lane serves, in the order of the islands, and the elements for each island."""
        ranks = [near.carried(lane, island) for island in range(len(near.islands))]
        return [rank for each in ranks for rank in each], [sum(len(blocks[rank]) for rank in each) for each in ranks]

    dtype = blocks[0].dtype
    joined = []
    for lane in range(near.lanes):
        ranks, counts = share(lane)
        x = hosts.room(ch, sum(counts) * dtype.itemsize).view(dtype)
        at = patterns.offsets([len(blocks[rank]) for rank in ranks])
        for i, rank in enumerate(ranks):
            await pace.copy(ch, blocks[rank], x[at[i] : at[i + 1]])
        joined.append(x)
    joined += [np.empty(0, dtype)] * (near.local.size - near.lanes)
    await direct(near.local, joined, op, joined[near.place])
    if not near.speaks:
        await near.local.recv(near.place % near.lanes, out)
        return
    ends = patterns.offsets(share(near.place)[1])
    parts = [joined[near.place][ends[i] : ends[i + 1]] for i in range(len(near.islands))]
    mine = parts[near.home]
    await pairwise(near.across, parts, op, mine)
    start, sending = 0, []
    for rank in near.carried(near.place, near.home):
        result = mine[start : start + len(blocks[rank])]
        start += len(result)
        if rank == ch.rank:
            await pace.copy(ch, result, out)
        else:
            sending.append(near.local.send(near.islands[near.home].index(rank), result))
    await finish(sending)
