"""What a cell must give, by NumPy alone: the value on each rank, or that it is refused.

Rule: nothing here asks the library what it can do.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .cells import Cell
from .kinds import NO_OUT, dtypes, fixed, is_extended, values
from .loops import UFUNCS, able, work_dtype

Array = NDArray[Any]
DType = np.dtype[Any]

IDENTITIES: Final = {"SUM": 0, "PROD": 1, "BAND": -1, "BOR": 0, "BXOR": 0, "LAND": 1, "LOR": 0, "LXOR": 0}


@dataclass(frozen=True, slots=True)
class Refused:
    """The call raises UsageError on all ranks, and nothing of the array has left any of them."""

    why: str


NOTHING: Final = object()
"""What ranks are to get that get None."""


# ------------------------------------------------------------------------------------------------ refusals


def only_reads(cell: Cell, rank: int) -> bool:
    """Whether this rank of a documented call fills nothing and waits for nobody: it may be through before it hears that
    others refuse."""
    if cell.layout == "number" or not cell.facade or not fixed(cell.dtype):
        return False
    return (cell.collective == "broadcast") if rank == cell.root else cell.collective in ("reduce", "gather")


def refusal(cell: Cell) -> Refused | None:
    """Why this cell is refused, if it is."""
    if not fixed(cell.dtype):
        return Refused("the dtype has no fixed size")
    if cell.op and not able(cell.op, cell.dtype):
        return Refused(f"NumPy has no {cell.op} of {cell.dtype}")
    if cell.shape == () and cell.collective == "reduce_scatter" and not (cell.facade and cell.layout == "0-d"):
        return Refused("a number has no axis to be cut along")
    joined = cell.layout == "number" and cell.collective == "all_gather" and not cell.facade  # out: a row per rank
    if cell.size == 1 and only_reads(cell, cell.root):
        return None
    if cell.layout in NO_OUT and not joined and (cell.out != "new" or cell.facade):
        return Refused("the output cannot be written to")
    return None


# ------------------------------------------------------------------------------------------------ values


def _cast(x: Array, dtype: DType) -> Array:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x.astype(dtype)


@lru_cache(20_000)
def folded(op: str, name: str, shape: tuple[int, ...], ranks: tuple[int, ...], extreme: bool, flat: bool) -> Array:
    """The reduction over these ranks, a new one's dtype; `flat` ranks give the first row everywhere."""
    given = [_given(rank, shape, name, extreme, flat) for rank in ranks]
    if op == "first":
        return given[0]
    if op == "last":
        return given[-1]
    dtype = given[0].dtype
    work = work_dtype(op, dtype)
    arrays = [_cast(each, work) for each in given]
    with np.errstate(all="ignore"):
        if op in ("LAND", "LOR", "LXOR"):  # true or false each; astype(bool) forgets imaginary parts of ml_dtypes
            arrays = [np.asarray(np.logical_or(each, each)) for each in arrays]
        total = functools.reduce(lambda a, b: np.asarray(UFUNCS[op](a, b)), arrays)
        if op == "MEAN":
            total = np.asarray(np.true_divide(total, len(ranks), out=np.empty_like(total)))
    return _cast(total, work if op == "MEAN" and work == np.float64 else dtype)


def _given(rank: int, shape: tuple[int, ...], name: str, extreme: bool, flat: bool) -> Array:
    plain = values(rank, shape, name, extreme)
    return np.broadcast_to(plain[:1], shape) if flat else plain


def given(cell: Cell, rank: int, part: int = 0) -> Array:
    """What a rank puts in, C-contiguous; `part` of a list of parts."""
    return _given(rank + 7 * part, cell.shape, cell.dtype, cell.extreme, cell.layout == "broadcast view")


def expected(cell: Cell, rank: int) -> Any:
    """The value on this rank: an array, a list of them, NOTHING where there is none."""
    everyone = tuple(range(cell.size))
    match cell.collective:
        case "broadcast":
            return given(cell, cell.root)
        case "gather" | "all_gather":
            if cell.collective == "gather" and rank != cell.root:
                return NOTHING
            return [given(cell, each) for each in everyone]
        case "scatter":
            return given(cell, cell.root, rank)
        case "all_to_all":
            return [given(cell, source, rank) for source in everyone]
        case "send_recv":
            return given(cell, (rank - 1) % cell.size)
        case "reduce" if rank != cell.root:
            return NOTHING
        case "all_reduce" | "reduce":
            return _total(cell, everyone)
        case "scan":
            return _total(cell, everyone[: rank + 1])
        case "exscan":
            return _total(cell, everyone[:rank]) if rank else _identity(cell)
        case "reduce_scatter" if cell.facade:
            return _total(cell, everyone, rank)
        case "reduce_scatter":
            return np.array_split(_total(cell, everyone), cell.size)[rank]
    raise ValueError(f"nobody knows what {cell.collective} gives")


def _total(cell: Cell, ranks: tuple[int, ...], part: int = 0) -> Array:
    flat = cell.layout == "broadcast view"
    total = folded(cell.op, cell.dtype, cell.shape, tuple(r + 7 * part for r in ranks), cell.extreme, flat)
    if cell.facade or cell.out == "in place":  # fills a tensor of the given dtype, as astype does
        return _cast(total, dtypes()[cell.dtype])
    return total


def _identity(cell: Cell) -> Any:
    if cell.op not in IDENTITIES:
        return NOTHING
    dtype = dtypes()[cell.dtype].newbyteorder("=")
    if cell.op == "BAND" and dtype.kind == "b":
        return np.ones(cell.shape, dtype)
    first = _cast(np.full(cell.shape, IDENTITIES[cell.op], np.int64), dtype)
    return NOTHING if dtype.name == "float8_e8m0fnu" and IDENTITIES[cell.op] == 0 else first  # which has no 0


def equal(found: Any, wanted: Array) -> bool:
    """The same shape, dtype and values, NaN equal to NaN."""
    if not isinstance(found, (np.ndarray, np.generic)):
        return False
    if isinstance(found, (np.bytes_, np.str_)):  # which know nothing of the width that they had in an array
        found = np.asarray(found, wanted.dtype)
    found = np.asarray(found)
    if found.shape != wanted.shape or found.dtype.newbyteorder("=") != wanted.dtype.newbyteorder("="):
        return False
    if is_extended(wanted.dtype):
        wide = np.complex64 if "complex" in wanted.dtype.name else np.float32
        found, wanted = _cast(found, np.dtype(wide)), _cast(wanted, np.dtype(wide))
    return bool(np.array_equal(found, wanted, equal_nan=wanted.dtype.kind in "fcmM"))


__all__ = ["NOTHING", "Refused", "equal", "expected", "folded", "given", "only_reads", "refusal"]
