"""Point-to-point messages: order, tags, any source, offers, credits; `test_messages_withdrawn` has what ends early."""

from __future__ import annotations

import asyncio
import gc
import random

import numpy as np
import pytest

from aiocoll.errors import CollectiveTimeoutError, GroupBrokenError, MismatchError, NotInitializedError, UsageError
from aiocoll.group import Group
from tests.turns import until

from .ranks import HANG_SECONDS, numbers, on_every_transport, quiet, ranks, results, soon

pytestmark = pytest.mark.timeout(90)
BIG = 1 << 20


@on_every_transport
async def test_messages_of_one_tag_come_in_order_and_tags_do_not_wait_for_one_another(transport: str) -> None:
    async with ranks(2, transport) as (a, b):
        sends = [a.send(numbers(3, 10 * tag + turn), 1, tag) for turn in range(4) for tag in (0, 5, -1)]
        await results(sends)
        for tag in (-1, 5, 0):  # the last tag first
            for turn in range(4):
                assert (await b.recv(0, tag) == numbers(3, 10 * tag + turn)).all()
        assert quiet(a) and quiet(b)


@on_every_transport
async def test_receives_that_were_posted_first_are_served_first(transport: str) -> None:
    async with ranks(2, transport) as (a, b):
        receives = [asyncio.ensure_future(b.recv(0)) for _ in range(10)]
        await asyncio.sleep(0)
        for turn in range(10):
            await a.send(numbers(100 + turn, turn), 1)
        for turn, got in enumerate(await results(receives)):
            assert (got == numbers(100 + turn, turn)).all()


