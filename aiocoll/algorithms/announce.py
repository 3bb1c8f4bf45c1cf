"""Announce: every rank learns root's small blob, whose length only root knows.

The rule: ``run(channel, blob, root)`` gives the blob; only root's ``blob`` counts. ``n`` is its bytes.
"""

from __future__ import annotations

from aiocoll import patterns
from aiocoll.algorithms import algorithm
from aiocoll.algorithms.channel import Channel, finish
from aiocoll.patterns import log2_ceil, log2_floor


@algorithm("announce", rounds=lambda p: min(p - 1, 1), messages=lambda p: (p - 1) / 2, sent=lambda p, n: n * (p - 1))
async def linear(ch: Channel, blob: bytes | None, root: int) -> bytes:
    """Root tells everybody."""
    if ch.rank != root:
        return (await ch.take(root)).data.tobytes()
    mine = blob or b""
    if ch.size > 1:
        await ch.publish(mine)
    return mine


@algorithm("announce", rounds=log2_floor, messages=log2_ceil, sent=lambda p, n: n * log2_ceil(p))
async def binomial(ch: Channel, blob: bytes | None, root: int) -> bytes:
    """The blob goes down a binomial tree, largest subtree first."""
    node = patterns.binomial(patterns.turned(ch.rank, root, ch.size), ch.size)
    mine = blob or b""
    if node.parent is not None:
        mine = (await ch.take(patterns.unturned(node.parent, root, ch.size))).data.tobytes()
    await finish([ch.send(patterns.unturned(child.rank, root, ch.size), mine) for child in reversed(node.children)])
    return mine


async def announce(ch: Channel, blob: bytes | None, root: int) -> bytes:
    """Root's blob, the way that is quicker for so many ranks."""
    return await (linear if ch.size <= 4 else binomial)(ch, blob, root)
