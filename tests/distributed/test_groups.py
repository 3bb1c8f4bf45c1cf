"""Groups within the world: who is in them, whose rank is whose, and what they cost."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import psutil
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import CollectiveTimeoutError, UsageError
from tests.distributed.fake_group import FakeGroup
from tests.distributed.ranks import data, ranks, summed, total

OUTSIDE = dist.GroupMember.NON_GROUP_MEMBER


# ------------------------------------------------------------------------------------------------ making them


def test_subgroups_of_equal_size_and_by_enumeration() -> None:
    def program(rank: int) -> list[Any]:
        mine, all_of_them = dist.new_subgroups(2)
        assert [isinstance(each, dist.ProcessGroup) for each in all_of_them] == [rank < 2, rank >= 2]
        assert mine is all_of_them[rank // 2]
        assert summed(mine) == total([0, 1] if rank < 2 else [2, 3])
        here, _ = dist.new_subgroups()  # all are on this host
        assert here is not None and here.size() == 4
        picked, three = dist.new_subgroups_by_enumeration([[3, 1], [0]], group_desc="picked")
        assert len(three) == 2 and (picked is None) == (rank == 2)
        if picked is not None:
            assert picked.name() == picked.group_name == picked.group_desc == "picked"
            assert summed(picked) == total([1, 3] if rank in (1, 3) else [0])
        inner, _ = dist.new_subgroups(1, group=mine)
        assert inner is not None and inner.size() == 1
        return [dist.get_pg_count()]

    assert ranks(4, program) == [[1 + 2 + 1 + 2 + 2]] * 4


def test_bad_subgroups(joined: Callable[..., FakeGroup]) -> None:
    fake = joined(rank=1, size=4)
    for call, words in (
        (lambda: dist.new_subgroups(3), "must be divisible by 'group_size=3'"),
        (lambda: dist.new_subgroups(5), "must not exceed the world size"),
        (lambda: dist.new_subgroups(0), "must be positive"),
        (lambda: dist.new_subgroups_by_enumeration([]), "cannot be empty"),
        (lambda: dist.new_subgroups_by_enumeration([[0, 1], [1, 2]]), "Rank 1 has appeared in both"),
        (lambda: dist.split_group(split_ranks=None), "split_ranks must be a list of lists"),
        (lambda: dist.split_group(split_ranks=[[0], []]), "cannot create empty group"),
        (lambda: dist.split_group(split_ranks=[[0, 4]]), "invalid rank"),
        (lambda: dist.split_group(OUTSIDE, [[0]]), "not registered"),
        (lambda: dist.split_group(split_ranks=[[0]], backend="shm"), "Backend mismatch"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            call()
        assert isinstance(caught.value, UsageError) and isinstance(caught.value, RuntimeError)
    assert fake.calls == [] and dist.get_pg_count() == 1


def test_split_group_counts_ranks_of_the_parent() -> None:
    def program(rank: int) -> Any:
        parent = dist.new_group([3, 2, 0])
        if rank == 1:
            return None
        part = dist.split_group(parent, [[2, 0], [1]], group_desc="part", timeout=timedelta(seconds=3))
        assert part is not None and part.member().timeout == 3
        none = dist.split_group(parent, [[1]])
        assert (none is None) == (rank != 2)
        return dist.get_process_group_ranks(part), summed(part)

    got = ranks(4, program)
    assert got == [([0, 3], total([0, 3])), None, ([2], total([2])), ([0, 3], total([0, 3]))]


def test_members_only_need_to_call() -> None:
    def program(rank: int) -> Any:
        for _ in range(rank):  # ranks make different numbers of groups
            dist.new_group([rank], use_local_synchronization=True)
        pair = dist.new_group([1, 2], use_local_synchronization=True) if rank in (1, 2) else None
        return None if pair is None else summed(pair)

    assert ranks(3, program) == [None, total([1, 2]), total([1, 2])]


def test_the_order_of_ranks_is_kept_on_demand() -> None:
    def program(rank: int) -> Any:
        kept = dist.new_group([2, 0, 1], sort_ranks=False)
        sorted_ones = dist.new_group([2, 0, 1])
        with pytest.raises(ValueError, match="no order to keep"):
            dist.new_group({0, 1}, sort_ranks=False)
        return dist.get_rank(kept), dist.get_rank(sorted_ones), dist.get_process_group_ranks(kept)

    assert ranks(3, program) == [(1, 0, [2, 0, 1]), (2, 1, [2, 0, 1]), (0, 2, [2, 0, 1])]


def test_timeouts_of_groups() -> None:
    def program(rank: int) -> Any:
        dist.set_timeout(timedelta(seconds=9))
        assert dist.group.WORLD.member().timeout == 9
        pair = dist.new_group([0, 1], timeout=30)
        pair.set_timeout(0.2)
        dist.set_timeout(1, OUTSIDE)  # nothing to set
        for bad in (None, "1"):
            with pytest.raises(TypeError):
                dist.set_timeout(bad)
        missing: tuple[int, ...] = ()
        if rank == 0:
            with pytest.raises(CollectiveTimeoutError) as caught:
                dist.barrier(pair)
            missing = caught.value.missing
        else:
            dist.set_timeout(math.inf)
        dist.barrier()
        return missing

    assert ranks(2, program) == [(1,), ()]


# ------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize("sort", [True, False])
def test_g1_one_rule_for_every_root(sort: bool) -> None:
    """Whose rank is a root's: one rule for every call, helpers both ways, also where rank 0 is not a member."""

    def program(rank: int) -> None:
        for members in ([2, 0, 3], [3, 1]):
            group = dist.new_group(members, sort_ranks=sort)
            order = sorted(members) if sort else members
            if rank not in members:
                assert group == OUTSIDE and dist.get_rank(group) == -1
                continue
            assert dist.get_process_group_ranks(group) == order
            for number, world_rank in enumerate(order):
                assert dist.get_global_rank(group, number) == world_rank
                assert dist.get_group_rank(group, world_rank) == number
                for root in ({"src": world_rank}, {"group_src": number}):
                    x = data(rank)
                    dist.broadcast(x, group=group, **root)
                    assert x.tolist() == data(world_rank).tolist()
                    objects = [f"of {rank}"]
                    dist.broadcast_object_list(objects, group=group, **root)
                    assert objects == [f"of {world_rank}"]
                for root in ({"dst": world_rank}, {"group_dst": number}):
                    x = data(rank)
                    dist.reduce(x, group=group, **root)
                    assert x.tolist() == (total(members) if rank == world_rank else data(rank).tolist())
                    parts = [np.zeros(5) for _ in members] if rank == world_rank else None
                    dist.gather(data(rank), parts, group=group, **root)
                    assert parts is None or [part.tolist() for part in parts] == [data(m).tolist() for m in order]
            right = order[(order.index(rank) + 1) % len(order)]
            left = order[order.index(rank) - 1]
            request = dist.isend(data(rank), right, group)
            got = np.zeros(5)
            assert dist.recv(got, group=group, group_src=order.index(left)) == left
            assert got.tolist() == data(left).tolist() and request is not None and request.wait()

    ranks(4, program)


