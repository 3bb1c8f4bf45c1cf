"""Reduce: root gets the fold of all ranks' vectors.

The rule: ``run(channel, x, op, root)``; ``x`` is private work space on every rank and holds the result on root. ``n``
is the bytes of ``x``.
"""

from __future__ import annotations

from aiocoll import patterns
from aiocoll.algorithms import algorithm, gathered, owner, reduce_scatter
from aiocoll.algorithms.channel import Array, Channel, finish
from aiocoll.ops import Op
from aiocoll.patterns import log2_ceil, log2_floor


@algorithm(
    "reduce",
    rounds=log2_floor,
    sent=lambda p, n: n * (p > 1),
    path=lambda p, n: n * log2_ceil(p),
    folded=lambda p, n: n * log2_ceil(p),
    messages=log2_ceil,
)
async def binomial(ch: Channel, x: Array, op: Op, root: int) -> None:
    """Fold whole vectors up a binomial tree."""
    node = patterns.binomial(patterns.turned(ch.rank, root, ch.size), ch.size)
    for child in node.children:
        source = patterns.unturned(child.rank, root, ch.size)
        await ch.recv_fold(source, x, op, left=source < ch.rank)
    if node.parent is not None:
        await ch.send(patterns.unturned(node.parent, root, ch.size), x)


@algorithm(
    "reduce",
    rounds=lambda p: log2_floor(p) + (p > 2),
    sent=lambda p, n: n * (p > 1),
    path=lambda p, n: n * (log2_ceil(p) + (p > 2)),
    folded=lambda p, n: n * log2_ceil(p),
    messages=lambda p: log2_ceil(p) + (p > 2),
    keeps_order=True,
)
async def ordered(ch: Channel, x: Array, op: Op, root: int) -> None:
    """Fold whole vectors up a binomial tree whose subtrees are ranges of ranks, children from left to right.

    Its top is rank 0, or the last rank when that is root (the tree is then mirrored, and children are left operands).
    Another root gets the result in one more message.
    """
    mirrored = root == ch.size - 1
    place = ch.size - 1 - ch.rank if mirrored else ch.rank
    node = patterns.binomial(place, ch.size)
    for child in node.children:
        await ch.recv_fold(ch.size - 1 - child.rank if mirrored else child.rank, x, op, left=mirrored)
    if node.parent is not None:
        await ch.send(ch.size - 1 - node.parent if mirrored else node.parent, x)
    if root not in (0, ch.size - 1):
        if ch.rank == 0:
            await ch.send(root, x)
        elif ch.rank == root:
            await ch.recv(0, x)


@algorithm(
    "reduce",
    rounds=lambda p: log2_ceil(p) + (p > 1),
    sent=lambda p, n: n * (p > 1),
    path=lambda p, n: 2 * n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    messages=lambda p: log2_ceil(p) + p - 1,
    splits=True,
)
async def scatter_gather(ch: Channel, x: Array, op: Op, root: int) -> None:
    """Reduce-scatter (circulant), then everybody sends root its block: for long vectors (Rabenseifner 1997)."""
    counts = patterns.even(len(x), ch.size)
    await reduce_scatter.halve(ch, x, op, counts)
    at = patterns.offsets(counts)
    if ch.rank != root:
        await ch.send(root, x[at[ch.rank] : at[ch.rank + 1]])
        return
    await finish([ch.recv(peer, x[at[peer] : at[peer + 1]]) for peer in patterns.around(root, ch.size)])


@algorithm(
    "reduce",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: p - 1,
    sent=lambda p, n: n * (p > 1),
    folded=lambda p, n: n * (p - 1),
    from_left=True,
    on="memory",
    blocked=True,
    narrow=True,
)
async def direct(ch: Channel, x: Array, op: Op, root: int) -> None:
    """Everybody shows root its vector, which folds all of them in rank order where they lie."""
    if ch.size == 1:
        return
    parts = owner.blocks_of(len(x), owner.block_length(x, op))
    if ch.rank != root:
        for part in parts:
            await ch.send(root, x[part])
        return
    fold = owner.Fold(ch, op, x.dtype, parts[0].stop)
    for part in parts:
        block = x[part]
        await fold.run(block, block)
        await ch.breathe()


@algorithm(
    "reduce",
    rounds=lambda p: 2 * min(p - 1, 1),
    messages=lambda p: 2 * (p - 1),
    sent=lambda p, n: n * (p > 1),
    path=lambda p, n: 2 * n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    from_left=True,
    splits=True,
    on="memory",
    blocked=True,
    narrow=True,
)
async def two_shot(ch: Channel, x: Array, op: Op, root: int) -> None:
    """Each rank folds its share of a block where the others show theirs, then shows root the result: long vectors."""
    await owner.by_owners(ch, x, op, root)


@algorithm(
    "reduce",
    rounds=lambda p: 2 * min(p - 1, 1),
    messages=lambda p: 2 * (p - 1),
    sent=lambda p, n: n * (p > 1),
    path=lambda p, n: 2 * n * (p - 1) / p,
    folded=lambda p, n: n * (p - 1) / p,
    from_left=True,
    on="turns",
    splits=True,
    blocked=True,
)
async def owners(ch: Channel, x: Array, op: Op, root: int) -> None:
    """Each rank gathers everybody's operands for its share, folds them from rank 0 on and sends root the result."""
    at = patterns.offsets(patterns.even(len(x), ch.size))
    blocks = [x[at[i] : at[i + 1]] for i in range(ch.size)]
    await gathered.to_owners(ch, blocks, op, blocks[ch.rank], show=True, root=root)
