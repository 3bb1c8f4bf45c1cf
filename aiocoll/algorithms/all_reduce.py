"""All-reduce: every rank gets the fold of all ranks' vectors, with the same bits everywhere.

The rule: ``run(channel, x, op)`` folds in place; each element's result is computed once, or by the same expression on
every rank. ``n`` is the bytes of ``x``.
"""

from __future__ import annotations

from aiocoll import patterns
from aiocoll.algorithms import (
    Part,
    algorithm,
    all_gather,
    broadcast,
    gathered,
    hosts,
    owner,
    pace,
    reduce,
    reduce_scatter,
)
from aiocoll.algorithms.channel import Array, Channel, finish
from aiocoll.ops import Op
from aiocoll.patterns import log2_ceil, log2_floor


def _power_of_two(size: int) -> bool:
    return size & (size - 1) == 0


def _doubling_rounds(size: int) -> int:
    """One per bit, one more if a rank lends, two if one that lends and one that is lent to differ in all bits."""
    power = 1 << log2_floor(size)
    extra = size - power
    return log2_floor(size) + (extra > 0) + (2 * extra > power)


@algorithm(
    "all_reduce",
    rounds=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1),
    folded=lambda p, n: n * (p - 1),
    from_left=True,
    when=lambda p, n: p <= 2,
    needs="two ranks",
    blocked=True,
)
async def exchange(ch: Channel, x: Array, op: Op) -> None:
    """Two ranks swap vectors, and both fold the lower rank's with the higher one's."""
    if ch.size == 1:
        return
    for part in pace.slices(x, op):
        await ch.combine(1 - ch.rank, x[part], op)
        await ch.breathe()


@algorithm(
    "all_reduce",
    rounds=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1),
    path=lambda p, n: n * (p - 1),
    folded=lambda p, n: n * (p - 1),
    from_left=True,
    when=lambda p, n: p <= 2,
    needs="two ranks",
    on="memory",
    blocked=True,
)
async def swap(ch: Channel, x: Array, op: Op) -> None:
    """Two ranks show each other a block at a time and fold it where it lies: one wait per block."""
    if ch.size > 1 and x.nbytes <= owner.BLOCK_BYTES:
        await ch.combine(1 - ch.rank, x, op)
    elif ch.size > 1:
        await owner.swap(ch, x, op)


@algorithm(
    "all_reduce",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1),
    folded=lambda p, n: n * (p - 1),
    from_left=True,
    blocked=True,
)
async def one_shot(ch: Channel, x: Array, op: Op) -> None:
    """Everybody sends everybody the vector and folds all of them in rank order: one round, for tiny vectors.

    Long vectors go slice by slice, so that what is received takes (size - 1) MiB at most.
    """
    if ch.size == 1:
        return
    for part in pace.slices(x, op):
        mine = x[part]
        vectors = [mine if rank == ch.rank else ch.scratch(mine) for rank in range(ch.size)]
        arrivals = [ch.recv(peer, vectors[peer]) for peer in patterns.around(ch.rank, ch.size)]
        await finish([*arrivals, ch.publish(mine)])
        total = vectors[0]
        for rank in range(1, ch.size):  # into mine from my turn on, before that it is still an input
            target = mine if rank >= ch.rank else total
            await pace.fold(ch, op, total, vectors[rank], target)
            total = target


@algorithm(
    "all_reduce",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1),
    path=lambda p, n: 2 * n * (p > 1),
    folded=lambda p, n: n * (p - 1),
    from_left=True,
    on="memory",
    blocked=True,
    narrow=True,
)
async def read_all(ch: Channel, x: Array, op: Op) -> None:
    """Everybody shows its vector, and folds all of them in rank order where they lie: one round, for short vectors."""
    if ch.size == 1:
        return
    parts = owner.blocks_of(len(x), owner.block_length(x, op))
    fold = owner.Fold(ch, op, x.dtype, min(len(x), parts[0].stop))
    for part in parts:
        await fold.everywhere(x[part])
        await ch.breathe()


