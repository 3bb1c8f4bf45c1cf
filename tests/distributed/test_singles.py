"""The collectives of today's API over one tensor and over lists, on several ranks of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import MismatchError, UsageError
from tests.distributed.ranks import ranks

BACKENDS = ("tcp", "auto")


def data(rank: int, count: int, dtype: str = "f8", salt: int = 0) -> Any:
    return np.random.default_rng([rank, count, salt]).integers(1, 9, count).astype(dtype)


def total(size: int, count: int, op: Any = np.add, dtype: str = "f8") -> Any:
    return reduce(op, [data(rank, count, dtype) for rank in range(size)])


def same(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(got, wanted, strict=True)


def refused(kind: type[Exception], words: str, use: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=words) as caught:
        use()
    assert isinstance(caught.value, UsageError), caught.value


def goes_on() -> None:
    """The group works after what came before."""
    x = np.arange(3.0) + dist.get_rank()
    dist.all_reduce(x)
    size = dist.get_world_size()
    same(x, np.arange(3.0) * size + size * (size - 1) / 2)


# ---------------------------------------------------------------------------------------------- gathering


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_gather_single_concatenated_and_stacked(backend: str) -> None:
    def program(rank: int) -> None:
        size = dist.get_world_size()
        rows = [data(each, 6).reshape(2, 3) for each in range(size)]
        for function in (dist.all_gather_single, dist.all_gather_into_tensor, dist._all_gather_base):
            concatenated, stacked = np.zeros((2 * size, 3)), np.zeros((size, 2, 3))
            for _ in range(2):  # the second call takes a short cut
                assert function(concatenated, rows[rank]) is None
                function(stacked, rows[rank], group=None)
            same(concatenated, np.concatenate(rows))
            same(stacked, np.stack(rows))
        strided, base = np.zeros((2 * size, 6))[:, ::2], None
        work = dist.all_gather_single(strided, rows[rank].T.copy().T, async_op=True)
        assert work is not None and work.wait() and work.result()[0] is strided
        same(np.ascontiguousarray(strided), np.concatenate(rows))
        base = strided.base
        assert base is not None and not base[:, 1::2].any()
        empty = np.zeros((size, 0), "i4")
        dist.all_gather_single(empty, np.zeros(0, "i4"))
        number = np.zeros(size, "i2")
        dist.all_gather_single(number, np.array(rank, "i2"))
        same(number, np.arange(size, dtype="i2"))

    ranks(3, program, backend)


def test_gather_single_fills_the_destination_only() -> None:
    def program(rank: int) -> None:
        size = dist.get_world_size()
        for root in range(size):
            for function in (dist.gather_single, dist.gather_into_tensor):
                output = np.zeros((size, 4), "f4") if rank == root else None
                assert function(data(rank, 4, "f4"), output, dst=root) is None
                if output is not None:
                    same(output, np.stack([data(each, 4, "f4") for each in range(size)]))
        group = dist.new_group([2, 0])
        output = np.zeros(4, ">i4")
        work = dist.gather_single(np.arange(2, dtype=">i4") + rank, output, group=group, group_dst=1, async_op=True)
        if rank == 1:
            assert work is None
        else:
            assert work is not None and work.wait()
        assert output.tolist() == ([0, 1, 2, 3] if rank == 2 else [0] * 4)

    ranks(3, program)


# ---------------------------------------------------------------------------------------------- reducing


@pytest.mark.parametrize("backend", BACKENDS)
def test_reduce_scatter_single_concatenated_and_stacked(backend: str) -> None:
    def program(rank: int) -> None:
        size = dist.get_world_size()
        wanted = total(size, 4 * size).reshape(size, 4)[rank]
        for function in (dist.reduce_scatter_single, dist.reduce_scatter_tensor, dist._reduce_scatter_base):
            for shape in ((4 * size,), (size, 4), (2 * size, 2)):
                output = np.zeros(shape[1:] if len(shape) == 2 and shape[0] == size else 4)
                for _ in range(2):
                    assert function(output, data(rank, 4 * size).reshape(shape)) is None
                same(output, wanted)
        for op, function in ((dist.ReduceOp.MAX, np.maximum), (dist.ReduceOp.PRODUCT, np.multiply)):
            output = np.zeros(4)
            work = dist.reduce_scatter_single(output, data(rank, 4 * size), op, async_op=True)
            assert work is not None and work.wait() and work.is_completed()
            same(output, total(size, 4 * size, function).reshape(size, 4)[rank])
        mean = np.zeros(4)
        dist.reduce_scatter_single(mean, data(rank, 4 * size), dist.ReduceOp.AVG)
        same(mean, wanted / size)

    ranks(3, program, backend)


def test_reduce_scatter_of_a_list_even_and_uneven() -> None:
    def program(rank: int) -> None:
        size = dist.get_world_size()
        for counts in ([5] * size, [1 + 2 * each for each in range(size)], [0] + [3] * (size - 1)):
            lists = [[data(each, count, salt=place) for place, count in enumerate(counts)] for each in range(size)]
            output = np.zeros(counts[rank])
            assert dist.reduce_scatter(output, lists[rank]) is None
            same(output, sum(each[rank] for each in lists))
            work = dist.reduce_scatter(output[::-1], lists[rank], dist.ReduceOp.MIN, async_op=True)
            assert work is not None and work.wait()
            same(output[::-1].copy(), reduce(np.minimum, [each[rank] for each in lists]))

    ranks(3, program)


# ---------------------------------------------------------------------------------------------- all to all


def test_r1_all_to_all_with_sizes_per_peer_and_dtypes() -> None:
    """all_to_all with lists of different sizes per peer, empty parts and dtypes, on 1 to 5 ranks."""

    def part(source: int, target: int) -> Any:
        return data(source, (source + 2 * target) % 4, ("f4", "i8", "c16")[(source + target) % 3], target)

    def program(rank: int) -> None:
        size = dist.get_world_size()
        mine = [part(rank, each) for each in range(size)]
        wanted = [part(each, rank) for each in range(size)]
        outputs = [np.zeros_like(each) for each in wanted]
        assert dist.all_to_all(outputs, mine) is None
        for got, want in zip(outputs, wanted, strict=True):
            same(got, want)
        outputs = [np.zeros_like(each) for each in wanted]
        work = dist.all_to_all(outputs, mine, async_op=True)
        assert work is not None and work.wait()
        assert all(got is mine for got, mine in zip(work.result(), outputs, strict=True))
        for got, want in zip(outputs, wanted, strict=True):
            same(got, want)

    for size in range(1, 6):
        ranks(size, program)


@pytest.mark.parametrize("backend", BACKENDS)
def test_r1_all_to_all_single_with_split_sizes(backend: str) -> None:
    """One array with a number of rows per peer, or equally many, in two dimensions too, on 1 to 4 ranks."""

    def rows(source: int, target: int) -> int:
        return (2 * source + target) % 3

    def program(rank: int) -> None:
        size = dist.get_world_size()
        everyone = range(size)
        sent, came = [rows(rank, each) for each in everyone], [rows(each, rank) for each in everyone]
        whole = [data(each, 2 * sum(rows(each, to) for to in everyone)).reshape(-1, 2) for each in everyone]
        at = [np.cumsum([0, *(rows(each, to) for to in everyone)]) for each in everyone]
        wanted = np.concatenate([whole[each][at[each][rank] : at[each][rank + 1]] for each in everyone])
        for output in (np.zeros((sum(came), 2)), np.zeros((2, sum(came))).T):
            assert dist.all_to_all_single(output, whole[rank], came, sent) is None
            same(np.ascontiguousarray(output), wanted)
        output = np.zeros(size)
        for splits in (None, [], [1] * size, np.ones(size, int)):
            dist.all_to_all_single(output, np.arange(float(size)) + 10 * rank, splits, splits)
            same(output, 10.0 * np.arange(size) + rank)
        work = dist.all_to_all_single(output, np.arange(float(size)) - 10 * rank, async_op=True)
        assert work is not None and work.wait()
        same(output, -10.0 * np.arange(size) + rank)

    for size in range(1, 5):
        ranks(size, program, backend)


def test_r1_split_sizes_are_judged_before_anything_is_sent() -> None:
    """Sum, sign, number and kind of split sizes; one rank's slip is refused for all and the group goes on."""

    def program(rank: int) -> None:
        x, y = np.arange(4.0), np.zeros(4)
        slips: list[tuple[type[Exception], str, Any, Any]] = [
            (RuntimeError, "Split sizes doesn't match total dim 0 size.*add up to 3", None, [1, 2]),
            (RuntimeError, "output_split_sizes=.*add up to 5", [2, 3], None),
            (RuntimeError, "negative", None, [5, -1]),
            (RuntimeError, "3 entries", None, [2, 1, 1]),
            (TypeError, "must be an int", None, [2.0, 2.0]),
            (TypeError, "list of ints", "22", None),
            (RuntimeError, "tensor sizes do not match", [1, 3], [2, 2]),
        ]
        for kind, words, outputs, inputs in slips:
            if rank == 0:
                refused(kind, words, lambda o=outputs, i=inputs: dist.all_to_all_single(y, x, o, i))
            else:
                refused(UsageError, "rank 0", lambda: dist.all_to_all_single(y, x))
            assert not y.any()
            goes_on()
        refused(RuntimeError, "5 rows do not divide equally", lambda: dist.all_to_all_single(np.zeros(5), np.zeros(5)))
        refused(RuntimeError, "no rows", lambda: dist.all_to_all_single(np.zeros(()), np.zeros(())))
        goes_on()

    ranks(2, program)


