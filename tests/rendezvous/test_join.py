"""The protocol of joining, over a store in memory: who meets, who is refused, what is said and what is left."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aiocoll.errors import RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.rendezvous import Meeting, join
from aiocoll.rendezvous import join as join_function
from aiocoll.rendezvous.roster import Claim, claim_entry, left_entry
from aiocoll.rendezvous.rounds import forget
from aiocoll.store.memory import MemoryStore
from aiocoll.store.users import me

HERE = f"{me()['host']}:{os.getpid()}"
joining = sys.modules["aiocoll.rendezvous.join"]


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore()
    yield store
    await store.close()


@pytest.fixture
def fresh_process() -> Any:
    """Makes this process forget the rounds that it has been in, as another process would not know them."""
    return forget


async def meet(store: MemoryStore, ranks: list[int | None], size: int, **more: Any) -> list[Meeting]:
    more = {"timeout": 20.0} | more
    return list(await asyncio.gather(*(join(store, rank=rank, size=size, **more) for rank in ranks)))


async def outcomes(*calls: Any) -> list[Any]:
    async with asyncio.timeout(20):
        return await asyncio.gather(*calls, return_exceptions=True)


async def leave(meetings: list[Meeting]) -> None:
    await asyncio.gather(*(meeting.leave() for meeting in meetings))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_given_ranks_meet(store: MemoryStore, size: int) -> None:
    order = list(range(size))[::-1]
    calls = [join(store, rank=rank, size=size, timeout=20, info={"port": 1000 + rank}) for rank in order]
    meetings = await asyncio.gather(*calls)
    assert [meeting.rank for meeting in meetings] == order
    assert {meeting.size for meeting in meetings} == {size}
    assert len({meeting.world for meeting in meetings}) == 1
    for meeting in meetings:
        assert [member["port"] for member in meeting.members] == [1000 + rank for rank in range(size)]
        assert meeting.members[0] | {"port": 0} == {
            "host": me()["host"],
            "pid": os.getpid(),
            "boot": me()["boot"],
            "port": 0,
        }
    await leave(meetings)


async def test_ranks_are_given_by_arrival(store: MemoryStore) -> None:
    first = asyncio.ensure_future(join(store, rank=None, size=3, timeout=20))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(join(store, rank=None, size=3, timeout=20))
    await asyncio.sleep(0)
    meetings = [await join(store, rank=0, size=3, timeout=20), await first, await second]
    assert [meeting.rank for meeting in meetings] == [0, 1, 2]
    await leave(meetings)


@pytest.mark.slow
async def test_a_big_world(store: MemoryStore) -> None:
    size = 300
    meetings = await meet(store, [None] * size, size)
    assert sorted(meeting.rank for meeting in meetings) == list(range(size))
    assert all(len(meeting.members) == size for meeting in meetings)
    await leave(meetings)
    assert await store.list() == ["aiocoll/world/current"]


async def test_info_may_be_made_late(store: MemoryStore) -> None:
    async def info() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"port": 7}

    meeting = await join(store, rank=0, size=1, info=info)
    assert meeting.members[0]["port"] == 7
    await meeting.leave()
    with pytest.raises(UsageError, match="info has"):
        await join(store, rank=0, size=1, info={"x": "y" * 5000})


async def test_each_world_has_its_own_keys_and_leaves_none(store: MemoryStore) -> None:
    a = await meet(store, [0, 1], 2, name="a")
    b = await meet(store, [0, 1], 2, name="b")
    await a[0].store.set("key", b"a")
    await b[0].store.set("key", b"b")
    assert await a[1].store.get("key") == b"a"
    assert await b[1].store.get("key") == b"b"
    await leave(a + b)
    assert await store.list() == ["aiocoll/a/current", "aiocoll/b/current"]


async def test_meeting_again_and_again(store: MemoryStore, fresh_process: Any) -> None:
    worlds = set()
    for attempt in range(50):
        if attempt % 2:
            fresh_process()
        meetings = await meet(store, [1, 0, 2], 3)
        worlds.add(meetings[0].world)
        await leave(meetings)
        await leave(meetings)
    assert len(worlds) == 50
    assert await store.list() == ["aiocoll/world/current"]


async def test_meeting_again_while_others_have_not_left(store: MemoryStore) -> None:
    old = await meet(store, [0, 1], 2)
    await old[0].leave()
    again = asyncio.ensure_future(join(store, rank=0, size=2, timeout=20))
    await asyncio.sleep(0)
    await old[1].leave()
    new = [await join(store, rank=1, size=2, timeout=20), await again]
    assert new[0].world != old[0].world
    await leave(new)
    assert await store.list() == ["aiocoll/world/current"]


async def test_twice_at_once_in_one_process(store: MemoryStore) -> None:
    first = await meet(store, [0, 1], 2)
    second = await meet(store, [0, 1], 2)
    assert first[0].world != second[0].world
    await leave(first)
    await second[0].store.set("still", b"here")
    await leave(second)


async def test_a_missing_rank_is_named(store: MemoryStore) -> None:
    results = await outcomes(
        join(store, rank=0, size=4, timeout=0.3, where="tcp://there:1"), join(store, rank=2, size=4, timeout=0.4)
    )
    for error in results:
        assert isinstance(error, RendezvousTimeoutError) and isinstance(error, TimeoutError)
        assert "missing ranks 1, 3" in str(error)
    assert f"arrived rank 0 ({HERE}), rank 2 ({HERE})" in str(results[0])
    assert "tcp://there:1: rank 0" in str(results[0])
    assert f"no longer waiting: rank 0 ({HERE}) gave up after 0.3 s" in str(results[1])
    assert await store.list() == ["aiocoll/world/current"]


async def test_strangers_are_mentioned(store: MemoryStore) -> None:
    async def strangers() -> str:
        return "192.0.2.1:99 (wrong secret)"

    with pytest.raises(RendezvousTimeoutError, match=r"refused meanwhile: 192\.0\.2\.1:99 \(wrong secret\)"):
        await join(store, rank=0, size=2, timeout=0.05, strangers=strangers)


async def test_who_gave_up_can_come_again(store: MemoryStore) -> None:
    patient = asyncio.ensure_future(join(store, rank=1, size=2, timeout=20))
    with pytest.raises(RendezvousTimeoutError):
        await join(store, rank=2, size=3, name="other", timeout=0.05)
    await asyncio.sleep(0)
    third = await outcomes(join(store, rank=0, size=3, name="other", timeout=0.05))
    assert isinstance(third[0], RendezvousTimeoutError)
    meetings = [await join(store, rank=0, size=2, timeout=20), await patient]
    await leave(meetings)


async def test_a_duplicate_rank_fails_all_at_once(store: MemoryStore, fresh_process: Any) -> None:
    results = await outcomes(*(join(store, rank=rank, size=4, timeout=60) for rank in (0, 1, 1)))
    for error in results:
        assert isinstance(error, RendezvousError) and not isinstance(error, TimeoutError)
        assert f"duplicate rank 1: claimed by {HERE} and {HERE}" in str(error)
    # Late ones hear of it, too, although those have gone.
    fresh_process()
    for rank in (2, 3):
        with pytest.raises(RendezvousError, match="duplicate rank 1"):
            await join(store, rank=rank, size=4, timeout=60)
    # A new attempt succeeds, and nothing is left of the old one.
    fresh_process()
    await leave(await meet(store, [0, 1, 2, 3], 4))
    assert await store.list() == ["aiocoll/world/current"]


async def test_another_size_fails_all_at_once(store: MemoryStore) -> None:
    calls = [join(store, rank=0, size=4, timeout=60), join(store, rank=1, size=4, timeout=60)]
    for error in await outcomes(*calls, join(store, rank=2, size=5, timeout=60)):
        assert isinstance(error, RendezvousError) and not isinstance(error, TimeoutError)
        assert "world size 4 versus 5: rank 0" in str(error) and "rank 2" in str(error)
    await leave(await meet(store, [0, 1], 2))  # the same processes may try again


async def test_one_too_many_fails_all_at_once(store: MemoryStore) -> None:
    # Two given ranks and two that take any: three could be a world, whoever is the third decides.
    results = await outcomes(*(join(store, rank=rank, size=3, timeout=60) for rank in (0, 0, None)))
    assert all("duplicate rank 0" in str(error) for error in results)


@pytest.mark.parametrize(
    ("rank", "size", "text"),
    [
        (1, 2, "duplicate rank 1: claimed by"),
        (2, 3, "world size 2 versus 3"),
        (None, 2, "more processes than the world size 2"),
    ],
)
async def test_who_comes_to_a_complete_world_fails_alone(
    store: MemoryStore, fresh_process: Any, rank: int | None, size: int, text: str
) -> None:
    meetings = await meet(store, [0, 1], 2)
    fresh_process()
    with pytest.raises(RendezvousError, match=text) as caught:
        await join(store, rank=rank, size=size, timeout=60)
    assert "goes on without this one" in str(caught.value)
    await meetings[0].store.set("alive", b"yes")
    assert await meetings[1].store.get("alive") == b"yes"
    await leave(meetings)
    assert await store.list() == ["aiocoll/world/current"]


async def test_cancelling_withdraws(store: MemoryStore) -> None:
    cancelled = asyncio.ensure_future(join(store, rank=0, size=2, timeout=60))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert await store.list() == ["aiocoll/world/current"]
    await leave(await meet(store, [0, 1], 2))


def _dead() -> dict[str, Any]:
    """A process of this host that has ended."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return me() | {"pid": child.pid, "started": "12345"}


