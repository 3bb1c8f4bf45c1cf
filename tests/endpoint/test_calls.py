"""One call's slice of the endpoint: the verbs, what a failed call leaves alone, and who dies in the middle of one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll.endpoint.channel import Call, Channel
from aiocoll.errors import GroupBrokenError, MismatchError, PeerLostError, UsageError
from aiocoll.group import Group
from aiocoll.sim import Crash
from aiocoll.testing import run
from tests.turns import until

from .ranks import HANG_SECONDS, numbers, on_every_transport, ranks, results, soon

pytestmark = pytest.mark.timeout(120)
bounds = pytest.mark.parametrize("bound", ["1", "3000", ""])
NUMBER = 1000


@contextlib.contextmanager
def channels(groups: list[Group], description: str = "trial") -> Iterator[list[Channel]]:
    """The same hand-made call on every rank."""
    calls = []
    for group in groups:
        scope = group._scope
        call = Call(scope, NUMBER, f"trial (call {NUMBER})", description, HANG_SECONDS)
        scope.calls[NUMBER] = call
        calls.append(call)
    try:
        yield [call.channel() for call in calls]
    finally:
        for call in calls:
            call.over()


async def done(awaitable: Any) -> Any:
    async with asyncio.timeout(HANG_SECONDS):
        return await awaitable


@on_every_transport
@bounds
async def test_the_kth_send_meets_the_kth_receive(transport: str, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", bound)
    sizes = [0, 1, 5, 1000, 20_000, 3, 100_000, 0]
    for receive_first in (True, False):
        async with ranks(2, transport) as groups:
            with channels(groups) as (a, b):
                intos = [np.zeros(n) for n in sizes]
                receives = [b.recv(0, into) for into in intos] if receive_first else []
                sends = [a.send(1, numbers(n, k)) for k, n in enumerate(sizes)]
                await asyncio.sleep(0)
                receives = receives or [b.recv(0, into) for into in intos]
                for each in reversed(receives):
                    await done(each)
                for each in sends:
                    await done(each)
                for k, (n, into) in enumerate(zip(sizes, intos, strict=True)):
                    assert (into == numbers(n, k)).all()
            for group in groups:
                inbox = group._endpoint.inbox
                assert not (inbox.arrived or inbox.expected or inbox.offers or inbox._granted or inbox._held[0])


@on_every_transport
@bounds
async def test_every_verb(transport: str, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", bound)
    n = 50_000
    async with ranks(3, transport) as groups:
        with channels(groups) as chans:

            async def main(ch: Channel) -> None:
                right, left = (ch.rank + 1) % 3, (ch.rank - 1) % 3
                mine, theirs = numbers(n, ch.rank), np.zeros(n)
                await ch.exchange(right, mine, left, theirs)
                assert (theirs == numbers(n, left)).all()
                total = mine.copy()
                await ch.exchange(right, mine, left, total, aiocoll.SUM)
                assert (total == numbers(n, ch.rank) + numbers(n, left)).all()
                takes = [ch.take(peer) for peer in (left, right)]
                await ch.publish(mine, b"from %d" % ch.rank)
                for peer, take in zip((left, right), takes, strict=True):
                    parcel = await take
                    assert parcel.meta == b"from %d" % peer
                    assert (parcel.data.view(np.float64) == numbers(n, peer)).all()
                pair = ch.narrow([2, 0])
                if pair.rank >= 0:
                    await pair.exchange(1 - pair.rank, mine, 1 - pair.rank, theirs)
                    assert (theirs == numbers(n, 2 - ch.rank)).all()
                assert ch.local.size == 3

            await results(map(main, chans))


@on_every_transport
@pytest.mark.parametrize("arrived", [True, False])
async def test_a_fold_that_raises_ends_the_call_everywhere(transport: str, arrived: bool) -> None:
    """Whether the data were here before the receive or come after it, and whatever segment it happens in."""

    class Choking:
        splittable = True
        folds = 0

        def fold(self, left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
            self.folds += 1
            if self.folds == 2:
                raise FloatingPointError("overflow encountered in add")
            np.add(left, right, out)

    async with ranks(2, transport) as groups:
        with channels(groups) as (a, b):
            into, other = numbers(200_000), np.zeros(1)
            waiting = asyncio.ensure_future(done(b.recv(0, other)))
            sending = b.send(0, numbers(200_000, 5))
            if arrived:
                await until(lambda: any(each.whole for each in groups[0]._endpoint.inbox.arrived.values()))
            with pytest.raises(UsageError, match="FloatingPointError: overflow"):
                await done(a.recv_fold(1, into, Choking()))
            (error,) = await soon([waiting])
            assert isinstance(error, UsageError) and "rank 0 refused this call" in str(error)
            kept = into.copy()
            await asyncio.sleep(0.01)
            assert (into == kept).all()
            del sending
        assert [float(each) for each in await results(group.all_reduce(1.0) for group in groups)] == [2.0, 2.0]


@on_every_transport
@bounds
async def test_nothing_lands_after_a_failure(transport: str, bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receive that is posted, half-way, or offered when its call fails: the array belongs to the caller at once."""
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", bound)
    n = 1 << 19
    for turns in (0, 1, 2, 3, 5, 8, 13):
        async with ranks(2, transport) as groups:
            await results(group.barrier() for group in groups)
            with channels(groups) as (a, b):
                intos = [np.full(n, -1.0) for _ in range(3)]
                receives = [asyncio.ensure_future(_await(a.recv(1, into))) for into in intos[:2]]
                receives.append(asyncio.ensure_future(_await(a.recv_fold(1, intos[2], aiocoll.SUM))))
                sends = [asyncio.ensure_future(_await(b.send(0, numbers(n, k)))) for k in range(3)]
                for _ in range(turns):
                    await asyncio.sleep(0)
                finished = [each.done() for each in receives]
                a.call.fail(GroupBrokenError("a trial"))
                after = [into.copy() for into in intos]
                outcomes = await soon(receives)
                for was, outcome in zip(finished, outcomes, strict=True):
                    assert was or outcome is None or isinstance(outcome, GroupBrokenError)
                b.call.fail(GroupBrokenError("a trial"))
                await soon(sends)
                await asyncio.sleep(0.01)
                for into, copy in zip(intos, after, strict=True):
                    assert (into == copy).all()
            for group in groups:
                inbox = group._endpoint.inbox
                assert not (inbox.expected or inbox.offers or inbox._granted)