@algorithm(
    "all_reduce",
    rounds=lambda p: 2 * min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1),
    path=lambda p, n: 2 * n * (p - 1),
    folded=lambda p, n: n * (p - 1),
    from_left=True,
    on="turns",
    blocked=True,
)
async def rooted(ch: Channel, x: Array, op: Op) -> None:
    """Rank 0 folds everybody's vector as it comes and shows all the result: fewest messages where ranks share cores."""
    if ch.size == 1:
        return
    for part in owner.blocks_of(len(x), owner.block_length(x, op)):
        block = x[part]
        if ch.rank:
            await ch.send(0, block)
            await ch.recv(0, block)
        else:
            for peer in range(1, ch.size):
                await ch.recv_fold(peer, block, op)
            await ch.publish(block)
        await ch.breathe()


@algorithm(
    "all_reduce",
    rounds=lambda p: 2 * min(p - 1, 1),
    messages=lambda p: 2 * (p - 1),
    sent=lambda p, n: 2 * n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    from_left=True,
    on="turns",
    splits=True,
    blocked=True,
)
async def owners(ch: Channel, x: Array, op: Op) -> None:
    """Each rank gathers everybody's operands for its share, folds them from rank 0 on and shows all the result."""
    at = patterns.offsets(patterns.even(len(x), ch.size))
    blocks = [x[at[i] : at[i + 1]] for i in range(ch.size)]
    await gathered.to_owners(ch, blocks, op, blocks[ch.rank], show=True)


@algorithm(
    "all_reduce",
    rounds=lambda p: min(p - 1, 2),
    messages=lambda p: 2 * (p - 1) if p > 2 else p - 1,
    sent=lambda p, n: 2 * n * (p - 1) / p,
    path=lambda p, n: (2 * (p - 1) + 1) / p * n if p > 2 else n * (p - 1),
    folded=lambda p, n: n * (p - 1) / p if p > 2 else n * (p - 1),
    from_left=True,
    splits=True,
    on="memory",
    blocked=True,
    narrow=True,
)
async def two_shot(ch: Channel, x: Array, op: Op) -> None:
    """Each rank folds its share of a block where the others show theirs, then shows the result to all: least traffic
    for long vectors, and the same for ops that do not commute.

    Two ranks swap their blocks instead, which costs as little and takes one wait less, unless both vectors can be read
    where they lie.
    """
    await owner.by_owners(ch, x, op)


@algorithm(
    "all_reduce",
    rounds=_doubling_rounds,
    sent=lambda p, n: n * (log2_floor(p) + (not _power_of_two(p))),
    folded=lambda p, n: n * (log2_floor(p) + (not _power_of_two(p))),
    keeps_order=True,
)
async def recursive_doubling(ch: Channel, x: Array, op: Op) -> None:
    """Swap whole vectors with the rank 2^k away; each step doubles the ranks that a vector stands for.

    Ranks beyond a power of two lend theirs to a neighbour and get the result back. Every vector stands for a
    contiguous range of ranks, and the lower range is the left operand on both sides: order is kept and the bits are
    equal (Thakur, Rabenseifner, Gropp 2005).
    """
    plan = patterns.doubling(ch.rank, ch.size)
    if plan.lends_to is not None:
        await ch.send(plan.lends_to, x)
        await ch.recv(plan.lends_to, x)
        return
    if plan.stands_for is not None:
        await ch.recv_fold(plan.stands_for, x, op, left=True)
    for peer in plan.peers:
        await ch.combine(peer, x, op)
    if plan.stands_for is not None:
        await ch.send(plan.stands_for, x)


