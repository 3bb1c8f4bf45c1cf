"""Broadcast: every rank gets root's bytes, whose number all ranks know.

The rule: ``run(channel, buf, root)``; root only reads ``buf``. ``n`` is the bytes of ``buf``.
"""

from __future__ import annotations

from aiocoll import patterns
from aiocoll.algorithms import Part, algorithm, all_gather, hosts, pace, pipeline
from aiocoll.algorithms.channel import Array, Channel, finish
from aiocoll.patterns import log2_ceil, log2_floor


@algorithm(
    "broadcast",
    rounds=lambda p: min(p - 1, 1),
    messages=lambda p: (p - 1) / 2,
    sent=lambda p, n: n * (p - 1),
)
async def linear(ch: Channel, buf: Array, root: int) -> None:
    """Root sends everybody everything: one round, for few ranks or few bytes."""
    if ch.rank != root:
        await ch.recv(root, buf)
    elif ch.size > 1:
        await ch.publish(buf)


@algorithm("broadcast", rounds=log2_floor, messages=log2_ceil, sent=lambda p, n: n * log2_ceil(p))
async def binomial(ch: Channel, buf: Array, root: int) -> None:
    """Everything goes down a binomial tree, largest subtree first."""
    node = patterns.binomial(patterns.turned(ch.rank, root, ch.size), ch.size)
    if node.parent is not None:
        await ch.recv(patterns.unturned(node.parent, root, ch.size), buf)
    await finish([ch.send(patterns.unturned(child.rank, root, ch.size), buf) for child in reversed(node.children)])


@algorithm(
    "broadcast",
    rounds=lambda p: log2_ceil(p) + (p > 2),
    messages=lambda p: log2_ceil(p) + p - 1,
    sent=lambda p, n: 2 * n * (p - 1) / p,
)
async def scatter_all_gather(ch: Channel, buf: Array, root: int) -> None:
    """Root gives each rank one block, then all gather (van de Geijn 1991): long arrays, few bytes for everybody."""
    counts = patterns.even(len(buf), ch.size)
    at = patterns.offsets(counts)
    if ch.rank != root:
        await ch.recv(root, buf[at[ch.rank] : at[ch.rank + 1]])
        await all_gather.circulant(ch, buf, counts, root)
        return
    blocks = [ch.send(peer, buf[at[peer] : at[peer + 1]]) for peer in patterns.around(root, ch.size)]
    await all_gather.circulant(ch, buf, counts, root)
    await finish(blocks)


@algorithm("broadcast", rounds=lambda p: p - 1, sent=lambda p, n: n * (p > 1), path=pipeline.chain_path)
async def chain(ch: Channel, buf: Array, root: int) -> None:
    """From rank to rank in segments that are passed on as soon as they are here: every rank sends each byte once."""
    place = patterns.turned(ch.rank, root, ch.size)
    behind, ahead = (ch.rank - 1) % ch.size, (ch.rank + 1) % ch.size
    receive = (lambda part: ch.recv(behind, part)) if place else None
    send = (lambda part: ch.send(ahead, part)) if place < ch.size - 1 else None
    await pipeline.chain(buf, pipeline.chain_parts(buf), receive, send)


@algorithm(
    "broadcast",
    on="hosts",
    parts=(Part("hosts", "broadcast", "binomial"), Part("local", "broadcast", "linear")),
)
async def leaders(ch: Channel, buf: Array, root: int) -> None:
    """Down a binomial tree of one rank per host, root being its own, and from each to its neighbours."""
    near = hosts.Near(ch, one_lane=True)
    heads = [root if root in island else island[0] for island in near.islands]
    head = heads[near.home]
    if ch.rank == head:
        await binomial(ch.narrow(heads), buf, heads.index(root))
    await linear(near.local, buf, near.islands[near.home].index(head))


@algorithm(
    "broadcast",
    on="hosts",
    blocked=True,
    parts=(
        Part("local", "broadcast", "linear"),
        Part("hosts", "broadcast", "binomial", shared=True),
        Part("local", "all_gather", "full_mesh"),
    ),
)
async def lanes(ch: Channel, buf: Array, root: int) -> None:
    """Everything to root's neighbours, which send their shares to the other hosts side by side; all-gather there."""
    near = hosts.Near(ch)
    source = next(i for i, island in enumerate(near.islands) if root in island)
    for part in pace.slices(buf):
        block = buf[part]
        counts = near.lane_counts(len(block))
        at = patterns.offsets(counts)
        if near.home == source:
            await linear(near.local, block, near.islands[source].index(root))
        if near.speaks:
            await binomial(near.across, block[at[near.place] : at[near.place + 1]], source)
        if near.home != source:
            await all_gather.full_mesh(near.local, *all_gather.as_bytes(block, counts))