async def _await(awaitable: Any) -> Any:
    return await awaitable


async def test_a_call_that_fails_while_nobody_waits_raises_at_the_next_wait() -> None:
    async with ranks(2) as groups:
        with channels(groups) as (a, b):
            early, late = a.recv(1, np.zeros(4)), a.recv(1, np.zeros(4))
            a.call.fail(GroupBrokenError("meanwhile"))
            await b.send(0, numbers(4))  # lands nowhere, and completes nothing
            await asyncio.sleep(0.01)
            for each in (early, late):
                with pytest.raises(GroupBrokenError, match="meanwhile"):
                    await done(each)
            for verb in (lambda: a.send(1, numbers(1)), lambda: a.recv(1, np.zeros(1)), lambda: a.take(1)):
                with pytest.raises(GroupBrokenError, match="meanwhile"):
                    verb()


@on_every_transport
async def test_a_length_that_is_not_the_expected_one(transport: str) -> None:
    for verb in (lambda ch: ch.recv(1, np.zeros(5)), lambda ch: ch.recv_fold(1, np.zeros(5), aiocoll.SUM)):
        for first in (True, False):
            async with ranks(2, transport) as groups:
                with channels(groups) as (a, b):
                    receive = verb(a) if first else None
                    b.send(0, numbers(6))
                    await until(lambda: a.call.error is not None or groups[0]._endpoint.inbox.arrived)
                    with pytest.raises(MismatchError, match="rank 0 waits for 40 bytes of rank 1, which sent 48"):
                        await done(receive if receive is not None else verb(a))
                    await until(lambda: groups[1].broken is not None)


