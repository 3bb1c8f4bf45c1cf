"""What an output must be: of the result's shape and dtype, and overlapping nothing, itself included."""

from __future__ import annotations

import numpy as np
import pytest

from aiocoll.buffers import as_out, check_out, overlaps_itself
from aiocoll.errors import UsageError

BASE = np.arange(64.0)


def strided(shape, *strides):
    return np.lib.stride_tricks.as_strided(BASE.copy(), shape, [8 * stride for stride in strides])


@pytest.mark.parametrize(
    ("x", "overlaps"),
    [
        (strided((3,), 0), True),
        (strided((1,), 0), False),
        (strided((0, 3), 0, 0), False),
        (strided((4, 3), 1, 1), True),
        (strided((4, 3), 3, 1), False),
        (strided((4, 3), 2, 1), True),
        (strided((2, 3), 2, 3), False),  # 0 3 6 2 5 8: interleaved, yet apart
        (strided((3, 4), 2, 3), False),
        (strided((4, 3), 2, 3), True),  # 6 = 3 * 2 = 2 * 3
        (strided((2, 2, 2), 1, 2, 4), False),
        (strided((2, 2, 2), 1, 2, 3), True),
        (np.zeros((4, 4))[::-1, ::2], False),
        (np.zeros((4, 4)).T[1:, :2], False),
        (np.lib.stride_tricks.as_strided(BASE.copy(), (3,), (4,)), True),
        (np.lib.stride_tricks.sliding_window_view(BASE, 3), True),
        (np.lib.stride_tricks.as_strided(np.zeros(1 << 18), (1 << 16, 2), (8, 8 << 15)), True),
    ],
)
def test_outputs_that_overlap_themselves(x, overlaps):
    assert overlaps_itself(x) is overlaps
    if x.flags.writeable and overlaps:
        with pytest.raises(UsageError, match="all_reduce on rank 3: elements of out overlap"):
            as_out(x, what="all_reduce", rank=3)
    elif x.flags.writeable:
        assert as_out(x, what="all_reduce", rank=3) is x


def test_overlap_agrees_with_counting_addresses():
    random = np.random.default_rng(5)
    for _ in range(500):
        shape = random.integers(1, 5, 3)
        strides = random.integers(-5, 6, 3)
        x = np.lib.stride_tricks.as_strided(np.zeros(200)[100:], shape, strides * 8)
        places = (np.indices(shape).reshape(3, -1) * strides[:, None]).sum(0)
        assert overlaps_itself(x) is (len(set(places.tolist())) < x.size), (shape, strides)


def checked(out, shape, dtype, *inputs):
    check_out(out, shape, np.dtype(dtype), inputs, what="scan", rank=1)


def test_out_must_have_the_results_shape_and_dtype():
    checked(np.zeros((2, 3)), (2, 3), "f8")
    checked(np.zeros((2, 3), ">f8"), (2, 3), "f8")
    checked(np.zeros(2, [("a", ">i4"), ("b", "<f8")]), (2,), [("a", "<i4"), ("b", ">f8")])
    for shape in [(3, 2), (6,), (2, 3, 1), ()]:
        with pytest.raises(UsageError, match=r"scan on rank 1: out has shape \(2, 3\), but the result has shape"):
            checked(np.zeros((2, 3)), shape, "f8")
    for dtype in ["f4", "i8", "c16", "M8[s]", "S8", "V8"]:
        with pytest.raises(UsageError, match="scan on rank 1: out has dtype float64, but the result has dtype"):
            checked(np.zeros((2, 3)), (2, 3), dtype)
    with pytest.raises(UsageError, match="dtype"):
        checked(np.zeros(2, "M8[s]"), (2,), "M8[ms]")


def test_out_is_the_input_itself():
    x = np.arange(12.0).reshape(3, 4)
    for same in (x, x[:], x.view(), x.reshape(3, 4)):
        checked(same, (3, 4), "f8", x)
    checked(x[::2, ::-1], (2, 4), "f8", x[::2, ::-1])
    row = np.lib.stride_tricks.as_strided(x, (1, 4), (999, 8))
    checked(row, (1, 4), "f8", x[:1])  # strides of axes of length one mean nothing


@pytest.mark.parametrize(
    ("out", "x"),
    [
        (lambda a: a[1:5], lambda a: a[:4]),
        (lambda a: a[3::-1], lambda a: a[:4]),
        (lambda a: a[:9].reshape(3, 3), lambda a: a[:9].reshape(3, 3).T),
        (lambda a: a[:4], lambda a: a.view("i8")[:4]),
        (lambda a: a[:4], lambda a: a[:4].view(">f8")),
        (lambda a: a[:4], lambda a: a[:2]),
        (lambda a: a[::2], lambda a: a[::3]),
        (lambda a: a[:4], lambda a: a),
    ],
)
def test_partial_overlap_is_refused(out, x):
    a = np.arange(64.0)
    with pytest.raises(UsageError, match="scan on rank 1: out and input overlap"):
        checked(out(a), out(a).shape, "f8", np.zeros(3), x(a))


def test_disjoint_and_empty_arrays_do_not_overlap():
    a = np.arange(64.0)
    checked(a[:4], (4,), "f8", a[4:8], a[60:])
    checked(a[::2], (32,), "f8", a[1::2])  # interleaved, yet apart
    checked(a.reshape(8, 8)[:, :4], (8, 4), "f8", a.reshape(8, 8)[:, 4:])
    checked(a[4:4], (0,), "f8", a, a[2:6])
    checked(a[:4], (4,), "f8", a[2:2])
    checked(np.zeros((0, 3)), (0, 3), "f8", np.zeros((0, 3)))


def test_hard_overlap_questions_end_soon():
    a = np.zeros(1 << 16, "u1")
    one = np.lib.stride_tricks.as_strided(a, (4,) * 6, (2503, 1709, 1151, 701, 401, 211))
    two = np.lib.stride_tricks.as_strided(a[1:], (4,) * 6, (2503, 1709, 1151, 701, 401, 211))
    try:
        checked(one, one.shape, "u1", two)
    except UsageError as exc:
        assert "overlap" in str(exc)
