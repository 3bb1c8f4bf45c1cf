"""How a group of the documented API goes on without some of its ranks, is given up, and is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import GroupBrokenError, NotInitializedError, UsageError
from tests.distributed.fake_group import FakeGroup
from tests.distributed.ranks import data, ranks, summed, total

OUTSIDE = dist.GroupMember.NON_GROUP_MEMBER


def test_the_world_shrinks_and_is_counted_anew() -> None:
    through = threading.Event()

    def program(rank: int) -> Any:
        other = dist.new_group([0, 1, 3])
        dist.all_reduce(data(rank))
        if rank != 1:
            assert through.wait(30)
        else:
            through.set()
            with pytest.raises(GroupBrokenError):
                dist.all_reduce(data(rank))  # the others have gone on
            return None
        smaller = dist.shrink_group([1])
        assert smaller is dist.group.WORLD and dist.get_world_size() == 3 and dist.get_pg_count() == 1
        if isinstance(other, dist.ProcessGroup):
            with pytest.raises(NotInitializedError):
                other.size()
        me = dist.get_rank()
        assert dist.get_process_group_ranks() == [0, 1, 2]
        for root in range(3):
            x = data(me)
            dist.broadcast(x, root)
            assert x.tolist() == data(root).tolist()
        pair = dist.new_group([2, 1])
        if me:
            assert dist.get_process_group_ranks(pair) == [1, 2]
            request = dist.isend(data(me), 3 - me, pair)
            got = np.zeros(5)
            assert dist.recv(got, None, pair) == 3 - me and got.tolist() == data(3 - me).tolist()
            assert request is not None and request.wait()
        again = dist.shrink_group([0]) if me else None
        return me, None if again is None else (dist.get_rank(), summed(None))

    got = ranks(4, program)
    assert got == [(0, None), None, (1, (0, total([0, 1]))), (2, (1, total([0, 1])))]


def test_a_group_shrinks_and_the_world_stays() -> None:
    def program(rank: int) -> Any:
        group = dist.new_group([1, 2, 3])
        smaller = None
        if rank in (1, 3):
            smaller = dist.shrink_group([1], group, dist.SHRINK_ABORT)
            assert dist.get_process_group_ranks(smaller) == [1, 3] and summed(smaller) == total([1, 3])
            with pytest.raises(NotInitializedError):
                dist.barrier(group)
        dist.barrier()
        return dist.get_world_size(), None if smaller is None else smaller.rank()

    assert ranks(4, program) == [(4, None), (4, 0), (4, None), (4, 1)]


def test_bad_shrinking(joined: Callable[..., FakeGroup]) -> None:
    joined(rank=1, size=4)
    for given, kind, words in (
        ((0,), TypeError, "must be a list"), ([], ValueError, "cannot be empty"), ([4], ValueError, "out of bounds"),
        ([2, 2], ValueError, "Duplicate rank 2"), ([0, 1, 2, 3], ValueError, "Cannot exclude all 4"),
        ([1], RuntimeError, "only those who stay"), (["0"], TypeError, "must be an int"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words) as caught:
            dist.shrink_group(given)
        assert isinstance(caught.value, UsageError)
    with pytest.raises(ValueError, match="shrink_flags"):
        dist.shrink_group([0], shrink_flags=dist.SHRINK_DEFAULT + 7)
    with pytest.raises(ValueError, match="not registered"):
        dist.shrink_group([0], OUTSIDE)


def test_abort_ends_what_is_pending_and_waits_for_nobody() -> None:
    stuck = threading.Event()

    def program(rank: int) -> Any:
        group = dist.new_group([0, 1, 2])
        if rank == 2:  # never comes
            assert stuck.wait(30)
            with pytest.raises(GroupBrokenError, match="aborted"):
                dist.barrier(group)
            return None
        request = dist.all_reduce(data(rank), group=group, async_op=True)
        assert isinstance(group, dist.ProcessGroup) and request is not None
        if rank == 0:
            group.abort()
            group.abort()
        with pytest.raises(GroupBrokenError, match="rank 0 .*aborted"):
            request.wait()
        smaller = dist.shrink_group([2], group)
        result = summed(smaller)
        if rank == 0:
            stuck.set()
        return result

    assert ranks(3, program) == [total([0, 1]), total([0, 1]), None]


def test_abort_from_another_thread_while_the_program_blocks() -> None:
    waits = threading.Event()

    def program(rank: int) -> None:
        member = dist.group.WORLD.member()
        if rank == 1:
            assert waits.wait(30)
            with pytest.raises(GroupBrokenError, match="rank 0 .*aborted"):
                dist.barrier()
            return
        helper = threading.Thread(target=lambda: (waits.set(), member.abort("no use")))
        request = dist.irecv(np.zeros(3), 1)  # never sent
        helper.start()
        with pytest.raises(GroupBrokenError, match="no use"):
            dist.recv(np.zeros(3), 1)
        with pytest.raises(GroupBrokenError, match="no use"):
            assert request is not None
            request.wait()
        helper.join(30)

    ranks(2, program)  # and leaves a world that is broken


def test_shutdown_closes_one_group() -> None:
    def program(rank: int) -> None:
        group = dist.new_group()
        assert isinstance(group, dist.ProcessGroup)
        dist.barrier(group)
        dist.barrier()
        group.shutdown()
        with pytest.raises(NotInitializedError):
            dist.barrier(group)
        dist.destroy_process_group(group)
        dist.barrier()

    ranks(2, program)
