"""Bad news: who hears what when a rank dies, leaves, cancels, refuses, or makes another call than the others."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll.errors import (
    CollectiveTimeoutError,
    GroupBrokenError,
    MismatchError,
    PeerLostError,
    SerializationError,
    UsageError,
)
from aiocoll.group import Group
from tests.turns import until

from .ranks import kill, numbers, on_every_transport, ranks, results, soon, warm

pytestmark = pytest.mark.timeout(90)
BIG = 1 << 20


def parked(group: Group) -> bool:
    return bool(group._endpoint.parked)


CALLS = {
    "all_reduce": lambda g, n: g.all_reduce(numbers(n, g.rank)),
    "barrier": lambda g, n: g.barrier(),
    "all_gather": lambda g, n: g.all_gather(numbers(n, g.rank)),
    "broadcast": lambda g, n: g.broadcast(numbers(n), root=g.size - 1),
    "all_to_all": lambda g, n: g.all_to_all([numbers(n, g.rank)] * g.size),
    "reduce_scatter": lambda g, n: g.reduce_scatter(numbers(n, g.rank)),
    "scan": lambda g, n: g.scan(numbers(n, g.rank)),
}


@on_every_transport
@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("linked", [True, False])
async def test_a_death_is_told_to_everybody_in_the_call(transport: str, what: str, linked: bool) -> None:
    """Also to those who never had a link to the dead, and whatever they wait for."""
    async with ranks(5, transport) as groups:
        if linked:
            await warm(groups)
        dead, survivors = groups[2], [group for group in groups if group.rank != 2]
        calls = [asyncio.ensure_future(CALLS[what](group, 1000)) for group in survivors]
        await until(lambda: all(parked(group) or call.done() for group, call in zip(survivors, calls, strict=True)))
        kill(dead)
        for group, outcome in zip(survivors, await soon(calls), strict=True):
            if not isinstance(outcome, BaseException):  # it needed nothing of the dead: the next call says so
                (outcome,) = await soon([group.barrier()])
            assert isinstance(outcome, PeerLostError), (group.rank, outcome)
            assert (outcome.rank, outcome.world_rank) == (2, 2)
            assert "rank 2 of group 'world'" in str(outcome) and "is lost" in str(outcome)
            assert f"pid {outcome.pid}" in str(outcome) and outcome.host
            (again,) = await soon([group.barrier()])
            assert isinstance(again, GroupBrokenError) and isinstance(again.cause, PeerLostError)
            assert isinstance(group.broken, PeerLostError)


@on_every_transport
async def test_a_death_while_nobody_calls_is_raised_by_the_first_call(transport: str) -> None:
    async with ranks(4, transport) as groups:
        await warm(groups)
        inner = await results(groups[rank].subgroup([0, 1]) for rank in (0, 1))
        outer = await results(groups[rank].subgroup([1, 3]) for rank in (1, 3))
        kill(groups[3])
        await until(lambda: all(group.broken for group in groups[:3]))
        for group in groups[:3]:
            (error,) = await soon([group.all_reduce(1.0)])
            assert isinstance(error, PeerLostError) and error.rank == 3
            assert isinstance((await soon([group.recv(0)]))[0], GroupBrokenError)
        assert [float(each) for each in await results(each.all_reduce(2.0) for each in inner)] == [4.0, 4.0]
        assert isinstance(outer[0].broken, PeerLostError) and outer[0].broken.rank == 1
        assert outer[0].broken.world_rank == 3
        await results(each.close() for each in [*inner, *outer])


@on_every_transport
async def test_a_death_in_the_middle_of_a_payload_leaves_outputs_alone(transport: str) -> None:
    """What was pending raises, and no late byte lands in an array of the user afterwards."""
    for turns in range(0, 40, 4):
        async with ranks(3, transport) as groups:
            await warm(groups)
            outs = [np.full(BIG, -1.0) for _ in groups]
            calls = [
                asyncio.ensure_future(group.all_reduce(numbers(BIG, group.rank), out=out))
                for group, out in zip(groups, outs, strict=True)
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            kill(groups[1])
            outcomes = await soon(calls)
            after = [out.copy() for out in outs]
            for rank in (0, 2):
                if isinstance(outcomes[rank], BaseException):
                    assert isinstance(outcomes[rank], (PeerLostError, GroupBrokenError))
                else:
                    assert (outs[rank] == 3 * numbers(BIG) + 3).all()
            for _ in range(50):
                await asyncio.sleep(0)
            for out, copy in zip(outs, after, strict=True):
                assert (out == copy).all()


@on_every_transport
async def test_a_rank_may_leave_while_the_others_go_on(transport: str) -> None:
    async with ranks(3, transport) as groups:
        await warm(groups)
        await groups[2].send(numbers(5), 0, 7)
        inner = await results(groups[rank].subgroup([0, 1]) for rank in (0, 1))
        waiting = asyncio.ensure_future(groups[0].recv(2, 8))
        anybody = asyncio.ensure_future(groups[1].recv())
        await asyncio.sleep(0)
        await groups[2].close()
        (error,) = await soon([waiting])
        assert isinstance(error, PeerLostError) and error.rank == 2 and "it left: it closed its world" in str(error)
        assert (await groups[0].recv(2, 7) == numbers(5)).all()  # what it said before counts
        assert [float(each) for each in await results(each.all_reduce(1.0) for each in inner)] == [2.0, 2.0]
        await groups[0].send(numbers(2), 1)
        assert (await anybody == numbers(2)).all()
        assert groups[0].broken is None and groups[1].broken is None
        for rank in (0, 1):
            assert isinstance((await soon([groups[rank].send(1, 2)]))[0], PeerLostError)
        outcomes = await soon(group.barrier() for group in groups[:2])
        assert all(isinstance(each, PeerLostError) for each in outcomes)
        await results(each.close() for each in inner)


@on_every_transport
async def test_a_rank_that_left_before_anybody_spoke_to_it(transport: str) -> None:
    async with ranks(3, transport) as groups:
        await groups[2].close()
        await results([groups[0].send(1, 1), groups[1].recv()])  # a receive from anyone looks for all of them
        for each in groups[:2]:
            assert each.broken is None
        errors = await soon([groups[0].recv(2), groups[1].send(1, 2), groups[0].recv_object(2)])
        assert all(isinstance(each, PeerLostError) and each.rank == 2 for each in errors), errors
        await results([groups[0].send(1, 1), groups[1].recv()])
        outcomes = await soon(group.all_reduce(1.0) for group in groups[:2])
        assert all(isinstance(each, PeerLostError) for each in outcomes), outcomes


@on_every_transport
async def test_offers_of_a_rank_that_left_are_forgotten(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", "1000")
    monkeypatch.setattr("aiocoll.group.group._LEAVING_SECONDS", 0.1)
    async with ranks(3, transport) as groups:
        await warm(groups)
        sending = asyncio.ensure_future(groups[1].send(numbers(1000), 0))
        await until(lambda: bool(groups[0]._scope.mailbox.kept))
        await groups[1].close()
        assert isinstance((await soon([sending]))[0], GroupBrokenError)
        await until(lambda: 1 in groups[0]._endpoint.failure.absent)
        (error,) = await soon([groups[0].recv(1)])
        assert isinstance(error, PeerLostError)
        later = asyncio.ensure_future(groups[0].recv())
        await groups[2].send(numbers(9), 0)
        assert (await later == numbers(9)).all()


@on_every_transport
@pytest.mark.parametrize("n", [10, BIG])
async def test_cancelling_a_call_breaks_the_group_for_all(transport: str, n: int) -> None:
    async with ranks(4, transport) as groups:
        calls = [asyncio.ensure_future(group.all_reduce(numbers(n))) for group in groups[:3]]
        await until(lambda: any(map(parked, groups[:3])))
        calls[1].cancel()
        outcomes = await soon(calls)
        assert isinstance(outcomes[1], asyncio.CancelledError)
        late = await soon([groups[3].all_reduce(numbers(n))])
        for outcome in (outcomes[0], outcomes[2], *late):
            assert isinstance(outcome, GroupBrokenError) and "rank 1 (" in str(outcome)
            assert "cancelled all_reduce (call 0)" in str(outcome)


@pytest.mark.parametrize("turns", range(0, 30, 2))
async def test_nobody_gets_a_wrong_result_from_a_call_that_was_cancelled(turns: int) -> None:
    """A result is right or there is none, wherever the cancelled rank was: its half-sent data are never made up."""
    async with ranks(3) as groups:
        await warm(groups)
        n = BIG
        arrays = [numbers(n, group.rank) for group in groups]
        calls = [asyncio.ensure_future(group.all_reduce(x)) for group, x in zip(groups, arrays, strict=True)]
        for _ in range(turns):
            await asyncio.sleep(0)
        calls[2].cancel()
        (outcome,) = await soon([calls[2]])
        if isinstance(outcome, asyncio.CancelledError):
            arrays[2][:] = -1  # it is the caller's again
        for each in await soon(calls[:2]):
            if isinstance(each, BaseException):
                assert isinstance(each, GroupBrokenError), each
            else:
                assert (each == 3 * numbers(n) + 3).all()


@on_every_transport
async def test_a_timeout_names_the_missing_and_where_they_are(transport: str) -> None:
    async with ranks(4, transport) as groups:
        await warm(groups)
        stuck = asyncio.ensure_future(groups[3].barrier(timeout=30))
        others = [asyncio.ensure_future(group.barrier(timeout=0.2)) for group in groups[:2]]
        for error in await soon(others):
            assert isinstance(error, CollectiveTimeoutError), error
            text = str(error)
            assert "barrier (call 1)" in text and "missing: rank 2" in text and "its last call: all_to_all" in text
        (error,) = await soon([stuck])
        assert isinstance(error, CollectiveTimeoutError), error
        for each in await soon([*others, stuck]):  # whoever hears of it also hears how long it took
            assert each.missing == (2,) and each.elapsed > 0.1


@pytest.mark.parametrize("size", [3, 40])
async def test_a_timeout_heard_from_a_rank_that_is_missing_keeps_its_class(size: int) -> None:
    async with ranks(size, "inproc") as groups:
        late = [asyncio.ensure_future(group.barrier()) for group in groups[:-1]]
        await asyncio.sleep(0)
        news = {"t": "broken", "class": "CollectiveTimeoutError", "text": "late", "by": 0, "missing": [size - 1]}
        last = groups[-1]
        last._endpoint.failure.heard(0, last._scope.id, 0, {**news, "call": True})
        for error in await soon(late):
            assert isinstance(error, CollectiveTimeoutError) and error.missing == (size - 1,), error
        (error,) = await soon([last.barrier()])
        assert isinstance(error, GroupBrokenError) and isinstance(error.cause, CollectiveTimeoutError), error


async def test_a_late_call_says_in_which_message_the_missing_rank_is_stuck() -> None:
    async with ranks(2, "inproc") as groups:
        stuck = asyncio.ensure_future(groups[1].recv(0, tag=77))
        late = asyncio.ensure_future(groups[0].barrier(timeout=0.1))
        for error in await soon([late]):
            assert "its last call: no call yet; it waits in recv from rank 0 with tag 77" in str(error), error
        await soon([stuck])


@on_every_transport
async def test_a_refused_call_is_refused_for_all_and_breaks_nothing(transport: str) -> None:
    async with ranks(3, transport) as groups:
        bad: Any = np.array([1 + 2j])
        for early in (True, False):
            for refuser in range(3):
                others = [group for group in groups if group.rank != refuser]
                if early:  # the others hear of it before they make the call
                    refusal = asyncio.ensure_future(groups[refuser].all_reduce(bad, op=aiocoll.MAX))
                    await until(lambda others=others: all(group._scope.refused for group in others))
                    pending = [group.all_reduce(1.0, op=aiocoll.MAX) for group in others]
                else:
                    pending = [asyncio.ensure_future(group.all_reduce(1.0, op=aiocoll.MAX)) for group in others]
                    await until(lambda others=others: all(map(parked, others)))
                    refusal = asyncio.ensure_future(groups[refuser].all_reduce(bad, op=aiocoll.MAX))
                first, *rest = await soon([refusal, *pending])
                assert isinstance(first, UsageError)
                assert all(isinstance(each, UsageError) and f"rank {refuser} refused this call" in str(each)
                           for each in rest), rest  # fmt: skip
                assert [float(each) for each in await results(group.all_reduce(2.0) for group in groups)] == [6.0] * 3
        outcomes = await soon(group.all_gather_object(object() if group.rank == 1 else 1) for group in groups)
        assert all(isinstance(each, SerializationError) for each in outcomes)
        assert await results(group.all_gather_object(group.rank) for group in groups) == [[0, 1, 2]] * 3
        assert all(group.broken is None for group in groups)
        inboxes = [group._endpoint.inbox for group in groups]
        assert not any(inbox.arrived or inbox.expected or inbox.offers for inbox in inboxes)


@on_every_transport
async def test_an_op_that_fails_in_the_middle_is_refused_for_all(transport: str) -> None:
    """Also where the data had arrived before the receive was posted, and in many segments."""

    def choke(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        raise ZeroDivisionError("not today")

    async with ranks(3, transport) as groups:
        for n in (3, BIG):
            outcomes = await soon(group.all_reduce(numbers(n), op=aiocoll.op(choke)) for group in groups)
            assert all(isinstance(each, UsageError) and "not today" in str(each) for each in outcomes), outcomes
            assert (await results(group.all_reduce(numbers(n)) for group in groups))[0][-1] == 3 * numbers(n)[-1]


@on_every_transport
@pytest.mark.parametrize("size", [2, 3, 4])
async def test_different_calls_meet(transport: str, size: int) -> None:
    """Wherever the difference lies, every rank raises MismatchError, at once or with its next call."""
    differing = {
        "other roots": lambda g: g.broadcast(numbers(4), root=g.rank % 2),
        "other collectives": lambda g: g.barrier() if g.rank else g.all_reduce(1.0),
        "other ops": lambda g: g.all_reduce(1.0, op=aiocoll.MAX if g.rank == g.size - 1 else aiocoll.SUM),
        "other shapes": lambda g: g.all_reduce(numbers(3 + (g.rank == 1))),
        "other dtypes": lambda g: g.all_reduce(np.arange(4, dtype="f4" if g.rank == 1 else "f8")),
        "roots that only send": lambda g: g.scatter([numbers(2)] * g.size, root=min(g.rank, 1)),
        "roots that only receive": lambda g: g.gather(numbers(2), root=min(g.rank, 1)),
    }
    for what, call in differing.items():
        async with ranks(size, transport, timeout=2.0) as groups:
            outcomes = await soon(map(call, groups))
            for group, outcome in zip(groups, outcomes, strict=True):
                if not isinstance(outcome, BaseException):
                    (outcome,) = await soon([group.barrier()])
                assert isinstance(outcome, MismatchError), (what, group.rank, outcome)
                assert "rank" in str(outcome) and "made" in str(outcome)


@on_every_transport
async def test_a_call_that_waits_for_its_turn_when_the_group_breaks(transport: str) -> None:
    """Made, and awaited only after the break; or computing (giving the loop a turn) while it breaks."""
    async with ranks(2, transport) as (a, b):
        await warm([a, b])
        made = a.all_reduce(numbers(BIG))
        victim = asyncio.ensure_future(b.all_gather(numbers(10)))
        await asyncio.sleep(0)
        victim.cancel()
        await soon([victim])
        await until(lambda: a.broken is not None)
        assert isinstance((await soon([made]))[0], GroupBrokenError)


@on_every_transport
async def test_leaving_with_an_error_tells_the_others(transport: str) -> None:
    async with ranks(3, transport) as groups:
        calls = [asyncio.ensure_future(group.barrier()) for group in groups[1:]]
        await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError):
            async with groups[0]:
                raise ZeroDivisionError("a bug of rank 0")
        for error in await soon(calls):
            assert isinstance(error, GroupBrokenError) and "ZeroDivisionError: a bug of rank 0" in str(error)
