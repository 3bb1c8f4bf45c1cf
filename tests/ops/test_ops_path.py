"""The way of a reduction through memory: any layout in, work dtype, folds, finish in slices, any layout out."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from aiocoll.buffers import as_array, as_out, check_out, pieces
from aiocoll.errors import UsageError
from aiocoll.ops import BAND, LAND, MAX, MEAN, MIN, PROD, SUM, finish_pieces, fold_all, op

LAYOUTS = {
    "c": lambda a: a,
    "fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "negative": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder("S")),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}


def reduce_here(inputs, reduction, out=None, slice_bytes=40):
    """What Group.all_reduce does around the algorithm, without a network."""
    arrays = [as_array(x, what="all_reduce", rank=rank)[0] for rank, x in enumerate(inputs)]
    dtype, shape = arrays[0].dtype, arrays[0].shape
    reduction.check(dtype, 0, "all_reduce")
    reduction = reduction.bind(shape, dtype, rank=0, what="all_reduce")
    parts = []
    for each in arrays:
        work = np.empty(shape, reduction.work_dtype(dtype))
        for _ in pieces(each, work, slice_bytes):
            pass
        parts.append(work.reshape(-1))
    total = np.empty_like(parts[0])
    fold_all(reduction, parts, total)
    for _ in finish_pieces(reduction, total, len(arrays), slice_bytes):
        pass
    target = np.empty(shape, reduction.result_dtype(dtype)) if out is None else out
    for _ in pieces(total.reshape(shape), target, slice_bytes):
        pass
    return target


@pytest.mark.parametrize("layout_out", ["c", "fortran", "strided", "negative", "big-endian"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("char", "hIqefdD")
def test_any_layout_in_and_out(char, layout, layout_out):
    random = np.random.default_rng(7)
    plain = [np.abs(random.normal(size=(5, 6)) * 9).astype(char) for _ in range(3)]
    inputs = [LAYOUTS[layout](each) for each in plain]
    before = [each.copy() for each in inputs]
    out = LAYOUTS[layout_out](np.zeros((5, 6), char))
    view = as_out(out, what="all_reduce", rank=0)
    check_out(view, (5, 6), np.dtype(char), inputs, what="all_reduce", rank=0)
    work = "f" if char == "e" else char
    wanted = functools.reduce(np.add, [each.astype(work) for each in plain]).astype(char)
    assert reduce_here(inputs, SUM, view) is view
    assert np.array_equal(out, wanted)
    new = reduce_here(inputs, SUM)
    assert new.dtype == np.dtype(char) and new.dtype.isnative and np.array_equal(new, wanted)
    assert all(np.array_equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize("char", "?bBhHiIlLqQ")
def test_mean_of_integers_truncates_into_an_integer_out_as_astype_does(char):
    inputs = [np.array([[1, 0, 1]], char), np.array([[0, 1, 1]], char), np.array([[1, 1, 1]], char)]
    exact = np.mean(inputs, axis=0)
    assert np.array_equal(reduce_here(inputs, MEAN), exact) and reduce_here(inputs, MEAN).dtype == np.float64
    for dtype in (char, "i4", "f4", ">f8"):
        assert MEAN.allows_out(np.dtype(char), np.dtype(dtype))
        out = np.zeros((1, 3), dtype)
        assert np.array_equal(reduce_here(inputs, MEAN, out), exact.astype(dtype))
    negative = [np.array([[-1]], "i8"), np.array([[-2]], "i8")]
    assert reduce_here(negative, MEAN, np.zeros((1, 1), "i8")).tolist() == [[-1]]


@pytest.mark.parametrize("reduction", [SUM, PROD, MIN, MAX, MEAN, LAND], ids=repr)
def test_scalars_and_zero_sizes(reduction):
    assert reduce_here([2.0, 4.0], reduction).shape == ()
    for shape in [(0,), (2, 0, 3)]:
        assert reduce_here([np.zeros(shape)] * 3, reduction).shape == shape


def test_user_ops_get_the_calls_dtype_not_a_work_dtype():
    seen = set()

    def join(left, right):
        seen.add((left.dtype, left.shape))
        return left + right

    got = reduce_here([np.ones((2, 3), ">f2")] * 3, op(join))
    assert got.dtype == np.float16 and (got == 3).all() and seen == {(np.dtype(np.float16), (2, 3))}


def test_finish_pieces_yields_between_slices_only_and_not_at_all_without_work():
    array = np.arange(10.0)
    assert len(list(finish_pieces(MEAN, array, 2, 24))) == 3
    assert array.tolist() == (np.arange(10) / 2).tolist()
    assert list(finish_pieces(SUM, array, 2, 24)) == []
    assert list(finish_pieces(MEAN, array[:0], 2)) == []
    assert list(finish_pieces(MEAN, array, 1)) == []


def test_refused_before_anything_is_allocated():
    with pytest.raises(UsageError, match="all_reduce on rank 0: op BAND does not work on dtype float64"):
        reduce_here([np.zeros((1, 1))], BAND)
