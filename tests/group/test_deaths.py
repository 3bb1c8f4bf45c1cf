"""A rank that dies: PeerLostError in its own class on every survivor, then GroupBrokenError with it as the cause.

The rule: a death breaks every group that the dead belongs to, and no other.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from aiocoll import Group, GroupBrokenError, NotInitializedError, PeerLostError, UsageError
from aiocoll.sim import Crash
from tests.group.cases import outcome, ranks
from tests.turns import until

DEAD = 2


async def until_it_fails(group: Group) -> BaseException:
    """All-reduces until one fails."""
    while True:
        result = await outcome(group.all_reduce(np.ones(3)))
        if isinstance(result, BaseException):
            return result
        assert (result == group.size).all()
        await asyncio.sleep(0)


def is_loss(error: BaseException | None, rank: int) -> bool:
    """Whether an error says all that is to be said of a lost rank."""
    assert isinstance(error, PeerLostError) and isinstance(error, ConnectionError), error
    assert (error.rank, error.world_rank) == (rank, DEAD) and error.host and error.pid, error
    assert f"rank {rank}" in str(error) and f"pid {error.pid}" in str(error)
    return True


@pytest.mark.parametrize("frames", [1, 2, 5, 11, 30])
@pytest.mark.parametrize("seed", range(3))
def test_every_group_of_the_dead_breaks_and_no_other(frames: int, seed: int) -> None:
    async def main(group: Group) -> None:
        rest = await group.subgroup([3, 1, 0]) if group.rank != DEAD else None
        some = await group.subgroup([3, 2, 0]) if group.rank != 1 else None
        if group.rank == DEAD:
            for peer in (0, 1, 3):  # the others have made their groups
                await group.recv(peer)
        else:
            await group.send(1, DEAD)
        error = await until_it_fails(group)
        assert is_loss(error, DEAD) and "all_reduce" in str(error)
        assert is_loss(group.broken, DEAD)
        later = await outcome(group.barrier())
        assert type(later) is GroupBrokenError and later.cause is group.broken
        if some is not None:
            first = await outcome(some.all_gather(1))  # the first call made afterwards
            assert is_loss(first, 1) and "all_gather" in str(first)
            later = await outcome(some.recv(0))
            assert type(later) is GroupBrokenError and is_loss(later.cause, 1)
        assert rest is not None
        for turn in range(5):
            assert await rest.all_reduce(turn) == 3 * turn
        part = await rest.split(rest.rank % 2)
        assert await part.all_reduce(1) == part.size
        for each in (part, some, rest):
            if each is not None:
                await each.close()

    ranks(4, main, "sim", faults=Crash(DEAD, frames=frames), seed=seed)


@pytest.mark.slow
def test_a_process_that_ends_is_lost_to_pending_calls_messages_and_large_sends() -> None:
    async def main(group: Group) -> None:
        twin, third = await group.dup(), await group.dup()
        if group.rank == DEAD:
            for peer in (0, 1, 3):
                await group.recv(peer)
            os._exit(9)
        waiting = asyncio.ensure_future(outcome(twin.recv(DEAD)))
        sending = asyncio.ensure_future(outcome(third.send(np.zeros(9 << 20), DEAD)))  # more than may lie there
        await group.send(1, DEAD)
        assert is_loss(await until_it_fails(group), DEAD)
        for error in (await waiting, await sending):
            assert is_loss(error, DEAD)
        # What was pending has said so in its own class.
        assert type(await outcome(group.barrier())) is GroupBrokenError

    ranks(4, main, "process", faults=Crash(DEAD), timeout=30.0)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_loss_that_ended_a_message_is_over_for_the_calls_after_it(seed: int) -> None:
    async def main(group: Group) -> None:
        waiting = asyncio.ensure_future(outcome(group.recv((group.rank - 1) % group.size, tag=7)))
        await asyncio.sleep(0)
        await group.barrier()
        if group.rank == DEAD:
            for peer in (0, 1, 3):  # the others are through: what a rank has sent may be lost with it
                await group.recv(peer)
            while True:
                await group.send(1, 3)
        await group.send(1, DEAD)
        error = await waiting
        assert is_loss(error, DEAD) and isinstance(error, PeerLostError) and "recv" in error.operation
        later = await outcome(group.barrier())
        assert type(later) is GroupBrokenError and is_loss(later.cause, DEAD)

    ranks(4, main, "sim", faults=Crash(DEAD, frames=40), seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_news_of_a_loss_stay_short_however_often_they_are_passed_on(seed: int) -> None:
    async def main(group: Group) -> None:
        error = await until_it_fails(group)
        assert is_loss(error, DEAD) and str(error).count(" is lost: ") == 1, error
        assert str(error).count("here in") == 1

    ranks(9, main, "sim", faults=Crash(DEAD, frames=17), seed=seed)


async def until_it_has_ended(group: Group) -> None:
    """Until the process of DEAD is gone."""
    pid = group._endpoint.members[DEAD].pid
    while True:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()  # noqa: ASYNC240  the kernel's, not a disk's
            if stat.rpartition(")")[2].split()[0] in "ZX":
                return
        except OSError:
            return
        await asyncio.sleep(0.01)


def test_who_receives_from_anyone_hears_of_a_death_before_the_first_link() -> None:
    async def main(group: Group) -> None:
        if group.rank == DEAD:
            os._exit(9)
        await until_it_has_ended(group)
        assert is_loss(await outcome(group.recv()), DEAD)
        assert type(await outcome(group.barrier())) is GroupBrokenError

    ranks(4, main, "process", faults=Crash(DEAD), timeout=30.0)


def test_one_that_left_before_the_first_link_is_no_loss_to_who_receives_from_anyone() -> None:
    async def main(group: Group) -> None:
        if group.rank == DEAD:
            return
        await until_it_has_ended(group)
        endpoint = group._endpoint
        if group.rank == 0:
            waiting = asyncio.ensure_future(group.recv())
            # Until it was looked into.
            await until(lambda: DEAD in endpoint.failure.absent and len(asyncio.all_tasks()) <= 2, 0.01)
            await group.send(1, 1)
            assert await waiting == 7
        elif group.rank == 1:
            assert await group.recv(0) == 1
            await group.send(7, 0)
        assert group.broken is None

    ranks(3, main, "process", timeout=30.0)


def last_words(child: int, read: int, write: int) -> list[str]:
    """What a child wrote before it ended."""
    os.waitpid(child, 0)
    said = os.read(read, 10_000).decode().split("\n")
    os.close(read)
    os.close(write)
    return said


def test_a_forked_child_is_refused_the_groups_of_its_parent() -> None:
    async def main(group: Group) -> None:
        part = await group.dup()
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                said = []
                for call in (group.barrier(), part.send(1, 0), part.subgroup([0])):
                    try:
                        call.send(None)
                    except UsageError as error:
                        said.append(str(error))
                try:
                    part.close().send(None)
                except StopIteration:
                    said.append("closed")
                os.write(write, "\n".join(said).encode())
            finally:
                os._exit(0)
        said = last_words(child, read, write)
        assert len(said) == 4 and said[3] == "closed"
        for text in said[:3]:
            assert str(os.getpid()) in text and "fork" in text
        assert await part.all_reduce(1) == group.size
        await part.close()

    ranks(1, main, "tcp")


def test_another_loop_is_refused_by_name() -> None:
    groups: list[Group] = []

    async def main(group: Group) -> None:
        groups.append(group)

        async def elsewhere() -> None:
            assert "another event loop" in str(await outcome(group.barrier()))

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert await group.all_reduce(1) == 1

    ranks(1, main, "inproc")

    async def afterwards() -> None:
        assert type(await outcome(groups[0].barrier())) is NotInitializedError

    asyncio.run(afterwards())
