"""Whoever waits for a message of a rank that has closed only this group, or for it to take one, hears so at once."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aiocoll import Group
from aiocoll.config import Settings
from aiocoll.errors import GroupBrokenError
from aiocoll.sim import Simulation, run
from tests.endpoint.ranks import ranks, results


async def outcome(awaitable: Any) -> Any:
    try:
        return await awaitable
    except GroupBrokenError as error:
        return error


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm"])
async def test_a_receive_is_told_at_once_and_gets_what_was_sent_before(transport: str) -> None:
    async def main(world: Group) -> Any:
        group = await world.dup()
        await group.barrier()
        if world.rank == 2:
            await group.send(np.arange(4) + 2, 0)
            await group.send_object("last", 0, tag=1)
            await group.close()
            return await world.all_reduce(1)
        if world.rank == 0:
            waiting = [outcome(group.recv(2, tag=tag, timeout=math.inf)) for tag in (5, 6)]
            told = await asyncio.gather(*waiting)
            for error, tag in zip(told, (5, 6), strict=True):
                assert isinstance(error, GroupBrokenError) and error.rank == 2
                assert f"recv from rank 2 with tag {tag} on rank 0 waits in vain: rank 2 (" in str(error)
                assert str(error).endswith(f"has closed group {group.name!r}")
            assert (await group.recv(2)).tolist() == [2, 3, 4, 5]  # what it had sent is here
            assert await group.recv_object(2, tag=1) == "last"
            later = await outcome(group.recv_object(2, timeout=math.inf))
            assert isinstance(later, GroupBrokenError) and later.rank == 2
            assert group.broken is None
            await group.send(np.arange(3), 1)
        else:
            assert (await group.recv(0)).tolist() == [0, 1, 2]  # the others go on among themselves
        await group.close()
        return await world.all_reduce(1)

    async with asyncio.timeout(20), ranks(3, transport) as groups:
        assert await results(main(group) for group in groups) == [3, 3, 3]


@pytest.mark.parametrize("transport", ["inproc", "tcp", "shm"])
async def test_a_send_that_waits_to_be_taken_is_told_at_once(transport: str) -> None:
    async def main(world: Group) -> Any:
        group = await world.dup()
        await group.barrier()
        if world.rank == 1:
            assert (await group.recv(0)).tolist() == [0, 1, 2]
            await group.close()
            return await world.all_reduce(1)
        if world.rank == 0:
            await group.send(np.arange(3), 1, synchronous=True)  # was taken before
            sends = [group.send(np.arange(4), 1, tag=1), group.send_object({"x": np.zeros(200_000)}, 1, tag=2)]
            await asyncio.gather(*sends)  # these wait for nobody
            x = np.zeros(200_000)
            for _ in range(2):  # while it closes, and when it has
                late = [
                    group.send(x, 1, tag=3, synchronous=True, timeout=math.inf),
                    group.send_object([x], 1, tag=4, synchronous=True, timeout=math.inf),
                ]
                for error, tag in zip(await asyncio.gather(*map(outcome, late)), (3, 4), strict=True):
                    assert isinstance(error, GroupBrokenError) and error.rank == 1
                    assert f"send to rank 1 with tag {tag} on rank 0 waits in vain: rank 1 (" in str(error)
            assert group.broken is None
        await group.close()
        return await world.all_reduce(1)

    async with asyncio.timeout(20), ranks(3, transport) as groups:
        assert await results(main(group) for group in groups) == [3, 3, 3]


def test_a_message_that_is_on_its_way_comes_first() -> None:
    async def main(world: Group) -> Any:
        group = await world.dup()
        if world.rank == 1:
            sends = [group.send(np.full(200, each), 0, tag=each) for each in range(5)]
            await asyncio.gather(*sends)
        else:
            await asyncio.sleep(0.001 * (world.rank + 1))
            found = [(await group.recv(1, tag=each)).sum() for each in range(5)]
            assert found == [200 * each for each in range(5)]
        await group.close()
        await world.barrier()

    for seed in range(20):
        run(2, main, seed=seed, latency=1e-3, jitter=5e-3, timeout=60.0)


async def test_one_that_closed_before_there_was_a_link_is_asked() -> None:
    async def main(world: Group) -> Any:
        world._endpoint.settings = replace(world._endpoint.settings, look_seconds=0.05)
        group = await world.subgroup([0, 1, 2])
        assert group is not None
        if world.rank == 2:
            await group.close()  # nobody has linked to anybody
            await world.recv(0)
        elif world.rank == 0:
            error = await outcome(group.recv(2, timeout=math.inf))
            assert isinstance(error, GroupBrokenError) and "has closed group" in str(error)
            await world.send(np.arange(2), 2)
        elif world.rank == 1:
            error = await outcome(group.send(1, 2, synchronous=True, timeout=math.inf))
            assert isinstance(error, GroupBrokenError) and "has closed group" in str(error)
        await group.close()
        return world.rank

    async with asyncio.timeout(20), ranks(3, "tcp") as groups:
        assert await results(main(group) for group in groups) == [0, 1, 2]


def test_closing_the_world_says_nothing_but_goodbye() -> None:
    async def main(group: Group) -> None:
        await group.barrier()

    frames = []
    for goodbye in (True, False):
        simulation = Simulation(3, goodbye=goodbye, settings=Settings(stall_seconds=0.0))
        simulation.run(main)
        frames.append(sum(sent.frames for sent in simulation.sent))
    assert frames[0] - frames[1] == 3  # the first one says BYE to two, the second one to one
