"""Newcomers in a simulation: they wait in a store as far away as a rank, and faults befall them as they do members.

The rule: programs here use what `grow()` gives as real ones do; what goes wrong is in the matrix of failures.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
import pytest

from aiocoll import Group, errors
from aiocoll.config import Settings
from aiocoll.sim import CRASHED, Cancel, Crash, Freeze, OneWay, Simulation, run
from aiocoll.world.connecting import Connecting


async def grows(group: Group) -> Any:
    if not group.new_ranks:
        group = await group.grow(n=2, wait=1.0)
    total = await group.all_reduce(np.arange(3) * group.rank)
    seconds = asyncio.get_running_loop().time()
    return group.ranks, group.new_ranks, total.tolist(), group.hosts[-1], round(seconds, 6)


@pytest.mark.parametrize("seed", range(5))
def test_they_are_let_in(seed: int) -> None:
    found = run(2, grows, seed=seed, newcomers=2, latency=1e-3, timeout=5.0, hosts=(0, 0, 1, 1))
    assert {tuple(map(str, each[:4])) for each in found} == {("(0, 1, 2, 3)", "(2, 3)", "[0, 6, 12]", "host1")}
    assert 0.02 < max(each[4] for each in found) < 0.1  # some ways of a millisecond each
    assert found == run(2, grows, seed=seed, newcomers=2, latency=1e-3, timeout=5.0, hosts=(0, 0, 1, 1))


def test_one_that_dies_is_left_out() -> None:
    found = run(2, grows, newcomers=2, latency=1e-3, timeout=5.0, faults=Crash(3, steps=5))
    assert found[3] is CRASHED
    assert [each[:3] for each in found[:3]] == [((0, 1, 2), (2,), [0, 3, 6])] * 3


def test_one_whom_nobody_lets_in_says_so_in_time() -> None:
    ended = []

    async def leaves(group: Group) -> None:
        await group.barrier()

    async def waits(connecting: Connecting) -> None:
        with pytest.raises(errors.RendezvousError, match="no grow.. was called there that had room for it"):
            await connecting
        ended.append(asyncio.get_running_loop().time())

    Simulation(2, newcomers=1, timeout=5.0).run(leaves, waits)
    assert 5.0 <= ended[0] < 5.1


def test_one_that_is_asked_by_a_member_that_dies_then_waits_no_longer_than_a_grace_time() -> None:
    ended = []

    async def asks(group: Group) -> None:
        await group.grow(n=1, wait=1.0)

    async def waits(connecting: Connecting) -> None:
        try:
            async with connecting:
                pass  # it was let in before
        except errors.RendezvousError:
            ended.append(asyncio.get_running_loop().time())

    for step in range(5, 60, 5):  # on another host, where nobody sees that process end
        faults = Crash(0, steps=step)
        simulation = Simulation(1, newcomers=1, timeout=5.0, latency=1e-3, faults=faults)
        simulation.run(asks, waits)
    assert len(ended) >= 3
    assert max(ended) < 10.1


def test_a_deadlock_in_a_group_that_has_grown_shows_who_waits_for_whom() -> None:
    async def waits(group: Group) -> None:
        if not group.new_ranks:
            group = await group.grow(n=1, wait=1.0)
        await group.recv((group.rank + 1) % group.size)

    with pytest.raises(errors.DeadlockError, match="a cycle: 0 -> 1 -> 2 -> 0"):
        run(2, waits, newcomers=1)


def test_what_befalls_links_befalls_those_of_a_larger_world() -> None:
    async def goes_on(group: Group) -> Any:
        if not group.new_ranks:
            group = await group.grow(n=1, wait=0.5)
        await asyncio.sleep(max(0.0, 2.0 - asyncio.get_running_loop().time()))
        try:
            return int(await group.all_reduce(group.rank + 1))
        except errors.AiocollError as error:
            return type(error).__name__

    assert run(2, goes_on, newcomers=1, timeout=20.0, faults=OneWay(2, 0, at=1.0, until=3.0)) == [6] * 3
    assert run(2, goes_on, newcomers=1, timeout=20.0, faults=OneWay(2, 0, at=1.0)) == ["PeerLostError", 6, 6]
    assert run(2, goes_on, newcomers=1, timeout=20.0, faults=Cancel(2, at=1.0))[:2] == ["GroupBrokenError"] * 2


@pytest.mark.parametrize("newcomers", [-1, 1.5, True])
def test_how_many_is_checked(newcomers: Any) -> None:
    with pytest.raises(errors.UsageError, match="newcomers=.* an int of at least 0 is needed"):
        run(2, grows, newcomers=newcomers)


def test_a_grow_that_waits_for_long_says_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    async def waits(group: Group) -> int:
        await asyncio.sleep(1.0)
        return (await group.grow(n=1)).size

    with caplog.at_level(logging.WARNING, "aiocoll.stall"):  # a newcomer is asked for 5 s
        faults, settings = Freeze(2, at=0.5), Settings(stall_seconds=3.0)
        assert run(2, waits, newcomers=1, timeout=60.0, faults=faults, settings=settings)[:2] == [2, 2]
    lines = [record.getMessage() for record in caplog.records if record.name == "aiocoll.stall"]
    for rank, missing in enumerate(("newcomers", "rank 0, which looks for newcomers")):
        first, second = [line for line in lines if f"on rank {rank} " in line]
        assert first.startswith(f"grow (call 0) of group 'world' on rank {rank} has waited 3.0 s, since ")
        assert first.endswith(f"goes on waiting (timeout 60 s); missing: {missing} (up to 1)")
        assert second == f"grow (call 0) of group 'world' on rank {rank} went on after 5.0 s"
    assert len(lines) == 4
