"""All-reduce: every rank gets the fold of all ranks' vectors, with the same bits everywhere.

The rule: ``run(channel, x, op)`` folds in place; each element's result is computed once, or by the same expression on
every rank. ``n`` is the bytes of ``x``.
"""

from __future__ import annotations

from aiocoll import patterns
from aiocoll.algorithms import algorithm, all_gather, broadcast, pace, reduce, reduce_scatter
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
    keeps_order=True,
    when=lambda p, n: p <= 2,
    needs="two ranks",
)
async def exchange(ch: Channel, x: Array, op: Op) -> None:
    """Two ranks swap vectors, and both fold the lower rank's with the higher one's."""
    if ch.size == 1:
        return
    peer, theirs = 1 - ch.rank, ch.scratch(x)
    await ch.exchange(peer, x, peer, theirs)
    left, right = (x, theirs) if ch.rank == 0 else (theirs, x)
    await pace.fold(ch, op, left, right, x)


@algorithm(
    "all_reduce",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1),
    folded=lambda p, n: n * (p - 1),
    keeps_order=True,
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
    if plan.peers:
        theirs = ch.scratch(x)
    for peer in plan.peers:
        await ch.exchange(peer, x, peer, theirs)
        left, right = (theirs, x) if peer < ch.rank else (x, theirs)
        await pace.fold(ch, op, left, right, x)
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
    await reduce_scatter.circulant(ch, x, op, counts)
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
    await reduce_scatter.ring(ch, x, op, counts)
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
    await reduce_scatter.pairwise(ch, x, op, counts)
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
