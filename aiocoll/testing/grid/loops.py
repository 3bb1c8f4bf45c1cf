"""Which op NumPy has for which dtype, and in which dtype it computes.

Rule: NumPy is asked, never the library.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np

from .kinds import dtypes, is_extended

DType = np.dtype[Any]

UFUNCS: Final[dict[str, np.ufunc]] = {
    "SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "MEAN": np.add,
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
    "LAND": np.logical_and, "LOR": np.logical_or, "LXOR": np.logical_xor,
}  # fmt: skip


@lru_cache(4096)
def able(op: str, name: str) -> bool:
    """Whether NumPy can: a loop for the dtype whose result is of that dtype again."""
    dtype = dtypes()[name]
    if op not in UFUNCS:  # a function of the user's
        return True
    if dtype.kind in "SUTO" or (dtype.kind == "V" and not is_extended(dtype)):
        return False
    if op in ("MIN", "MAX") and (dtype.kind == "c" or "complex" in dtype.name):
        return False  # NumPy orders them by their real parts, which is rarely what anyone means
    if op in ("LAND", "LOR", "LXOR") and np.zeros(1).astype(dtype) != 0:
        return False  # a dtype of powers of two has no 0 for false
    x = np.ones(2, work_dtype(op, dtype))
    try:
        UFUNCS[op](x, x, out=x)
        if op == "MEAN":
            np.true_divide(x, 2, out=x)
    except TypeError:
        return False
    return True


def work_dtype(op: str, dtype: DType) -> DType:
    """The dtype in which NumPy is to compute: narrow floats are added and multiplied in single precision."""
    dtype = dtype.newbyteorder("=")
    integer = dtype.kind in "biu" or (is_extended(dtype) and dtype.name.startswith(("int", "uint")))
    if op == "MEAN" and integer:
        return np.dtype(np.float64)
    if integer and is_extended(dtype):
        return np.dtype(np.int8)
    if op in ("SUM", "PROD", "MEAN") and (dtype == np.float16 or is_extended(dtype)):
        return np.dtype(np.complex64 if "complex" in dtype.name else np.float32)
    return dtype


__all__ = ["UFUNCS", "able", "work_dtype"]
