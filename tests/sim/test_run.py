"""Simulated runs: equal seeds, equal runs; time is what the network says; crashes and deadlocks end as they should."""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from typing import Any

import numpy as np
import pytest

from aiocoll import Group, errors
from aiocoll.config import Settings
from aiocoll.observe.recorder import Recorder
from aiocoll.sim import CRASHED, Crash, Simulation, run

DISSEMINATION = Settings(algorithm={"barrier": "dissemination"})


def one_of_each(group: Group) -> Any:
    async def main() -> list[Any]:
        x = np.arange(7.0) * (group.rank + 1)
        total, rows = await asyncio.gather(group.all_reduce(x), group.all_gather(x[: group.rank + 1]))
        part = await group.reduce_scatter(np.outer(np.arange(9), x))
        await group.barrier()
        last = await group.broadcast_object({"from": group.rank}, root=group.size - 1)
        return [total.tolist(), [row.tolist() for row in rows], part.tolist(), last]

    return main()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_results_do_not_depend_on_the_seed(size: int) -> None:
    runs = [run(size, one_of_each, seed=seed, latency=1e-5, bandwidth=1e9) for seed in range(8)]
    x = np.arange(7.0)
    for rank, (total, rows, part, last) in enumerate(runs[0]):
        scale = size * (size + 1) / 2
        assert total == (x * scale).tolist() and last == {"from": size - 1}
        assert rows == [(x[: other + 1] * (other + 1)).tolist() for other in range(size)]
        assert part == np.array_split(np.outer(np.arange(9), x * scale), size)[rank].tolist()
    assert all(each == runs[0] for each in runs[1:])


def traced(seed: int) -> list[tuple[str, dict[str, Any]]]:
    with Recorder(100_000) as recorder:
        run(5, one_of_each, seed=seed, latency=1e-5, bandwidth=1e9, jitter=1e-6)
    return [(fact.kind, fact.facts) for fact in recorder.facts()]


def test_equal_seeds_give_equal_logs_and_others_do_not() -> None:
    assert traced(1) == traced(1)
    assert traced(1) != traced(2)


def test_time_is_rounds_times_latency() -> None:
    for size, rounds in ((2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16, 4), (17, 5), (100, 7)):
        simulation = Simulation(size, latency=1.0, settings=DISSEMINATION)
        simulation.run(lambda group: group.barrier())
        assert simulation.now == rounds


@pytest.mark.slow
def test_a_thousand_ranks_in_one_process() -> None:
    """A barrier of ten rounds."""
    simulation = Simulation(1000, latency=1e-6, settings=DISSEMINATION)
    simulation.run(lambda group: group.barrier())
    assert simulation.now == pytest.approx(10e-6)


def test_bytes_take_their_time() -> None:
    async def main(group: Group) -> float:
        await group.barrier()
        began = asyncio.get_running_loop().time()
        if group.rank == 0:
            await group.send(np.zeros(10**6, np.uint8), 1)
        else:
            await group.recv(0)
        return asyncio.get_running_loop().time() - began

    assert run(2, main, latency=1e-3, bandwidth=1e6)[1] == pytest.approx(1 + 1e-3, rel=0.01)


def test_hosts_say_who_is_local() -> None:
    async def main(group: Group) -> tuple[int, int, str]:
        return group.local_rank, group.local_size, group.hosts[group.rank]

    assert run(3, main, hosts=[0, 1, 0]) == [(0, 2, "host0"), (0, 1, "host1"), (1, 2, "host0")]


def test_a_deadlock_shows_who_waits_for_whom() -> None:
    async def main(group: Group) -> None:
        if group.rank == 2:
            await group.recv(0, tag=5)
        await group.barrier()

    with pytest.raises(errors.DeadlockError) as caught:
        run(4, main, latency=1.0)
    text = str(caught.value)
    assert "a cycle: 0 -> 2 -> 0" in text
    assert "rank 2 waits for rank 0 in recv" in text and "barrier (call 0)" in text


def test_waiting_for_something_of_ones_own_is_named() -> None:
    async def main(group: Group) -> None:
        if group.rank == 1:
            await asyncio.Event().wait()
        await group.barrier()

    with pytest.raises(errors.DeadlockError, match="rank 1 waits for something outside of the group"):
        run(2, main)


def test_what_a_rank_does_while_it_is_ended_by_a_deadlock_is_bounded() -> None:
    async def main(group: Group) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    with pytest.raises(errors.DeadlockError):
        run(2, main)