@on_every_transport
@pytest.mark.parametrize("seed", range(5))
async def test_random_traffic_matches(transport: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size, tag, order and a tiny bound: what (source, tag) sent in order is received in order."""
    if seed % 2:
        monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", str([1, 2000, 200_000][seed % 3]))
    rng = random.Random(seed)
    size = 3
    plan = [(rng.randrange(size), rng.randrange(size), rng.randrange(3), rng.choice([0, 1, 100, 5000, 70_000]))
            for _ in range(120)]  # fmt: skip
    async with ranks(size, transport) as groups:
        waiting = []
        for number, (src, dst, tag, n) in enumerate(plan):
            waiting.append(asyncio.ensure_future(groups[src].send(numbers(n, number), dst, tag)))
            if rng.random() < 0.2:
                await asyncio.sleep(0)
        queues: dict[tuple[int, int, int], list[int]] = {}
        for number, (src, dst, tag, _) in enumerate(plan):
            queues.setdefault((src, dst, tag), []).append(number)
        order = [key for key, queue in queues.items() for _ in queue]
        rng.shuffle(order)
        for src, dst, tag in order:
            number = queues[src, dst, tag].pop(0)
            async with asyncio.timeout(20):
                if rng.random() < 0.5:
                    got = await groups[dst].recv(src, tag)
                else:
                    got = np.empty(plan[number][3])
                    await groups[dst].recv(src, tag, out=got)
            assert (got == numbers(plan[number][3], number)).all() and got.size == plan[number][3]
        await results(waiting)
        assert all(map(quiet, groups))


@on_every_transport
async def test_any_source_starves_nobody_and_says_who(transport: str) -> None:
    async with ranks(4, transport) as groups:
        sends = [groups[src].send(np.array([src, turn]), 0, turn) for turn in range(5) for src in (1, 2, 3)]
        await results(sends)
        await until(lambda: len(groups[0]._scope.mailbox.kept) == 15)
        seen = []
        for _ in range(15):
            message = await groups[0].recv_message()
            assert message.data.tolist() == [message.source, message.tag]
            seen.append(message.source)
        assert sorted(seen) == [1] * 5 + [2] * 5 + [3] * 5
        for source in (1, 2, 3):  # in order of arrival, so nobody's come last
            assert source in seen[:12]
        waiting = [asyncio.ensure_future(groups[0].recv(tag=9)) for _ in range(3)]
        await asyncio.sleep(0)
        await results(groups[src].send(src, 0, 9) for src in (3, 1, 2))
        assert sorted(int(each) for each in await results(waiting)) == [1, 2, 3]


@on_every_transport
async def test_sources_in_a_subgroup_are_numbered_as_there(transport: str) -> None:
    async with ranks(4, transport) as groups:
        members = [1, 3, 2]
        inner = await results(groups[world].subgroup(members) for world in members)
        await results([inner[2].send(np.array([2]), 0), inner[1].send(np.array([1]), 0)])
        for _ in range(2):
            message = await inner[0].recv_message()
            assert message.data[0] == message.source
        await results(each.close() for each in inner)


@pytest.mark.parametrize("bound", ["1", "5000", ""])
@pytest.mark.parametrize("n", [0, 1, 1000, BIG])
async def test_to_oneself(bound: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", bound)
    for size in (1, 2):
        async with ranks(size) as groups:
            me = groups[-1]
            sending = asyncio.ensure_future(me.send(numbers(n), me.rank, 3))
            await asyncio.sleep(0)
            assert (await me.recv(me.rank, 3) == numbers(n)).all()
            await sending
            receiving = asyncio.ensure_future(me.recv(me.rank, 3))
            await asyncio.sleep(0)
            await me.send(numbers(n, 1), me.rank, 3)
            assert (await receiving == numbers(n, 1)).all()
            assert quiet(me)


@on_every_transport
async def test_everybody_sends_first(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The textbook trap, at every size: a ring in which all send, then receive."""
    async with ranks(3, transport) as groups:
        for n in (100, 10_000, BIG, 4 * BIG):

            async def turn(group: Group, n: int = n) -> None:
                await group.send(numbers(n, group.rank), (group.rank + 1) % 3)
                left = (group.rank - 1) % 3
                assert (await group.recv(left) == numbers(n, left)).all()

            await results(map(turn, groups))


@on_every_transport
async def test_what_passes_the_bound_waits_at_its_sender(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", "100000")
    async with ranks(2, transport) as (a, b):
        sends = [asyncio.ensure_future(a.send(numbers(1000, turn), 1)) for turn in range(40)]  # 320 kB
        await until(lambda: sum(map(len, b._scope.mailbox.kept.values())) == 40)
        assert 90_000 < b._endpoint.inbox.unreceived_bytes() < 110_000
        done = [send.done() for send in sends]
        assert done == [True] * sum(done) + [False] * (40 - sum(done)) and 10 < sum(done) < 13
        other = asyncio.ensure_future(a.send(numbers(5), 1, tag=1))  # nothing blocks what is behind it
        assert (await b.recv(0, 1) == numbers(5)).all()
        for turn in range(40):
            assert (await b.recv(0) == numbers(1000, turn)).all()
        await results([*sends, other])
        assert quiet(a) and quiet(b)
        assert (await results([a.send(numbers(1000), 1), b.recv(0)]))[1].size == 1000


@pytest.mark.parametrize("transport", ["shm", "inproc"])  # through sockets word of it takes a moment
async def test_what_was_consumed_makes_room_for_more(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the bound goes through, and no send has to wait for its receive."""
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", "30000")
    async with ranks(2, transport) as (a, b), asyncio.timeout(HANG_SECONDS):
        for turn in range(75):
            await a.send(numbers(500, turn), 1)  # what passes the bound would wait here
            assert (await b.recv(0) == numbers(500, turn)).all()
        assert quiet(a) and quiet(b)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
async def test_credits_neither_leak_nor_grow(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any history the sender counts as unreceived what the receiver holds, within what is not yet told."""
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", "30000")
    rng = random.Random(3)
    async with ranks(2, transport) as (a, b):
        for round in range(60):
            sends = [
                asyncio.ensure_future(a.send(numbers(rng.choice([0, 10, 900, 5000])), 1, rng.randrange(2)))
                for _ in range(rng.randrange(12))
            ]
            receives = [asyncio.ensure_future(b.recv(0, rng.randrange(2))) for _ in range(rng.randrange(12))]
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
            for each in rng.sample(receives, len(receives) // 2):
                each.cancel()
            for each in rng.sample(sends, len(sends) // 3):
                each.cancel()
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)
            kept, pending = b._scope.mailbox, [each for each in receives if not each.done()]
            for each in pending:
                each.cancel()
            await asyncio.wait([*receives, asyncio.ensure_future(asyncio.sleep(0))])
            while True:  # the rest, whatever its tag
                try:
                    await b.recv_message(0, timeout=0.01)
                except CollectiveTimeoutError:
                    if all(each.done() for each in sends) and not a._endpoint.inbox.offers and not kept.kept:
                        break
            if transport == "shm":  # it is not told, it looks when it needs to know
                a._endpoint.inbox.credited(1, a._endpoint.near[1].credit())
            counted = a._endpoint.inbox.unreceived[1]
            assert 0 <= counted == b._endpoint.inbox.owed[0] < b._endpoint.inbox.credit_step, round
        assert quiet(a) and quiet(b)


async def test_a_send_that_nobody_awaits_is_sent() -> None:
    async with ranks(2) as (a, b):
        x = numbers(BIG)
        a.send(x, 1).close()
        x[:] = -1
        del x
        gc.collect()
        assert (await b.recv(0) == numbers(BIG)).all()


async def test_the_senders_array_may_change_once_the_send_is_over() -> None:
    async with ranks(2) as (a, b):
        for n in (1000, BIG, 4 * BIG):
            x = numbers(n)
            await a.send(x, 1)
            x[:] = -1
            assert (await b.recv(0) == numbers(n)).all()


@pytest.mark.parametrize("bound", ["1000", ""])
@on_every_transport
async def test_a_message_that_does_not_fit_is_consumed(
    transport: str, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", bound)
    async with ranks(2, transport) as (a, b):
        for posted_first in (True, False):
            for n in (600, 8 * BIG):
                out = np.full(5, -7.0)
                receiving = asyncio.ensure_future(b.recv(0, out=out)) if posted_first else None
                await asyncio.sleep(0)
                sending = asyncio.ensure_future(a.send(numbers(n), 1))
                if receiving is None:
                    await until(lambda: bool(b._scope.mailbox.kept))
                    receiving = asyncio.ensure_future(b.recv(0, out=out))
                sent, received = await soon([sending, receiving])
                assert isinstance(received, MismatchError) and "the message is consumed" in str(received)
                assert (out == -7).all()
                # "…and at the sender if its send is not over"
                assert sent is None or (isinstance(sent, MismatchError) and "does not fit out" in str(sent))
                if bound:
                    assert isinstance(sent, MismatchError)
                await a.send(numbers(5, n), 1, timeout=20)
                await b.recv(0, out=out)
                assert (out == numbers(5, n)).all() and a.broken is b.broken is None
        assert quiet(a) and quiet(b)


@on_every_transport
async def test_objects_and_arrays_are_matched_apart(transport: str) -> None:
    async with ranks(2, transport) as (a, b):
        await a.send_object({"n": 1}, 1)
        await a.send(numbers(2), 1)
        assert (await b.recv(0) == numbers(2)).all()
        assert await b.recv_object(0) == {"n": 1}


@on_every_transport
async def test_messages_for_a_group_that_is_not_made_yet(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", "10000")
    async with ranks(2, transport) as (a, b):
        inner = await a.subgroup([0, 1])
        sends = [asyncio.ensure_future(inner.send(numbers(500, turn), 1)) for turn in range(4)]
        reduce = asyncio.ensure_future(inner.all_reduce(numbers(50)))
        await until(lambda: bool(b._endpoint.inbox._early))
        other = await b.subgroup([0, 1])
        for turn in range(4):
            assert (await other.recv(0) == numbers(500, turn)).all()
        assert (await other.all_reduce(numbers(50)) == 2 * numbers(50)).all()
        await results([*sends, reduce])
        await results([inner.close(), other.close()])
        assert quiet(a) and quiet(b)


async def test_closing_ends_receives_and_lets_sends_leave() -> None:
    async with ranks(2) as (a, b):
        inner, other = await results([a.subgroup([0, 1]), b.subgroup([0, 1])])
        pending = asyncio.ensure_future(other.recv())  # from anyone, it may be itself
        await asyncio.sleep(0)
        x = numbers(BIG)
        inner.send(x, 1, tag=1).close()
        await inner.close()
        x[:] = 0
        assert (await other.recv(0, 1) == numbers(BIG)).all()
        await other.close()
        (error,) = await soon([pending])
        assert isinstance(error, GroupBrokenError) and "was closed on this rank (1)" in str(error)
        with pytest.raises(NotInitializedError):
            await other.recv(0)
        with pytest.raises(NotInitializedError):
            await inner.send(x, 1)


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["1000", ""])
async def test_many_posted_receives_and_sends_stay_quick(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand of each: nothing here may be quadratic, and offers are no offence, however many."""
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", bound)
    async with ranks(2) as (a, b):
        count = 10_000
        receives = [b.recv(0, tag) for tag in range(0 if bound else count)]
        tasks = [asyncio.ensure_future(a.send(np.int64(tag), 1, tag)) for tag in reversed(range(count))]
        async with asyncio.timeout(60):
            if bound:
                await until(lambda: len(b._scope.mailbox.kept) == count)
                receives = [b.recv(0, tag) for tag in range(count)]
            await asyncio.gather(*tasks)
            for tag, receive in enumerate(receives):
                assert await receive == tag
        assert quiet(a) and quiet(b)


async def test_a_dtype_that_takes_too_long_to_describe_is_refused() -> None:
    async with ranks(2) as (a, b):
        big = np.zeros(3, dtype=[(f"a field with a long name {number}", "f4") for number in range(1500)])
        with pytest.raises(UsageError, match="1500 fields takes .* bytes to describe"):
            await a.send(big, 1)
        for call in (lambda g: g.gather(big), lambda g: g.all_gather(big), lambda g: g.broadcast(big)):
            assert all(isinstance(each, UsageError) for each in await soon(map(call, (a, b))))
        small = np.zeros(3, dtype=[(f"f{number}", "f4") for number in range(500)])
        assert (await results([a.send(small, 1), b.recv(0)]))[1].dtype == small.dtype
