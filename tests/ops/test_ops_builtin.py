"""Built-in reductions against NumPy's own functions, for every dtype: sentences of the contract, one test each."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest

from aiocoll import ops
from aiocoll.distributed import ReduceOp
from aiocoll.errors import UsageError
from aiocoll.ops import BAND, BOR, BXOR, LAND, LOR, LXOR, MAX, MEAN, MIN, PROD, SUM, as_op, fold_all

CHARS = "?bBhHiIlLqQefdgFDG"
NUMBERS = [np.dtype(char) for char in CHARS]
INTEGERS = [dtype for dtype in NUMBERS if dtype.kind in "iu"]
FLOATS = [dtype for dtype in NUMBERS if dtype.kind == "f"]
COMPLEX = [dtype for dtype in NUMBERS if dtype.kind == "c"]
TIMES = [np.dtype("M8[us]"), np.dtype("m8[ms]"), np.dtype("M8"), np.dtype("m8")]
TEXTS = [np.dtype("S8"), np.dtype("U4"), np.dtype("V5"), np.dtype([("a", "i4"), ("b", "f8", (2,))])]
ML_FLOATS = [
    np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e3m4", "float6_e2m3fn")
]
ML_INTEGERS = [np.dtype(getattr(ml_dtypes, name)) for name in ("int4", "uint4", "int2", "uint2")]
ALL = (SUM, PROD, MIN, MAX, MEAN, BAND, BOR, BXOR, LAND, LOR, LXOR)
UFUNC = {
    "SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "BAND": np.bitwise_and,
    "BOR": np.bitwise_or, "BXOR": np.bitwise_xor, "LAND": np.logical_and, "LOR": np.logical_or,
    "LXOR": np.logical_xor,
}  # fmt: skip


def values(dtype, size, n=23, seed=0):
    """One array per rank, different per rank and per element, over the dtype's range."""
    random = np.random.default_rng((seed, n, size))
    arrays = []
    for _ in range(size):
        if dtype.kind == "b":
            array = random.integers(0, 2, n).astype(dtype)
        elif dtype.kind in "iu":
            info = np.iinfo(dtype)
            array = random.integers(info.min, info.max, n, dtype=dtype, endpoint=True)
            array[random.integers(0, n, n // 4)] = 0
        elif dtype.kind in "mM":
            array = random.integers(-(10**9), 10**9, n).astype("i8").view(dtype.newbyteorder("="))
        elif dtype.kind == "c":
            array = (random.normal(size=n) + 1j * random.normal(size=n)).astype(dtype)
        else:
            array = (random.normal(size=n) * 2).astype(dtype)
            array[random.integers(0, n, 3)] = 0
        arrays.append(array)
    return arrays


def reduced(op, arrays):
    """What a group does with an op, in one place: work dtype, folds in rank order, finish, result dtype."""
    dtype = arrays[0].dtype
    op.check(dtype, rank=1, what="all_reduce")
    work = op.work_dtype(dtype)
    parts = [array.astype(work) for array in arrays]
    total = np.empty(arrays[0].shape, work)
    fold_all(op, parts, total)
    op.finish(total, len(arrays))
    return total.astype(op.result_dtype(dtype))


def same(got, wanted):
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    assert np.array_equal(got.view(np.uint8), wanted.view(np.uint8)) or np.array_equal(got, wanted, equal_nan=True)


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


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("op", [MIN, MAX, BAND, BOR, BXOR], ids=repr)
def test_no_order_and_no_bits_of_complex(op, dtype):
    with pytest.raises(UsageError) as caught:
        op.check(dtype, rank=3, what="reduce_scatter")
    message = str(caught.value)
    assert f"reduce_scatter on rank 3: op {op.name}" in message and str(dtype) in message
    assert "takes SUM, PROD, MEAN, LAND, LOR, LXOR" in message
    with pytest.raises(UsageError):
        op.work_dtype(dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *ML_FLOATS, *TIMES], ids=str)
@pytest.mark.parametrize("op", [BAND, BOR, BXOR], ids=repr)
def test_no_bit_ops_on_floats_and_times(op, dtype):
    with pytest.raises(UsageError, match=f"op {op.name} does not work on dtype"):
        op.check(dtype, rank=0)


@pytest.mark.parametrize("dtype", TEXTS, ids=str)
@pytest.mark.parametrize("op", ALL, ids=repr)
def test_text_and_structures_do_not_reduce(op, dtype):
    with pytest.raises(UsageError, match=r"has no built-in reduction; aiocoll\.op\(fn\)"):
        op.check(dtype, rank=0)


@pytest.mark.parametrize("dtype", [*NUMBERS, *TIMES, *ML_FLOATS, *ML_INTEGERS], ids=str)
@pytest.mark.parametrize("op", ALL, ids=repr)
def test_what_check_admits_works_and_what_it_refuses_raises(op, dtype):
    source = [np.array([0, 1, 1]), np.array([1, 1, 0])]
    arrays = [array.astype("i8").view(dtype) if dtype.kind in "mM" else array.astype(dtype) for array in source]
    try:
        op.check(dtype, rank=0)
    except UsageError:
        with pytest.raises(UsageError):
            reduced(op, arrays)
    else:
        got = reduced(op, arrays)
        assert got.dtype == op.result_dtype(dtype) and got.shape == (3,)


@pytest.mark.parametrize("dtype", NUMBERS[1:], ids=str)
def test_other_byte_order_reduces_in_native(dtype):
    other = dtype.newbyteorder("S")
    assert SUM.result_dtype(other) == dtype and SUM.work_dtype(other) == SUM.work_dtype(dtype)
    assert SUM.work_dtype(other).isnative
    SUM.check(other, rank=0)


@pytest.mark.parametrize("op", ALL, ids=repr)
def test_identities_leave_every_value_as_it_is(op):
    for dtype in [*NUMBERS, np.dtype("m8[s]"), *ML_FLOATS[:2], *ML_INTEGERS]:
        if ops._work_dtype(op, dtype) is None:
            continue
        if op in (MIN, MAX, MEAN):
            assert op.identity(dtype) is None and op.identity_array((2,), dtype) is None
            continue
        neutral = op.identity_array((3,), dtype.newbyteorder("S") if dtype.isbuiltin == 1 else dtype)
        assert neutral.dtype == dtype and neutral.flags.writeable
        array = np.array([0, 1, 1]).astype(dtype)
        got = reduced(op, [neutral, array])
        assert np.array_equal(got, array)
        assert isinstance(op.identity(dtype), np.generic) or dtype.isbuiltin == 2


def test_identity_of_band_is_all_bits():
    assert BAND.identity(np.dtype("u2")) == 0xFFFF
    assert BAND.identity(np.dtype("i4")) == -1
    assert BAND.identity(np.dtype("?")) == np.True_
    assert int(BAND.identity(np.dtype(ml_dtypes.uint4))) == 15


@pytest.mark.parametrize("op", ALL, ids=repr)
def test_fold_may_write_into_either_input_and_into_a_third_array(op):
    for target in range(3):
        left, right, other = np.array([1, 0, 3]), np.array([2, 5, 0]), np.zeros(3, int)
        wanted = np.array([1, 0, 3])
        op.fold(np.array([1, 0, 3]), np.array([2, 5, 0]), wanted)
        out = (left, right, other)[target]
        op.fold(left, right, out)
        assert np.array_equal(out, wanted)


@pytest.mark.parametrize("op", ALL, ids=repr)
def test_zero_size_is_an_ordinary_case(op):
    got = reduced(op, [np.empty((0,), np.int32)] * 3)
    assert got.shape == (0,) and got.dtype == op.result_dtype(np.dtype("i4"))


@pytest.mark.parametrize("setting", ["warn", "raise"])
def test_folds_are_silent_whatever_the_callers_errstate_says(setting):
    big = np.array([3e38, np.inf], np.float32)
    with warnings.catch_warnings(), np.errstate(all=setting):
        warnings.simplefilter("error")
        assert reduced(SUM, [big, np.array([3e38, -np.inf], np.float32)])[0] == np.inf
        assert reduced(MEAN, [big, big])[0] == np.inf
        assert np.geterr()["over"] == setting  # and the caller's errstate is as it was
    assert SUM.fold is not None


def test_folds_run_in_several_threads_at_once():
    arrays = [np.full(200_000, float(i)) for i in range(4)]
    failures = []

    def work(mine):
        try:
            for _ in range(50):
                out = np.empty_like(mine)
                SUM.fold(mine, mine, out)
                assert out[0] == 2 * mine[0]
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_all_built_in_ops_commute_and_split_and_say_whether_they_finish():
    assert all(op.commutative and op.splittable for op in ALL)
    assert [op.name for op in ALL if op.finishes] == ["MEAN", "LAND", "LOR", "LXOR"]
    for op in ALL:
        assert op.bind((2, 2), np.dtype("f8"), rank=0, what="reduce") is op


@pytest.mark.parametrize("op", ALL, ids=repr)
def test_finish_works_on_slices(op):
    whole = np.array([3, 0, 7, 9], op.work_dtype(np.dtype("i8")))
    parts = whole.copy()
    op.finish(whole, 3)
    op.finish(parts[:1], 3)
    op.finish(parts[1:], 3)
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize("op", ALL, ids=repr)
def test_names_mean_the_ops_and_copies_are_the_op_itself(op):
    assert as_op(op) is op and as_op(op.name) is op and as_op(op.name.lower()) is op
    assert pickle.loads(pickle.dumps(op)) is op
    assert copy.copy(op) is op and copy.deepcopy(op) is op
    assert repr(op) == f"aiocoll.{op.name}"


@pytest.mark.parametrize("wrong", ["AVERAGES", "", None, 3, np.hypot, pow, lambda a, b: a])
def test_anything_else_is_no_op(wrong):
    with pytest.raises(UsageError, match="one of SUM, PROD, MIN, MAX, MEAN") as caught:
        as_op(wrong)
    assert ("wrap a function" in str(caught.value)) == callable(wrong)


def test_it_is_known_where_the_order_of_operands_shows_in_the_bits():
    for dtype in (*FLOATS, *COMPLEX, *ML_FLOATS):
        assert not SUM.associates(dtype) and not PROD.associates(dtype) and not MEAN.associates(dtype)
        assert dtype in COMPLEX or not (MIN.associates(dtype) or MAX.associates(dtype))  # zeros have signs
    for dtype in INTEGERS:
        assert all(each.associates(dtype) for each in (SUM, PROD, MIN, MAX, BAND, BOR, BXOR, LAND, LOR, LXOR))
        assert not MEAN.associates(dtype)  # adds up in float64
    assert LAND.associates(np.dtype("f4")) and SUM.associates(np.dtype("m8[s]"))
    assert not ops.op(np.add).associates(np.dtype("i8")) and not ops.op(max).associates(np.dtype("i8"))


def test_a_dtype_of_powers_of_two_has_no_false_and_no_identity_of_sums() -> None:
    powers = np.dtype(ml_dtypes.float8_e8m0fnu)
    for each in (LAND, LOR, LXOR):
        with pytest.raises(UsageError, match=each.name):
            each.check(powers, 0)
    assert SUM.identity(powers) is None and PROD.identity(powers) == 1


def test_the_mean_of_integers_goes_into_any_number_dtype() -> None:
    for name in ("int4", "uint2", "bfloat16"):
        assert MEAN.allows_out(np.dtype(np.int8), np.dtype(getattr(ml_dtypes, name)))
    assert not SUM.allows_out(np.dtype(np.int8), np.dtype(ml_dtypes.int4))


@pytest.mark.parametrize(
    ("said", "meant"),
    [("avg", "MEAN"), ("Average", "MEAN"), (np.add, "SUM"), (np.maximum, "MAX"), (sum, "SUM"), (ReduceOp.AVG, "MEAN")],
    ids=str,
)
def test_what_others_call_it_is_answered_with_our_word(said, meant):
    with pytest.raises(UsageError, match=rf"is no reduction: .*; did you mean aiocoll\.{meant}\?"):
        as_op(said)
