"""dist.functional: new tensors, inputs untouched."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import MismatchError, UsageError
from tests.distributed.ranks import ranks
from tests.foreign import Foreign

F = dist.functional


def given(rank: int) -> Any:
    return np.arange(12.0).reshape(6, 2) * (rank + 1) + rank


def test_results_are_new_and_inputs_stay() -> None:
    def program(rank: int) -> None:
        every = [given(each) for each in range(3)]
        total = sum(every)
        x = given(rank)
        for op in ("sum", "SUM", dist.ReduceOp.SUM, dist.ReduceOp.PREMUL_SUM(1.0)):
            np.testing.assert_array_equal(F.all_reduce(x, op), total)
        np.testing.assert_array_equal(F.all_reduce(x[::2].T, "max"), np.max(every, 0)[::2].T)
        np.testing.assert_array_equal(F.broadcast(x if rank == 1 else None, 1), every[1])
        assert F.broadcast(x, rank if rank == 2 else 2) is not x
        for dim in (0, 1, -1):
            for gather in (F.all_gather_tensor, F.all_gather_single):
                np.testing.assert_array_equal(gather(x, dim), np.concatenate(every, dim))
        ragged = F.all_gather_single(x[: rank + 1], 0)
        np.testing.assert_array_equal(ragged, np.concatenate([each[: at + 1] for at, each in enumerate(every)]))
        np.testing.assert_array_equal(F.reduce_scatter_tensor(x, "sum", 0), total[2 * rank : 2 * rank + 2])
        np.testing.assert_array_equal(F.reduce_scatter_single(x.T, "sum", 1), total.T[:, 2 * rank : 2 * rank + 2])
        wanted = np.concatenate([each[2 * rank : 2 * rank + 2] for each in every])
        np.testing.assert_array_equal(F.all_to_all_single(x), wanted)
        np.testing.assert_array_equal(F.all_to_all_single(x, [2] * 3, [2] * 3), wanted)
        rows = F.all_to_all_single(x, None, [0, rank, 6 - rank])  # who receives need not know how many will come
        came = [[each[:0], each[:at], each[at:]][rank] for at, each in enumerate(every)]
        np.testing.assert_array_equal(rows, np.concatenate(came))
        np.testing.assert_array_equal(F.permute_tensor(x, [1, 2, 0]), every[rank - 1])
        assert F.wait_tensor(x) is x
        np.testing.assert_array_equal(x, given(rank))

    ranks(3, program)


def test_lists_of_tensors() -> None:
    def program(rank: int) -> None:
        both = [given(rank), np.arange(4) + rank]
        sums = [given(0) + given(1), np.arange(4) * 2 + 1]
        for got, want in zip(F.all_reduce_coalesced(both, "sum"), sums, strict=True):
            np.testing.assert_array_equal(got, want)
        for got, each in zip(F.all_gather_into_tensor_coalesced(both), range(2), strict=True):
            wanted = np.concatenate([[given(other), np.arange(4) + other][each] for other in range(2)])
            np.testing.assert_array_equal(got, wanted)
        for got, want in zip(F.reduce_scatter_tensor_coalesced(both, "sum", [1, 0]), sums, strict=True):
            np.testing.assert_array_equal(got, np.split(want, 2, 1 if want.ndim == 2 else 0)[rank])

    ranks(2, program)


def test_numbers_means_and_groups() -> None:
    def program(rank: int) -> None:
        pair = dist.new_group([2, 0], sort_ranks=False)
        assert F.all_reduce(2.5 * rank, "sum") == 7.5 and F.all_reduce(np.float32(rank), "max").dtype == "f4"
        mean = F.all_reduce(np.array([rank, 1]), "avg")
        assert mean.dtype == "f8" and mean.tolist() == [1, 1]
        result = F.all_gather_single(np.array(rank), 0, pair)
        assert result is None if rank == 1 else result.tolist() == [2, 0]
        assert F.broadcast(None if rank == 2 else np.array([rank]), 0, pair) == (None if rank == 1 else [0])

    ranks(3, program)


class Likeness(Foreign):
    """One that knows how to make another like it, too."""

    def new_empty(self, shape: Any) -> Likeness:
        return Likeness(np.empty(shape, self.array.dtype))


def test_a_result_is_never_cast_to_another_dtype() -> None:
    """A tensor of the sender's own dtype, of any shape, is needed to make one like it; nobody gets rounded numbers."""

    def program(rank: int) -> None:
        mine = Likeness(np.array([2.5, 3.5]) if rank == 0 else np.zeros(3, int))
        calls: list[Callable[[], Any]] = [lambda: F.broadcast(mine, 0), lambda: F.permute_tensor(mine, [1, 0])]
        for call in calls[: 1 + rank]:
            if rank == 0:
                assert call().array.tolist() == [2.5, 3.5]
            else:
                with pytest.raises(MismatchError, match="float64 came to rank 1, whose own tensor is of int64"):
                    call()
        if rank == 0:
            with pytest.raises(MismatchError, match="int64 came to rank 0"):
                calls[1]()
        like = mine if rank == 0 else Likeness(np.zeros((1, 1)))
        assert F.broadcast(like, 0).array.tolist() == [2.5, 3.5]
        assert F.all_reduce(Likeness(np.array([rank, 2])), "avg").array.tolist() == [0, 2]

    ranks(2, program)


def test_torch_code_finds_them_under_their_other_name() -> None:
    module = importlib.import_module("aiocoll.distributed._functional_collectives")
    assert all(getattr(module, name) is getattr(F, name) for name in module.__all__)
    mine = {name for name, each in vars(F).items() if inspect.isfunction(each) and each.__module__ == F.__name__}
    assert {name for name in mine if not name.startswith("_")} == set(module.__all__)


def test_refusals() -> None:
    def program(rank: int) -> None:
        x = given(rank)
        wrong: list[tuple[type[Exception], str, Callable[[], Any]]] = [
            (RuntimeError, "none of sum, avg", lambda: F.all_reduce(x, "add")),
            (RuntimeError, "multiple of the group's size", lambda: F.reduce_scatter_single(x[:3], "sum", 0)),
            (RuntimeError, "no dimension", lambda: F.all_gather_single(x, 2)),
            (RuntimeError, "each rank of the group", lambda: F.permute_tensor(x, [0, 0])),
            (RuntimeError, "one for each", lambda: F.reduce_scatter_single_coalesced([x], "sum", [])),
            (RuntimeError, "is empty", lambda: F.all_reduce_coalesced([], "sum")),
            (RuntimeError, "not member of group", lambda: F.broadcast(x, 7)),
            (TypeError, "new_group", lambda: F.all_reduce(x, "sum", [0, 1])),
        ]
        for kind, words, use in wrong:
            with pytest.raises(kind, match=words) as caught:
                use()
            assert isinstance(caught.value, UsageError)
        with pytest.raises(MismatchError, match="differ in more than gather_dim"):
            F.all_gather_single(x if rank else x.T, 0)
        with pytest.raises(MismatchError, match="output_split_sizes"):
            F.all_to_all_single(x, [1, 1])
        np.testing.assert_array_equal(F.all_reduce(x, "sum"), given(0) + given(1))

    ranks(2, program)
