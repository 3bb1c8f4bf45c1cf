"""The barrier that says who did not come: on all ranks or on none, the first or all of them, in subgroups too."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aiocoll.errors import CollectiveTimeoutError, GroupBrokenError, PeerLostError, UsageError
from aiocoll.group import Group
from aiocoll.sim import CRASHED, Crash
from aiocoll.sim import run as simulate
from aiocoll.testing import run

SEEDS = range(12)


async def _waits(group: Group, absent: set[int], wait_all_ranks: bool) -> Any:
    """(missing, words) on ranks that come; the absent come much later, and fail too."""
    await group.all_reduce(np.arange(2.0) + group.rank)
    if group.rank in absent:
        await asyncio.sleep(50.0)
        with pytest.raises(GroupBrokenError) as broken:
            await group.monitored_barrier(timeout=2.0, wait_all_ranks=wait_all_ranks)
        assert isinstance(broken.value.cause, CollectiveTimeoutError)
        return None
    await asyncio.sleep(0.1 * group.rank)
    with pytest.raises(CollectiveTimeoutError) as late:
        await group.monitored_barrier(timeout=2.0, wait_all_ranks=wait_all_ranks)
    error = late.value
    assert (error.collective, error.call, error.group) == ("monitored_barrier", 1, group.name)
    assert isinstance(group.broken, CollectiveTimeoutError) and isinstance(error.cause, CollectiveTimeoutError)
    return error.missing, str(error)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("absent", [{1, 3}, {0}, {0, 4}, {2}, {1, 2, 3, 4}])
@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_j4_the_first_or_all_that_are_missing_are_named(seed: int, absent: set[int], wait_all_ranks: bool) -> None:
    answers = simulate(5, lambda group: _waits(group, absent, wait_all_ranks), seed=seed)
    named = tuple(sorted(absent)) if wait_all_ranks else (min(absent),)
    who = f"Rank {named[0]} failed" if len(named) == 1 else f"Ranks {', '.join(map(str, named))} failed"
    for rank, answer in enumerate(answers):
        if rank not in absent:
            missing, words = answer
            assert missing == named
            assert f"[Rank {rank}] {who} to pass monitoredBarrier in " in words
            assert f"rank {named[0]}: host{named[0]}, pid {10_000 + named[0]}" in words


@pytest.mark.parametrize("fabric", ["sim", "inproc", "tcp", "shm"])
@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_j4_nobody_is_missing(fabric: str, size: int, wait_all_ranks: bool) -> None:
    async def main(group: Group) -> list[int]:
        order: list[int] = []
        for turn in range(5):
            if group.rank == turn % group.size:
                order.append(turn)
            await group.monitored_barrier(timeout=30.0, wait_all_ranks=wait_all_ranks)
            await group.monitored_barrier(name="named")
        return order

    assert run(size, main, fabric) == [[turn for turn in range(5) if turn % size == rank] for rank in range(size)]


def test_what_is_neither_true_nor_false_is_refused_on_all_ranks() -> None:
    async def main(group: Group) -> None:
        wanted: Any = "all" if group.rank == 1 else True
        with pytest.raises(UsageError, match="rank 1.*wait_all_ranks='all' must be True or False"):
            await group.monitored_barrier(wait_all_ranks=wanted)
        await group.monitored_barrier()

    simulate(3, main, seed=1)


def test_nobody_passes_before_the_last_has_come() -> None:
    async def main(group: Group) -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(float(group.rank))
        came = loop.time()
        await group.monitored_barrier()
        return came, loop.time()

    for seed in SEEDS:
        times = simulate(6, main, seed=seed, latency=1e-3)
        assert min(left for _, left in times) >= max(came for came, _ in times) == 5.0


def test_in_a_subgroup_ranks_are_those_of_the_subgroup() -> None:
    async def main(group: Group) -> Any:
        if group.rank == 1:
            return None
        sub = await group.subgroup([4, 2, 0, 3])
        try:
            if group.rank == 0:  # rank 2 of the subgroup
                await asyncio.sleep(20.0)
                return None
            with pytest.raises(CollectiveTimeoutError) as late:
                await sub.monitored_barrier(timeout=1.0)
            assert group.broken is None
            return late.value.missing, late.value.rank, late.value.world_rank, str(late.value)
        finally:
            await sub.close()

    for rank, answer in enumerate(simulate(5, main)):
        if rank in (2, 3, 4):
            assert answer[:3] == ((2,), 2, 0) and "Rank 2 failed to pass" in answer[3] and "host0" in answer[3]


def test_a_rank_that_dies_is_lost_and_not_late() -> None:
    async def main(group: Group) -> int | None:
        if group.rank == 2:
            await asyncio.sleep(100.0)
        with pytest.raises(PeerLostError) as lost:
            await group.monitored_barrier(timeout=50.0)
        return lost.value.rank

    assert simulate(4, main, crash=Crash(2, at=1.0)) == [2, 2, CRASHED, 2]


def test_one_that_is_made_and_dropped_tells_the_others() -> None:
    async def main(group: Group) -> str:
        if group.rank == 1:
            with pytest.warns(RuntimeWarning, match="monitored_barrier was never awaited"):
                group.monitored_barrier()
            return ""
        with pytest.raises(GroupBrokenError) as broken:
            await group.monitored_barrier()
        return str(broken.value)

    assert "rank 1" in simulate(2, main)[0]
