"""agree: the same value on all survivors, whatever state the group is in; what becomes of it otherwise."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll import (
    CollectiveTimeoutError,
    Group,
    GroupBrokenError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    UsageError,
)
from aiocoll.endpoint.outcome import LATE, Wish
from aiocoll.errors import WireError
from aiocoll.sim import CRASHED, Cancel, Crash
from tests.group.cases import on_every_fabric, outcome, ranks


@on_every_fabric
@pytest.mark.parametrize("size", [1, 2, 5])
def test_true_if_all_say_so(size: int, fabric: str) -> None:
    async def main(group: Group) -> None:
        assert await group.agree() is True
        assert await group.agree(np.float64(3) * (group.rank + 1)) is True
        for dissenter in range(size):
            assert await group.agree("" if group.rank == dissenter else [0]) is False
        assert await group.agree(None) is False
        assert group.broken is None and await group.all_reduce(1) == size
        assert group.statistics()["calls"]["agree"] == size + 3

    ranks(size, main, fabric)


@on_every_fabric
def test_the_nth_call_meets_the_nth_in_any_order(fabric: str) -> None:
    async def main(group: Group) -> None:
        calls = [group.agree(turn % 3 or group.rank != turn % group.size) for turn in range(12)]
        total = asyncio.ensure_future(group.all_reduce(group.rank))
        order = list(range(12))[:: 1 if group.rank % 2 else -1]
        answers = dict(zip(order, await asyncio.gather(*(calls[turn] for turn in order)), strict=True))
        assert [answers[turn] for turn in range(12)] == [bool(turn % 3) for turn in range(12)]
        assert await total == 6

    ranks(4, main, fabric)


@on_every_fabric
def test_a_broken_group_agrees(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 1:
            group.all_reduce(1).close()
        else:
            assert isinstance(await outcome(group.all_reduce(1)), GroupBrokenError)
        assert await group.agree(True) is True
        assert await group.agree(group.rank) is False
        assert isinstance(await outcome(group.barrier()), GroupBrokenError)

    ranks(3, main, fabric)


def test_late_ranks_are_named_on_all_and_hear_it_themselves() -> None:
    async def main(group: Group) -> None:
        if group.rank in (1, 2):
            await asyncio.sleep(100)
        error = await outcome(group.agree(True, timeout=5 if group.rank else 7))
        assert isinstance(error, CollectiveTimeoutError), error
        assert error.missing == (1, 2) and error.collective == "agree" and error.group == "world"
        assert "pid 10001" in str(error) and "rank 2" in str(error) and 5 <= error.elapsed < 10
        assert error.rank is None and type(group.broken) is CollectiveTimeoutError
        if group.rank in (0, 3):
            assert asyncio.get_running_loop().time() < 8
        # Those who give no sign now are waited for a short time only; these do.
        assert await group.agree(True, timeout=1000) is True

    ranks(4, main, "sim", timeout=60.0)


@pytest.mark.parametrize("seconds", [0.25, 1.0])
def test_a_short_deadline_is_kept(seconds: float) -> None:
    async def main(group: Group) -> None:
        loop = asyncio.get_running_loop()
        if group.rank == 2:
            await asyncio.sleep(50)
        error = await outcome(group.agree(True, timeout=seconds))
        assert isinstance(error, CollectiveTimeoutError) and error.missing == (2,), error
        if group.rank != 2:
            assert seconds <= loop.time() < seconds + 0.1
            async with await group.shrink(timeout=seconds) as new:
                assert new.ranks == (0, 1) and loop.time() < 2 * seconds + 0.1
        else:
            error = await outcome(group.shrink())
            assert isinstance(error, GroupBrokenError) and "world.1" in str(error)

    ranks(3, main, "sim", timeout=60.0)


def test_who_gives_no_sign_is_waited_for_until_the_deadline_and_no_longer() -> None:
    """Rank 0 leads, and computes as blocking programs do: it answers nobody."""

    async def main(group: Group) -> float:
        loop = asyncio.get_running_loop()
        if group.rank == 0:
            await asyncio.sleep(1000)
            return 0.0
        error = await outcome(group.agree(True, timeout=5))
        assert isinstance(error, CollectiveTimeoutError) and error.missing == (0,), error
        assert error.rank == error.world_rank == 0
        return loop.time()

    assert 5 <= max(ranks(4, main, "sim")) < 12


@on_every_fabric
def test_agree_where_another_calls_shrink_is_a_mismatch_on_all(fabric: str) -> None:
    async def main(group: Group) -> None:
        error = await outcome(group.shrink() if group.rank == 1 else group.agree())
        assert isinstance(error, MismatchError), error
        assert "rank 1 called shrink" in str(error) and "rank 2 called agree" in str(error)
        assert isinstance(group.broken, MismatchError)
        async with await group.shrink() as successor:  # the numbers go on alike
            assert successor.size == 3

    ranks(3, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("who", [0, 2])
def test_cancelling_ends_it_for_all_and_names_who(who: int, fabric: str) -> None:
    async def main(group: Group) -> None:
        async with asyncio.timeout(20):
            if group.rank == who:
                task = asyncio.ensure_future(group.agree())
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            elif group.rank != 1:
                error = await outcome(group.agree())
                assert type(error) is GroupBrokenError and f"rank {who}" in str(error), error
                assert "cancelled" in str(error) and error.rank == who and error.collective == "agree"
            else:  # in this call only later
                await outcome(group.recv(0))
                assert "cancelled" in str(await outcome(group.agree()))
            if group.rank == 0:
                await outcome(group.send(1, 1))
        assert await group.agree() is True

    ranks(3, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("who", [0, 1, 2])
def test_what_one_rank_refuses_is_refused_for_all_and_breaks_nothing(who: int, fabric: str) -> None:
    class Undecided:
        def __bool__(self) -> bool:
            raise KeyError("nobody knows" + "!" * 2_000_000)  # more than a control message holds

    async def main(group: Group) -> None:
        mine = group.rank == who
        for call, said in (
            (group.agree(True, timeout=-1 if mine else None), "timeout=-1"),
            (group.agree(Undecided() if mine else True), "nobody knows"),
            (group.shrink(timeout=-1 if mine else None), "timeout=-1"),
        ):
            error = await outcome(call)
            assert isinstance(error, UsageError) and f"rank {who}" in str(error) and said in str(error), error
            assert error.rank == error.world_rank == who and group.broken is None
            assert isinstance(error.cause, KeyError) == (mine and "nobody" in said)
        assert await group.agree() is True
        assert await group.all_reduce(1) == 3

    ranks(3, main, fabric)


@on_every_fabric
def test_who_leaves_the_group_is_no_member_any_more(fabric: str) -> None:
    async def main(group: Group) -> None:
        twin = await group.dup()
        if group.rank == 2:
            pending = asyncio.ensure_future(outcome(twin.agree(False)))
            await asyncio.sleep(0)
            await twin.close()
            error = await pending
            assert isinstance(error, GroupBrokenError) and "closed" in str(error)
            assert type(await outcome(twin.agree())) is NotInitializedError
        elif group.rank == 0:
            await group.recv(2)
        if group.rank == 2:
            await group.send(1, 0)
        else:
            assert await twin.agree(True) is True
            assert await twin.agree(True) is True
        await group.barrier()
        await twin.close()

    ranks(3, main, fabric)


def test_words_that_no_correct_peer_says() -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            heard = group._endpoint.failure.heard
            join = {
                "t": "recovery", "k": "join", "what": "agree", "how": "", "value": True, "force": False,
                "seconds": None, "accepted": None, "dead": [], "lost": [],
            }  # fmt: skip
            for key in [key for key in join if key != "t"]:
                with pytest.raises(WireError):
                    heard(1, group._scope.id, 1, {other: join[other] for other in join if other != key})
            for wrong in ({"seconds": "soon"}, {"accepted": 3}, {"accepted": [[1], {}]}, {"dead": 7}, {"lost": [None]}):
                with pytest.raises(WireError):
                    heard(1, group._scope.id, 1, {**join, **wrong})
            for what in ("came to", "ask", "accept"):
                pending = group.agree()
                with pytest.raises(WireError):
                    heard(1, group._scope.id, group._scope.recoveries, {"t": "recovery", "k": what})
                pending.close()
        await group.barrier()

    ranks(2, main, "inproc")


@on_every_fabric
@pytest.mark.parametrize("call", ["agree", "shrink"])
def test_who_closes_the_group_after_it_was_asked_is_not_waited_for(call: str, fabric: str) -> None:
    async def main(group: Group) -> None:
        twin = await group.dup()
        if group.rank == 1:
            assert await group.recv(0) == 1
            await twin.close()
        else:
            async with asyncio.timeout(20):
                pending = asyncio.ensure_future(getattr(twin, call)(timeout=1000))
                await asyncio.sleep(0)
                if group.rank == 0:
                    await group.send(1, 1)
                result = await pending
            if call == "agree":
                assert result is True
            else:
                assert result.ranks == (0, 2)
                await result.close()
        await group.barrier()
        await twin.close()

    ranks(3, main, fabric)


class AlwaysLate:
    """A loop in which every timer is ten seconds late; no other time passes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.now = loop, loop.time()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.Handle:
        def late() -> None:
            self.now = when + 10.0
            callback()

        return self.loop.call_soon(late)


