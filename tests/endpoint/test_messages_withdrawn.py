"""Messages whose send or receive ends early: late, cancelled, taken back, bereaved; none is lost or torn."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from aiocoll.errors import CollectiveTimeoutError, GroupBrokenError, PeerLostError
from aiocoll.group import Group
from tests.turns import until

from .ranks import kill, numbers, on_every_transport, quiet, ranks, results, soon

pytestmark = pytest.mark.timeout(90)

BIG = 1 << 20


@on_every_transport
async def test_a_send_that_is_late_names_who_waits_for_whom(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", "1000")
    async with ranks(3, transport) as groups:
        errors = await soon(group.send(numbers(1000), (group.rank + 1) % 3, tag=4, timeout=0.2) for group in groups)
        for rank, error in enumerate(errors):
            assert isinstance(error, CollectiveTimeoutError) and error.missing == ((rank + 1) % 3,)
            next_rank = (rank + 1) % 3
            assert f"rank {rank} waits for rank {next_rank} (send to rank {next_rank} with tag 4)" in str(error)
        text = max(map(str, errors), key=len)
        assert all(f"rank {rank} waits for rank {(rank + 1) % 3}" in text for rank in range(3))
        # The late ones are withdrawn, nothing is broken, and the next message is the next one.
        assert [group.broken for group in groups] == [None] * 3
        sends = [asyncio.ensure_future(group.send(numbers(7, group.rank), (group.rank + 1) % 3, tag=4))
                 for group in groups]  # fmt: skip
        got = await results(group.recv((group.rank - 1) % 3, tag=4) for group in groups)
        assert [each.tolist() for each in got] == [numbers(7, (rank - 1) % 3).tolist() for rank in range(3)]
        await results(sends)
        assert all(map(quiet, groups))


async def test_a_late_send_that_has_begun_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ranks(2) as (a, b):
        await results([a.send(1, 1), b.recv(0)])
        far = b._endpoint.transport.link(0)
        asyncio.get_running_loop().remove_reader(far._socket.fileno())
        x = numbers(4 * BIG)
        with pytest.raises(CollectiveTimeoutError, match="send to rank 1 with tag 0 on rank 0 .* timed out"):
            await a.send(x, 1, timeout=0.1)
        x[:] = -1
        asyncio.get_running_loop().add_reader(far._socket.fileno(), far._receive)
        assert (await b.recv(0) == numbers(4 * BIG)).all()


@on_every_transport
async def test_a_late_receive_is_withdrawn(transport: str) -> None:
    async with ranks(2, transport) as (a, b):
        late = "recv from rank 0 with tag 2 on rank 1 .* timed out"
        with pytest.raises(CollectiveTimeoutError, match=late) as caught:
            await b.recv(0, 2, timeout=0.02)
        assert caught.value.missing == (0,) and b.broken is None
        with pytest.raises(CollectiveTimeoutError, match="recv from any rank with any tag"):
            await b.recv_message(timeout=0)
        await a.send(numbers(4), 1, 2)
        assert (await b.recv(0, 2) == numbers(4)).all()
        assert quiet(a) and quiet(b)


async def _slowly(a: Group, b: Group, x: np.ndarray, out: np.ndarray) -> tuple[asyncio.Future, asyncio.Future]:
    """A message that is half here: its receive, which waits for the rest, and its send."""
    receiving = asyncio.ensure_future(b.recv(0, out=out))
    sending = asyncio.ensure_future(a.send(x, 1))
    mailbox = b._scope.mailbox
    await until(lambda: any(each.message and each.message._position > 0 for each in mailbox.taking) or receiving.done())
    return receiving, sending


@pytest.mark.parametrize("bound", ["1000", ""])
async def test_cancelling_a_receive_in_the_middle(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`out` is untouched, the message goes whole to the next receive, and what was behind it stays behind it."""
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", bound)
    cut = 0
    for turns in range(16):
        async with ranks(2) as (a, b):
            await results([a.send(1, 1), b.recv(0)])
            x, out = numbers(BIG // 2), np.full(BIG // 2, -7.0)
            receiving, sending = await _slowly(a, b, x, out)
            behind = asyncio.ensure_future(a.send(numbers(10, 5), 1))
            for _ in range(turns):
                await asyncio.sleep(0)
            receiving.cancel()
            (outcome,) = await soon([receiving])
            if isinstance(outcome, asyncio.CancelledError):
                cut += 1
                assert (out == -7).all(), turns
                again = np.empty(BIG // 2)
                await b.recv(0, out=again)
                assert (again == numbers(BIG // 2)).all()
            else:
                assert (out == numbers(BIG // 2)).all()
            assert (await b.recv(0) == numbers(10, 5)).all()
            await results([sending, behind])
            assert (out == -7).all() or (out == numbers(BIG // 2)).all()
            assert quiet(a) and quiet(b)
    assert cut > 2


@on_every_transport
@pytest.mark.parametrize("seed", range(6))
async def test_cancelled_receives_never_lose_or_reorder(
    transport: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receives are cancelled at random in the middle of everything: the others get all messages, oldest first.

    (Where a later receive is through already, the message of an earlier one that is cancelled can only come after.)
    """
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", ["", "3000", "200000"][seed % 3])
    rng = random.Random(seed)
    async with ranks(2, transport) as (a, b):
        count, got, waiting = 40, [], []
        sends = [asyncio.ensure_future(a.send(numbers(rng.choice([1, 500, 60_000]), n), 1)) for n in range(count)]
        while len(got) < count:
            if len(waiting) < 4:
                waiting.append(asyncio.ensure_future(b.recv(0)))
            for _ in range(rng.randrange(8)):
                await asyncio.sleep(0)
            if waiting and rng.random() < 0.4:
                victim = rng.choice(waiting) if seed >= 3 else waiting[-1]
                if not victim.done():
                    victim.cancel()
                    await asyncio.wait([victim])
                    if victim.cancelled():
                        waiting.remove(victim)
            while waiting and waiting[0].done():
                got.append(int(waiting.pop(0).result()[0]))
        assert got == list(range(count)) if seed < 3 else sorted(got) == list(range(count))
        for each in waiting:
            each.cancel()
        await soon([*sends, *waiting])
        assert quiet(a) and quiet(b)


async def test_messages_that_are_given_back_keep_their_order() -> None:
    async with ranks(2) as (a, b):
        mine = [b.recv(0) for _ in range(4)]
        tasks = [asyncio.ensure_future(each) for each in mine[:3]]
        for turn in range(4):
            await a.send(numbers(4, turn), 1)
        await until(lambda: not b._scope.mailbox.wanted)
        # All four have their message, and nobody has looked yet.
        for task in (tasks[0], tasks[2], tasks[1]):
            task.cancel()
        mine[3].close()
        await soon(tasks)
        taken = [task for task in tasks if not task.cancelled()]
        left = [int((await b.recv(0))[0]) for _ in range(4 - len(taken))]
        assert left == sorted(left) and sorted([*left, *(int(task.result()[0]) for task in taken)]) == [0, 1, 2, 3]
        assert quiet(b)


@pytest.mark.parametrize("bound", ["1000", ""])
@pytest.mark.parametrize("n", [10, BIG])
async def test_a_cancelled_send_arrives_whole(bound: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", bound)
    async with ranks(2) as (a, b):
        for turns in (0, 1, 2, 5, 10):
            x = numbers(n, turns)
            sending = asyncio.ensure_future(a.send(x, 1))
            for _ in range(turns):
                await asyncio.sleep(0)
            sending.cancel()
            await soon([sending])
            x[:] = -1
            assert (await b.recv(0) == numbers(n, turns)).all(), turns
        assert quiet(a) and quiet(b)


async def _taken_back(a: Group, b: Group) -> tuple[asyncio.Future, asyncio.Future]:
    """A send that waits for its receive and gives up while the grant is on its way, and that receive."""
    await results([a.send(1, 1), b.recv(0)])
    sending = asyncio.ensure_future(a.send(numbers(1000), 1))
    await until(lambda: bool(b._scope.mailbox.kept))
    receiving = asyncio.ensure_future(b.recv(0))
    a._scope.mailbox.stop_sending(next(iter(a._scope.mailbox.sends)), CollectiveTimeoutError("late"))
    return sending, receiving


async def test_an_offer_that_is_taken_back_does_not_stop_its_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grant crosses the sender's withdrawal: the receive goes on waiting, in its old place."""
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", "1000")
    async with ranks(2) as (a, b):
        sending, first = await _taken_back(a, b)
        second = asyncio.ensure_future(b.recv(0))
        assert isinstance((await soon([sending]))[0], CollectiveTimeoutError)
        await until(lambda: len(b._scope.mailbox.wanted) == 2)
        await results([a.send(numbers(3, 1), 1), a.send(numbers(3, 2), 1)])
        assert [int(each[0]) for each in await results([first, second])] == [1, 2]
        assert quiet(a) and quiet(b)


async def test_a_taken_back_offer_whose_receive_was_cancelled_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", "1000")
    async with ranks(2) as (a, b):
        sending, first = await _taken_back(a, b)
        first.cancel()
        await soon([sending, first])
        await a.send(numbers(3, 9), 1)
        assert (await b.recv(0) == numbers(3, 9)).all()
        assert quiet(a) and quiet(b)


async def test_a_dead_sender_ends_a_receive_that_is_half_way() -> None:
    async with ranks(3) as groups:
        a, b, c = groups
        await results([a.send(1, 1), b.recv(0), c.send(1, 1), b.recv(2)])
        out = np.full(4 * BIG, -7.0)
        receiving, sending = await _slowly(a, b, numbers(4 * BIG), out)
        posted = b.recv(0, 8)  # made, and awaited only after the death
        if not receiving.done():
            kill(a)
            got = await soon([receiving, b.recv(2), posted])
            assert isinstance(got[0], PeerLostError) and got[0].rank == 0 and "rank 0" in str(got[0])
            assert all(isinstance(each, (PeerLostError, GroupBrokenError)) for each in got)
            assert (out == -7).all()
            assert isinstance((await soon([c.recv(1)]))[0], (PeerLostError, GroupBrokenError))
        await soon([sending])