async def test_the_dead_make_room(store: MemoryStore) -> None:
    await store.set("aiocoll/world/current", b"dead%d:0" % id(store))
    await store.append("aiocoll/world/0/log", claim_entry(Claim(b"old", 1, 2, _dead())))
    meetings = await meet(store, [1, 0], 2)
    await leave(meetings)
    assert await store.list() == ["aiocoll/world/current"]


async def test_a_world_of_the_dead_is_over(store: MemoryStore) -> None:
    await store.set("aiocoll/world/current", b"dead%d:0" % id(store))
    for rank in (0, 1):
        await store.append("aiocoll/world/0/log", claim_entry(Claim(b"old%d" % rank, rank, 2, _dead())))
    await store.append("aiocoll/world/0/log", left_entry(b"old0"))
    await leave(await meet(store, [1, 0], 2))
    assert await store.list() == ["aiocoll/world/current"]


async def test_somebody_decides_for_one_that_died_deciding(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "LOOK_SECONDS", 0.05)
    waiting = asyncio.ensure_future(join(store, rank=0, size=2, timeout=20))
    await asyncio.sleep(0.01)
    # The last one came, and died before it could say that the world is complete.
    await store.set("aiocoll/world/0/info/" + b"last".hex(), b"\x80")
    await store.append("aiocoll/world/0/log", claim_entry(Claim(b"last", 1, 2, _dead())))
    meeting = await waiting
    assert meeting.rank == 0 and meeting.members[1] == {}
    await meeting.leave()


