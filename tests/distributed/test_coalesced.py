"""Several collectives at once, in one call or kept together by a manager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiocoll
import aiocoll.distributed as dist
from aiocoll.errors import MismatchError, UsageError
from aiocoll.sim import run as simulate
from tests.distributed.ranks import ranks

KINDS = [(3, "f8"), (1, "f4"), (0, "i4"), (5, "i2")]


def tensors(rank: int) -> list[Any]:
    return [np.arange(count).astype(dtype) * (rank + 1) + rank for count, dtype in KINDS]


def test_all_reduce_coalesced() -> None:
    def program(rank: int) -> None:
        wanted = [sum(each[1:], start=each[0]) for each in zip(*(tensors(other) for other in range(3)), strict=True)]
        mine = tensors(rank)
        assert dist.all_reduce_coalesced(mine) is None
        for got, want in zip(mine, wanted, strict=True):
            np.testing.assert_array_equal(got, want, strict=True)
        one = np.arange(4.0) + rank
        work = dist.all_reduce_coalesced(one, dist.ReduceOp.MAX, async_op=True)
        assert work is not None and work.wait() and work.result()[0] is one
        assert one.tolist() == [2, 3, 4, 5]
        pair = [np.arange(4.0)[::2] + rank, np.ones((2, 2)).T * rank]
        dist.all_reduce_coalesced(pair, dist.ReduceOp.PREMUL_SUM(2.0))
        assert pair[0].tolist() == [6, 12 + 6] and (pair[1] == 6).all()
        for bad in ([], "x", [one, one], [one[:3], one[1:]]):
            with pytest.raises(UsageError):
                dist.all_reduce_coalesced(bad)

    ranks(3, program)


def test_shapes_that_differ_but_add_up_alike_are_found() -> None:
    def program(rank: int) -> None:
        sizes = (4, 2) if rank == 0 else (2, 2, 2)
        with pytest.raises(MismatchError, match="shape"):
            dist.all_reduce_coalesced([np.ones(count) for count in sizes])

    ranks(2, program)


def test_all_gather_coalesced() -> None:
    def program(rank: int) -> None:
        for async_op in (False, True):
            lists = [[np.zeros_like(each) for each in tensors(other)] for other in range(3)]
            work = dist.all_gather_coalesced(lists, tensors(rank), async_op=async_op)
            if async_op:
                assert work is not None and work.wait()
            else:
                assert work is None
            for other, row in enumerate(lists):
                for got, want in zip(row, tensors(other), strict=True):
                    np.testing.assert_array_equal(got, want, strict=True)
        x = np.arange(2.0)
        for bad in ([[x]], [[x], [x], [x]], [[x.copy()], [x.copy()], []], "abc"):
            with pytest.raises(UsageError):
                dist.all_gather_coalesced(bad, [x])

    ranks(3, program)


@pytest.mark.parametrize("async_ops", [False, True])
def test_coalescing_manager_keeps_the_handles_of_its_group(async_ops: bool) -> None:
    def program(rank: int) -> None:
        pair = dist.new_group([0, 1])
        x, y, z, incoming = np.arange(3.0) + rank, np.ones(2) * rank, np.ones(1), np.zeros(3)
        with dist._coalescing_manager(group=pair, device="cpu", async_ops=async_ops) as manager:
            dist.all_reduce(x, group=pair, async_op=True)
            dist.all_reduce(y, group=pair)
            dist.isend(np.arange(3.0) * (rank + 1), 1 - rank, group=pair)
            dist.irecv(incoming, 1 - rank, group=pair)
            elsewhere = dist.all_reduce(z, async_op=True)
            with pytest.raises(RuntimeError, match="open in this thread"), dist._coalescing_manager():
                pass
        assert y.tolist() == [1, 1] and len(manager.works) == 3 and "3 calls" in repr(manager)
        manager.append(None)
        manager.wait()
        assert x.tolist() == [1, 3, 5] and incoming.tolist() == [0, 2 - rank, 2 * (2 - rank)]
        assert elsewhere not in manager.works and elsewhere.wait() and z.tolist() == [2]
        dist.all_reduce(x, async_op=True).wait()
        assert len(manager.works) == 3

    ranks(2, program)


def test_one_tensor_that_is_refused_refuses_the_whole_list_for_all() -> None:
    """A list is one call, whatever there is in it: so it is refused, and the next call meets its like."""
    functional = dist.functional

    def program(rank: int) -> None:
        right = [np.arange(3.0), np.arange(2), np.ones(1)]
        wrong: list[Any] = [right[0], "no tensor", right[2]]
        mine = wrong if rank == 1 else right
        rows = [[np.zeros(3), np.zeros(2, int), np.zeros(1)] for _ in range(3)]
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_reduce_coalesced(mine),
            lambda: dist.all_reduce_coalesced(right, dist.ReduceOp.SUM if rank else 5),
            lambda: dist.all_gather_coalesced(rows, mine),
            lambda: functional.all_reduce_coalesced(mine, "sum"),
            lambda: functional.all_reduce_coalesced(right, "sum" if rank else "add"),
            lambda: functional.all_gather_single_coalesced(mine),
            lambda: functional.reduce_scatter_single_coalesced([np.ones(3)] * 2, "sum", [0, 0 if rank else 1]),
        ]
        for number, each in enumerate(calls):
            with pytest.raises(UsageError, match="rank [01]|op should be"):
                each()
            total = np.arange(3.0) + rank
            dist.all_reduce(total)
            assert total.tolist() == [3, 6, 9], number
        assert not any(each.any() for row in rows for each in row)

    ranks(3, program)


@pytest.mark.parametrize("what", [None, 5, iter(()), {"a": 1}])
def test_a_list_of_which_nobody_knows_the_length_is_refused_for_all_at_once(what: Any) -> None:
    """The others have made a call for a list of three: they hear of it now, and not at their deadline."""
    functional = dist.functional

    def program(rank: int) -> None:
        right = [np.arange(3.0), np.arange(2), np.ones(1)]
        mine = what if rank == 1 else right
        rows = [[np.zeros(3), np.zeros(2, int), np.zeros(1)] for _ in range(3)]
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_reduce_coalesced(mine),
            lambda: dist.all_gather_coalesced(rows, mine),
            lambda: functional.all_reduce_coalesced(mine, "sum"),
            lambda: functional.all_gather_single_coalesced(mine),
            lambda: functional.reduce_scatter_single_coalesced([np.ones(3)] * 3 if rank != 1 else mine, "sum", [0] * 3),
        ]
        for number, each in enumerate(calls):
            with pytest.raises(UsageError, match="rank 1"):
                each()
            total = np.arange(3.0) + rank
            dist.all_reduce(total)
            assert total.tolist() == [3, 6, 9], number

    ranks(3, program)


@pytest.mark.parametrize("more", [1, 40])
def test_lists_of_other_lengths_or_shapes_are_a_mismatch(more: int) -> None:
    def program(rank: int) -> None:
        mine = [np.arange(3.0) + rank for _ in range(20 + more * (rank == 2))]
        mixed = [np.arange(2.0 + number % 3) + rank for number in range(30)]
        mixed[25] = np.arange(7.0 + rank)  # beyond what is shown
        pair = dist.new_group([0, 1])
        dist.barrier()
        with pytest.raises(MismatchError, match="20 at once: 20 times all_reduce op=SUM"):
            dist.all_reduce_coalesced(mine)
        if rank < 2:
            with pytest.raises(MismatchError, match="30 at once: .*; … [0-9a-f]{16}") as caught:
                dist.all_reduce_coalesced(mixed, group=pair)
            assert len(str(caught.value)) < 2500

    ranks(3, program)


def test_calls_within_calls_at_once() -> None:
    """What dist.* is made of, awaited: kinds of calls may be mixed, and a list may hold lists."""

    async def main(group: aiocoll.Group) -> None:
        x = np.arange(2.0) + group.rank
        last = group.size - 1

        def inner(g: aiocoll.Group) -> list[Any]:
            return [g.reduce(x, "MAX", root=0), g.broadcast(x if g.rank == last else None, last)]

        total, inners, parts = await group.at_once(
            "all_reduce", lambda g: [g.all_reduce(x), g.at_once("reduce", inner), g.all_gather(x)]
        )
        assert total.tolist() == [sum(range(group.size)), sum(range(group.size)) + group.size]
        assert inners[1].tolist() == [last, last + 1]
        assert inners[0].tolist() == [last, last + 1] if group.rank == 0 else inners[0] is None
        assert [part[0] for part in parts] == list(range(group.size))
        assert await group.all_reduce(1) == group.size
        assert group.statistics()["calls"] == {"all_reduce": 2}

    for size in (1, 2, 5):
        simulate(size, main, seed=size)


def test_the_others_of_a_list_in_which_an_op_fails_hear_of_it() -> None:
    def program(rank: int) -> None:
        calls: list[int] = []

        def fn(left: Any, right: Any) -> Any:
            calls.append(len(left))
            if len(left) == 2:
                raise ValueError("not this one")
            return left + right

        for _ in range(2):
            with pytest.raises(UsageError, match="not this one"):
                dist.all_reduce_coalesced([np.ones(3), np.ones(2), np.ones(4)], aiocoll.op(fn))
        x = np.arange(2.0) + rank
        dist.all_reduce(x)
        assert x.tolist() == [3, 6] and 4 not in calls

    ranks(3, program)