@algorithm(
    "all_reduce",
    rounds=lambda p: 2 * log2_ceil(p),
    sent=lambda p, n: 2 * n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    splits=True,
)
async def circulant(ch: Channel, x: Array, op: Op) -> None:
    """Reduce-scatter, then all-gather, both in ceil(log2 size) rounds with the least possible bytes (Traeff 2024)."""
    counts = patterns.even(len(x), ch.size)
    await reduce_scatter.halve(ch, x, op, counts)
    await all_gather.circulant(ch, *all_gather.as_bytes(x, counts))


@algorithm(
    "all_reduce",
    rounds=lambda p: 2 * (p - 1),
    sent=lambda p, n: 2 * n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    splits=True,
)
async def ring(ch: Channel, x: Array, op: Op) -> None:
    """Reduce-scatter, then all-gather, both round a ring in segments: for long vectors, folding while receiving."""
    counts = patterns.even(len(x), ch.size)
    await reduce_scatter.go_round(ch, x, op, counts)
    await all_gather.ring(ch, *all_gather.as_bytes(x, counts))


@algorithm(
    "all_reduce",
    rounds=lambda p: p - 1 + log2_ceil(p),
    sent=lambda p, n: 2 * n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    keeps_order=True,
    splits=True,
)
async def pairwise(ch: Channel, x: Array, op: Op) -> None:
    """Each rank folds its block in rank order, then all gather: few bytes for ops that do not commute."""
    counts = patterns.even(len(x), ch.size)
    at = patterns.offsets(counts)
    blocks = [x[at[i] : at[i + 1]] for i in range(ch.size)]
    await reduce_scatter.pairwise(ch, blocks, op, blocks[ch.rank])
    await all_gather.circulant(ch, *all_gather.as_bytes(x, counts))


@algorithm(
    "all_reduce",
    rounds=lambda p: 2 * log2_floor(p),
    sent=lambda p, n: n * log2_ceil(p),
    path=lambda p, n: 2 * n * log2_ceil(p),
    folded=lambda p, n: n * log2_ceil(p),
    messages=lambda p: 2 * log2_ceil(p),
    keeps_order=True,
)
async def ordered(ch: Channel, x: Array, op: Op) -> None:
    """Reduce whole vectors to rank 0 in rank order, then broadcast: fewest folds and no scratch memory."""
    await reduce.ordered(ch, x, op, 0)
    await broadcast.binomial(ch, x, 0)


@algorithm(
    "all_reduce",
    on="hosts",
    blocked=True,
    parts=(
        Part("local", "reduce", "direct"),
        Part("hosts", "all_reduce", "recursive_doubling"),
        Part("local", "broadcast", "linear"),
    ),
)
async def leaders(ch: Channel, x: Array, op: Op) -> None:
    """Reduce within each host, swap among one rank of each, broadcast within: one crossing per host for few bytes."""
    near = hosts.Near(ch, one_lane=True)
    await reduce.direct(near.local, x, op, 0)
    if near.speaks:
        await recursive_doubling(near.across, x, op)
    await broadcast.linear(near.local, x, 0)


@algorithm(
    "all_reduce",
    splits=True,
    on="hosts",
    blocked=True,
    parts=(
        Part("local", "reduce_scatter", "direct"),
        Part("hosts", "all_reduce", "circulant", shared=True),
        Part("local", "all_gather", "full_mesh"),
    ),
)
async def lanes(ch: Channel, x: Array, op: Op) -> None:
    """Reduce-scatter within each host, all-reduce of each share among the hosts side by side, all-gather within."""
    near = hosts.Near(ch)
    for part in owner.blocks_of(len(x), max(hosts.SLICE_BYTES // x.itemsize, 1)):
        block = x[part]
        counts = near.lane_counts(len(block))
        at = patterns.offsets(counts)
        shares = [block[at[i] : at[i + 1]] for i in range(near.local.size)]
        await reduce_scatter.direct(near.local, shares, op, shares[near.place])
        if near.speaks:
            await circulant(near.across, shares[near.place], op)
        await all_gather.full_mesh(near.local, *all_gather.as_bytes(block, counts))
