"""shrink: the living go on in a group of their own, which works as a new one; with real processes, too."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest

from aiocoll import CollectiveTimeoutError, Group, GroupBrokenError, NotInitializedError, PeerLostError, UsageError
from aiocoll.sim import CRASHED, Cancel, Crash
from tests.group.cases import on_every_fabric, outcome, ranks, same, values
from tests.turns import until


async def works(group: Group, turn: int = 0) -> None:
    """Calls of every kind give what they must."""
    everything = [values(each + turn, (700,)) for each in group.ranks]
    mine = everything[group.rank]
    same(await group.all_reduce(mine), sum(everything))
    same((await group.all_gather(mine))[-1], everything[-1])
    same(await group.broadcast(mine, root=group.size - 1), everything[-1])
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    await group.send(mine, right)
    same(await group.recv(left), everything[left])


async def until_it_breaks(group: Group) -> BaseException:
    while True:
        result = await outcome(group.all_reduce(1))
        if isinstance(result, BaseException):
            return result


# -- what it gives


@on_every_fabric
def test_where_nobody_is_dead_it_is_a_fresh_group_of_all(fabric: str) -> None:
    async def main(group: Group) -> None:
        early = asyncio.ensure_future(outcome(group.recv((group.rank - 1) % 3, tag=5)))
        await asyncio.sleep(0)
        new = await group.shrink()
        assert new.ranks == group.ranks and new.rank == group.rank and new.name == "world.1" and new.timeout == 10.0
        assert (new.local_rank, new.local_size, new.hosts) == (group.local_rank, group.local_size, group.hosts)
        assert new.broken is None and group.broken is None
        await new.send(7, (group.rank + 1) % 3, tag=5)
        assert not early.done()  # groups do not hear one another's messages
        assert await new.recv((group.rank - 1) % 3, tag=5) == 7
        await works(new)
        await works(group)
        await group.send(8, (group.rank + 1) % 3, tag=5)
        assert await early == 8
        newer = await new.shrink()
        assert newer.name == "world.2"
        await works(newer)
        await newer.close()
        await new.close()

    ranks(3, main, fabric)


@on_every_fabric
def test_the_old_group_may_be_closed_and_the_new_one_goes_on(fabric: str) -> None:
    async def main(group: Group) -> None:
        for turn in range(3):
            new = await group.shrink()
            await group.close()
            assert isinstance(await outcome(group.shrink()), NotInitializedError)
            await works(new, turn)
            group = new
        await group.close()

    ranks(3, main, fabric)


@pytest.mark.parametrize("victims", [(0,), (1,), (3,), (0, 2), (1, 3), (0, 1, 2), (1, 2, 3)])
def test_survivors_are_renumbered_in_order(victims: tuple[int, ...]) -> None:
    async def main(group: Group) -> None:
        part = await group.split(0)
        assert part is not None
        await asyncio.sleep(1)
        error = await until_it_breaks(group)
        assert isinstance(error, PeerLostError | GroupBrokenError)
        new = group
        while True:
            new = await new.shrink()
            if not isinstance(await outcome(new.barrier()), BaseException):
                break
        left = tuple(each for each in range(4) if each not in victims)
        assert new.ranks == left and new.rank == left.index(group.rank) and new.size == len(left)
        assert new.hosts == tuple(group.hosts[each] for each in left)
        await works(new)
        assert isinstance(await outcome(group.barrier()), GroupBrokenError) and group.broken is not None
        async with await part.shrink() as other:
            assert other.ranks == left
            await works(other)
        await new.close()

    results = ranks(4, main, "sim", faults=[Crash(victim, at=0.5) for victim in victims])
    assert [each is CRASHED for each in results] == [rank in victims for rank in range(4)]


@on_every_fabric
def test_a_group_of_one(fabric: str) -> None:
    async def main(group: Group) -> None:
        alone = await group.subgroup([group.rank], name="alone")
        async with await alone.shrink() as new:
            assert (new.size, new.ranks) == (1, (group.rank,))
            assert await new.all_reduce(5) == 5 and await new.agree(0) is False
        await alone.close()
        await group.barrier()

    ranks(2, main, fabric)


@on_every_fabric
def test_a_subgroup_keeps_the_ranks_of_the_world_and_its_order(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank != 1:
            async with await group.subgroup([3, 0, 2]) as part, await part.shrink() as new:
                assert new.ranks == (3, 0, 2) and new.rank == part.rank
                await works(new)
        await group.barrier()

    ranks(4, main, fabric)


@pytest.mark.parametrize("seed", range(4))
def test_subgroups_of_the_new_group_meet_though_the_old_ones_did_not(seed: int) -> None:
    """Some had made one subgroup more than others when the group broke."""

    async def main(group: Group) -> None:
        if group.rank == 1:
            await (await group.subgroup([0, 1, 2])).close()
        if group.rank == 3:
            await asyncio.sleep(1)
            raise asyncio.CancelledError
        assert isinstance(await until_it_breaks(group), GroupBrokenError)
        async with await group.shrink() as new, await new.subgroup([0, 1, 2]) as part:
            await works(part)

    ranks(4, main, "sim", seed=seed, faults=Cancel(3, at=0.5))


@on_every_fabric
def test_after_every_way_to_break(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 1:
            group.barrier().close()
        else:
            await outcome(group.barrier())
        group = await group.shrink()  # cancelled
        await outcome(group.all_reduce(np.ones(3 + (group.rank == 2))))
        old, group = group, await group.shrink()  # mismatched
        await old.close()
        if group.rank != 0:
            assert isinstance(await outcome(group.all_reduce(1, timeout=0.05)), CollectiveTimeoutError)
        old, group = group, await group.shrink()  # too late
        await old.close()
        assert group.name == "world.3" and group.broken is None
        await works(group)
        await group.close()

    ranks(3, main, fabric)


@on_every_fabric
def test_frames_of_the_old_group_are_dropped(fabric: str) -> None:
    """What lies unreceived counts against the bound until then: a third of it three times would be too much."""

    async def main(group: Group) -> None:
        right, left = (group.rank + 1) % 3, (group.rank - 1) % 3
        for turn in range(5):
            for tag in range(3):
                await outcome(group.send(values(group.rank + turn, (1 << 17,)), right, tag=tag))
            if group.rank == turn % 3:
                group.barrier().close()
            else:
                await outcome(group.barrier())
            old, group = group, await group.shrink()
            await old.close()
            await group.send(turn, right)
            assert await group.recv(left) == turn
            await works(group, turn)
            await group.agree()  # all are through, before the next breaks it
        await group.barrier()
        assert group.statistics()["unreceived_bytes"] == 0
        await group.close()

    ranks(3, main, fabric)


def test_arguments() -> None:
    async def main(group: Group) -> None:
        for wrong in (-1, "soon", float("nan")):
            assert isinstance(await outcome(group.shrink(timeout=wrong)), UsageError)
        refused = await outcome(group.shrink(force="majority"))
        assert isinstance(refused, UsageError) and "force='majority' must be True or False" in str(refused)
        async with await group.shrink(timeout=1) as new:
            await works(new)

    ranks(1, main, "sim")


# -- real processes


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_processes_die_one_after_the_other_down_to_one(transport: str) -> None:
    async def main(group: Group) -> None:
        size = group.size
        while group.size > 1:
            victim = group.ranks[(7 * group.size) % group.size - 1]
            if group.ranks[group.rank] == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            assert isinstance(await until_it_breaks(group), PeerLostError | GroupBrokenError)
            old, group = group, await group.shrink()
            await old.close()
            size -= 1
            assert group.size == size and victim not in group.ranks
            await works(group)
            await group.agree()  # all are through, before the next one dies
        await group.close()

    results = ranks(4, main, "process", faults=[Crash(rank) for rank in (1, 2, 3)], transport=transport, timeout=30.0)
    assert [each is CRASHED for each in results] == [False, True, True, True]


@pytest.mark.slow
def test_a_stopped_process_keeps_nothing_from_the_others_and_is_left_behind() -> None:
    """Its lane is full of what it never takes."""

    async def main(group: Group) -> str:
        x = np.arange(12_000.0)
        await group.barrier()
        if group.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        for turn in range(40):
            result = await outcome(group.broadcast(x * turn if group.rank == 0 else None, timeout=0.3))
            if isinstance(result, BaseException):
                break
            same(result, x * turn)
        await outcome(group.barrier(timeout=0.3))
        if group.rank == 2:
            return str(await outcome(group.shrink()))
        async with await group.shrink() as new:
            assert new.ranks == (0, 1, 3)
            for turn in range(20):
                await works(new, turn)
                same(await new.all_reduce(np.concatenate([x, x])), 3 * np.concatenate([x, x]))
            if new.rank == 0:
                os.kill(group._endpoint.members[2].pid, signal.SIGCONT)
                await group._endpoint.loop.create_task(asyncio.sleep(0))
            await new.barrier()
            await until(lambda: 2 in group._endpoint.failure.absent, 0.01)  # it has left
            await works(new)
        return "through"

    results = ranks(4, main, "process", transport="shm", timeout=30.0)
    assert "left behind" in results[2] and results[0] == results[1] == results[3] == "through"