@pytest.mark.parametrize("away", [0, 1])
def test_a_rank_that_is_always_late_comes_to_an_end_all_the_same(away: int) -> None:
    async def main(group: Group) -> None:
        if group.rank == away:
            assert await group.recv(1 - away) == 7
        else:
            endpoint, loop = group._endpoint, asyncio.get_running_loop()
            endpoint.loop = AlwaysLate(loop)
            recovery = endpoint.failure.agreement.begin(group._scope, 1, Wish("agree", 1.0))
            await recovery.waiter
            endpoint.loop = loop
            assert recovery.outcome is not None and recovery.outcome["o"] == LATE
            assert recovery.outcome["missing"] == [away]
            await group.send(7, away)

    ranks(2, main, "inproc", limit=20.0)


async def votes(group: Group) -> tuple[bool, ...]:
    """Several in a row; those who die in between were for it."""
    first = await group.agree(group.rank != group.size - 1)
    return first, await group.agree(True), await group.agree(True)


@pytest.mark.parametrize("size", [2, 3, 4, pytest.param(6, marks=pytest.mark.slow)])
def test_all_survivors_say_the_same_wherever_a_rank_dies(size: int) -> None:
    for victim in range(size):
        for frames in range(0, 12 * size, 1 if size < 4 else size - 2):
            results = ranks(size, votes, "sim", faults=Crash(victim, frames=frames), seed=frames, latency=1e-5)
            survivors = {each for each in results if each is not CRASHED}
            assert len(survivors) == 1, (victim, frames, results)
            ((first, *others),) = survivors
            assert others == [True, True] and (victim == size - 1 or not first)
            if CRASHED not in results:
                break


