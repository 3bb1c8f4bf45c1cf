"""Flat views, contiguous copies and sliced copies, for every dtype and layout."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aiocoll.buffers import (
    as_bytes,
    copy,
    flat,
    flat_bytes,
    is_packed,
    native,
    pack,
    pieces,
    shaped,
)

CHARS = "?bBhHiIlLqQefdgFDG"
NESTED = np.dtype([("a", ">i2"), ("b", [("x", "<f8"), ("y", ">f4", (2, 3))]), ("c", "S3")])
PADDED = np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [3, 16], "itemsize": 32})
DTYPES = [
    *(np.dtype(char) for char in CHARS),
    *(np.dtype(char).newbyteorder("S") for char in "hidgD"),
    *(np.dtype(text) for text in ("M8[us]", "m8[D]", "M8", "S8", "U4", ">U3", "V5", "V0")),
    NESTED,
    PADDED,
    *(np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "int4", "float4_e2m1fn")),
]

LAYOUTS = {
    "c": lambda a: a,
    "fortran": np.asfortranarray,
    "transposed": lambda a: a.T,
    "strided": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "negative": lambda a: a[::-1, ::-1],
    "0-d": lambda a: a[0, 0, ...],
    "zero rows": lambda a: a[:0],
    "zero columns": lambda a: a[:, :0],
    "one element": lambda a: a[1:2, 2:3],
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "read-only": lambda a: locked(a),
}


def locked(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def sample(dtype, shape=(3, 5)):
    """Distinct elements of any dtype, made from random bytes where numbers do not convert."""
    n = int(np.prod(shape))
    if dtype.itemsize == 0:
        return np.zeros(shape, dtype)
    if dtype.kind in "SU":
        return np.array([str(i) for i in range(n)]).astype(dtype).reshape(shape)
    if dtype.names:
        array = np.zeros(n, dtype)
        array["a"] = np.arange(n)
        array["b"] = np.arange(n) if dtype is PADDED else np.zeros(n, dtype["b"])
        if dtype is NESTED:
            array["b"]["x"] = np.arange(n) / 3
            array["b"]["y"] = np.arange(n * 6).reshape(n, 2, 3)
        return array.reshape(shape)
    if dtype.kind == "V" and dtype.isbuiltin != 2:
        return np.frombuffer(np.random.default_rng(0).bytes(n * dtype.itemsize), dtype).reshape(shape).copy()
    return (np.arange(n) % 120).astype("i8").astype(dtype).reshape(shape)


def equal(a, b):
    assert a.shape == b.shape
    return repr(a.astype(native(a.dtype)).tolist()) == repr(b.astype(native(b.dtype)).tolist())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pack_gives_flat_native_contiguous_and_shaped_undoes_it(dtype, layout):
    x = LAYOUTS[layout](sample(dtype))
    buffer, fortran = pack(x)
    assert buffer.ndim == 1 and buffer.flags.c_contiguous and buffer.dtype == native(dtype) and buffer.dtype.isnative
    assert equal(shaped(buffer, x.shape, fortran), x)
    if is_packed(x) and x.nbytes:
        assert np.shares_memory(buffer, x)
    elif x.nbytes:
        assert not np.may_share_memory(buffer, x)


def test_pack_says_fortran_only_where_it_matters():
    assert pack(np.zeros(4))[1] is False and pack(np.zeros((1, 4), order="F"))[1] is False
    assert pack(np.zeros((2, 3), order="F"))[1] is True
    assert pack(np.zeros((2, 3), ">f8", order="F"))[1] is True


@pytest.mark.parametrize("layout", ["c", "fortran", "transposed", "0-d", "zero rows", "zero columns", "read-only"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_flat_bytes_of_any_dtype_share_memory_and_are_format_b(dtype, layout):
    x = LAYOUTS[layout](sample(dtype))
    if not (x.flags.c_contiguous or x.flags.f_contiguous):
        x = x.copy()
    view = flat_bytes(x)
    assert (view.format, view.ndim, view.nbytes) == ("B", 1, x.nbytes)
    assert bytes(view) == x.tobytes("A")
    assert as_bytes(x).dtype == np.uint8 and as_bytes(x).tobytes() == x.tobytes("A")
    if x.nbytes:
        assert view.readonly == (not x.flags.writeable)
        assert np.shares_memory(np.frombuffer(view, np.uint8), x)
        assert np.shares_memory(as_bytes(x), x) and np.shares_memory(flat(x), x)


def test_flat_refuses_what_has_no_flat_view():
    with pytest.raises(ValueError, match="not contiguous"):
        flat(np.zeros((4, 4))[:, ::2])


@pytest.mark.parametrize("target_layout", ["c", "fortran", "transposed", "strided", "negative", "0-d", "zero columns"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("nbytes", [1, 24, 1 << 20])
def test_pieces_copy_between_any_layouts(layout, target_layout, nbytes):
    x = LAYOUTS[layout](sample(np.dtype(">i4")))
    target = LAYOUTS[target_layout](np.full((3, 5), -1))
    if target.shape != x.shape:
        target = np.full(x.shape, -1)
    steps = sum(1 for _ in pieces(x, target, nbytes))
    assert equal(target, x)
    if nbytes == 1 << 20:
        assert steps == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pieces_copy_every_dtype_to_native(dtype):
    x = sample(dtype)[::-1].T
    target = np.empty(x.shape, native(dtype))
    for _ in pieces(x, target, 64):
        pass
    assert equal(target, x)


def test_pieces_are_bounded_and_yield_between_slices_only():
    x, target = np.arange(1000.0), np.full(1000, -1.0)
    done = [int((target >= 0).sum()) for _ in pieces(x, target, 800)]
    assert done == [100 * i for i in range(1, 10)]
    assert np.array_equal(x, target)
    x, target = np.arange(60.0).reshape(3, 4, 5), np.full((3, 4, 5), -1.0)
    done = [int((target >= 0).sum()) for _ in pieces(x, target, 16)]
    assert max(np.diff([0, *done, 60])) <= 2 and np.array_equal(x, target)
    wide = np.arange(1000, dtype="f8")
    target = np.full(1000, -1, "f2")
    done = [int((target >= 0).sum()) for _ in pieces(wide, target, 800)]
    assert done[0] == 100  # the larger of the two counts


def test_pieces_walk_in_the_targets_memory_order():
    target = np.full((4, 6), -1.0).T
    steps = pieces(np.arange(24.0).reshape(6, 4), target, 48)
    next(steps)
    assert (target.T[0] >= 0).all() and (target.T[1:] < 0).all()


def test_pieces_want_equal_shapes():
    with pytest.raises(ValueError, match=r"shape \(3,\) into shape \(4,\)"):
        list(pieces(np.zeros(3), np.zeros(4)))


def test_nothing_between_the_elements_is_touched():
    memory = np.full((6, 8), -1)
    target = memory[::2, 1::3]
    for _ in pieces(np.arange(9).reshape(3, 3), target, 8):
        pass
    untouched = np.ones(memory.shape, bool)
    untouched[::2, 1::3] = False
    assert (memory[untouched] == -1).all() and target.tolist() == np.arange(9).reshape(3, 3).tolist()


def test_casts_are_silent_and_those_of_astype():
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        target = np.empty(3, "f2")
        copy(np.array([1e30, -2.7, 0.1]), target)
        assert target.tolist() == [np.inf, float(np.float16(-2.7)), float(np.float16(0.1))]
        whole = np.empty(2, "i8")
        copy(np.array([2.7, -2.7]), whole)
        assert whole.tolist() == [2, -2]
        narrow = np.empty(2, ml_dtypes.bfloat16)
        copy(np.array([1.0, 1e39], "f8"), narrow)
        assert narrow.astype(float).tolist() == [1.0, np.inf]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pieces_equal_assignment_for_any_shape_and_order(data):
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    x = np.arange(int(np.prod(shape)), dtype="i4").reshape(shape)
    axes = data.draw(st.permutations(range(x.ndim)))
    flip = tuple(slice(None, None, data.draw(st.sampled_from([1, -1]))) for _ in shape)
    x = x[flip].transpose(axes)
    target = np.full(x.shape, -1, order=data.draw(st.sampled_from("CF")))
    nbytes = data.draw(st.integers(1, 200))
    steps = sum(1 for _ in pieces(x, target, nbytes))
    assert np.array_equal(target, x)
    assert steps + 1 <= max(1, x.size)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_native_is_native_throughout_and_the_same_dtype_otherwise(dtype):
    assert native(dtype).isnative and native(native(dtype)) == native(dtype)
    assert native(dtype).itemsize == dtype.itemsize
    if dtype.isnative:
        assert native(dtype) is dtype
