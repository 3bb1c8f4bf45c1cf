"""grow: who is admitted, who is told what, and what becomes of newcomers that are not there any more."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Any

import msgpack
import pytest

import aiocoll
from aiocoll import Group
from aiocoll.errors import (
    CollectiveTimeoutError,
    GroupBrokenError,
    MismatchError,
    PeerLostError,
    RendezvousError,
    UsageError,
)
from aiocoll.group import growing
from aiocoll.rendezvous.lobby import Lobby, Waiting
from aiocoll.store import MemoryStore
from aiocoll.store.users import me
from aiocoll.world import admitting, newcomer
from tests.ports import free_port

from .jobs import Job, adds_up, over_each_transport


async def outcome(awaitable: Any) -> Any:
    try:
        return await awaitable
    except Exception as error:
        return error


def about(group: Group) -> tuple[Any, ...]:
    return group.name, group.rank, group.size, group.ranks, group.new_ranks, group.local_size, len(group.hosts)


@over_each_transport
@pytest.mark.parametrize("size", [1, 2, 4])
async def test_members_come_first_and_newcomers_after_them(transport: str, size: int) -> None:
    job = Job(transport)

    async def main(group: Group) -> Any:
        await job.line(2)
        larger = await group.grow()
        await adds_up(larger)
        state = await larger.broadcast_object({"step": 7} if larger.rank == 0 else None)
        await adds_up(group)  # which lives on
        await larger.barrier()
        return about(larger), state

    async def new(group: Group) -> Any:
        await adds_up(group)
        state = await group.broadcast_object(None)
        await group.barrier()
        return about(group), state

    found = await job.run(size, main, job.newcomer(new), job.newcomer(new))
    everybody, new_ranks = tuple(range(size + 2)), (size, size + 1)
    expected = {
        rank: (("world.1", rank, size + 2, everybody, new_ranks, size + 2, size + 2), {"step": 7}) for rank in everybody
    }
    assert sorted(found, key=lambda each: each[0][1]) == list(expected.values())
    assert await job.keys() == []


@over_each_transport
async def test_where_nobody_waits_the_members_get_a_twin(transport: str) -> None:
    job = Job(transport)

    async def main(group: Group) -> Any:
        twin = await group.grow()
        await asyncio.gather(adds_up(twin), adds_up(group))
        again = await twin.grow()
        await adds_up(again)
        return about(again)

    assert await job.run(3, main) == [("world.2", rank, 3, (0, 1, 2), (), 3, 3) for rank in range(3)]


async def test_no_more_than_n_are_admitted_first_come_first() -> None:
    job = Job()

    async def main(group: Group) -> Any:
        await job.line(3)
        group = await group.grow(2)
        await adds_up(group)
        sizes = [group.size]
        group = await group.grow(5)
        await adds_up(group)
        return [*sizes, group.size]

    async def new(place: int) -> Any:
        await job.line(place)

        async def joined(group: Group) -> int:
            await adds_up(group)
            if group.size == 4:
                group = await group.grow(5)
                await adds_up(group)
            return group.rank

        return await job.newcomer(joined)

    assert await job.run(2, main, new(0), new(1), new(2)) == [[4, 5], [4, 5], 2, 3, 4]


async def test_grow_may_wait_for_those_who_come_later() -> None:
    job, called = Job(), asyncio.Event()

    async def main(group: Group) -> Any:
        growth = asyncio.ensure_future(group.grow(2, wait=30.0))
        called.set()
        group = await growth
        await adds_up(group)
        return group.size

    async def later() -> Any:
        await called.wait()
        return await job.newcomer(adds_up)

    assert await job.run(2, main, later(), later()) == [4, 4, None, None]


async def test_to_wait_for_newcomers_is_no_stall(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIOCOLL_STALL_SECONDS", "0.05")
    job = Job()

    async def main(group: Group) -> Any:
        twin = await group.grow(wait=0.3)
        return twin.size, twin._scope.patient

    assert await job.run(2, main) == [(2, False), (2, False)]
    assert not [record for record in caplog.records if record.name == "aiocoll.stall"]


async def test_numbers_are_never_given_twice_and_errors_name_them() -> None:
    job = Job("tcp")

    async def main(group: Group) -> Any:
        await job.line(1)
        grown = await group.grow()
        error = await outcome(grown.recv(2))  # which leaves
        assert isinstance(error, PeerLostError) and (error.rank, error.world_rank) == (2, 2)
        some = await group.subgroup([1, 0])
        await job.line(1)
        grown = await some.grow()
        await adds_up(grown)
        error = await outcome(grown.recv(2))
        assert isinstance(error, PeerLostError) and "world rank 3" in str(error)
        assert (error.rank, error.world_rank) == (2, 3)
        part = await grown.shrink()
        for each in (part, some):
            await each.close()
        return grown.ranks, part.ranks

    async def new() -> Any:
        await job.newcomer(nothing)
        await job.newcomer(adds_up)

    assert await job.run(2, main, new()) == [((1, 0, 3), (1, 0))] * 2 + [None]


async def nothing(group: Group) -> None:
    pass


async def test_a_monitored_barrier_names_whom_it_misses_by_the_number_in_the_world() -> None:
    job, known = Job(), asyncio.Event()

    async def late(group: Group) -> None:
        if group.rank == 0:
            await known.wait()
            assert isinstance(await outcome(group.barrier()), GroupBrokenError)
        else:
            error = await outcome(group.monitored_barrier(timeout=0.05))
            assert isinstance(error, CollectiveTimeoutError)
            assert (error.missing, error.rank, error.world_rank) == ((0,), 0, 1)
            known.set()

    async def main(group: Group) -> None:
        some = await group.subgroup([1, 0])
        await job.line(1)
        async with await some.grow() as grown:
            assert grown.ranks == (1, 0, 2)
            await late(grown)
        await some.close()

    await job.run(2, main, job.newcomer(late))


async def test_the_dead_and_those_who_went_away_are_left_out() -> None:
    job = Job()
    dead = Waiting(job.store, "world")
    await dead.enlist()
    (guest,) = await job.lobby.waiting()
    await job.store.set(guest.place, msgpack.packb(dict(guest.who) | {"started": "long ago"}))
    gone = asyncio.ensure_future(job.newcomer(nothing))
    await job.line(1)
    gone.cancel()
    await asyncio.wait([gone])

    async def main(group: Group) -> Any:
        twin = await group.grow()
        await adds_up(twin)
        return twin.size

    assert await job.run(2, main) == [2, 2]
    assert await job.keys() == []


async def test_one_that_says_nothing_is_put_out_of_the_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admitting, "_ASK_SECONDS", 0.05)
    job = Job()
    silent = Waiting(job.store, "world")
    await silent.enlist()

    async def main(group: Group) -> Any:
        group = await group.grow(1, wait=20.0)
        await adds_up(group)
        return group.size

    assert await job.run(2, main, job.newcomer(adds_up)) == [3, 3, None]
    assert "says nothing" in caplog.text
    await silent.leave()
    assert await job.keys() == []


async def test_one_that_goes_away_while_it_is_asked_is_not_waited_for() -> None:
    job = Job()
    leaving = Waiting(job.store, "world")
    await leaving.enlist()
    (guest,) = await job.lobby.waiting()
    async with asyncio.timeout(10):
        answer, _ = await asyncio.gather(job.lobby.ask(guest, "attempt", 60.0), leaving.leave())
    assert answer is None


async def test_one_that_never_comes_to_the_meeting_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(growing, "_MEETING_SECONDS", 0.2)
    job = Job("tcp")
    bad = Waiting(job.store, "world")
    await bad.enlist()
    info = {"host": "elsewhere", "pid": 1, "boot": me()["boot"], "address": "127.0.0.1", "port": 1}

    async def answers() -> list[str]:
        heard = []
        while True:
            word = await bad.word(20.0)
            assert word is not None
            heard.append(word["t"])
            if word["t"] == "ask":
                await bad.answer(word["attempt"], info)
            elif word["t"] == "refused":
                assert "rank 0" in word["text"] or "rank 1" in word["text"]
                return heard

    async def main(group: Group) -> Any:
        twin = await group.grow()
        await adds_up(twin)
        assert group.broken is None
        await adds_up(group)
        return twin.new_ranks

    heard = ["ask", "meet", "ask", "meet", "refused"]
    assert await job.run(2, main, answers()) == [(), (), heard]
    assert "could not be admitted" in caplog.text
    await bad.leave()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
async def test_one_that_stands_still_until_the_deadline_breaks_nothing(transport: str) -> None:
    job = Job(transport)
    frozen = Waiting(job.store, "world")
    await frozen.enlist()

    async def answers(port: int) -> None:
        while True:
            word = await frozen.word(20.0)
            assert word is not None
            if word["t"] == "ask":
                info = {"host": "elsewhere", "pid": 1, "boot": me()["boot"], "address": "127.0.0.1", "port": port}
                await frozen.answer(word["attempt"], info)

    async def main(group: Group) -> Any:
        twin = await group.grow(timeout=0.3)
        await asyncio.gather(adds_up(twin), adds_up(group))
        return twin.new_ranks, group.broken

    with socket.create_server(("127.0.0.1", 0)) as silent:
        answering = asyncio.ensure_future(answers(silent.getsockname()[1]))
        assert await job.run(3, main) == [((), None)] * 3
        answering.cancel()
        await asyncio.wait([answering])
    await frozen.leave()


async def test_a_store_that_is_gone_breaks_nothing() -> None:
    job = Job()
    stores = [job.store.clone() for _ in range(3)]

    async def one(rank: int) -> Any:
        async with job.connect(store=stores[rank], rank=rank, size=3) as group:
            if rank == 0:
                await stores[0].close()
            error = await outcome(group.grow())
            assert isinstance(error, RendezvousError) and "aiocoll run" in str(error) and "file://" in str(error)
            assert group.broken is None
            await adds_up(group)

    async with asyncio.timeout(30):
        await asyncio.gather(*map(one, range(3)))


async def test_a_member_that_is_not_there_is_a_lost_one() -> None:
    job = Job("tcp")

    async def main(group: Group) -> Any:
        await group.barrier()
        if group.rank == 2:
            return None
        error = await outcome(group.grow(wait=20.0))
        assert isinstance(error, PeerLostError) and error.rank == 2 and error.collective == "grow"
        return type(group.broken)

    assert await job.run(3, main) == [PeerLostError, PeerLostError, None]


@pytest.mark.parametrize("who", [0, 1])
async def test_whoever_cancels_breaks_the_group(who: int) -> None:
    job, waiting = Job(), asyncio.Event()

    async def main(group: Group) -> Any:
        growth = asyncio.ensure_future(group.grow(wait=30.0))
        if group.rank == who:
            await waiting.wait()
            growth.cancel()
            await asyncio.wait([growth])
            assert growth.cancelled() and isinstance(group.broken, GroupBrokenError)
            return None
        waiting.set()
        error = await outcome(growth)
        assert isinstance(error, GroupBrokenError) and error.rank == who and "cancelled grow" in str(error)
        return None

    await job.run(3, main)


async def test_wrong_arguments_and_different_ones() -> None:
    job = Job()

    async def main(group: Group) -> Any:
        for wrong in ({"n": 0}, {"n": True}, {"n": "2"}, {"wait": -1}, {"wait": float("inf")}, {"wait": None}):
            error = await outcome(group.grow(**wrong))
            assert isinstance(error, UsageError) and next(iter(wrong)) in str(error)
        await adds_up(group)
        error = await outcome(group.grow(1 + group.rank))
        assert isinstance(error, MismatchError) and "n=1" in str(error) and "n=2" in str(error)

    await job.run(2, main)


async def test_a_newcomer_in_vain_says_who_is_there() -> None:
    job, done = Job(), asyncio.Event()

    async def main(group: Group) -> Any:
        await done.wait()

    async def new() -> Any:
        error = await outcome(job.newcomer(nothing, timeout=0.3))
        done.set()
        return error

    *_, error = await job.run(2, main, new())
    assert isinstance(error, RendezvousError) and isinstance(error, TimeoutError)
    here = f"{me()['host']}:{os.getpid()}"
    assert "no grow() was called" in str(error) and f"rank 0 ({here}), rank 1 ({here})" in str(error)
    assert await job.keys() == []


@pytest.mark.parametrize("wrong", [{}, {"init_method": "tcp://239.1.2.3:4567"}, {"init_method": "x://y"}, {"join": 1}])
async def test_newcomers_that_cannot_know_their_job(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="join|newcomer|x://y"):
        await aiocoll.connect(**{"join": True} | wrong)


@pytest.mark.parametrize("how", ["file", "tcp", "env"])
async def test_newcomers_find_the_job_where_its_ranks_met(
    how: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    urls = {"file": f"file://{tmp_path}/meet", "tcp": f"tcp://127.0.0.1:{port}", "env": "env://"}
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))

    async def member(rank: int) -> Any:
        async with aiocoll.connect(urls[how], rank=rank, size=2, timeout=30.0) as group:
            group = await group.grow(1, wait=25.0)
            await adds_up(group)
            return group.ranks

    async def new() -> Any:
        with monkeypatch.context() as environment:
            environment.setenv("AIOCOLL_JOIN", "1")
            joining = aiocoll.connect(urls[how], timeout=30.0)
        async with joining as group:
            await adds_up(group)
            return group.ranks

    async with asyncio.timeout(50):
        assert await asyncio.gather(member(0), member(1), new()) == [(0, 1, 2)] * 3


async def test_what_a_newcomer_hears_only_of_itself_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members whose commit fails discard the larger group; the newcomer waits for the next attempt and gets in."""
    job, tries = Job("tcp"), []
    real = growing.Growth._attempt

    async def fails_first(self: Any, plan: Any) -> Any:
        opened, reason = await real(self, plan)
        if self._talk.rank == 1 and not tries:
            tries.append(plan["attempt"])
            await opened.discard()
            return None, "rank 1: OSError: no descriptor left"
        return opened, reason

    monkeypatch.setattr(growing.Growth, "_attempt", fails_first)
    monkeypatch.setattr(newcomer, "_MEETING_SECONDS", 10.0)

    async def main(group: Group) -> Any:
        await job.line(1)
        group = await group.grow()
        await adds_up(group)
        return group.ranks

    ranks = (0, 1, 3)  # the number of the attempt that failed is lost
    assert await job.run(2, main, job.newcomer(adds_up)) == [ranks, ranks, None]
    assert len(tries) == 1 and await job.keys() == []


async def test_a_newcomer_whose_store_goes_says_so() -> None:
    store = MemoryStore()
    joining = asyncio.ensure_future(aiocoll.connect(store=store, join=True, timeout=20.0).__aenter__())
    await Lobby(store, "world").bell(20.0)
    await store.close()
    with pytest.raises(RendezvousError, match="closed"):
        await joining