def test_g1_wrong_roots_name_both_numberings(joined: Callable[..., FakeGroup]) -> None:
    """Whose rank is a root's: one that is none says what the group's ranks are."""
    joined(rank=2, size=4)
    group = dist.new_group([3, 2, 0])
    for call, words in (
        (lambda: dist.broadcast(np.zeros(2), 1, group), r"rank\(1\) is not member.*\(0, 2, 3\)"),
        (lambda: dist.broadcast(np.zeros(2), group=group, group_src=3), r"should be in range: \[0, 2\]"),
        (lambda: dist.get_group_rank(group, 1), r"Global rank 1 is not part of group.*\(0, 2, 3\)"),
        (lambda: dist.get_global_rank(group, 3), "Group rank 3 is not part of group.*3 ranks"),
        (lambda: dist.get_global_rank(OUTSIDE, 0), "not a member"),
        (lambda: dist.get_process_group_ranks(OUTSIDE), "not a member"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert [dist.get_global_rank(group, each) for each in range(3)] == [0, 2, 3]
    assert dist.get_group_rank(dist.group.WORLD, 3) == 3 == dist.get_global_rank(None, 3)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([0, 0], "unique"), ([0, 4], "invalid rank"), ([-1], "invalid rank"), ([], "empty group"), ("01", "a list of"),
        ([1.5], "must be an int"), ([True], "must be an int"), (3, "a list of ranks"),
    ],
)  # fmt: skip
def test_g5_bad_member_lists(joined: Callable[..., FakeGroup], members: Any, words: str) -> None:
    """Bad lists of members are refused where they are given."""
    fake = joined(rank=1, size=4)
    with pytest.raises(UsageError, match=words):
        dist.new_group(members)
    assert fake.calls == []


