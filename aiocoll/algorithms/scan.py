"""Scan: every rank gets the fold of its own vector and those of all lower ranks.

The rule: ``run(channel, x, op)`` works in place and in rank order. ``n`` is the bytes of ``x``.
"""

from __future__ import annotations

from aiocoll import patterns
from aiocoll.algorithms import algorithm, owner, pace, pipeline
from aiocoll.algorithms.channel import Array, Channel, finish
from aiocoll.ops import Op
from aiocoll.patterns import log2_ceil, log2_floor


@algorithm(
    "scan",
    rounds=log2_floor,
    messages=log2_ceil,
    sent=lambda p, n: n * log2_ceil(p),
    folded=lambda p, n: n * log2_ceil(p),
    keeps_order=True,
)
async def recursive_doubling(ch: Channel, x: Array, op: Op) -> None:
    """Give what I have to the rank 2^k above, fold in on the left what comes from below (Hillis, Steele 1986)."""
    lower = ch.scratch(x) if ch.rank else x
    for to, source in patterns.prefix(ch.rank, ch.size):
        arrivals = [ch.recv(source, lower)] if source is not None else []
        await finish([*arrivals, *([ch.send(to, x)] if to is not None else [])])
        if source is not None:
            await pace.fold(ch, op, lower, x, x)


@algorithm(
    "scan",
    rounds=lambda p: p - 1,
    sent=lambda p, n: n * (p > 1),
    path=pipeline.chain_path,
    folded=lambda p, n: n * (p > 1),
    from_left=True,
)
async def chain(ch: Channel, x: Array, op: Op) -> None:
    """From rank to rank in segments, each folded and passed on as soon as it is here: for long vectors."""
    receive = (lambda part: ch.recv_fold(ch.rank - 1, part, op, left=True)) if ch.rank else None
    send = (lambda part: ch.send(ch.rank + 1, part)) if ch.rank < ch.size - 1 else None
    await pipeline.chain(x, pipeline.chain_parts(x, whole=not op.splittable), receive, send)


@algorithm(
    "scan",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: (p - 1) / 2,
    sent=lambda p, n: n * (p - 1),
    path=lambda p, n: n * (p > 1),
    folded=lambda p, n: n * (p - 1),
    from_left=True,
    on="memory",
    blocked=True,
)
async def direct(ch: Channel, x: Array, op: Op) -> None:
    """Everybody shows those above its vector, and folds those from below in rank order where they lie."""
    parts = owner.blocks_of(len(x), owner.block_length(x, op))
    below, above = range(ch.rank + 1), ch.narrow(range(ch.rank, ch.size))
    fold = owner.Fold(ch, op, x.dtype, parts[0].stop)
    for part in parts:
        block = x[part]
        shown = above.publish(block)
        await fold.run(block, block, below, shown)
        await ch.breathe()
