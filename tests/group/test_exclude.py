"""exclude and abort: a group goes on without some of its ranks, whom nobody asks; a group is given up at once."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aiocoll import Group, GroupBrokenError, NotInitializedError, PeerLostError, UsageError
from aiocoll.sim import Crash
from aiocoll.testing import run

EVERYWHERE = pytest.mark.parametrize("fabric", ["sim", "inproc", "tcp", "shm"])


def values(rank: int) -> Any:
    return np.arange(4.0) * (rank + 1)


def total(ranks: list[int]) -> list[float]:
    return sum(values(rank) for rank in ranks).tolist()


@EVERYWHERE
def test_the_others_go_on_and_are_counted_anew(fabric: str) -> None:
    async def main(group: Group) -> Any:
        if group.rank in (1, 3):
            with pytest.raises(UsageError, match="only the others call"):
                await group.exclude([1, 3])
            with pytest.raises(GroupBrokenError, match="aborted group .*: goes on without"):
                await group.barrier()
            return None
        smaller = await group.exclude([3, 1])
        again = await group.exclude([3, 1])  # the n-th meets the n-th
        assert smaller.ranks == again.ranks == (0, 2, 4) and smaller.rank == (0, 2, 4).index(group.rank)
        assert (await again.all_reduce(values(group.rank))).tolist() == total([0, 2, 4])
        assert (await smaller.all_reduce(values(group.rank))).tolist() == total([0, 2, 4])
        await group.abort("goes on without")
        await smaller.barrier()
        await again.close()
        last = await smaller.exclude([0]) if smaller.rank else None
        if last is None:
            await smaller.close()
            return None
        async with last:
            return await last.all_gather_object(group.rank), last.name

    assert run(5, main, fabric) == [None, None, ([2, 4], "world.2"), None, ([2, 4], "world.2")]


@pytest.mark.parametrize("frames", range(1, 12, 2))
def test_of_a_broken_group(frames: int) -> None:
    async def main(group: Group) -> Any:
        with pytest.raises(PeerLostError):
            while True:
                await group.all_reduce(values(group.rank))
        async with await group.exclude([2]) as smaller:
            return (await smaller.all_reduce(values(group.rank))).tolist()

    got = run(4, main, "sim", seed=frames, faults=[Crash(2, frames=frames)])
    assert [each for rank, each in enumerate(got) if rank != 2] == [total([0, 1, 3])] * 3


def test_with_a_dead_rank_among_those_who_stay() -> None:
    async def main(group: Group) -> Any:
        with pytest.raises(PeerLostError):
            while True:
                await group.all_reduce(values(group.rank))
        if group.rank == 0:
            return None
        async with await group.exclude([0]) as smaller:  # and 2 is dead, too
            with pytest.raises(PeerLostError) as caught:
                await smaller.barrier()
        return caught.value.rank, caught.value.world_rank

    assert run(4, main, "sim", faults=[Crash(2, frames=5)])[1::2] == [(1, 2), (1, 2)]


@EVERYWHERE
def test_abort_ends_everything_that_is_pending(fabric: str) -> None:
    async def main(group: Group) -> None:
        twin = await group.dup()
        await twin.barrier()
        started = [asyncio.ensure_future(group.all_reduce(values(group.rank), name=str(name))) for name in range(3)]
        receive = asyncio.ensure_future(group.recv(tag=7))
        await asyncio.sleep(0)
        if group.rank == 2:
            for call in started:
                call.cancel()  # never made: this rank gives up instead
            await asyncio.wait(started)
        if group.rank == 0:
            await group.abort("enough")
            await group.abort()
        for call in (*(started if group.rank != 2 else ()), receive):
            with pytest.raises(GroupBrokenError):
                await call
        with pytest.raises(GroupBrokenError):
            await group.barrier()
        await twin.barrier()  # is another group
        await group.close()
        with pytest.raises(NotInitializedError):
            await group.abort()

    run(3, main, fabric)


def test_refused_arguments() -> None:
    async def main(group: Group) -> None:
        for ranks in ([], [0, 0], [5], {1}, 3):
            with pytest.raises(UsageError):
                await group.exclude(ranks)

    run(2, main)
