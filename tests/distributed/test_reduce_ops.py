"""The reductions of today's API: AVG, the bit operations, PREMUL_SUM."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest

import aiocoll
import aiocoll.distributed as dist
from aiocoll import ops
from aiocoll.errors import GroupBrokenError, MismatchError, UsageError
from tests.distributed.ranks import ranks

OP = dist.ReduceOp


def test_premul_sum() -> None:
    """ReduceOp.PREMUL_SUM(factor) and _make_nccl_premul_sum(factor) in every reduction; factors may differ per rank."""

    def program(rank: int) -> None:
        size = dist.get_world_size()
        op: Any = (OP.PREMUL_SUM, dist._make_nccl_premul_sum)[rank % 2](np.float64(0.5) if rank else 0.25)
        factors = [0.25 if each == 0 else 0.5 for each in range(size)]
        given = [np.arange(6.0).reshape(2, 3) + each for each in range(size)]
        wanted = sum(factor * each for factor, each in zip(factors, given, strict=True))
        x = given[rank].copy()
        dist.all_reduce(x, op)
        np.testing.assert_array_equal(x, wanted)
        x = given[rank].copy()
        dist.reduce(x, 1, op)
        np.testing.assert_array_equal(x, wanted if rank == 1 else given[rank])
        tiled = np.concatenate([given[rank]] * size)
        y = np.zeros((2, 3))
        dist.reduce_scatter_single(y, tiled, op)
        np.testing.assert_array_equal(y, wanted)
        dist.reduce_scatter(y, [given[rank]] * size, op, async_op=True).wait()
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_array_equal(tiled, np.concatenate([given[rank]] * size))
        local = [given[rank].copy(), given[rank] * 2]
        dist.all_reduce_multigpu(local, op)
        np.testing.assert_array_equal(local[1], wanted * 3)
        whole = np.arange(3) + rank
        dist.all_reduce(whole, OP.PREMUL_SUM(np.array([2])))
        assert whole.tolist() == [6, 12, 18]
        half = np.full(4, 0.1, "f2")
        dist.all_reduce(half, OP.PREMUL_SUM(1))
        np.testing.assert_array_equal(half, np.float16(np.float32(np.float16(0.1)) * 3), strict=False)

    ranks(3, program)


def test_premul_sum_refusals() -> None:
    def program(rank: int) -> None:
        wrong: list[tuple[str, Callable[[], Any]]] = [
            ("not work on dtype int64", lambda: dist.all_reduce(np.arange(3), OP.PREMUL_SUM(0.5))),
            ("not work on dtype float64", lambda: dist.all_reduce(np.arange(3.0), OP.PREMUL_SUM(1j))),
            ("not work on dtype uint8", lambda: dist.all_reduce(np.ones(3, "u1"), OP.PREMUL_SUM(300))),
            ("needs its factor", lambda: dist.all_reduce(np.arange(3.0), OP.PREMUL_SUM)),
        ]
        for words, use in wrong:
            with pytest.raises(RuntimeError, match=words) as caught:
                use()
            assert isinstance(caught.value, UsageError)
        for factor in ("x", None, [1, 2], np.arange(2)):
            with pytest.raises(TypeError, match="a number or a tensor of one element"):
                OP.PREMUL_SUM(factor)
        with pytest.raises(TypeError, match="takes no factor"):
            OP.SUM(2)
        with pytest.raises(MismatchError, match="PREMUL_SUM"):
            dist.all_reduce(np.arange(3.0), OP.SUM if rank else OP.PREMUL_SUM(2.0))

    ranks(2, program)


def test_b5_avg_everywhere_and_of_whole_numbers() -> None:
    """AVG in every reduction over floats, half floats, integers and bool, in a subgroup by its own size."""

    def program(rank: int) -> None:
        for dtype, wanted in (("f8", 7 / 3), ("f2", np.float16(7 / 3)), ("i8", 2), ("?", True)):
            values = [np.full(3, value).astype(dtype) for value in (1, 2, 4)]
            x = values[rank].copy()
            dist.all_reduce(x, OP.AVG)
            np.testing.assert_array_equal(x, np.full(3, wanted, dtype), strict=True)
            x = values[rank].copy()
            dist.reduce(x, 2, OP.AVG)
            np.testing.assert_array_equal(x, np.full(3, wanted, dtype) if rank == 2 else values[rank])
            one = np.zeros(1, dtype)
            dist.reduce_scatter_single(one, values[rank], OP.AVG)
            np.testing.assert_array_equal(one, np.full(1, wanted, dtype))
        pair = dist.new_group([0, 2])
        x = np.array([1.0, 2.0, 4.0])[rank : rank + 1].copy()
        dist.all_reduce(x, OP.AVG, group=pair)
        assert x.tolist() == [[2.5], [2.0], [2.5]][rank]

    ranks(3, program)


def test_names_and_values_are_those_of_torch() -> None:
    names = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]
    assert [each.name for each in OP] == names and [each.value for each in OP] == list(range(9))
    assert all(getattr(dist.reduce_op, name) is getattr(OP, name) is getattr(OP.RedOpType, name) for name in names)
    assert OP(OP.SUM) is OP.SUM and copy.deepcopy(OP.AVG) is OP.AVG
    op = dist._make_nccl_premul_sum(2.0)
    assert op.factor == 2.0 and op.op is OP.PREMUL_SUM
    assert pickle.loads(pickle.dumps(ops.PREMUL_SUM)) is ops.PREMUL_SUM and "PREMUL_SUM" in repr(ops.PREMUL_SUM)
    with pytest.raises(UsageError, match="no reduction"):
        ops.as_op("premul_sum")
    assert aiocoll.SUM is not ops.PREMUL_SUM


@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_op_that_is_interrupted_in_the_thread_that_folds_is_heard_of_by_all(kind: type[BaseException]) -> None:
    """It raises in a callback of the loop, where nobody awaits anything; the deadline is far away."""

    def fold(left: Any, right: Any) -> Any:
        if whose.get() == 0:
            raise kind
        return left + right

    whose: ContextVar[int] = ContextVar("whose")  # a function runs in its caller's context

    def program(rank: int) -> None:
        whose.set(rank)
        x, ready, aside = np.arange(4.0) + rank, np.zeros(1), dist.new_group()
        if rank:
            dist.recv(ready, 0, aside)  # rank 0 waits for operands already, and folds them as they come
        work = dist.all_reduce(x, aiocoll.op(fold), async_op=True)
        if rank == 0:
            for other in (1, 2):
                dist.send(ready, other, aside)
        refused = kind is not KeyboardInterrupt
        wanted: type[BaseException] = UsageError if refused else GroupBrokenError if rank else KeyboardInterrupt
        with pytest.raises(wanted) as caught:
            work.wait()
        if rank:
            assert isinstance(caught.value, UsageError | GroupBrokenError) and caught.value.rank == 0

    ranks(3, program, "tcp", timeout=50.0)
