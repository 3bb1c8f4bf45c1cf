"""Inputs of cells: every fixed-size dtype, every layout of memory, values that tell ranks and elements apart.

Rule: pure; equal arguments give equal arrays. Sums and products of plain values are exact in every dtype that rounds,
so that a wrong element is wrong and not nearly right.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DType = np.dtype[Any]

POINT: Final = np.dtype([("x", "<f8"), ("n", "i2", (2,)), ("name", "U3")], align=True)
_OWN: Final = "?bBhHiIlLqQefdgFDG"
_SPELLED: Final = ("m8[s]", "M8[ns]", "M8[D]", "S5", "U4", "V5")
_REFUSED: Final = ("object", "StringDType")
_CANARY: Final = 0xA5


@lru_cache(1)
def dtypes() -> dict[str, DType]:
    """Every dtype of the matrix by name: NumPy's own, dates, text, raw bytes, a structure, those of ml_dtypes where it
    is installed, and the two that are refused."""
    found = {np.dtype(char).name: np.dtype(char) for char in _OWN}
    found |= {"long": np.dtype("l"), "longlong": np.dtype("q"), "ulong": np.dtype("L"), "ulonglong": np.dtype("Q")}
    found |= {spelling: np.dtype(spelling) for spelling in _SPELLED}
    found["structured"] = POINT
    found |= _extended()
    found |= {"object": np.dtype(object), "StringDType": np.dtypes.StringDType()}
    return found


def _extended() -> dict[str, DType]:
    try:
        module = importlib.import_module("ml_dtypes")
    except ImportError:
        return {}
    kinds = [getattr(module, name) for name in sorted(dir(module))]
    return {kind.__name__: np.dtype(kind) for kind in kinds if isinstance(kind, type) and issubclass(kind, np.generic)}


def is_extended(dtype: DType) -> bool:
    """Whether it is one of ml_dtypes."""
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def fixed(name: str) -> bool:
    """Whether arrays of this dtype travel at all."""
    return name not in _REFUSED


# ------------------------------------------------------------------------------------------------ values


@lru_cache(20_000)
def values(rank: int, shape: tuple[int, ...], name: str, extreme: bool = False) -> Array:
    """What `rank` gives: distinct per rank and, as far as the dtype goes, per element; read-only, in C order.

    Extreme ones have what overflows: the limits of integers, NaN and infinities of NumPy's own floats.
    """
    made = _plain(rank, int(np.prod(shape)), dtypes()[name])
    if extreme and made.size:
        _put_extremes(made, rank)
    made = made.reshape(shape)
    made.flags.writeable = False
    return made


def _plain(rank: int, count: int, dtype: DType) -> Array:
    places = np.arange(count)
    numbers = (places * 5 + rank * 3 + places // 7) % 11 + 1
    if dtype.names:
        made = np.zeros(count, dtype)
        for place, name in enumerate(dtype.names):
            field = made[name]
            field[...] = _plain(rank + place, field.size, field.dtype).reshape(field.shape)
        return made
    if dtype.kind == "b":
        return np.asarray((numbers + places) % 3 == 0)
    if dtype.kind in "SUT":
        return np.array([f"{number}.{rank}" for number in numbers], dtype=dtype)
    if dtype.kind == "O":
        return np.array([{"rank": rank, "place": int(place)} for place in places], dtype=object)
    if dtype.kind == "V" and not is_extended(dtype):
        return (np.arange(count * dtype.itemsize) * 7 + rank * 11).astype(np.uint8).view(dtype)
    if dtype.kind in "mM":
        return numbers.astype(np.int64).astype(dtype)
    small = numbers % 3 + (rank + places) % 2  # 0 to 3: products of five ranks are exact in single precision
    if dtype.kind == "c" or "complex" in dtype.name:
        return (small.astype(np.complex64) - 1j * ((numbers + rank) % 3)).astype(dtype)
    if is_extended(dtype) and dtype.name.endswith(("int1", "int2", "int4")):
        return small.astype(np.int8).astype(dtype)
    if is_extended(dtype) or dtype.kind == "f":
        return (small.astype(np.float32) / 2 - (places % 2)).astype(dtype)
    return (small - (dtype.kind == "i") * ((places + rank) % 3)).astype(dtype)


def _put_extremes(made: Array, rank: int) -> None:
    """Some elements are as large as they get, at places that differ per rank."""
    dtype = made.dtype
    edges: list[float]
    if dtype.kind in "iu":
        edges = [np.iinfo(dtype).max, np.iinfo(dtype).min, np.iinfo(dtype).max - rank]
    elif dtype.kind == "f" and not is_extended(dtype):
        edges = [np.nan, np.inf, -np.inf]
    else:
        return
    for place, edge in enumerate(edges):
        made[(place + rank * (place + 1)) % made.size] = edge


# ------------------------------------------------------------------------------------------------ layouts


def _sliced(x: Array) -> Array:
    wide = _canaries((x.shape[0], *x.shape[1:-1], 2 * x.shape[-1] + 1), x.dtype)
    inner = wide[..., 1::2]
    inner[...] = x
    return inner


def _reversed(x: Array) -> Array:
    back = tuple(slice(None, None, -1) for _ in x.shape)
    return x[back].copy()[back]


def _transposed(x: Array) -> Array:
    """Axes swapped in memory, but not all of them: in neither C nor Fortran order."""
    return np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)


def _unaligned(x: Array) -> Array:
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:]
    if x.dtype.hasobject:
        return x.copy()
    made = raw.view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


def _read_only(x: Array) -> Array:
    locked = x.copy()
    locked.flags.writeable = False
    return locked


def _canaries(shape: tuple[int, ...], dtype: DType) -> Array:
    if dtype.hasobject or dtype.kind == "T":
        return np.empty(shape, dtype)
    count = int(np.prod(shape))
    return np.full(count * dtype.itemsize, _CANARY, np.uint8).view(dtype).reshape(shape)


LAYOUTS: Final[dict[str, Callable[[Array], Array]]] = {
    "C": lambda x: x.copy(),
    "Fortran": lambda x: x.copy("F"),
    "transposed": _transposed,
    "negative strides": _reversed,
    "sliced": _sliced,
    "unaligned": _unaligned,
    "swapped bytes": lambda x: x.astype(x.dtype.newbyteorder("S")),
    "broadcast view": lambda x: np.broadcast_to(x[:1].copy(), x.shape),
    "read-only": _read_only,
    "empty": lambda x: x.copy(),
    "0-d": lambda x: x.copy(),
    "number": lambda x: x[()],
}
"""By name, how the values of an array are laid out; those that no `out` can have are in NO_OUT."""

NO_OUT: Final = ("broadcast view", "read-only", "number")
EMPTY_SHAPES: Final = ((0,), (2, 0, 3), (0, 4))


def gaps(x: Any) -> Array | None:
    """The memory between the elements of a sliced array; None for other layouts."""
    raw = x.base if isinstance(x, np.ndarray) and x.ndim else None
    if raw is None or raw.dtype != np.uint8 or raw.ndim != 1 or not x.itemsize:
        return None
    wide = (*x.shape[:-1], 2 * x.shape[-1] + 1)
    if raw.nbytes != int(np.prod(wide)) * x.itemsize or x.strides[-1] != 2 * x.itemsize:
        return None
    between: Array = raw.view(x.dtype).reshape(wide)[..., ::2]
    return between


def untouched(between: Array) -> bool:
    """Whether nothing was written there."""
    return between.dtype.kind == "T" or set(between.tobytes()) <= {_CANARY}


__all__ = [
    "EMPTY_SHAPES", "LAYOUTS", "NO_OUT", "POINT", "dtypes", "fixed", "gaps", "is_extended", "untouched", "values",
]  # fmt: skip
