"""grow in virtual time: a member or a newcomer gives up at any instant, and everybody else is through or told.

The rule: real meetings over a store in memory, each participant a rank of the simulated loop.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

import aiocoll
from aiocoll import Group, errors
from aiocoll.sim.loop import SimLoop, rank_running
from aiocoll.store import MemoryStore

TIMEOUT = 20.0
WAIT = 5.0


@dataclass
class Run:
    """What became of members (0 on) and newcomers (after them)."""

    size: int
    new: int
    results: dict[int, Any] = field(default_factory=dict)
    met: set[int] = field(default_factory=set)
    """Members that have their first group; their steps count from there on."""
    steps: dict[int, int] = field(default_factory=dict)
    ended: float = 0.0


async def member(run: Run, rank: int, store: MemoryStore) -> None:
    async with aiocoll.connect(store=store, rank=rank, size=run.size, transport="inproc", timeout=TIMEOUT) as group:
        await group.barrier()
        run.met.add(rank)
        grown = None
        try:
            grown = await group.grow(n=run.new, wait=WAIT)
            shown = grown.ranks, grown.new_ranks, await computed(grown)
            run.results[rank] = shown, await computed(group)
        except errors.AiocollError as error:
            run.results[rank] = error, await computed(group)
        finally:
            if grown is not None:
                await grown.close()


async def newcomer(run: Run, rank: int, store: MemoryStore) -> None:
    try:
        async with aiocoll.connect(store=store, join=True, transport="inproc", timeout=TIMEOUT) as group:
            run.results[rank] = group.ranks, group.new_ranks, await computed(group)
    except errors.AiocollError as error:
        run.results[rank] = error


async def computed(group: Group) -> Any:
    """What a group gives: the sum of its ranks, or the name of the error."""
    try:
        return int(await group.all_reduce(group.rank))
    except errors.AiocollError as error:
        return type(error).__name__


def play(size: int, new: int, seed: int, victim: int = -1, step: int = 0, freeze: float = 0.0) -> Run:
    """The `victim` is cancelled before its step number `step`, or stands still for `freeze` seconds."""
    loop, run = SimLoop(seed), Run(size, new)

    async def main() -> None:
        store = MemoryStore()
        tasks = []

        def count(rank: int) -> None:
            if rank < size and rank not in run.met:
                return
            run.steps[rank] = run.steps.get(rank, 0) + 1
            if (rank, run.steps[rank]) == (victim, step):
                if freeze:
                    loop.hold(rank)
                    loop.call_later(freeze, loop.release, rank, context=contextvars.Context())
                else:
                    tasks[rank].cancel()

        def start(rank: int, program: Coroutine[Any, Any, None]) -> None:
            context = contextvars.copy_context()
            context.run(rank_running.set, rank)
            tasks.append(loop.create_task(program, context=context))
            loop.before_step[rank] = lambda: count(rank)

        for rank in range(size):
            start(rank, member(run, rank, store))
        for rank in range(size, size + new):
            start(rank, newcomer(run, rank, store))
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        loop.before_step.clear()
        await store.close()
        for rank, error in enumerate(ended):
            if error is not None:
                assert rank == victim and isinstance(error, asyncio.CancelledError), (rank, error)
                run.results.setdefault(rank, error)

    try:
        loop.run_until_complete(main())
    finally:
        run.ended = loop.now
        loop.close()
    return run


def grown(size: int, new: int) -> tuple[Any, ...]:
    everybody = tuple(range(size + new))
    return everybody, everybody[size:], sum(everybody)


@pytest.mark.parametrize("seed", range(5))
def test_without_faults_all_are_in(seed: int) -> None:
    run = play(2, 2, seed)
    assert run.results == {0: (grown(2, 2), 1), 1: (grown(2, 2), 1), 2: grown(2, 2), 3: grown(2, 2)}


@pytest.mark.parametrize(("size", "new"), [(1, 1), (2, 1), (2, 2)])
def test_a_newcomer_that_gives_up_at_any_step_hurts_nobody(size: int, new: int) -> None:
    for step in range(1, play(size, new, 0).steps[size] + 1):
        run = play(size, new, step, victim=size, step=step)
        where = f"size={size} new={new} step={step}: {run.results}"
        assert run.ended <= WAIT + TIMEOUT + 1.0, where
        members = [run.results[rank] for rank in range(size)]
        for result, old in members:
            assert old == sum(range(size)), where  # the old group works as before
            assert not isinstance(result, Exception), where
        shown = {result[:2] for result, _ in members}
        assert len(shown) == 1, where
        ranks, new_ranks = next(iter(shown))
        assert ranks[:size] == tuple(range(size)), where
        if run.ended < TIMEOUT:  # otherwise nobody could see it: in one process there is no connection to be refused
            assert len(new_ranks) in (new - 1, new), where
            for rank in range(size + 1, size + new):  # the other one is in
                assert not isinstance(run.results[rank], Exception), where


@pytest.mark.parametrize(("size", "new"), [(2, 1), (3, 1)])
def test_a_member_that_gives_up_at_any_step_is_named_and_nobody_hangs(size: int, new: int) -> None:
    victim = size - 1
    for step in range(1, play(size, new, 0).steps[victim] + 1):
        run = play(size, new, step, victim=victim, step=step)
        where = f"size={size} new={new} step={step}: {run.results}"
        assert run.ended <= TIMEOUT, where
        told = (errors.GroupBrokenError, errors.PeerLostError)
        for rank in range(size - 1):
            result, _ = run.results[rank]
            named = isinstance(result, told) and result.rank == victim
            assert named or result[:2] == grown(size, new)[:2] and result[2] != "CollectiveTimeoutError", where
        result = run.results[size]  # a newcomer to whom nobody comes says so in the end
        assert isinstance(result, errors.RendezvousError) or result[2] != "CollectiveTimeoutError", where


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_whoever_stands_still_for_a_moment_is_waited_for(victim: int) -> None:
    for step in range(2, play(2, 1, 0).steps[victim], 3):
        run = play(2, 1, 0, victim=victim, step=step, freeze=1.0)
        assert run.results == {0: (grown(2, 1), 1), 1: (grown(2, 1), 1), 2: grown(2, 1)}, step
