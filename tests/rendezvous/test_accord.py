"""One answer for all: whoever fails, is late or hears too late, every rank of the world goes by the same."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable

import pytest

from aiocoll.errors import RendezvousError
from aiocoll.rendezvous.accord import agree
from aiocoll.store import MemoryStore

Work = Callable[[], Awaitable[str]]
SIZES = {"a": 3, "b": 2}
PARTY = ["a", "a", "a", "b", "b", None]
"""Which party each rank of the world is in."""


async def says(answer: str, turns: int = 0) -> str:
    for _ in range(turns):
        await asyncio.sleep(0)
    return answer


async def never() -> str:
    await asyncio.Event().wait()
    return ""


async def world(works: list[Work], seconds: float = 20.0) -> list[dict[str, str]]:
    """What each rank takes for the answers."""
    async with MemoryStore() as store:
        ranks = (
            agree(store, SIZES, mine=party, work=work if party else None, seconds=seconds)
            for party, work in zip(PARTY, works, strict=True)
        )
        return list(await asyncio.gather(*ranks))


async def test_all_have_done_it() -> None:
    answers = await world([lambda rank=rank: says("", rank) for rank in range(6)])
    assert answers == [{"a": "", "b": ""}] * 6


async def test_one_has_not_and_nobody_waits_for_the_others() -> None:
    answers = await world([never, lambda: says("rank 1: no"), never, *(lambda: says("") for _ in range(3))])
    assert answers == [{"a": "rank 1: no", "b": ""}] * 6


@pytest.mark.parametrize("seed", range(40))
async def test_whoever_is_first_all_hear_the_same(seed: int) -> None:
    dice = random.Random(seed)
    texts = [dice.choice(["", "", f"rank {rank}: não " + "x" * dice.randrange(900)]) for rank in range(6)]
    works = [functools.partial(says, text, dice.randrange(9)) for text in texts]
    first, *others = await world(works)
    assert all(other == first for other in others)
    for party, answer in first.items():
        told = [text for text, own in zip(texts, PARTY, strict=True) if own == party]
        assert (answer == "") == (not any(told)) and any(text.startswith(answer) for text in told)


async def test_one_that_is_late_ends_it_for_all() -> None:
    works: list[Work] = [lambda: says(""), never, lambda: says(""), *(lambda: says("") for _ in range(3))]
    answers = await world(works, seconds=0.0)
    assert answers == [answers[0]] * 6 and answers[0]["b"] == ""
    assert answers[0]["a"] == "not all of its ranks were done in time"


async def test_work_that_ends_after_the_answer_changes_nothing() -> None:
    async with MemoryStore() as store:
        await store.set("a", b"-too late")
        assert await agree(store, {"a": 1}, mine="a", work=lambda: says("", 3), seconds=5.0) == {"a": "too late"}
        assert await agree(store, {"a": 1}, mine="a", work=lambda: says("another", 3), seconds=5.0) == {"a": "too late"}


async def test_a_store_that_is_gone_says_so_and_work_is_stopped() -> None:
    stopped = asyncio.Event()

    async def work() -> str:
        try:
            return await never()
        finally:
            stopped.set()

    store = MemoryStore()
    running = asyncio.ensure_future(agree(store, {"a": 2}, mine="a", work=work, seconds=20.0))
    for _ in range(5):
        await asyncio.sleep(0)
    await store.close()
    with pytest.raises(RendezvousError):
        await running
    assert stopped.is_set()


async def test_what_work_raises_is_raised() -> None:
    async def broken() -> str:
        raise ZeroDivisionError("on purpose")

    async with MemoryStore() as store:
        with pytest.raises(ZeroDivisionError):
            await agree(store, {"a": 1}, mine="a", work=broken, seconds=5.0)
