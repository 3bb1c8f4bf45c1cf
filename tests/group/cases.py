"""What the tests of groups share: worlds to run in, inputs that differ per rank and per element, errors as values.

The rule: a test's program runs on every fabric; nothing here waits for time to pass.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from aiocoll.testing import run

FABRICS = ("sim", "inproc", "tcp", "shm")
SIZES = (1, 2, 3, 4, 5)
POINT = np.dtype([("x", "<f8"), ("n", "i2", (2,)), ("name", "U3")], align=True)

# Every kind of fixed-size dtype: movement takes them all.
MOVABLE = [
    *(np.dtype(char) for char in "?bBhHiIlLqQefdgFDG"),
    *map(np.dtype, (">f8", ">i4", ">c16", "S8", "U4", ">U2", "V5", "M8[ns]", "m8[D]", ">M8[s]", ml_dtypes.bfloat16)),
    POINT,
    POINT.newbyteorder(">"),
]

on_every_fabric = pytest.mark.parametrize("fabric", FABRICS)
for_every_size = pytest.mark.parametrize("size", SIZES)


def values(rank: int, shape: tuple[int, ...], dtype: Any = float) -> NDArray[Any]:
    """An array whose elements differ from one another and from other ranks', small enough to be added up exactly."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    numbers = (np.arange(count) * 3 + 5 * rank + 1) % 97
    if dtype.names:
        array = np.zeros(count, dtype)
        for place, name in enumerate(dtype.names):
            field = array[name]
            field[...] = values(rank + place, field.shape, field.dtype)
    elif dtype.kind == "b":
        array = ((numbers * 7 + rank) % 3 == 0).astype(dtype)
    elif dtype.kind in "SU":
        array = np.array([str(number) for number in numbers]).astype(dtype)
    elif dtype.kind == "V" and dtype.type is np.void:
        raw = (np.arange(count * dtype.itemsize) + rank * 11).astype(np.uint8)
        array = raw.view(dtype)
    elif dtype.kind in "mM":
        array = numbers.astype(np.int64).astype(dtype)
    elif dtype.kind == "c":
        array = (numbers - 1j * numbers[::-1]).astype(dtype)
    else:
        array = numbers.astype(dtype)
    return array.reshape(shape)


def layouts(array: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The same 2-D values in every layout that NumPy can make."""
    rows, columns = array.shape
    wide = np.zeros((rows, 2 * columns), array.dtype)
    wide[:, ::2] = array
    locked = array.copy()
    locked.flags.writeable = False
    return {
        "C": array.copy(),
        "Fortran": np.asfortranarray(array),
        "strided": wide[:, ::2],
        "negative": array[::-1, ::-1].copy()[::-1, ::-1],
        "transposed": array.T.copy().T,
        "big-endian": array.astype(array.dtype.newbyteorder(">")),
        "read-only": locked,
        "matrix": array.view(np.matrix),
    }


async def outcome(call: Awaitable[Any]) -> Any:
    """The result of a call, or what it raised."""
    try:
        return await call
    except Exception as error:
        return error


def same(result: Any, wanted: Any) -> None:
    """Equal in type, dtype (native), shape and value."""
    wanted = np.asarray(wanted)
    assert result.dtype == wanted.dtype.newbyteorder("="), (result.dtype, wanted.dtype)
    assert result.shape == wanted.shape, (result.shape, wanted.shape)
    np.testing.assert_array_equal(result, wanted)


def ranks(size: int, main: Callable[..., Awaitable[Any]], fabric: str, **connect: Any) -> list[Any]:
    """``main`` on every rank; a call that hangs fails after ten seconds."""
    connect.setdefault("timeout", 10.0)
    return run(size, main, fabric, **connect)
