"""Exscan: every rank but the first gets the fold of the vectors of all lower ranks.

The rule: ``run(channel, x, op)`` works in place and in rank order; on rank 0 ``x`` stays what it was. ``n`` is the
bytes of ``x``.
"""

from __future__ import annotations

from aiocoll import patterns
from aiocoll.algorithms import algorithm, owner, pace, pipeline
from aiocoll.algorithms.channel import Array, Channel, finish
from aiocoll.ops import Op
from aiocoll.patterns import log2_ceil, log2_floor


def _folds(size: int) -> int:
    """The folds of the busiest rank of the recursive doubling below."""
    steps = range(log2_ceil(size))
    return max(
        sum(rank >= 1 << k for k in steps[1:]) + sum(rank >= 1 << k and rank + (2 << k) < size for k in steps)
        for rank in {
            0,
            size - 1,
            *(s for k in steps for s in ((1 << k) - 1, 1 << k, size - 1 - (2 << k)) if 0 <= s < size),
        }
    )


@algorithm(
    "exscan",
    rounds=log2_floor,
    messages=log2_ceil,
    sent=lambda p, n: n * log2_ceil(p),
    folded=lambda p, n: n * _folds(p),
    keeps_order=True,
)
async def recursive_doubling(ch: Channel, x: Array, op: Op) -> None:
    """The scan's steps, with two vectors: one that includes mine and goes up, one that does not and is the result."""
    hops = patterns.prefix(ch.rank, ch.size)
    below = ch.scratch(x)
    upward = x
    if ch.rank:
        upward = ch.scratch(x)
        await pace.copy(ch, x, upward)
    for k, (to, source) in enumerate(hops):
        arrivals = [ch.recv(source, below)] if source is not None else []
        await finish([*arrivals, *([ch.send(to, upward)] if to is not None else [])])
        if source is None:
            continue
        if k == 0:
            await pace.copy(ch, below, x)
        else:
            await pace.fold(ch, op, below, x, x)
        if k + 1 < len(hops) and hops[k + 1].to is not None:
            await pace.fold(ch, op, below, upward, upward)


@algorithm(
    "exscan",
    rounds=lambda p: p - 1,
    sent=lambda p, n: n * (p > 1),
    path=pipeline.chain_path,
    folded=lambda p, n: n * (p > 2),
    from_left=True,
)
async def chain(ch: Channel, x: Array, op: Op) -> None:
    """From rank to rank in segments: keep what comes from below, pass on its fold with mine: for long vectors."""
    if ch.size == 1:
        return
    parts, last = pipeline.chain_parts(x, whole=not op.splittable), ch.size - 1
    if ch.rank == 0:
        await finish([ch.send(1, x[part]) for part in parts])
        return
    below = ch.scratch(x) if ch.rank < last else x
    arrivals = [ch.recv(ch.rank - 1, below[part]) for part in parts]
    leaving = []
    for part, arrival in zip(parts, arrivals, strict=True):
        await arrival
        if ch.rank < last:
            await pace.fold(ch, op, below[part], x[part], x[part])
            leaving.append(ch.send(ch.rank + 1, x[part]))
    await finish(leaving)
    if ch.rank < last:
        await pace.copy(ch, below, x)


@algorithm(
    "exscan",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: (p - 1) / 2,
    sent=lambda p, n: n * (p - 1),
    path=lambda p, n: 2 * n * (p > 1),
    folded=lambda p, n: n * max(p - 2, 0),
    from_left=True,
    on="memory",
    blocked=True,
)
async def direct(ch: Channel, x: Array, op: Op) -> None:
    """Everybody shows those above its vector, and folds what comes from below in rank order where it lies."""
    above = ch.narrow(range(ch.rank, ch.size))
    for part in owner.blocks_of(len(x), owner.block_length(x, op)):
        block = x[part]
        await above.publish(block)
        if ch.rank:
            await ch.recv(0, block)
        for peer in range(1, ch.rank):
            await ch.recv_fold(peer, block, op)
        await ch.breathe()
