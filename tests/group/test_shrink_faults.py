"""shrink, whatever dies, freezes, is cut off or cancelled meanwhile: nobody hangs, and no two groups go on.

The rule: survivors tell equal stories, at every instant that is tried.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiocoll import Group, GroupBrokenError, PeerLostError
from aiocoll.sim import CRASHED, FROZEN, Cancel, Crash, Freeze, OneWay, Partition
from tests.group.cases import outcome, ranks
from tests.group.test_shrink import until_it_breaks, works

# -- deaths at every instant


async def shrink_twice(group: Group) -> tuple[Any, ...]:
    """What a careful program does: try, agree on whether that worked, and if not go on without the dead."""
    story: list[Any] = [await group.agree(group.rank != 1)]
    for turn in range(8):
        group = await group.shrink()
        total = await outcome(group.all_reduce(group.rank))
        well = not isinstance(total, BaseException)
        assert not well or total == group.size * (group.size - 1) // 2
        agreed = await group.agree(well)
        story.append((group.ranks, agreed))
        if agreed and turn >= 1:
            await group.close()
            return tuple(story)
    raise AssertionError(story)


def check(size: int, faults: Any, seed: int, **network: Any) -> list[Any]:
    """All survivors tell the same story, and it ends with a group of exactly them, unless they died later."""
    results = ranks(size, shrink_twice, "sim", faults=faults, seed=seed, latency=1e-5, **network)
    stories = {each for each in results if isinstance(each, tuple)}
    assert len(stories) <= 1, (faults, seed, results)
    for story in stories:
        assert {rank for rank in range(size) if isinstance(results[rank], tuple)} <= set(story[-1][0]), (faults, seed)
    return results


@pytest.mark.parametrize("size", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_a_death_at_any_frame(size: int) -> None:
    for victim in range(size):
        for frames in range(0, 200, 1 if size < 3 else size):
            if CRASHED not in check(size, Crash(victim, frames=frames), frames):
                break


@pytest.mark.parametrize("part", range(4))
def test_two_deaths(part: int) -> None:
    for frames in range(part, 60, 13):
        for more in range(part, 40, 7):
            first, second = frames % 5, (frames + 1 + more % 4) % 5
            check(5, (Crash(first, frames=frames), Crash(second, frames=more)), more, jitter=1e-5)


@pytest.mark.parametrize("steps", range(1, 110, 9))
def test_a_cancellation_at_any_step(steps: int) -> None:
    async def main(group: Group) -> tuple[int, ...]:
        for _ in range(9):
            try:
                group = await group.shrink()
                await group.barrier()
            except (GroupBrokenError, PeerLostError) as error:
                assert "rank 1" in str(error), error
            else:
                if int(group.name.rpartition(".")[2]) >= 3:
                    break
        await group.close()
        return group.ranks

    results = ranks(3, main, "sim", faults=Cancel(1, steps=steps), seed=steps, latency=1e-5)
    assert results[0] == results[2] and results[0] in ((0, 2), (0, 1, 2)), results


# -- those who are silent


async def go_on(group: Group) -> tuple[Any, ...]:
    """Calls with deadlines, again and again; a group that fails is followed by the next."""
    loop = asyncio.get_running_loop()
    for turn in range(20):
        total = await outcome(group.all_reduce(1, timeout=0.5))
        agreed = await outcome(group.agree(total == group.size, timeout=5))
        if agreed is True and turn >= 2:
            await group.close()
            return "through", group.ranks, loop.time()
        try:
            group = await group.shrink(timeout=5)
        except GroupBrokenError as error:
            await group.close()
            return "out", str(error), loop.time()
    raise AssertionError(group)


def parts(results: list[Any]) -> set[tuple[int, ...]]:
    """The groups that believe they are the group."""
    return {each[1] for each in results if isinstance(each, tuple) and each[0] == "through"}


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_frozen_rank_is_left_behind_and_told_so_when_it_wakes(victim: int) -> None:
    faults = Freeze(victim, frames=2, until=30)
    results = ranks(4, go_on, "sim", faults=faults, latency=1e-5)
    left = tuple(rank for rank in range(4) if rank != victim)
    assert parts(results) == {left}
    assert results[victim][0] == "out" and "left behind" in results[victim][1] and "'world." in results[victim][1]
    assert str(left) in results[victim][1]
    assert all(results[rank][2] < 20 for rank in left), results


@pytest.mark.parametrize("part", range(4))
def test_a_freeze_at_any_frame(part: int) -> None:
    for frames in range(part, 100, 4):
        for victim in range(3):
            results = ranks(3, go_on, "sim", faults=Freeze(victim, frames=frames), seed=frames, latency=1e-5)
            rest = [results[rank] for rank in range(3) if rank != victim]
            assert len(parts(results)) == 1 and rest[0][:2] == rest[1][:2], (victim, frames, results)
            if FROZEN not in results:
                return


@pytest.mark.parametrize(
    ("side", "goes_on"),
    [((0, 1), (0, 1)), ((2, 3), (0, 1)), ((1, 2, 3), (1, 2, 3)), ((3,), (0, 1, 2)), ((0, 3), (0, 3))],
)
def test_of_two_parts_only_one_goes_on(side: tuple[int, ...], goes_on: tuple[int, ...]) -> None:
    results = ranks(4, go_on, "sim", faults=Partition(side, at=0.0, until=200), latency=1e-5)
    assert parts(results) == {goes_on}
    for rank in range(4):
        if rank not in goes_on:
            assert results[rank][0] == "out" and f"only {4 - len(goes_on)} of 4" in results[rank][1]
            assert "force=True" in results[rank][1] and "unreachable: rank" in results[rank][1]


@pytest.mark.parametrize("seed", range(6))
def test_parts_that_are_cut_at_any_time_and_may_heal(seed: int) -> None:
    for turn in range(12):
        side = ((0,), (1, 2), (0, 4), (1, 3), (4,), (0, 1))[(turn + seed) % 6]
        fault = Partition(side, at=4e-6 * (7 * turn + seed), until=(1, 5, 15, 300)[turn % 4])
        results = ranks(5, go_on, "sim", faults=fault, seed=turn, latency=1e-5, jitter=1e-5)
        # Those who were through before they noticed had all members with them.
        assert len({each for each in parts(results) if each != (0, 1, 2, 3, 4)}) <= 1, (fault, results)


def test_a_link_that_fails_between_two_costs_one_of_them_its_place() -> None:
    results = ranks(4, go_on, "sim", faults=OneWay(1, 3, at=0.0), latency=1e-5)
    assert parts(results) == {(0, 1, 2)} and results[3][0] == "out", results


def test_force_goes_on_without_a_majority() -> None:
    async def main(group: Group) -> Any:
        await until_it_breaks(group)
        refused = await outcome(group.shrink())
        if isinstance(refused, Group):
            await refused.close()
        async with await group.shrink(force=group.rank != 0) as new:
            await works(new)
            return new.ranks, str(refused)

    results = ranks(4, main, "sim", faults=Partition((2, 3), at=1e-5), latency=1e-5)
    assert [each[0] for each in results] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert "only 2 of 4" in results[3][1] and "world.1" in results[0][1]


def test_a_rank_that_computes_is_waited_for() -> None:
    async def main(group: Group) -> None:
        if group.rank == 2:
            await asyncio.sleep(300)
        async with await group.shrink(timeout=1000) as new:
            assert new.ranks == (0, 1, 2, 3)
            await works(new)

    ranks(4, main, "sim")
