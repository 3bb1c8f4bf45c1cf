"""The benchmark's data: exact in every dtype, different everywhere, and no mistake in them stays unseen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiocoll.bench import pattern
from aiocoll.bench.pattern import PERIOD, Stretch
from aiocoll.bench.request import OPS, dtype_named, works
from aiocoll.ops import as_op

DTYPES = ("bool", "int8", "uint8", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn")


def stretch(start: int, count: int) -> Stretch:
    return Stretch(np.random.default_rng(7).permutation(PERIOD).astype(np.float32), start, count)


@given(start=st.integers(0, 5000), count=st.integers(0, 5000), call=st.integers(0, 10**6), data=st.data())
def test_one_wrong_element_is_counted_wherever_it_is(start: int, count: int, call: int, data: st.DataObject) -> None:
    piece = stretch(start, count)
    array = np.zeros(count, np.float32)
    piece.fill(array, call)
    assert piece.wrong(array, call) == 0
    if count:
        for at in {data.draw(st.integers(0, count - 1)), 0, count - 1}:
            assert array[at] == piece.table[(start + at + call) % PERIOD]
            array[at] += 1
            assert piece.wrong(array, call) == 1
            array[at] -= 1


@given(count=st.integers(1, 4000), shift=st.integers(1, PERIOD - 1))
def test_a_block_in_the_wrong_place_or_of_another_call_is_wrong_throughout(count: int, shift: int) -> None:
    array = np.zeros(count, np.float32)
    stretch(5, count).fill(array, 0)
    assert stretch(5, count).wrong(array, shift) == count
    assert stretch(5 + shift, count).wrong(array, 0) == count


def test_a_result_of_another_shape_or_dtype_is_wrong_throughout() -> None:
    piece = stretch(0, 12)
    array = np.zeros(12, np.float32)
    piece.fill(array, 3)
    assert piece.wrong(array.astype(np.float64), 3) == 12
    assert piece.wrong(array.reshape(3, 4), 3) == 12
    assert piece.wrong(array[:11], 3) == 12
    assert stretch(0, 0).wrong(array, 3) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 20])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_what_is_expected_is_what_the_op_gives(op: str, name: str, size: int) -> None:
    if not works(op, name):
        return  # refused before a rank starts, see the tests of requests
    dtype, operation = dtype_named(name), as_op(op)
    parts = pattern.tables(op, dtype, size)
    work = parts[0].astype(operation.work_dtype(dtype))
    for part in parts[1:]:
        operation.fold(work, part.astype(work.dtype), work)
    operation.finish(work, size)
    result = operation.result_dtype(dtype)
    expected = pattern.folded(op, parts, result)
    assert expected.dtype == result
    assert np.array_equal(expected, work.astype(result))


@pytest.mark.parametrize("name", DTYPES)
def test_tables_differ_from_rank_to_rank_and_are_the_same_on_every_rank(name: str) -> None:
    dtype = dtype_named(name)
    first, second, third = pattern.tables("", dtype, 3)
    assert first.dtype == dtype and len(first) == PERIOD
    for left, right in ((first, second), (second, third), (first, third)):
        assert np.count_nonzero(left != right) > PERIOD / 5
    assert all(np.array_equal(a, b) for a, b in zip(pattern.tables("", dtype, 3), (first, second, third), strict=True))
