"""Reduce-scatter: every rank gets its own block of the fold of all ranks' vectors.

The rule: ``run(channel, x, op, counts)``; ``counts`` are elements per rank, and in the end the own block is right, at
its place in ``x``; the rest of ``x`` is work space. ``n`` is the bytes of ``x``.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiocoll import patterns
from aiocoll.algorithms import algorithm, pace, pipeline, reduce
from aiocoll.algorithms.channel import Array, Channel, finish
from aiocoll.ops import Op
from aiocoll.patterns import log2_ceil, log2_floor


@algorithm(
    "reduce_scatter",
    rounds=log2_ceil,
    sent=lambda p, n: n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    splits=True,
)
async def circulant(ch: Channel, x: Array, op: Op, counts: Sequence[int]) -> None:
    """Halve the blocks that I work on each round, for any number of ranks (Traeff 2024).

    Counted from my own block: send the upper half of what is left to the rank ``skip`` ahead, fold what comes from
    behind into the lower half. Blocks are contiguous round the vector, so a message is one slice, or two where it
    wraps.
    """
    at = patterns.offsets(counts)
    for ahead, behind, skip, span in patterns.circulant(ch.rank, ch.size):
        lower, upper = patterns.arc(at, ch.rank, span - skip), patterns.arc(at, ch.rank + skip, span - skip)
        arrivals = [ch.recv_fold(behind, x[part], op) for part in lower]
        await finish([*arrivals, *[ch.send(ahead, x[part]) for part in upper]])


@algorithm(
    "reduce_scatter",
    rounds=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    splits=True,
)
async def ring(ch: Channel, x: Array, op: Op, counts: Sequence[int]) -> None:
    """Each block travels round the ring in segments and is folded on the way, so that folding hides behind sending.

    Step s: block rank-1-s goes ahead, block rank-2-s comes from behind; the last to come is my own.
    """
    behind = (ch.rank - 1) % ch.size
    await pipeline.ring(ch, x, patterns.offsets(counts), behind, lambda lane: ch.recv_fold(behind, lane, op))


@algorithm(
    "reduce_scatter",
    rounds=lambda p: p - 1,
    sent=lambda p, n: n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    keeps_order=True,
    splits=True,
)
async def pairwise(ch: Channel, x: Array, op: Op, counts: Sequence[int]) -> None:
    """Give every rank its block, one after the other, and fold mine in rank order as it comes.

    Sources come in descending order with one wrap: those below me extend my block to the left, those above me build a
    tail, and the tail is folded to its right at the end.
    """
    at = patterns.offsets(counts)
    mine = x[at[ch.rank] : at[ch.rank + 1]]
    last = ch.size - 1
    if ch.rank < last:
        tail = ch.scratch(mine)
    for to, source in patterns.pairwise(ch.rank, ch.size):
        block = x[at[to] : at[to + 1]]
        if source < ch.rank:
            await ch.exchange(to, block, source, mine, op, left=True)
        elif source == last:
            await ch.exchange(to, block, source, tail)
        else:
            await ch.exchange(to, block, source, tail, op, left=True)
    if ch.rank < last:
        await pace.fold(ch, op, mine, tail, mine)


@algorithm(
    "reduce_scatter",
    rounds=lambda p: log2_floor(p) + (p > 1),
    sent=lambda p, n: n * (p > 1),
    path=lambda p, n: n * log2_ceil(p) + n * (p - 1) / p,
    folded=lambda p, n: n * log2_ceil(p),
    messages=lambda p: log2_ceil(p) + p - 1,
    keeps_order=True,
)
async def ordered(ch: Channel, x: Array, op: Op, counts: Sequence[int]) -> None:
    """Reduce whole vectors to rank 0 in rank order, which hands out the blocks: for ops that want whole vectors."""
    await reduce.ordered(ch, x, op, 0)
    at = patterns.offsets(counts)
    if ch.rank == 0:
        await finish([ch.send(peer, x[at[peer] : at[peer + 1]]) for peer in patterns.around(0, ch.size)])
    else:
        await ch.recv(0, x[at[ch.rank] : at[ch.rank + 1]])
