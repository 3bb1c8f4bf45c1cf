"""FaultProxy: what networks do to connections, and what ranks say about it; nothing hangs and nothing is left."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll import CollectiveTimeoutError, GroupBrokenError, PeerLostError
from aiocoll.errors import UsageError
from aiocoll.testing import FaultProxy, run
from aiocoll.wire.frame import HEADER_BYTES

pytestmark = pytest.mark.timeout(60)
COUNT = 30_000


def mine(group: aiocoll.Group, turn: int, rank: int | None = None) -> Any:
    return np.arange(COUNT) % 97 + 1000.0 * (group.rank if rank is None else rank) + turn


def total(group: aiocoll.Group, turn: int) -> Any:
    return sum(mine(group, turn, rank) for rank in range(group.size))


async def agrees(group: aiocoll.Group, turn: int) -> None:
    assert ((await group.all_reduce(mine(group, turn))) == total(group, turn)).all()


async def outcome(group: aiocoll.Group) -> BaseException:
    """What ends a series of calls: whoever had all it needed before ends one of them well."""
    turn = 0
    try:
        while True:
            turn += 1
            assert ((await group.all_reduce(mine(group, turn), timeout=20)) == total(group, turn)).all()
    except (PeerLostError, GroupBrokenError, CollectiveTimeoutError) as error:
        return error


def lost(error: BaseException) -> PeerLostError:
    cause = error.cause if isinstance(error, GroupBrokenError) else error
    assert isinstance(cause, PeerLostError), error
    return cause


@pytest.mark.parametrize("fabric", ["tcp", "process"])
def test_ranks_talk_through_it_and_outside_its_block_without_it(fabric: str) -> None:
    async def main(group: aiocoll.Group) -> None:
        for turn in range(3):
            await agrees(group, turn)
        others = [rank for rank in range(group.size) if rank != group.rank]
        for rank in others:
            await group.send(mine(group, rank), rank)
        for rank in others:
            assert ((await group.recv(rank)) == mine(group, group.rank, rank)).all()

    with FaultProxy() as proxy:
        assert os.environ["AIOCOLL_PROXY"] == f"{proxy.address[0]}:{proxy.address[1]}"
        run(3, main, fabric, transport="tcp")
        before = proxy.passed()
        assert before > 3 * 2 * COUNT * 8
        assert all(proxy.passed(src, dst) for src in range(3) for dst in range(3) if src != dst)
        assert proxy.passed(0) + proxy.passed(1) + proxy.passed(2) == before
    assert "AIOCOLL_PROXY" not in os.environ
    run(2, main, "tcp")


def test_who_asks_a_proxy_that_is_not_there_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(group: aiocoll.Group) -> None:
        raise AssertionError

    with socket.create_server(("127.0.0.1", 0)) as nobody:
        monkeypatch.setenv("AIOCOLL_PROXY", f"127.0.0.1:{nobody.getsockname()[1] - 1}")
        monkeypatch.setattr("aiocoll.transport.front._SECONDS", 0.2)
        with pytest.raises(UsageError, match=r"AIOCOLL_PROXY='127.*no fault proxy answers there"):
            run(2, main, "tcp")
    with pytest.raises(UsageError, match="within its with block"):
        FaultProxy().cut()


def test_bytes_that_are_delayed_arrive_later_and_in_order() -> None:
    arrivals: list[tuple[int, int]] = []
    gate = asyncio.Barrier(3)

    async def main(group: aiocoll.Group) -> None:
        await agrees(group, 0)
        await gate.wait()
        if group.rank == 0:
            proxy.delay(0.2, 0, 1)
            for turn in range(5):
                for dst in (1, 2):
                    await group.send(mine(group, turn), dst)
        else:
            for turn in range(5):
                assert ((await group.recv(0)) == mine(group, turn, 0)).all()
                arrivals.append((group.rank, turn))
        await gate.wait()
        proxy.heal()
        await group.barrier()

    with FaultProxy() as proxy:
        run(3, main, "tcp")
    assert arrivals == [(2, turn) for turn in range(5)] + [(1, turn) for turn in range(5)]


def test_a_throttled_way_carries_everything_after_a_free_one() -> None:
    arrivals: list[int] = []
    gate = asyncio.Barrier(3)

    async def main(group: aiocoll.Group) -> None:
        await agrees(group, 0)
        await gate.wait()
        if group.rank == 0:
            proxy.throttle(1e6, 0, 1)
            await asyncio.gather(*(group.send(mine(group, dst), dst) for dst in (1, 2)))
        else:
            assert ((await group.recv(0)) == mine(group, group.rank, 0)).all()
            arrivals.append(group.rank)
        await group.barrier()

    with FaultProxy() as proxy, pytest.raises(UsageError, match="above 0"):
        run(3, main, "tcp")
        proxy.throttle(0)
    assert arrivals == [2, 1]


@pytest.mark.parametrize("kind", ["cut", "reset"])
@pytest.mark.parametrize("after", [None, 1, HEADER_BYTES - 1, 100_000])
def test_a_connection_that_ends_is_a_lost_peer(kind: str, after: int | None) -> None:
    gate = asyncio.Barrier(3)

    async def main(group: aiocoll.Group) -> PeerLostError:
        await agrees(group, 0)
        await gate.wait()
        if group.rank == 0:
            getattr(proxy, kind)(0, 1, after=after)
        return lost(await outcome(group))

    with FaultProxy() as proxy:
        errors = run(3, main, "tcp")
    assert errors[0].rank == 1 and errors[1].rank == 0 and errors[2].rank in (0, 1)
    words = str(errors[1])
    if kind == "cut" and after is not None:
        assert "in the middle of a frame" in words or "given up" in words
    for error in errors:
        assert "its process ended" in str(error) or "reset" in str(error).lower() or "given up" in str(error)


def test_half_a_connection_that_ends_is_a_lost_peer_on_both_sides() -> None:
    gate = asyncio.Barrier(2)

    async def main(group: aiocoll.Group) -> PeerLostError:
        await agrees(group, 0)
        await gate.wait()
        if group.rank == 0:
            proxy.half_close(0, 1)
        return lost(await outcome(group))

    with FaultProxy() as proxy:
        errors = run(2, main, "tcp")
    assert [error.rank for error in errors] == [1, 0]


@pytest.mark.parametrize("after", [0, 5, 13, 21, 25, 30, 36, HEADER_BYTES + 3])
def test_a_changed_header_or_description_says_what_was_wrong(after: int) -> None:
    """Byte 5 is of the group, 13 of the call, 21 of the step, 25 of the lengths, 36 of the check."""
    gate = asyncio.Barrier(2)

    async def main(group: aiocoll.Group) -> PeerLostError:
        await agrees(group, 0)
        await gate.wait()
        if group.rank == 0:
            proxy.corrupt(0, 1, after=after)
        return lost(await outcome(group))

    with FaultProxy() as proxy:
        errors = run(2, main, "tcp")
    assert [error.rank for error in errors] == [1, 0]
    assert "it sent what no correct peer sends: " in str(errors[1])
    assert "not a frame" in str(errors[1]) or "a changed" in str(errors[1])
    # Whoever is in the middle of a frame cannot say why it cuts the connection.
    said = str(errors[0])
    assert "given up the connection to this rank" in said or "reset" in said or "in the middle of a frame" in said


def test_what_is_held_ends_at_the_deadline_and_goes_on_when_it_is_healed() -> None:
    gate = asyncio.Barrier(2)

    async def main(group: aiocoll.Group) -> None:
        await agrees(group, 0)
        twin = await group.dup()
        await gate.wait()
        if group.rank == 0:
            proxy.black_hole(0, 1)
        await gate.wait()
        with pytest.raises(CollectiveTimeoutError) as caught:
            await twin.all_reduce(mine(group, 1), timeout=0.3)
        assert caught.value.missing == (1 - group.rank,)
        await gate.wait()
        proxy.heal()
        await agrees(group, 2)  # the group itself had no call under way, and its connections live

    with FaultProxy() as proxy:
        run(2, main, "tcp")


def test_one_way_holds_one_way() -> None:
    gate = asyncio.Barrier(2)

    async def main(group: aiocoll.Group) -> None:
        await agrees(group, 0)
        await gate.wait()
        if group.rank == 0:
            proxy.one_way(0, 1)
            await group.send(mine(group, 1), 1)
            assert ((await group.recv(1, timeout=20)) == mine(group, 1, 1)).all()
            await gate.wait()
            proxy.heal()
        else:
            await group.send(mine(group, 1), 0)
            with pytest.raises(CollectiveTimeoutError):
                await group.recv(0, timeout=0.1)
            await gate.wait()
            assert ((await group.recv(0, timeout=20)) == mine(group, 1, 0)).all()
        await group.barrier()

    with FaultProxy() as proxy:
        run(2, main, "tcp")


def test_a_rank_that_left_is_not_reached_through_it_either() -> None:
    async def main(group: aiocoll.Group) -> None:
        if group.rank == 1:
            return
        with pytest.raises((PeerLostError, GroupBrokenError)):
            await group.recv(1, timeout=20)

    with FaultProxy():
        run(2, main, "tcp")
