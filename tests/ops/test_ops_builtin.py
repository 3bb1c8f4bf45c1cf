"""Built-in reductions against NumPy's own functions, for every dtype; `test_ops_promises` has the rest."""

from __future__ import annotations

import functools
import itertools

import ml_dtypes
import numpy as np
import pytest

from aiocoll.errors import UsageError
from aiocoll.ops import BAND, BOR, BXOR, LAND, LOR, LXOR, MAX, MEAN, MIN, PROD, SUM

from .kinds import ALL, COMPLEX, FLOATS, INTEGERS, ML_FLOATS, ML_INTEGERS, NUMBERS, TIMES, UFUNC, reduced, same, values


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("op", "dtype"),
    [(op, dtype) for op in ALL[:4] for dtype in NUMBERS if dtype.kind != "c" or op in (SUM, PROD)],
    ids=str,
)
def test_arithmetic_is_numpys_binary_function_in_the_inputs_dtype(op, dtype, size):
    arrays = values(dtype, size)
    work = np.float32 if dtype == np.float16 and op in (SUM, PROD) else dtype
    with np.errstate(all="ignore"):
        wanted = functools.reduce(UFUNC[op.name], [array.astype(work) for array in arrays]).astype(dtype)
    same(reduced(op, arrays), wanted)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [np.dtype("?"), *INTEGERS], ids=str)
@pytest.mark.parametrize("op", [BAND, BOR, BXOR], ids=repr)
def test_bit_ops_are_numpys(op, dtype, size):
    arrays = values(dtype, size)
    same(reduced(op, arrays), functools.reduce(UFUNC[op.name], arrays))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [*NUMBERS, np.dtype("m8[s]"), *ML_FLOATS, *ML_INTEGERS], ids=str)
@pytest.mark.parametrize("op", [LAND, LOR, LXOR], ids=repr)
def test_logical_ops_give_0_and_1_in_the_inputs_dtype(op, dtype, size):
    source = values(dtype if dtype.kind != "V" and dtype.isbuiltin != 2 else np.dtype("i1"), size)
    arrays = [(array % 2 if dtype.isbuiltin == 2 else array).astype(dtype) for array in source]
    truth = functools.reduce(UFUNC[op.name], [array.astype(bool) for array in arrays])
    got = reduced(op, arrays)
    assert got.dtype == dtype
    assert np.array_equal(got.astype(bool), truth)
    assert np.array_equal(got, truth.astype(dtype))


def test_logical_ops_count_nan_as_true_as_numpy_does():
    got = reduced(LAND, [np.array([np.nan, np.nan, 0.0]), np.array([5.0, 0.0, 0.0])])
    assert got.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("char", "bhilqBHILQ")
def test_integers_wrap(char):
    dtype = np.dtype(char)
    top = np.iinfo(dtype).max
    assert reduced(SUM, [np.array([top], dtype), np.array([1], dtype)])[0] == np.iinfo(dtype).min
    wrapped = (int(top) * 3) % (1 << (8 * dtype.itemsize))
    got = reduced(PROD, [np.array([top], dtype), np.array([3], dtype)])
    assert int(got.view(f"u{dtype.itemsize}")[0]) == wrapped


def test_sum_of_bool_is_or():
    got = reduced(SUM, [np.array([True, True, False, False]), np.array([True, False, True, False])])
    assert got.dtype == bool and got.tolist() == [True, True, True, False]


@pytest.mark.parametrize("dtype", [*FLOATS, *ML_FLOATS[:3]], ids=str)
@pytest.mark.parametrize("op", [MIN, MAX], ids=repr)
def test_nan_wins_in_min_and_max_wherever_it_stands(op, dtype):
    nan, one = np.array([np.nan]).astype(dtype), np.array([1.0]).astype(dtype)
    for order in set(itertools.permutations([0, 1, 1])):
        got = reduced(op, [(nan, one)[which] for which in order])
        assert got.dtype == dtype and np.isnan(got.astype(np.float64))[0]


@pytest.mark.parametrize("dtype", TIMES, ids=str)
@pytest.mark.parametrize("op", [MIN, MAX], ids=repr)
def test_times_have_an_order_and_nat_wins(op, dtype):
    arrays = values(dtype, 3)
    same(reduced(op, arrays), functools.reduce(UFUNC[op.name], arrays))
    arrays[1][0] = dtype.type("NaT", "s")
    assert np.isnat(reduced(op, arrays)[0])


def test_durations_add_and_average_but_points_in_time_do_not():
    arrays = values(np.dtype("m8[s]"), 3)
    same(reduced(SUM, arrays), arrays[0] + arrays[1] + arrays[2])
    same(reduced(MEAN, arrays), (arrays[0] + arrays[1] + arrays[2]) / 3)
    for op, dtype in [(SUM, "M8[s]"), (MEAN, "M8[s]"), (PROD, "m8[s]"), (PROD, "M8[s]"), (LAND, "M8[s]")]:
        with pytest.raises(UsageError, match=rf"scan on rank 4: op {op.name} does not work on dtype .*64"):
            op.check(np.dtype(dtype), rank=4, what="scan")


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX], ids=str)
def test_mean_of_floats_keeps_the_dtype(dtype, size):
    arrays = values(dtype, size)
    work = np.dtype(np.float32) if dtype == np.float16 else dtype
    wanted = (functools.reduce(np.add, [array.astype(work) for array in arrays]) / work.type(size)).astype(dtype)
    same(reduced(MEAN, arrays), wanted)


