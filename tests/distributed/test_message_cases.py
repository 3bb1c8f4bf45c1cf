"""Messages: to oneself, in batches, from anyone, withdrawn, in rings, without wait()."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import CollectiveTimeoutError, UsageError
from tests.distributed.ranks import ranks

KIB, MIB = 1 << 10, 1 << 20


def message(source: int, target: int, count: int = 3) -> Any:
    return np.arange(count) * 1.0 + 100 * source + 10 * target


# ---------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("backend", ["tcp", "auto"])
def test_batches_in_any_order(backend: str) -> None:
    """batch_isend_irecv and P2POp: everybody to everybody, oneself included, sends and receives in any order."""

    def program(rank: int) -> None:
        everyone = range(dist.get_world_size())
        for seed in range(4):
            buffers = [np.zeros(3) for _ in everyone]
            sends = [dist.P2POp(dist.isend, message(rank, each), each, tag=each) for each in everyone]
            receives = [dist.P2POp(dist.irecv, buffers[each], each, tag=rank) for each in everyone]
            mixed = [*sends, *receives]
            np.random.default_rng([seed, rank]).shuffle(mixed)
            works = dist.batch_isend_irecv(mixed)
            assert len(works) == len(mixed) and all(work.wait() for work in works)
            for op, work in zip(mixed, works, strict=True):
                if op.op is dist.irecv:
                    assert work.source_rank() == op.peer and work.result()[0] is op.tensor
            assert [each.tolist() for each in buffers] == [message(each, rank).tolist() for each in everyone]

    ranks(3, program, backend)


def test_the_order_of_messages_between_two_ranks_is_that_of_the_lists() -> None:
    def program(rank: int) -> None:
        group = dist.new_group([1, 0], sort_ranks=False)
        other = 1 - rank
        buffers = [np.zeros(3) for _ in range(5)]
        ops = [dist.P2POp(dist.irecv, each, group=group, group_peer=rank) for each in buffers]
        ops += [dist.P2POp(dist.isend, message(rank, each), other, group) for each in range(5)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        assert [each.tolist() for each in buffers] == [message(other, each).tolist() for each in range(5)]
        assert ops[0].peer == other and ops[0].group_peer == rank and f"from rank {other}" in repr(ops[0])
        anyone = dist.P2POp(dist.irecv, buffers[0])
        assert "anyone" in repr(anyone)
        works = dist.batch_isend_irecv([anyone, dist.P2POp(dist.isend, message(rank, 7), other)])
        assert all(work.wait() for work in works) and works[0].source_rank() == other
        assert buffers[0].tolist() == message(other, 7).tolist()

    ranks(2, program)


def test_batches_are_judged_before_anything_starts() -> None:
    def program(rank: int) -> None:
        x, group = np.zeros(3), dist.new_group([0, 1])
        good = dist.P2POp(dist.isend, x, 1 - rank)
        late = dist.P2POp(dist.irecv, x, 1 - rank)
        late.tensor = "no tensor"
        wrong: list[tuple[str, Any]] = [
            ("Expected ``op``", lambda: dist.P2POp(dist.send, x, 0)),
            ("expected a tensor", lambda: dist.P2POp(dist.isend, [1.0], 0)),
            ("not member of group", lambda: dist.P2POp(dist.isend, x, 5)),
            ("needs peer", lambda: dist.P2POp(dist.isend, x)),
            ("not both", lambda: dist.P2POp(dist.isend, x, 0, group_peer=0)),
            ("p2p_op_list", lambda: dist.batch_isend_irecv(good)),
            ("p2p_op_list", lambda: dist.batch_isend_irecv([good, None])),
            ("same group", lambda: dist.batch_isend_irecv([good, dist.P2POp(dist.isend, x, 1 - rank, group)])),
            (r"batch_isend_irecv: irecv \(number 1\)", lambda: dist.batch_isend_irecv([good, late])),
        ]
        for words, use in wrong:
            with pytest.raises(ValueError, match=words) as caught:
                use()
            assert isinstance(caught.value, UsageError)
        assert dist.batch_isend_irecv([]) == []
        dist.isend(np.ones(3), 1 - rank)
        dist.recv(x, 1 - rank)
        assert x.tolist() == [1, 1, 1]  # the first that was sent: none of the refused batches was

    ranks(2, program)


# ---------------------------------------------------------------------------------------------- the cases


def test_e1_messages_to_oneself() -> None:
    """isend and irecv to one's own rank work in worlds of one and two, in a batch and before or after one another; the
    blocking forms say that they would wait for themselves."""

    def program(rank: int) -> None:
        for count, first in itertools.product((3, MIB // 8), ("send", "receive")):
            x, y = message(rank, 1, count), np.zeros(count)
            if first == "send":
                works = [dist.isend(x, rank), dist.irecv(y, rank)]
            else:
                works = [dist.irecv(y, rank), dist.isend(x, rank)]
            assert all(work is not None and work.wait() for work in works)
            np.testing.assert_array_equal(x, y)
        for use in (lambda: dist.send(np.ones(2), rank), lambda: dist.recv(np.ones(2), rank)):
            with pytest.raises(ValueError, match="process with same rank"):
                use()

    for size in (1, 2):
        ranks(size, program)


@pytest.mark.parametrize("backend", ["tcp", "auto"])
def test_e3_handles_complete_without_wait(backend: str) -> None:
    """A handle that is only asked is_completed() becomes so, its tensor then holds the result; several are waited for
    in the reverse order."""

    def program(rank: int) -> None:
        x = message(1 - rank, 3, 20_000)
        if rank == 0:
            dist.isend(message(0, 2, 20_000), 1)
            works = [dist.isend(message(0, number, 1000 * number), 1, tag=number) for number in range(6)]
        else:
            work = dist.irecv(x, 0)
            assert work is not None
            asked_until(work)
            np.testing.assert_array_equal(x, message(0, 2, 20_000))
            buffers = [np.zeros(1000 * number) for number in range(6)]
            works = [dist.irecv(each, 0, tag=number) for number, each in enumerate(buffers)]
        for work in reversed(works):
            assert work is not None and work.wait() is True and work.is_completed()
        if rank == 1:
            for number, each in enumerate(buffers):
                np.testing.assert_array_equal(each, message(0, number, 1000 * number))
        y = np.ones(5) * rank
        work = dist.all_reduce(y, async_op=True)
        assert work is not None
        asked_until(work)
        assert y.tolist() == [1] * 5

    ranks(2, program, backend)


def asked_until(work: Any) -> None:
    """Asks again and again; a hang ends in an error."""
    end = time.monotonic() + 20
    while not work.is_completed():
        assert time.monotonic() < end, work


def test_e5_receives_from_anyone_know_their_sender() -> None:
    """Six irecv without a source on rank 0, two sends of each other rank; again in the group [1, 3, 2], whose ranks the
    world numbers otherwise."""

    def program(rank: int) -> None:
        group = dist.new_group([1, 3, 2], sort_ranks=False)
        for where, members, taker in ((None, [0, 1, 2, 3], 0), (group, [1, 3, 2], 3)):
            if rank not in members:
                continue
            others = [each for each in members if each != taker]
            if rank != taker:
                for turn in range(2):
                    dist.send(message(rank, turn), taker, group=where)
                dist.barrier(where)
                continue
            buffers = [np.zeros(3) for _ in range(2 * len(others))]
            works = [dist.irecv(each, group=where) for each in buffers]
            senders = []
            for work, buffer in zip(works, buffers, strict=True):
                assert work is not None and work.wait()
                assert work.source_rank() == buffer[0] // 100 and members[work._source_rank()] == work.source_rank()
                senders.append(work.source_rank())
            assert sorted(senders) == sorted([*others, *others])
            for sender in others:  # each one's messages in their order
                came = [each[0] for each in buffers if each[0] // 100 == sender]
                assert came == [100 * sender, 100 * sender + 10]
            dist.barrier(where)

    ranks(4, program)


@pytest.mark.parametrize("nbytes", [KIB, 64 * KIB, MIB, 4 * MIB])
def test_e6_all_send_first_at_every_size(nbytes: int) -> None:
    """A ring in which all ranks send before they receive, blocking and not: no size changes whether it ends."""

    def program(rank: int) -> None:
        size = dist.get_world_size()
        right, left, count = (rank + 1) % size, (rank - 1) % size, nbytes // 8
        x, y = message(rank, right, count), np.zeros(count)
        dist.send(x, right)
        x[:] = -1  # a send that has returned has what it needs
        dist.recv(y, left)
        np.testing.assert_array_equal(y, message(left, rank, count))
        work = dist.isend(y, right)
        z = np.zeros(count)
        assert work is not None and work.wait()
        other = dist.irecv(z, left)
        assert other is not None and other.wait()
        np.testing.assert_array_equal(z, message((rank - 2) % size, left, count))

    ranks(3, program)


def test_e6_beyond_what_may_lie_unreceived_the_cycle_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit for unreceived bytes (64 MiB, here 64 KiB) a send waits, and its deadline names both ranks."""
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", str(64 * KIB))

    def program(rank: int) -> Any:
        with pytest.raises(CollectiveTimeoutError) as caught:
            dist.send(np.zeros(MIB // 8), 1 - rank)
        dist.barrier(timeout=20)  # it broke nothing, and nobody leaves before the other has waited, too
        return str(caught.value)

    for text in ranks(2, program, timeout=1.0):
        assert "rank 0" in text and "rank 1" in text and "wait" in text, text


@pytest.mark.parametrize("count", [3, 4 * MIB])
def test_e8_a_receive_that_is_withdrawn_leaves_its_message_to_the_next(count: int) -> None:
    """A receive that is cancelled, before or while its message is on its way, is never written to; the next one gets
    the message whole, and its sender ends."""

    def program(rank: int) -> None:
        if rank == 0:
            work = dist.isend(message(0, 1, count), 1, tag=4)
            dist.barrier()
            assert work is not None and work.wait()
            return
        first, second = np.full(count, -1.0), np.zeros(count)
        receive = dist.irecv(first, 0, tag=4)
        assert receive is not None
        withdrawn = receive.cancel()
        kept = first.copy()
        dist.barrier()
        if withdrawn:
            assert receive.is_completed() and not receive.is_success()
            assert isinstance(receive.exception(), CancelledError)
            with pytest.raises(CancelledError):
                receive.wait()
            assert dist.recv(second, 0, tag=4) == 0
            np.testing.assert_array_equal(second, message(0, 1, count))
            assert (first == -1).all() and (kept == -1).all()
        else:  # the message was quicker
            np.testing.assert_array_equal(first, message(0, 1, count))

    ranks(2, program)