def test_r1_split_sizes_on_which_peers_disagree() -> None:
    """What comes is not what its receiver said: the receiver says both numbers, its tensor stays, the group goes on."""

    def program(rank: int) -> None:
        x, y = np.arange(4.0) + 1, np.zeros(4)
        if rank == 0:
            with pytest.raises(MismatchError, match="rank 1 sent 1 elements.*room for 2"):
                dist.all_to_all_single(y, x, [2, 2], [2, 2])
            assert not y.any()
        else:
            dist.all_to_all_single(y[:3], np.arange(2.0), [2, 1], [1, 1])
        goes_on()

    ranks(2, program)


# ---------------------------------------------------------------------------------------------- refusals


def test_sizes_and_dtypes_that_do_not_fit_are_refused_for_all() -> None:
    def program(rank: int) -> None:
        x, bad = np.arange(4.0), rank == 1
        calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "output_tensor has 9 elements; input_tensor has 4": (
                lambda: dist.all_gather_single(np.zeros(9), x),
                lambda: dist.all_gather_single(np.zeros(8), x),
            ),
            "output_tensor is float32, input_tensor is float64": (
                lambda: dist.all_gather_single(np.zeros(8, "f4"), x),
                lambda: dist.all_gather_single(np.zeros(8), x),
            ),
            "input has 4 elements; output has 3": (
                lambda: dist.reduce_scatter_single(np.zeros(3), x),
                lambda: dist.reduce_scatter_single(np.zeros(2), x),
            ),
            "tensor sizes do not match: number 0 of the list has 2": (
                lambda: dist.reduce_scatter(np.zeros(2), [x, x]),
                lambda: dist.reduce_scatter(np.zeros(4), [x, x]),
            ),
            "number of input tensors and group size does not match": (
                lambda: dist.reduce_scatter(np.zeros(4), [x]),
                lambda: dist.reduce_scatter(np.zeros(4), [x, x]),
            ),
            "all_to_all: number of output tensors": (
                lambda: dist.all_to_all([x], [x, x]),
                lambda: dist.all_to_all([x.copy(), x.copy()], [x, x]),
            ),
            "output_tensor is a required argument": (
                lambda: dist.gather_single(x, None, dst=1),
                lambda: dist.gather_single(x, None, dst=1),
            ),
            "op should be a constant": (
                lambda: dist.reduce_scatter_single(np.zeros(2), x, "sum"),
                lambda: dist.reduce_scatter_single(np.zeros(2), x),
            ),
        }
        for words, (wrong, right) in calls.items():
            if bad:
                refused(RuntimeError, words, wrong)
            elif "required" in words:
                with contextlib.suppress(UsageError):  # a leaf of a gather waits for nobody, and may not hear of it
                    right()
            else:
                refused(UsageError, "rank 1", right)
            goes_on()

    ranks(2, program)


def test_outsiders_get_none_and_touch_nothing() -> None:
    def program(rank: int) -> None:
        outside = dist.new_group([0])
        if rank == 0:
            return
        x = np.arange(4.0)
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_gather_single(x, x, outside),
            lambda: dist.gather_single(x, x, group=outside),
            lambda: dist.reduce_scatter(x, [x], group=outside),
            lambda: dist.reduce_scatter_single(x, x, group=outside, async_op=True),
            lambda: dist.all_to_all([x], [x], outside),
            lambda: dist.all_to_all_single(x, x, group=outside),
            lambda: dist.all_reduce_coalesced([x], group=outside, async_op=True),
            lambda: dist.all_gather_coalesced([[x]], [x], outside),
            lambda: dist.gather_object("x", None, group=outside),
            lambda: dist.scatter_object_list([None], None, group=outside),
            lambda: dist.send_object_list([1], 0, outside),
        ]
        for each in calls:
            assert each() is None
        assert dist.recv_object_list([None], 0, outside) == -1
        assert dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 0, outside)]) == []
        same(x, np.arange(4.0))

    ranks(2, program)