def test_timeouts_pass_in_simulated_time() -> None:
    async def main(group: Group) -> float:
        if group.rank == 0:
            with pytest.raises(errors.CollectiveTimeoutError):
                await group.recv(1, timeout=86_400.0)
            await group.send(1.0, 1)
        else:
            await group.recv(0)
        return asyncio.get_running_loop().time()

    assert run(2, main, latency=1.0) == [86_400.0, 86_401.0]


def test_the_first_failure_is_raised_with_its_rank_and_the_others_fates() -> None:
    async def main(group: Group) -> None:
        await group.barrier()
        if group.rank == 1:
            raise ZeroDivisionError("on purpose")
        await group.all_reduce(np.ones(3))

    with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
        run(3, main, latency=1e-6)
    notes = "\n".join(caught.value.__notes__)
    assert "raised on rank 1 of 3" in notes and "rank 0 has raised" in notes and "rank 2 has raised" in notes


async def many_calls(group: Group) -> str:
    try:
        for step in range(3):
            x = np.arange(50.0) + group.rank * step
            await group.all_reduce(x)
            await group.broadcast(x if group.rank == step else None, root=step)
            await group.barrier()
    except errors.PeerLostError as error:
        await asyncio.sleep(1)  # who leaves at once is missed by the others too
        return f"lost {error.rank}"
    return "through"


@pytest.mark.parametrize("size", [3, 4, 7])
def test_a_crash_at_any_frame_ends_every_survivor(size: int) -> None:
    whole = Simulation(size, seed=size, latency=1e-3)
    assert whole.run(many_calls) == ["through"] * size
    for victim in {0, size - 1}:
        for frames in range(whole.sent[victim].frames):
            outcome = run(size, many_calls, seed=size, latency=1e-3, crash=Crash(victim, frames=frames))
            assert outcome[victim] is CRASHED
            survivors = outcome[:victim] + outcome[victim + 1 :]
            assert set(survivors) <= {f"lost {victim}", "through"}


def test_a_crash_at_a_time_ends_those_that_wait() -> None:
    async def main(group: Group) -> tuple[str, float]:
        try:
            if group.rank == 1:
                await asyncio.sleep(100)
            await group.barrier()
        except errors.PeerLostError as error:
            return f"{error.rank} {error.host}", asyncio.get_running_loop().time()
        return "through", 0.0

    assert run(3, main, latency=1.0, crash=Crash(1, at=7.5)) == [("1 host1", 7.5), CRASHED, ("1 host1", 7.5)]


def test_a_crash_of_a_rank_that_has_returned_changes_nothing() -> None:
    async def main(group: Group) -> int:
        await asyncio.sleep(5 * group.rank)
        return group.rank

    assert run(3, main, crash=[Crash(0, at=1.0)]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 0}, "size=0"),
        ({"size": 2.0}, "size=2.0"),
        ({"size": 2, "crash": Crash(2, at=1.0)}, "one of 2 ranks"),
        ({"size": 2, "crash": Crash(1, at=math.inf)}, "seconds after the start"),
        ({"size": 2, "crash": [Crash(1), Crash(1)]}, "at most once"),
        ({"size": 2, "hosts": [0]}, "hosts="),
    ],
)
def test_impossible_simulations_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.UsageError, match=words):
        run(main=one_of_each, **arguments)


def test_a_simulation_runs_once() -> None:
    simulation = Simulation(2)
    simulation.run(lambda group: group.barrier())
    with pytest.raises(errors.UsageError, match="once"):
        simulation.run(lambda group: group.barrier())


def test_what_is_left_of_a_dissolved_simulation_waits_for_no_collector() -> None:
    gc.disable()
    try:
        simulation = Simulation(4, latency=1e-3)
        simulation.run(one_of_each)
        left = [weakref.ref(each) for each in (simulation, *simulation.endpoints.values())]
        simulation.dissolve()
        del simulation
        assert [each() for each in left] == [None] * 5
    finally:
        gc.enable()


def test_calls_matched_by_name_meet_whatever_the_order() -> None:
    async def main(group: Group) -> dict[str, float]:
        async def task(name: str) -> tuple[str, float]:
            return name, float(await group.all_reduce(float(len(name)) * (group.rank + 1), name=name))

        names = [f"{'x' * n}" for n in range(1, 9)]
        np.random.default_rng(group.rank).shuffle(names)
        return dict(await asyncio.gather(*map(task, names)))

    for seed in range(10):
        results = run(4, main, seed=seed, latency=1e-6, jitter=1e-5)
        assert all(result == {"x" * n: 10.0 * n for n in range(1, 9)} for result in results)
