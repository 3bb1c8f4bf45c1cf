"""NumPy's reductions in the words of libraries that know fewer dtypes and fewer reductions.

The rule: what comes back has NumPy's values, wrapping, NaN and truth included; what cannot have them is refused before
anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...buffers.narrow import is_narrow
from ...ops import Op

Array = NDArray[Any]
Restore = Callable[[Array], None]

_PLAIN = {"MEAN": "SUM", "PREMUL_SUM": "SUM"}
_OF_TRUTH = {"SUM": "MAX", "PROD": "MIN", "LAND": "MIN", "LOR": "MAX", "LXOR": "BXOR"}
_NUMBERS = "?bhilqBHILQefdgFDG"
KNOWN = ("SUM", "PROD", "MIN", "MAX", "BAND", "BOR", "BXOR")


def spelled(op: Op, dtype: np.dtype[Any]) -> tuple[np.dtype[Any], str] | None:
    """The dtype and reduction that do ``op`` on ``dtype``; None where op is no built-in one or dtype is no number."""
    if op.ufunc is None or not (dtype.char in _NUMBERS or is_narrow(dtype)):
        return None
    name = _PLAIN.get(op.name, op.name)
    if op.logical or dtype.kind == "b":
        return np.dtype(np.uint8), _OF_TRUTH.get(name, name)
    return (dtype, name) if name in KNOWN else None


def stand_in(dtype: np.dtype[Any], name: str, able: Callable[[np.dtype[Any], str], bool]) -> np.dtype[Any] | None:
    """A dtype that the library folds and from which NumPy's values in ``dtype`` follow; None where there is none."""
    if able(dtype, name):
        return dtype
    if dtype.kind in "iu":
        for candidate in (np.dtype(np.int16), np.dtype(np.int32), np.dtype(np.int64)):
            # The low bits of sums and products are those of wider integers; the order is that of integers that hold it.
            bits = name not in ("MIN", "MAX") and candidate.itemsize >= dtype.itemsize
            if (bits or np.can_cast(dtype, candidate)) and able(candidate, name):
                return candidate
        if dtype == np.uint64 and able(np.dtype(np.int64), name):
            return np.dtype(np.int64)  # MIN and MAX with the top bit turned over, see load
    if is_narrow(dtype):
        return np.dtype(np.float32)  # which has all of their values
    if dtype.kind == "c" and name == "SUM":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return part if able(part, name) else None
    return None


def load(x: Array, op: Op, dtype: np.dtype[Any], name: str) -> tuple[Array, Restore | None]:
    """``x`` as the library gets it, and how the result comes back into ``x``: None where it is folded in place."""
    if op.logical or x.dtype.kind == "b":
        truth = (x != 0).view(np.uint8)
        return truth, lambda result: np.copyto(x, result.view(np.bool_), casting="unsafe")
    if dtype == x.dtype:
        return x, None
    if x.dtype.kind == "c":
        return x.view(dtype), None
    if x.dtype == np.uint64 and name in ("MIN", "MAX"):
        turned = (x ^ np.uint64(1 << 63)).view(np.int64)
        return turned, lambda result: np.copyto(x, result.view(np.uint64) ^ np.uint64(1 << 63))
    if dtype.itemsize == x.dtype.itemsize:
        return x.view(dtype), None
    return x.astype(dtype), lambda result: np.copyto(x, result, casting="unsafe")
