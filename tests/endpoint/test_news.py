"""News and nonsense from other members: early, late or nonsense; nothing piles up, and the loop never hears of it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import pytest

from aiocoll.errors import (
    CollectiveTimeoutError,
    GroupBrokenError,
    PeerLostError,
    UsageError,
)
from aiocoll.wire import frame
from tests.turns import until

from .ranks import on_every_transport, ranks, results, soon, warm

pytestmark = pytest.mark.timeout(90)


@on_every_transport
async def test_news_of_a_group_that_is_not_made_yet(transport: str) -> None:
    async with ranks(3, transport) as groups:
        await warm(groups)
        first = await results(groups[rank].subgroup([0, 1, 2]) for rank in (0, 1))
        calls = [asyncio.ensure_future(each.barrier()) for each in first]
        await asyncio.sleep(0)
        calls[0].cancel()
        await soon(calls)
        await until(lambda: bool(groups[2]._endpoint.failure._early))
        late = await groups[2].subgroup([0, 1, 2])
        (error,) = await soon([late.barrier()])
        assert isinstance(error, GroupBrokenError) and "cancelled barrier" in str(error)

        second = await results(groups[rank].subgroup([0, 1, 2], "again") for rank in (0, 1))
        outcomes = await soon([second[0].all_reduce("nonsense"), second[1].all_reduce(1.0)])
        assert all(isinstance(each, UsageError) for each in outcomes)
        await until(lambda: bool(groups[2]._endpoint.failure._early_refusals))
        third = await groups[2].subgroup([0, 1, 2], "again")
        (error,) = await soon([third.all_reduce(1.0)])
        assert isinstance(error, UsageError) and "rank 0 refused this call" in str(error)
        all_three = [*second, third]
        assert [float(each) for each in await results(each.all_reduce(1.0) for each in all_three)] == [3.0] * 3
        await results(each.close() for each in [*first, late, *all_three])


@on_every_transport
async def test_news_of_groups_that_are_gone_or_never_made_do_not_pile_up(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiocoll.endpoint.failure._TOLD_MAX", 20)
    async with ranks(2, transport) as (a, b):
        await warm([a, b])
        for turn in range(60):
            inner = await a.subgroup([0, 1], f"one-sided {turn}")
            refused = inner.all_reduce("nonsense")
            assert isinstance((await soon([refused]))[0], UsageError)
            await inner.close()
        await a.send(1, 1)
        await b.recv(0)
        failure = b._endpoint.failure
        assert len(failure._early_refusals) <= 20 and len(failure._early) <= 20
        gone = await results([a.subgroup([0, 1]), b.subgroup([0, 1])])
        await gone[1].close()
        assert isinstance((await soon([gone[0].all_reduce("nonsense")]))[0], UsageError)
        await gone[0].close()
        await results([a.send(1, 1), b.recv(0)])
        assert not any(group == gone[0]._scope.id for group, _ in failure._early_refusals)
        # The latest news are still there when they are wanted.
        inner = await a.subgroup([0, 1], "late")
        assert isinstance((await soon([inner.all_reduce("nonsense")]))[0], UsageError)
        await results([a.send(1, 1), b.recv(0)])
        other = await b.subgroup([0, 1], "late")
        assert isinstance((await soon([other.all_reduce(1.0)]))[0], UsageError)
        await results([inner.close(), other.close()])


@on_every_transport
async def test_errors_with_impossible_texts_still_travel(transport: str) -> None:
    async with ranks(2, transport) as (a, b):
        inner = await results([a.subgroup([0, 1]), b.subgroup([0, 1])])
        waiting = asyncio.ensure_future(inner[1].barrier())
        await asyncio.sleep(0)
        with pytest.raises(OSError):
            async with inner[0]:
                raise OSError("\udc80 and very long " + "x" * 3_000_000)
        (error,) = await soon([waiting])
        assert isinstance(error, GroupBrokenError) and "left group" in str(error) and "OSError" in str(error)
        assert len(str(error)) < 20_000
        await inner[1].close()


@pytest.mark.parametrize(
    "news",
    [
        {"t": "broken"}, {"t": "broken", "class": 7, "by": "x"}, {"t": "broken", "class": "PeerLostError", "world": 99},
        {"t": "broken", "class": "PeerLostError", "world": -1}, {"t": "broken", "class": "PeerLostError", "by": []},
        {"t": "broken", "class": "CollectiveTimeoutError", "missing": 5}, {"t": "status", "id": "seven"},
        {"t": "rescinded", "step": []}, {"t": "refused"}, {"t": None}, {}, {"t": "rejected", "step": {}},
        {"t": "status?", "id": None}, {"t": "recovery"}, {"t": "recovery", "k": "join"},
        {"t": "recovery", "k": "came to", "outcome": {"o": "shrunk"}},
        {"t": "recovery", "k": "came to", "outcome": {"o": "late", "missing": [None], "elapsed": 1}},
        {"t": "recovery", "k": "propose", "ballot": ["x"], "outcome": {"o": "agreed", "value": True}},
    ],
)  # fmt: skip
async def test_nonsense_from_a_member_never_raises_into_the_loop(
    news: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken as well as it can be, or ends the connection; both sides go on to say so."""
    monkeypatch.setenv("AIOCOLL_RECOVERY_SECONDS", "0.05")
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    async with ranks(2) as (a, b):
        await warm([a, b])
        b._endpoint.failure.tell(0, a._scope.id, 0, news)
        outcomes = await soon([a.send(1, 1), b.recv(0), a.barrier(), b.barrier()])
        outcomes += await soon([a.agree(), b.agree()])
        assert all(isinstance(each, (PeerLostError, GroupBrokenError, UsageError))
                   for each in outcomes if isinstance(each, BaseException)), outcomes  # fmt: skip
    assert problems == []


