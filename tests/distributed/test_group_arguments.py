"""Groups as arguments: which are made, which are refused, what outsiders get, and roots as ranks of the world."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from tests.distributed.fake_group import Message
from tests.distributed.refusing import Join, refuse, x


@pytest.mark.parametrize("bad", ["WORLD", 7, 0, object(), True])
def test_group_is_no_group(joined: Join, bad: Any) -> None:
    joined()
    words = "group should be an int or one of the values from torch.distributed.group"
    for use in (
        lambda: dist.all_reduce(x(), group=bad),
        lambda: dist.barrier(bad),
        lambda: dist.send(x(), 0, bad),
        lambda: dist.get_rank(bad),
    ):
        refuse(RuntimeError, words, use)


def test_group_may_be_none_or_world(joined: Join) -> None:
    fake = joined()
    dist.barrier(None)
    dist.barrier(dist.group.WORLD)
    dist.barrier(dist.GroupMember.WORLD)
    assert len(fake.calls) == 3 and dist.group.WORLD.rank() == 1 and dist.group.WORLD.size() == 3


def test_roots_are_ranks_of_the_world_in_a_subgroup_too(joined: Join) -> None:
    joined(4, 6)
    handle = dist.new_group([5, 2, 4])
    assert isinstance(handle, dist.ProcessGroup)
    assert (handle.rank(), handle.size()) == (1, 3)
    inner: Any = handle.member().asynchronous
    dist.broadcast(x(), 5, handle)
    dist.broadcast(x(), group_src=0, group=handle)
    dist.reduce(x(), 2, group=handle)
    dist.gather(x(), dst=2, group=handle)
    dist.scatter(x(), src=5, group=handle)
    assert [call[:3] for call in inner.calls] == [
        ("broadcast", 2),
        ("broadcast", 0),
        ("reduce", inner.calls[2][1], 0),
        ("gather", 0),
        ("scatter", 2, None),
    ]
    refuse(RuntimeError, r"rank\(0\) is not member of group.*\(2, 4, 5\)", lambda: dist.broadcast(x(), 0, handle))
    assert [what for what, _ in inner.refusals] == ["broadcast"]
    buffer = x()
    assert dist.recv(buffer, 5, handle) == 5 and buffer[0] == 200
    inner.incoming.append(Message(np.arange(4.0) * 9, 2, 0))
    assert dist.recv(buffer, group=handle) == 5 and buffer[1] == 9
    request = dist.irecv(buffer, 2, handle)
    assert request is not None and request.source_rank() == 2
    assert dist.get_rank(handle) == 1 and dist.get_world_size(handle) == 3 and dist.get_rank() == 4


def test_who_is_not_in_the_group_gets_none_and_keeps_the_tensor(joined: Join) -> None:
    fake = joined(1, 3)
    outsider = dist.new_group([0, 2])
    assert outsider == dist.GroupMember.NON_GROUP_MEMBER
    t = x()
    for use in (
        lambda: dist.broadcast(t, 99, outsider),  # not even the root is looked at
        lambda: dist.all_reduce(t, group=outsider),
        lambda: dist.all_reduce(t, group=outsider, async_op=True),
        lambda: dist.reduce(t, 0, group=outsider),
        lambda: dist.all_gather([], t, outsider),
        lambda: dist.gather(t, dst=0, group=outsider),
        lambda: dist.scatter(t, src=0, group=outsider),
        lambda: dist.barrier(outsider),
        lambda: dist.send(t, 0, outsider),
        lambda: dist.isend(t, 0, outsider),
        lambda: dist.irecv(t, 0, outsider),
        lambda: dist.broadcast_multigpu([t], 0, outsider),
        lambda: dist.all_reduce_multigpu([t], group=outsider),
        lambda: dist.reduce_multigpu([t], 0, group=outsider),
        lambda: dist.all_gather_multigpu([[t]], [t], outsider),
        lambda: dist.all_gather_object([], 1, outsider),
        lambda: dist.broadcast_object_list([1], 0, outsider),
        lambda: dist._clear_group_cache(outsider),
        lambda: dist.destroy_process_group(outsider),
    ):
        assert use() is None
    assert dist.recv(t, 0, outsider) == -1 and dist.get_rank(outsider) == -1 == dist.get_world_size(outsider)
    assert np.array_equal(t, x()) and fake.calls == []


def test_new_group_refusals(joined: Join) -> None:
    joined()
    refuse(RuntimeError, "cannot create empty group", lambda: dist.new_group([]))
    words = r"array of ranks contains invalid rank, all ranks should be in range: \[0, 2\]"
    refuse(RuntimeError, words, lambda: dist.new_group([0, 3]))
    refuse(RuntimeError, words, lambda: dist.new_group([-1, 0]))
    refuse(RuntimeError, "ranks should be unique", lambda: dist.new_group([1, 1]))
    refuse(TypeError, "must be an int", lambda: dist.new_group([0, 1.0]))
    refuse(TypeError, "ranks must be a list", lambda: dist.new_group(1))
    refuse(RuntimeError, "Invalid distributed backend name", lambda: dist.new_group([0], backend="smoke"))


def test_new_group_takes_any_collection_and_both_orders(joined: Join) -> None:
    fake = joined()
    for ranks in ([2, 0, 1], (2, 0, 1), {0, 1, 2}, (rank for rank in (2, 0, 1)), np.array([2, 0, 1]), None):
        dist.new_group(ranks)
    dist.new_group([2, 0, 1], sort_ranks=False, group_desc="odd", timeout=timedelta(seconds=5))
    assert [call[1] for call in fake.calls] == [(0, 1, 2)] * 6 + [(2, 0, 1)]
    assert fake.calls[-1][2] == "odd"


def test_destroying_one_group(joined: Join) -> None:
    joined()
    handle = dist.new_group([0, 1])
    assert isinstance(handle, dist.ProcessGroup)
    inner: Any = handle.member().asynchronous
    dist.destroy_process_group(handle)
    assert inner.closed and dist.is_initialized()
    with pytest.raises(AssertionError, match="destroyed"):
        dist.barrier(handle)


def test_things_for_gpus(joined: Join) -> None:
    joined()
    assert dist._clear_group_cache() is None and dist._clear_group_cache(dist.group.WORLD) is None
    refuse(TypeError, "torch.cuda.Stream", lambda: dist._register_stream(object()))

    class Stream:
        cuda_stream = 0

    assert dist._register_stream(Stream()) is None


def test_barrier_takes_a_timeout(joined: Join) -> None:
    fake = joined()
    dist.barrier(timeout=timedelta(seconds=2), device_ids=[0])
    assert fake.calls == [("barrier", 2.0)]
    refuse(TypeError, "timeout must be", lambda: dist.barrier(timeout="2"))
    refuse(RuntimeError, "must be positive", lambda: dist.barrier(timeout=-2))
