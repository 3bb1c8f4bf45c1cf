"""What the built-in reductions refuse, promise and say of themselves, whatever the numbers."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest

from aiocoll import ops
from aiocoll.distributed import ReduceOp
from aiocoll.errors import UsageError
from aiocoll.ops import BAND, BOR, BXOR, LAND, LOR, LXOR, MAX, MEAN, MIN, PROD, SUM, as_op

from .kinds import ALL, COMPLEX, FLOATS, INTEGERS, ML_FLOATS, ML_INTEGERS, NUMBERS, TEXTS, TIMES, reduced


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


@pytest.mark.parametrize(
    ("said", "meant"),
    [("avg", "MEAN"), ("Average", "MEAN"), (np.add, "SUM"), (np.maximum, "MAX"), (sum, "SUM"), (ReduceOp.AVG, "MEAN")],
    ids=str,
)
def test_what_others_call_it_is_answered_with_our_word(said, meant):
    with pytest.raises(UsageError, match=rf"is no reduction: .*; did you mean aiocoll\.{meant}\?"):
        as_op(said)