async def test_a_claim_that_was_swept_away_is_made_again(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "LOOK_SECONDS", 0.05)
    waiting = asyncio.ensure_future(join(store, rank=0, size=2, timeout=20))
    await asyncio.sleep(0.01)
    await store.delete("aiocoll/world/0/log")
    await leave([await join(store, rank=1, size=2, timeout=20), await waiting])


async def test_waiting_says_who_is_missing(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(joining, "LOOK_SECONDS", 0.05)
    with caplog.at_level(logging.WARNING, "aiocoll.rendezvous"), pytest.raises(RendezvousTimeoutError):
        await join(store, rank=1, size=3, timeout=0.3)
    assert "missing ranks 0, 2" in caplog.text


async def test_a_store_that_goes_away_is_an_error_that_says_who_had_come(store: MemoryStore) -> None:
    waiting = asyncio.ensure_future(join(store, rank=1, size=2, timeout=60))
    await asyncio.sleep(0.01)
    await store.close()
    with pytest.raises(RendezvousError, match=r"closed.*arrived rank 1.*missing rank 0"):
        await waiting


async def test_a_damaged_log_is_an_error(store: MemoryStore) -> None:
    await store.set("aiocoll/world/0/log", b"\xc1")
    with pytest.raises(RendezvousError, match="damaged"):
        await join(store, rank=0, size=1)
    await store.set("aiocoll/x/current", b"what?")
    with pytest.raises(RendezvousError, match="current round"):
        await join(store, rank=0, size=1, name="x")


async def test_long_names_are_shortened(store: MemoryStore) -> None:
    a, b = "n" * 2000 + "a", "n" * 2000 + "b"
    meetings = [await join_function(store, rank=0, size=1, name=name) for name in (a, b)]
    await leave(meetings)
    assert len(await store.list()) == 2