@on_every_transport
async def test_many_calls_at_once_on_overlapping_groups(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", "20000")
    async with ranks(4, transport) as groups:
        left = dict(zip((0, 1, 2), await results(groups[r].subgroup([0, 1, 2]) for r in (0, 1, 2)), strict=True))
        right = dict(zip((1, 2, 3), await results(groups[r].subgroup([3, 2, 1]) for r in (1, 2, 3)), strict=True))

        async def main(rank: int) -> None:
            calls = []
            for turn in range(20):
                n = [1, 100, 5000][turn % 3]
                for members in (left, right):
                    if rank in members:
                        calls.append((3 * numbers(n, turn), members[rank].all_reduce(numbers(n, turn))))
                calls.append((4 * numbers(n, turn), groups[rank].all_reduce(numbers(n, turn))))
            for (expected, _), got in zip(calls, await asyncio.gather(*(call for _, call in calls)), strict=True):
                assert (got == expected).all()

        await results(map(main, range(4)))
        await results(each.close() for each in [*left.values(), *right.values()])
        for group in groups:
            inbox = group._endpoint.inbox
            assert not (inbox.arrived or inbox.expected or inbox.offers or inbox._granted or sum(inbox._held))


async def _until_the_end(group: Group) -> str:
    x = np.ones(1 << 18) * group.rank
    await group.barrier()
    if group.rank == 2:
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGKILL)
    try:
        while True:
            await group.all_reduce(x)
    except (PeerLostError, GroupBrokenError) as error:
        lost = error if isinstance(error, PeerLostError) else error.cause
        assert isinstance(lost, PeerLostError) and lost.rank == 2, error
        return f"{lost.rank}"


@pytest.mark.parametrize(
    "algorithm", ["ring", *(pytest.param(name, marks=pytest.mark.slow) for name in ("circulant", "recursive_doubling"))]
)
def test_a_killed_process_is_named_by_all_survivors(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_ALGORITHM", f"all_reduce:{algorithm}")
    outcomes = run(4, _until_the_end, "process", faults=Crash(2))
    assert [each for rank, each in enumerate(outcomes) if rank != 2] == ["2"] * 3


COLLECTIVES = ("all_reduce", "broadcast", "reduce", "reduce_scatter", "all_gather", "all_to_all", "scan", "exscan",
               "gather", "scatter", "exchange_all", "barrier")  # fmt: skip


@pytest.mark.parametrize("bound", ["1", "3000"])
@pytest.mark.parametrize("collective", COLLECTIVES)
async def test_no_algorithm_depends_on_what_a_send_buffers(
    collective: str, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every algorithm, when (nearly) every frame is an offer that waits for its receive."""
    from aiocoll.algorithms import all_of

    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", bound)
    served = set()
    for size in (2, 3, 5):
        for algorithm in all_of(collective):
            monkeypatch.setenv("AIOCOLL_ALGORITHM", f"{collective}:{algorithm.name}")
            async with ranks(size) as groups:
                for n in (7, 3000):
                    expected = sum(numbers(n, rank) for rank in range(size))

                    def mine(group: Group, n: int = n) -> np.ndarray:
                        return numbers(n, group.rank)

                    calls = {
                        "all_reduce": lambda g: g.all_reduce(mine(g)),
                        "broadcast": lambda g: g.broadcast(mine(g), root=1),
                        "reduce": lambda g: g.reduce(mine(g), root=1),
                        "reduce_scatter": lambda g: g.reduce_scatter(mine(g)),
                        "all_gather": lambda g: g.all_gather(mine(g)),
                        "all_to_all": lambda g: g.all_to_all([mine(g)] * g.size),
                        "exchange_all": lambda g: g.all_to_all([mine(g)] * g.size),
                        "scan": lambda g: g.scan(mine(g)), "exscan": lambda g: g.exscan(mine(g)),
                        "gather": lambda g: g.gather(mine(g), root=1),
                        "scatter": lambda g: g.scatter([mine(g)] * g.size, root=1),
                        "barrier": lambda g: g.barrier(),
                    }  # fmt: skip
                    try:
                        got = await results(map(calls[collective], groups))
                    except UsageError as error:
                        assert "cannot" in str(error) or "needs" in str(error)  # not for so many ranks, or this op
                        continue
                    served.add(algorithm.name)
                    if collective == "all_reduce":
                        assert all((each == expected).all() for each in got)
                    elif collective in ("broadcast", "scatter"):
                        assert all((each == numbers(n, 1)).all() for each in got)
                    elif collective in ("all_gather", "all_to_all", "exchange_all"):
                        assert all((part == numbers(n, rank)).all() for each in got for rank, part in enumerate(each))
                    elif collective == "reduce_scatter":
                        assert (np.concatenate(got) == expected).all()
                    elif collective == "reduce":
                        assert (got[1] == expected).all()
                    elif collective == "scan":
                        assert (got[-1] == expected).all()
                for group in groups:
                    inbox = group._endpoint.inbox
                    assert not (inbox.arrived or inbox.expected or inbox.offers or inbox._granted or sum(inbox._held))
    assert served == {algorithm.name for algorithm in all_of(collective)}