@pytest.mark.parametrize(
    "answer",
    [
        {}, {"waits": 7, "begun": 7}, {"waits": [7, [], ["x"], ["x", "y"], ["x", [1]], [None, 1]], "made": 7},
        {"begun": [7, [], ["x", "y"], [[], "x"]], "last": [], "here": "x"},
    ],
)  # fmt: skip
async def test_nonsense_about_where_a_member_is_keeps_nobody_waiting(
    answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", "1000")
    async with ranks(2) as (a, b):
        await warm([a, b])
        monkeypatch.setattr(b._endpoint.failure, "_status", lambda *asked: answer)
        late = await soon([a.send(np.zeros(1000), 1, timeout=0.05), a.barrier(timeout=0.05)])
        assert [type(each) for each in late] == [CollectiveTimeoutError] * 2, late


@pytest.mark.parametrize("seed", range(30))
async def test_random_frames_from_a_member_never_raise_into_the_loop(seed: int) -> None:
    """Frames of every kind with keys near the real ones and any content: at worst the connection ends."""
    rng = random.Random(seed)
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    async with ranks(2, timeout=0.3) as (a, b):
        await warm([a, b])
        link = b._endpoint.link(0)
        posted = [asyncio.ensure_future(a.recv(1)), asyncio.ensure_future(a.recv_object(1))]
        await asyncio.sleep(0)
        for _ in range(40):
            meta = rng.choice([b"", b"A", b"A\x93\xa3<f8\x91\x05\xc2", b"O", b"\x05\x00hello", rng.randbytes(20)])
            payload = rng.choice([None, b"12345678", rng.randbytes(40)])
            link.submit(
                rng.randint(1, frame.KIND_MAX - 1), rng.choice([a._scope.id, 7]), rng.choice([0, 1, 2, 1 << 63]),
                rng.choice([0, 1, 2]), meta, None if payload is None else memoryview(payload),
            )  # fmt: skip
        outcomes = await soon([*posted, a.barrier(), b.barrier()])
        assert all(isinstance(each, BaseException) or each is None or isinstance(each, np.ndarray) for each in outcomes)
        # What the loop did not hear of was raised to somebody who asked.
        assert not any(isinstance(each, (IndexError, KeyError, AttributeError)) for each in outcomes), outcomes
    assert problems == []
