"""All-gather: every rank gets every rank's block.

The rule: ``run(channel, buf, counts)``; ``buf`` holds all blocks as bytes, ``counts`` are bytes per rank, the own
block is in its place before and all are afterwards. ``n`` is the bytes of ``buf``.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiocoll import patterns
from aiocoll.algorithms import algorithm, pipeline
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