def test_two_deaths_one_of_them_of_whoever_takes_over() -> None:
    for frames in range(0, 40, 3):
        for more in range(0, 24, 5):
            faults = (Crash(0, frames=frames), Crash(1, frames=more))
            results = ranks(5, votes, "sim", faults=faults, seed=frames, latency=1e-5, jitter=1e-5)
            survivors = {each for each in results if each is not CRASHED}
            assert len(survivors) == 1 and not next(iter(survivors))[0], (frames, more, results)


@pytest.mark.parametrize("steps", range(1, 60, 4))
def test_a_cancellation_at_any_step_leaves_nobody_waiting(steps: int) -> None:
    async def main(group: Group) -> list[str]:
        said = []
        for _ in range(4):
            try:
                said.append(str(await group.agree(True)))
            except asyncio.CancelledError:
                said.append("cancelled")
            except GroupBrokenError as error:
                assert "rank 1" in str(error) and "cancelled" in str(error)
                said.append("broken")
        return said

    results = ranks(3, main, "sim", faults=Cancel(1, steps=steps), seed=steps, latency=1e-5)
    results = [each for each in results if isinstance(each, list)]  # one that was cancelled before it began
    assert all(each[-1] == "True" or "cancelled" in each for each in results), results
    for turn in range(4):
        said = {each[turn] for each in results} - {"cancelled"}
        assert len(said) <= 1, results


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_survivors_of_a_killed_process_agree(transport: str) -> None:
    async def main(group: Group) -> bool:
        done = 0
        while True:
            try:
                await group.all_reduce(np.arange(1000.0) * group.rank)
                done += 1
                if group.rank == 0 and done == 20:
                    os.kill(os.getpid(), 9)
            except PeerLostError:
                break
        least = await group.agree(done >= 20)
        assert await group.agree(True) is True
        return least

    assert ranks(4, main, "process", faults=Crash(0), transport=transport)[1:] in ([True] * 3, [False] * 3)
