"""Each fault of the simulator does what its real counterpart does, at the instant that was said, alike each time."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from aiocoll import Group, errors
from aiocoll.sim import (
    CANCELLED,
    CRASHED,
    FROZEN,
    Cancel,
    Crash,
    Fault,
    Freeze,
    OneWay,
    Partition,
    Simulation,
    SlowLink,
    SlowRank,
    run,
)
from aiocoll.testing import run as run_on


def now() -> float:
    return asyncio.get_running_loop().time()


async def outcome(awaitable: Any) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return await awaitable
    except errors.AiocollError as error:
        return error


async def barriers(group: Group) -> tuple[str, float]:
    """Barriers, one a second, until one fails."""
    for _ in range(40):
        error = await outcome(group.barrier())
        if isinstance(error, Exception):
            when = now()
            await asyncio.sleep(100)
            return f"{type(error).__name__} {getattr(error, 'rank', None)} {getattr(error, 'missing', ())}", when
        await asyncio.sleep(1)
    return "through", now()


# -- freeze


def test_a_frozen_rank_is_missed_at_the_deadline_and_not_before() -> None:
    results = run(3, barriers, faults=Freeze(1, at=4.5), timeout=7.0, latency=1e-3)
    assert results[1] is FROZEN
    for result in (results[0], results[2]):
        assert result[0] == "CollectiveTimeoutError 1 (1,)"
        assert 12.0 <= result[1] <= 12.6


def test_one_that_goes_on_in_time_is_waited_for() -> None:
    assert run(3, barriers, faults=Freeze(1, at=4.5, until=9.0), timeout=7.0, latency=1e-3) == [
        ("through", pytest.approx(now_through, abs=0.2)) for now_through in [44.1] * 3
    ]


def test_one_that_goes_on_late_hears_what_has_happened() -> None:
    results = run(3, barriers, faults=Freeze(1, at=4.5, until=30.0), timeout=7.0, latency=1e-3)
    assert results[1][0].startswith(("CollectiveTimeoutError", "GroupBrokenError")) and 30 <= results[1][1] < 31


def test_timers_and_messages_of_a_frozen_rank_wait_in_their_order() -> None:
    async def main(group: Group) -> list[tuple[str, float]]:
        if group.rank == 0:
            for number in range(3):
                await asyncio.sleep(1)
                await group.send(number, 1)
            return []
        heard = [(str(await group.recv(0)), now()) for _ in range(3)]
        await asyncio.sleep(0.25)
        return [*heard, ("timer", now())]

    frozen = run(2, main, faults=Freeze(1, at=0.5, until=10.0))[1]
    assert frozen == [("0", 10.0), ("1", 10.0), ("2", 10.0), ("timer", 10.25)]
    assert run(2, main)[1] == [("0", 1.0), ("1", 2.0), ("2", 3.0), ("timer", 3.25)]


def test_a_rank_that_waits_for_a_frozen_one_without_a_deadline_is_a_deadlock_that_says_so() -> None:
    with pytest.raises(errors.DeadlockError, match=r"rank 0 waits for rank 1 \(which has frozen\)"):
        run(2, lambda group: group.recv(1 - group.rank), faults=Freeze(1, at=0.0))


@pytest.mark.parametrize("leaves", ["the group", "the world"])
def test_whoever_came_to_a_call_and_left_since_is_not_missing_in_it(leaves: str) -> None:
    async def main(group: Group) -> Any:
        async with await group.dup() as twin:
            await group.barrier()
            error = await outcome(twin.gather(np.arange(3) + group.rank, root=0))
        if leaves == "the group":
            await asyncio.sleep(60)
        return getattr(error, "missing", None), str(error)

    results = run(4, main, faults=Freeze(1, at=0.0015), timeout=7.0, latency=1e-3)
    assert results[1] is FROZEN and results[2] == results[3] == (None, "None")
    missing, text = results[0]
    assert missing == (1,) and "rank 1" in text and "rank 2" not in text


def test_a_frozen_rank_may_crash() -> None:
    results = run(3, barriers, faults=[Freeze(1, at=4.5), Crash(1, at=6.0)], timeout=7.0, latency=1e-3)
    assert results[1] is CRASHED
    assert {result[0] for result in (results[0], results[2])} == {"PeerLostError 1 ()"}


# -- crash and cancel


@pytest.mark.parametrize("kind", ["frames", "steps"])
def test_instants_are_counted(kind: str) -> None:
    async def main(group: Group) -> int:
        done = 0
        try:
            for _ in range(20):
                await group.all_reduce(np.arange(4.0) * group.rank)
                done += 1
        except errors.PeerLostError:
            await asyncio.sleep(1)
        return done

    counts = []
    for instant in range(1, 40, 3):
        results = run(3, main, faults=Crash(2, **{kind: instant}), latency=1e-3)
        if results[2] is CRASHED:
            counts.append(min(results[:2]))
    assert len(set(counts)) > 3 and counts == sorted(counts)


def test_what_a_dead_rank_has_sent_arrives_or_not() -> None:
    async def main(group: Group) -> Any:
        if group.rank == 0:
            await group.send(7, 1)
            await asyncio.sleep(math.inf)
        return type(await outcome(group.recv(0))).__name__

    came = {run(2, main, seed=seed, faults=Crash(0, at=0.5), latency=1.0)[1] for seed in range(20)}
    assert came == {"PeerLostError", "int64"}


def test_a_cancelled_rank_may_go_its_own_way() -> None:
    async def main(group: Group) -> Any:
        try:
            return await outcome(group.barrier() if group.rank else asyncio.sleep(math.inf))
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            if group.rank == 1:
                return "caught"
            raise

    results = run(2, main, faults=[Cancel(0, at=3.0), Cancel(1, at=2.0)])
    assert results == [CANCELLED, "caught"]


# -- links


def names_the_other_side(results: list[Any], sides: tuple[tuple[int, ...], ...]) -> None:
    for side in sides:
        for rank in side:
            name, lost, _ = results[rank][0].split(" ", 2)
            assert name == "PeerLostError" and int(lost) not in side, (rank, results[rank])


def test_both_sides_of_a_partition_give_the_other_one_up() -> None:
    for seed in range(5):
        results = run(4, barriers, seed=seed, faults=Partition((0, 2), at=3.5), timeout=60.0, latency=1e-3)
        names_the_other_side(results, ((0, 2), (1, 3)))
        assert all(12.0 < when <= 14.1 for _, when in results)


def test_a_partition_that_heals_in_time_is_a_delay() -> None:
    for seed in range(5):
        faults = Partition((0, 2), at=3.5, until=11.0)
        results = run(4, barriers, seed=seed, faults=faults, timeout=60.0, latency=1e-3)
        assert {name for name, _ in results} == {"through"} and all(when > 44 for _, when in results)


def test_a_healed_partition_does_not_bring_the_group_back() -> None:
    async def main(group: Group) -> Any:
        first = await barriers(group)
        assert now() > 40
        return first, str(await outcome(group.barrier()))

    results = run(4, main, faults=Partition((0, 2), at=3.5, until=30.0), timeout=60.0, latency=1e-3)
    names_the_other_side([first for first, _ in results], ((0, 2), (1, 3)))
    assert all("is broken" in later for _, later in results)


def test_losses_of_a_partition_are_presumed_and_deaths_are_certain() -> None:
    async def main(group: Group) -> Any:
        await barriers(group)
        failure = group._endpoint.failure
        return bool(failure.why(0)), failure.certain(0)

    parted = run(4, main, faults=Partition((0,), at=3.5), timeout=60.0, latency=1e-3)
    assert parted[1:] == [(True, False)] * 3
    killed = run(4, main, faults=Crash(0, at=3.5), timeout=60.0, latency=1e-3)
    assert killed[1:] == [(True, True)] * 3


def test_one_direction_is_enough_to_lose_a_link() -> None:
    for src, dst in ((0, 1), (1, 0)):
        results = run(2, barriers, faults=OneWay(src, dst, at=3.5), timeout=60.0, latency=1e-3)
        names_the_other_side(results, ((0,), (1,)))


def test_what_was_on_its_way_comes_after_a_cut_though_its_sender_has_ended() -> None:
    async def main(group: Group) -> Any:
        await asyncio.sleep(2.0)
        return int(await group.all_reduce(group.rank + 1)), now()  # rank 2 hears everybody, and leaves at once

    assert run(3, main, timeout=20.0, faults=OneWay(2, 0, at=1.0, until=3.0)) == [(6, 3.0), (6, 2.0), (6, 2.0)]


def test_one_direction_that_heals_in_time_loses_nothing() -> None:
    async def main(group: Group) -> Any:
        if group.rank == 0:
            for number in range(8):
                await asyncio.sleep(1)
                await group.send(number, 1)
            return []
        return [(int(await group.recv(0)), now()) for _ in range(8)]

    heard = run(2, main, faults=OneWay(0, 1, at=2.5, until=6.25), latency=0.5)[1]
    assert [number for number, _ in heard] == list(range(8))
    assert [when for _, when in heard] == [1.5, 2.5, 6.75, 6.75, 6.75, 6.75, 7.5, 8.5]


def test_a_slow_link_slows_one_direction_for_a_time() -> None:
    async def main(group: Group) -> Any:
        if group.rank == 0:
            for number in range(4):
                await group.send(number, 1)
                await asyncio.sleep(10)
            return None
        return [(int(await group.recv(0)), now()) for _ in range(4)]

    slow = SlowLink(0, 1, factor=3.0, latency=0.5, at=5.0, until=25.0)
    assert run(2, main, faults=slow, latency=1.0)[1] == [(0, 1.0), (1, 13.5), (2, 23.5), (3, 31.0)]
    assert run(2, main, faults=SlowLink(1, 0, factor=3.0), latency=1.0)[1][1] == (1, 11.0)


def test_a_slow_rank_takes_its_time_for_each_step() -> None:
    async def main(group: Group) -> float:
        for _ in range(5):
            await asyncio.sleep(0)
        return now()

    assert run(3, main, faults=SlowRank(1, 2.0)) == [0.0, 10.0, 0.0]


def test_a_slow_rank_is_waited_for() -> None:
    async def main(group: Group) -> Any:
        total = await group.all_reduce(np.arange(3.0) + group.rank)
        return total.tolist(), now() >= 0.5

    results = run(3, main, faults=SlowRank(1, 0.5), latency=1e-3, timeout=30.0)
    assert results == [([3.0, 6.0, 9.0], rank == 1) for rank in range(3)]


# -- all of them


EVERYTHING: list[Fault] = [
    SlowLink(0, 3, factor=2.0), SlowRank(2, 1e-4), OneWay(0, 1, at=2.0, until=3.0), Freeze(3, steps=40, until=5.0),
    Partition((0, 4), at=6.5, until=8.0), Cancel(4, frames=90), Crash(1, at=30.5),
]  # fmt: skip


def test_equal_seeds_give_equal_runs_whatever_goes_wrong() -> None:
    def played(seed: int) -> tuple[Any, ...]:
        simulation = Simulation(5, seed=seed, faults=EVERYTHING, timeout=20.0, latency=1e-3, jitter=1e-3)
        results = [str(result) for result in simulation.run(barriers)]
        return results, simulation.now, simulation.steps, simulation.struck, str(simulation.sent)

    runs = [played(seed) for seed in (1, 2, 3)]
    assert runs == [played(seed) for seed in (1, 2, 3)]
    assert runs[0] != runs[1]


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (Freeze(3, at=1.0), "no one of 3 ranks"),
        (Freeze(True, at=1.0), "no one of 3 ranks"),
        (Partition((0, 7)), "no one of 3 ranks"),
        (SlowLink(0, -1), "no one of 3 ranks"),
        (Freeze(1), "says when"),
        (Cancel(1), "says when"),
        (Freeze(1, at=1.0, steps=3), "says when"),
        (Crash(1, at=-1.0), "seconds after the start"),
        (Partition((0,), at=5.0, until=4.0), "until="),
        (SlowLink(0, 1, factor=-1.0), "factor="),
        (SlowRank(0, math.inf), "seconds="),
        ([Cancel(1, at=1.0), Cancel(1, at=2.0)], "at most once"),
        ("crash", "is no fault"),
    ],
)
def test_impossible_faults_are_refused(faults: Any, words: str) -> None:
    with pytest.raises(errors.UsageError, match=words):
        run(3, barriers, faults=faults)


def test_only_the_simulator_has_other_faults_than_crashes() -> None:
    with pytest.raises(errors.UsageError, match="only 'sim'"):
        run_on(3, barriers, "inproc", faults=Freeze(1, at=1.0))
    assert run_on(2, barriers, "sim", faults=Freeze(1, at=1.0), timeout=2.0)[1] is FROZEN
