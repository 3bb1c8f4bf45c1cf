"""Barrier: nobody leaves before everybody has come.

The rule: empty messages only. ``run(channel)``.
"""

from __future__ import annotations

from aiocoll import patterns
from aiocoll.algorithms import Part, algorithm, hosts
from aiocoll.algorithms.channel import EMPTY, Channel, finish


@algorithm("barrier", rounds=patterns.log2_ceil, sent=lambda p, n: 0)
async def dissemination(ch: Channel) -> None:
    """Step k: tell the rank 2^k ahead, hear from the one 2^k behind (Hensgen, Finkel, Manber 1988)."""
    for to, source in patterns.dissemination(ch.rank, ch.size):
        await ch.exchange(to, EMPTY, source, EMPTY)


@algorithm("barrier", rounds=lambda p: min(p - 1, 1), messages=lambda p: p - 1, sent=lambda p, n: 0)
async def full_mesh(ch: Channel) -> None:
    """Everybody tells everybody: one round of size - 1 messages."""
    peers = patterns.around(ch.rank, ch.size)
    await finish([*[ch.recv(peer, EMPTY) for peer in peers], ch.publish(EMPTY)])


async def roll_call(ch: Channel) -> None:
    """Everybody reports to rank 0, which answers when all have: a rank that does not come keeps nobody but rank 0 from
    having reported (monitored barrier)."""
    if ch.rank:
        await finish([ch.send(0, EMPTY), ch.recv(0, EMPTY)])
    else:
        await finish([ch.recv(peer, EMPTY) for peer in range(1, ch.size)])
        await ch.publish(EMPTY)


@algorithm(
    "barrier",
    on="hosts",
    parts=(
        Part("local", "gather", "linear"),
        Part("hosts", "barrier", "dissemination"),
        Part("local", "announce", "linear"),
    ),
)
async def leaders(ch: Channel) -> None:
    """Everybody tells one rank of its host, which tells its neighbours as soon as its like on all hosts have heard."""
    near = hosts.Near(ch, one_lane=True)
    if not near.speaks:
        await finish([near.local.send(0, EMPTY), near.local.recv(0, EMPTY)])
        return
    await finish([near.local.recv(peer, EMPTY) for peer in range(1, near.local.size)])
    await dissemination(near.across)
    await near.local.publish(EMPTY)
