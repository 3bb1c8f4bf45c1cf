"""Every dtype that reductions know, by kind, and one array of it per rank."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from aiocoll.ops import BAND, BOR, BXOR, LAND, LOR, LXOR, MAX, MEAN, MIN, PROD, SUM, fold_all

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
