"""One rank of test_partitions.py: works until something ends it, and says what and when, one JSON line each.

python partition_rank.py RANK SIZE URL SECRET WORK
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import numpy as np

import aiocoll
from aiocoll import CollectiveTimeoutError, GroupBrokenError, PeerLostError

FAILURES = (PeerLostError, GroupBrokenError, CollectiveTimeoutError)
COMPUTING_SECONDS = 13.0
PARCELS, COUNT = 12, 500_000


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def told(error: Any) -> dict[str, Any]:
    facts = {"class": type(error).__name__, "text": str(error), "missing": list(getattr(error, "missing", None) or ())}
    return facts | {"world_rank": getattr(error, "world_rank", None)}


def mine(rank: int, turn: int, count: int = 50_000) -> Any:
    return np.arange(count) % 89 + 100.0 * rank + turn


async def busy(group: aiocoll.Group) -> None:
    """Collectives, one after the other."""
    turn = 0
    while True:
        turn += 1
        total = sum(mine(rank, turn) for rank in range(group.size))
        assert ((await group.all_reduce(mine(group.rank, turn))) == total).all()


shrinking = busy


async def shrunk(group: aiocoll.Group) -> aiocoll.Group | None:
    """The group of those who are left, on the side that may go on."""
    try:
        smaller = await group.shrink(timeout=8)
    except GroupBrokenError as error:
        say(**told(error))
        return None
    say(ranks=smaller.ranks, sum=float(await smaller.all_reduce(group.rank + 1)))
    return smaller


async def quiet(group: aiocoll.Group) -> None:
    """No traffic at all: a receive of what nobody sends."""
    await group.recv(timeout=float("inf"))


async def idle(group: aiocoll.Group) -> None:
    """Nothing waits at all."""
    while group.broken is None:  # noqa: ASYNC110  what breaks it while nobody calls has no event
        await asyncio.sleep(0.02)
    raise group.broken


async def computing(group: aiocoll.Group) -> None:
    """The last rank computes and gives its loop no turn, while more comes than its kernel keeps: it is not lost."""
    last = group.size - 1
    if group.rank != last:
        for parcel in range(PARCELS):
            await group.send(mine(group.rank, parcel, COUNT), last)
    else:
        time.sleep(COMPUTING_SECONDS)  # noqa: ASYNC251  that is the point
        for rank in range(last):
            for parcel in range(PARCELS):
                assert ((await group.recv(rank)) == mine(rank, parcel, COUNT)).all()
    await group.barrier()


async def main(rank: int, size: int, url: str, secret: str, work: str) -> None:
    async with aiocoll.connect(url, rank=rank, size=size, secret=secret, timeout=60) as group:
        await group.all_gather(mine(rank, 0, rank + 1))
        await group.barrier()
        for peer in group._scope.others():
            group._endpoint.link(peer)  # all links, so that each of them notices for itself
        await group.barrier()
        say(ready=rank)
        try:
            await globals()[work](group)
            say(well=True)
        except FAILURES as error:
            say(when=time.monotonic(), **told(error))
            smaller = await shrunk(group) if work == "shrinking" else None
            if work != "computing" and await asyncio.to_thread(sys.stdin.readline):  # the network is there again
                try:
                    await group.barrier(timeout=5)
                    say(well=True)
                except FAILURES as later:
                    say(**told(later), cause=told(later.cause))
                if smaller is not None:
                    say(sum=float(await smaller.all_reduce(rank + 1)))
                    await smaller.close()


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
