"""What keeps a connection open, and what closes it: groups that connect, shrink and grow gave own it."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from typing import Any

import pytest

import aiocoll
from aiocoll import Group
from aiocoll.errors import GroupBrokenError, NotInitializedError, PeerLostError
from aiocoll.group.ownership import successor
from tests.ports import free_port
from tests.turns import until

from .jobs import Job, adds_up, over_each_transport

ways = pytest.mark.parametrize("way", ["shrink", "grow", "admit"])


async def follow(job: Job, group: Group, way: str) -> Group:
    if way == "shrink":
        return await group.shrink()
    return await group.grow(1, wait=20.0 if way == "admit" else 0.0)


def newcomers(job: Job, way: str, *, count: int = 1) -> list[Any]:
    async def comes(group: Group) -> None:
        await adds_up(group)

    return [job.newcomer(comes) for _ in range(count)] if way == "admit" else []


@over_each_transport
@ways
async def test_the_old_group_may_be_closed_and_the_new_one_goes_on(transport: str, way: str) -> None:
    job = Job(transport)

    async def member(rank: int) -> Any:
        old = await job.connect(rank=rank, size=2)
        new = await follow(job, old, way)
        await old.close()
        assert old.closed and not new.closed
        await adds_up(new)
        await new.close()
        with pytest.raises(NotInitializedError):
            await new.barrier()
        assert old._connection is not None and old._connection.lineage.over
        return new.size

    async with asyncio.timeout(30):
        found = await asyncio.gather(member(0), member(1), *newcomers(job, way))
    assert found[:2] == ([3, 3] if way == "admit" else [2, 2])


@over_each_transport
@ways
async def test_the_new_group_may_be_closed_and_the_old_one_goes_on(transport: str, way: str) -> None:
    job = Job(transport)

    async def member(rank: int) -> None:
        async with job.connect(rank=rank, size=2) as old:
            new = await follow(job, old, way)
            await adds_up(new)
            await new.close()
            if way != "shrink":
                await adds_up(old)

    async with asyncio.timeout(30):
        await asyncio.gather(member(0), member(1), *newcomers(job, way))


@over_each_transport
@ways
async def test_leaving_the_block_closes_everything_that_grew_out_of_it(transport: str, way: str) -> None:
    job, before = Job(transport), len(os.listdir("/proc/self/fd"))

    async def member(rank: int) -> list[bool]:
        async with job.connect(rank=rank, size=2) as first:
            second = await follow(job, first, way)
            third = await second.grow()
            part = await third.split(0)
            await asyncio.gather(adds_up(first if way != "shrink" else third), adds_up(second), adds_up(part))
        return [first.closed, second.closed, third.closed, part.closed]

    async def new() -> None:
        async with job.connect(join=True) as second:
            third = await second.grow()
            part = await third.split(0)
            await asyncio.gather(adds_up(second), adds_up(part))

    others = [new()] if way == "admit" else []
    async with asyncio.timeout(30):
        found = await asyncio.gather(member(0), member(1), *others)
    assert found[:2] == [[True] * 4] * 2
    del found
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@ways
async def test_an_error_that_leaves_the_block_ends_what_grew_out_of_it(way: str) -> None:
    job = Job("tcp")

    async def member(rank: int) -> None:
        async with job.connect(rank=rank, size=2) as group:
            group = await follow(job, group, way)
            await adds_up(group)
            if rank == 1:
                raise KeyError("in the program")
            with pytest.raises(GroupBrokenError, match="left group 'world.1' with KeyError") as told:
                await group.barrier()
            assert told.value.rank == 1

    async def new(group: Group) -> None:
        await adds_up(group)
        with pytest.raises(GroupBrokenError, match="with KeyError"):
            await group.barrier()

    others = [job.newcomer(new)] if way == "admit" else []
    async with asyncio.timeout(30):
        zero, one, *_ = await asyncio.gather(member(0), member(1), *others, return_exceptions=True)
    assert zero is None and isinstance(one, KeyError)


@over_each_transport
async def test_a_loop_that_grows_holds_one_connection(transport: str) -> None:
    """``group = await group.grow()``, again and again: what was followed goes without a word and without a rest."""
    job, rounds = Job(transport), 10

    async def member(rank: int) -> list[tuple[int, int]]:
        held = []
        async with job.connect(rank=rank, size=2) as group:
            for _ in range(rounds):
                group = await group.grow(1, wait=20.0)
                await adds_up(group)
                with pytest.raises(PeerLostError):
                    await group.recv(2)  # which leaves
                group = await group.shrink()
                assert group.size == 2
                assert group._connection is not None
                held.append((len(group._connection.lineage.endpoints()), len(os.listdir("/proc/self/fd"))))
        return held

    async def comes_and_goes() -> None:
        for _ in range(rounds):
            await job.newcomer(adds_up)

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        async with asyncio.timeout(100):
            one, two, _ = await asyncio.gather(member(0), member(1), comes_and_goes())
    for held in (one, two):
        assert max(count for count, _ in held) <= 4, held
        assert held[-1][1] <= held[0][1] + 30, held  # of all three ranks; ten connections would be more


async def test_a_group_that_nothing_followed_and_nobody_closed_is_a_warning() -> None:
    job = Job("tcp")
    group = await job.connect(rank=0, size=1)
    twin = await group.grow()
    del group
    gc.collect()
    await adds_up(twin)
    await asyncio.sleep(0)  # the loop's turn in which it was made is over
    with pytest.warns(ResourceWarning, match=r"'world\.1'.* was never closed"):
        del twin
        gc.collect()
    await asyncio.sleep(0)


async def test_a_group_that_was_dropped_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    group = await aiocoll.connect(f"tcp://127.0.0.1:{free_port()}", rank=0, size=1)
    lineage = group._connection.lineage
    with pytest.warns(ResourceWarning, match="was never closed"):
        del group
        gc.collect()
    await asyncio.sleep(0)  # in which the rest is begun
    await lineage.close()
    assert lineage.over
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # transports close in their loop's turns


async def test_a_subgroup_keeps_what_it_needs_though_its_parent_was_followed() -> None:
    job = Job("tcp")

    async def main(group: Group) -> None:
        part = await group.split(0)
        assert part is not None
        group = await group.grow(1, wait=20.0)
        gc.collect()
        await asyncio.gather(adds_up(part), adds_up(group))
        await part.close()

    await job.run(2, main, *newcomers(job, "admit"))


@pytest.mark.parametrize(
    ("name", "then"), [("world", "world.1"), ("world.1", "world.2"), ("a/9", "a/9.1"), ("v1.x", "v1.x.1"), ("", ".1")]
)
def test_names_of_successors(name: str, then: str) -> None:
    assert successor(name) == then