@pytest.mark.parametrize("dtype", [np.dtype("?"), *INTEGERS, *ML_INTEGERS], ids=str)
def test_mean_of_integers_and_bool_is_float64(dtype):
    arrays = [np.array([0, 1]).astype(dtype), np.array([1, 1]).astype(dtype), np.array([1, 1]).astype(dtype)]
    got = reduced(MEAN, arrays)
    assert got.dtype == np.float64 and got.tolist() == [2 / 3, 1.0]
    assert MEAN.result_dtype(dtype) == np.float64
    assert reduced(MEAN, arrays[:1]).tolist() == [0.0, 1.0]


def test_mean_of_integers_may_go_into_any_numeric_out_and_others_only_into_their_own():
    assert MEAN.allows_out(np.dtype("i8"), np.dtype("i8"))
    assert MEAN.allows_out(np.dtype("i8"), np.dtype(">i4"))
    assert MEAN.allows_out(np.dtype("?"), np.dtype("f4"))
    assert MEAN.allows_out(np.dtype("i8"), np.dtype(">f8"))
    assert not MEAN.allows_out(np.dtype("i8"), np.dtype("m8[s]"))
    assert not MEAN.allows_out(np.dtype("f8"), np.dtype("i8"))
    assert not SUM.allows_out(np.dtype("i8"), np.dtype("f8"))
    assert SUM.allows_out(np.dtype(">i8"), np.dtype("<i8"))


@pytest.mark.parametrize("dtype", [np.dtype("e"), *ML_FLOATS], ids=str)
@pytest.mark.parametrize("op", [SUM, PROD, MEAN], ids=repr)
def test_narrow_floats_accumulate_in_float32(op, dtype):
    assert op.work_dtype(dtype) == np.float32
    assert op.result_dtype(dtype) == dtype


def test_float16_sum_of_many_small_values_keeps_its_digits():
    arrays = [np.full(5, 0.1, np.float16)] * 400
    got = reduced(SUM, arrays)
    wanted = np.float16(np.float32(np.float16(0.1)) * 400)
    assert got.dtype == np.float16 and np.allclose(got, wanted, rtol=1e-3)
    narrow = functools.reduce(np.add, arrays)
    assert abs(float(narrow[0]) - float(wanted)) > 0.05  # what accumulating in float16 would give


def test_bfloat16_sum_keeps_its_digits():
    dtype = np.dtype(ml_dtypes.bfloat16)
    got = reduced(SUM, [np.ones(3, dtype)] * 1000)
    assert got.dtype == dtype and got.astype(float).tolist() == [1000.0] * 3  # bfloat16 alone stops at 256


@pytest.mark.parametrize("dtype", ML_FLOATS, ids=str)
@pytest.mark.parametrize("op", [MIN, MAX], ids=repr)
def test_min_and_max_of_ml_dtypes_are_exact(op, dtype):
    arrays = [array.astype(dtype) for array in values(np.dtype("f4"), 3)]
    wide = functools.reduce(UFUNC[op.name], [array.astype(np.float32) for array in arrays])
    assert np.array_equal(reduced(op, arrays).astype(np.float32), wide)


@pytest.mark.parametrize("name", ["complex32", "bcomplex32"])
def test_narrow_complex_sums_in_complex64(name):
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")
    dtype = np.dtype(getattr(ml_dtypes, name))
    assert SUM.work_dtype(dtype) == np.complex64
    got = reduced(SUM, [np.array([1 + 2j]).astype(dtype)] * 3)
    assert got.dtype == dtype and got.astype(np.complex64)[0] == 3 + 6j
    with pytest.raises(UsageError, match="MIN does not work"):
        MIN.check(dtype, 0)


@pytest.mark.parametrize("dtype", ML_INTEGERS, ids=str)
def test_small_integers_of_ml_dtypes_work_and_wrap(dtype):
    info = ml_dtypes.iinfo(dtype)
    low, high = np.array([info.min]).astype(dtype), np.array([info.max]).astype(dtype)
    one = np.array([1]).astype(dtype)
    assert int(reduced(SUM, [high, one])[0]) == info.min
    assert int(reduced(MIN, [high, low, one])[0]) == info.min
    assert int(reduced(MAX, [low, high, low])[0]) == info.max
    assert int(reduced(BXOR, [high, high])[0]) == 0
    assert int(reduced(BAND, [high, one])[0]) == 1
    for op in ALL:
        assert reduced(op, [high, low]).dtype == op.result_dtype(dtype)


@pytest.mark.parametrize("dtype", NUMBERS[1:], ids=str)
def test_other_byte_order_reduces_in_native(dtype):
    other = dtype.newbyteorder("S")
    assert SUM.result_dtype(other) == dtype and SUM.work_dtype(other) == SUM.work_dtype(dtype)
    assert SUM.work_dtype(other).isnative
    SUM.check(other, rank=0)


def test_the_mean_of_integers_goes_into_any_number_dtype() -> None:
    for name in ("int4", "uint2", "bfloat16"):
        assert MEAN.allows_out(np.dtype(np.int8), np.dtype(getattr(ml_dtypes, name)))
    assert not SUM.allows_out(np.dtype(np.int8), np.dtype(ml_dtypes.int4))