def test_g5_all_kinds_of_lists_and_what_outsiders_get() -> None:
    """Lists of members: sets, generators and NumPy's integers are lists, too; outsiders get a value that says so."""

    def program(rank: int) -> None:
        for members in ({2, 1}, (each for each in (1, 2)), np.array([2, 1]), [np.int64(1), np.uint8(2)], range(1, 3)):
            group = dist.new_group(members)
            x = data(rank)
            assert dist.all_reduce(x, group=group) is None
            assert x.tolist() == (data(0).tolist() if rank == 0 else total([1, 2]))
            assert (group == OUTSIDE) == (rank == 0) and dist.get_world_size(group) == (-1 if rank == 0 else 2)

    ranks(3, program)


def test_g5_different_lists_are_told_in_the_first_call() -> None:
    """Ranks that pass different lists made different groups: the first call says who has not come."""

    def program(rank: int) -> Any:
        group = dist.new_group([0, 1] if rank == 0 else [0, 1, 2], timeout=1)
        with pytest.raises(CollectiveTimeoutError) as caught:
            dist.barrier(group)
        dist.barrier()
        return caught.value.missing

    first, second, third = ranks(3, program)
    assert first == (1,) and 0 in second and 0 in third


def test_g3_many_small_groups_use_the_connections_there_are() -> None:
    """Many ranks make many small groups in a burst: no connection is made for them."""

    def program(rank: int) -> int:
        dist.barrier()
        for first in range(8):
            for second in range(first + 1, 8):
                pair = dist.new_group([first, second])
                if rank in (first, second):
                    assert summed(pair) == total([first, second])
        dist.barrier()
        before = psutil.Process().num_fds()
        dist.barrier()
        for first in range(8):
            alone = dist.new_group([first])
            pair = dist.new_group([first, (first + 1) % 8])
            if isinstance(pair, dist.ProcessGroup):
                dist.barrier(pair)
            if isinstance(alone, dist.ProcessGroup):
                dist.barrier(alone)
        dist.barrier()
        return psutil.Process().num_fds() - before

    assert max(ranks(8, program)) <= 8  # the ranks are threads, and each lists the process's descriptors


def test_g6_groups_that_come_and_go_leave_nothing() -> None:
    """Groups are made, used and destroyed again and again: memory, descriptors and handles stay as they are."""

    def program(rank: int) -> tuple[int, int, int]:
        def turns(count: int) -> None:
            for _ in range(count):
                group = dist.new_group()
                dist.all_reduce(np.ones(1) * rank, group=group)
                dist.destroy_process_group(group)

        turns(60)
        dist.barrier()
        before = psutil.Process().memory_info().rss, psutil.Process().num_fds()
        dist.barrier()
        turns(240)
        dist.barrier()
        scopes = len(dist.group.WORLD.member().asynchronous._endpoint.scopes)
        after = psutil.Process().memory_info().rss, psutil.Process().num_fds()
        return after[0] - before[0], after[1] - before[1], scopes

    for grown, opened, scopes in ranks(2, program):
        assert grown < 4 << 20 and opened <= 2 and scopes <= 2


def test_the_rank_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(RuntimeError, match="LOCAL_RANK is not in the environment"):
        dist.get_node_local_rank()
    assert dist.get_node_local_rank(7) == 7 == dist.get_node_local_rank(fallback_rank=7)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert dist.get_node_local_rank() == 3 == dist.get_node_local_rank(7)
    monkeypatch.setenv("LOCAL_RANK", "three")
    with pytest.raises(RuntimeError, match="'three'"):
        dist.get_node_local_rank()
    assert not dist.is_torchelastic_launched() and "TORCHELASTIC_RUN_ID" not in os.environ
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    assert dist.is_torchelastic_launched()
    assert not (dist.is_ucc_available() or dist.is_xccl_available())
