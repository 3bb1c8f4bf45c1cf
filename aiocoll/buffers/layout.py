"""How arrays lie in memory: byte order, flat views, contiguous copies, copying in slices.

Rule of this file: a function that can answer with a view does, and says when it copies; nothing between the elements of
an array is ever touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DType = np.dtype[Any]

PIECE_BYTES = 256 << 10


def native(dtype: DType) -> DType:
    """The same dtype in this machine's byte order, fields of structures included."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def is_packed(x: Array) -> bool:
    """Whether `x` is C- or F-contiguous and in native byte order: `pack` then answers with a view."""
    flags = x.flags
    return (flags.c_contiguous or flags.f_contiguous) and x.dtype.isnative


def flat(x: Array) -> Array:
    """A 1-D view of a C- or F-contiguous array, in the order of its memory; never a copy."""
    if x.flags.c_contiguous:
        return x.reshape(-1)
    if x.flags.f_contiguous:
        return x.T.reshape(-1)
    raise ValueError(f"no flat view of an array with shape {x.shape} and strides {x.strides}: not contiguous")


def as_bytes(x: Array) -> NDArray[np.uint8]:
    """The bytes of a C- or F-contiguous array of any dtype as a 1-D uint8 view (read-only if `x` is)."""
    if x.nbytes == 0:  # a dtype without bytes (S0) has no uint8 view
        return np.empty(0, np.uint8)
    return flat(x).view(np.uint8)


def flat_bytes(x: Array) -> memoryview:
    """The bytes of a C- or F-contiguous array of any dtype as a memoryview of format B (read-only if `x` is)."""
    try:
        return x.data.cast("B")  # four times as fast, for C-contiguous arrays of the struct module's formats
    except (TypeError, ValueError):
        return as_bytes(x).data


def shaped(buffer: Array, shape: tuple[int, ...], fortran: bool = False) -> Array:
    """The N-D view of a flat buffer: what `pack` flattened."""
    return buffer.reshape(shape, order="F" if fortran else "C")


def pack(x: Array) -> tuple[Array, bool]:
    """`x` as a flat, contiguous, native 1-D array, and whether its order is Fortran's; copies only if it must.

    Large arrays that are not `is_packed` are better copied by `pieces`, which lets the caller do other things in
    between.
    """
    flags = x.flags
    if x.dtype.isnative:
        if flags.c_contiguous:
            return x.reshape(-1), False
        if flags.f_contiguous:
            return x.T.reshape(-1), True
    buffer = np.empty(x.size, native(x.dtype))
    fortran = flags.f_contiguous and not flags.c_contiguous
    np.copyto(shaped(buffer, x.shape, fortran), x)
    return buffer, fortran


def copy(source: Array, target: Array) -> None:
    """target[...] = source in one go, between any layouts; other dtypes are cast as `astype` does, without warnings."""
    if source.dtype == target.dtype:
        np.copyto(target, source)
    else:
        with np.errstate(all="ignore"):
            np.copyto(target, source, casting="unsafe")


def pieces(source: Array, target: Array, nbytes: int = PIECE_BYTES) -> Iterator[None]:
    """Copy like `copy`, in slices of at most `nbytes`, and yield *between* them: one slice yields nothing.

    `for _ in pieces(source, target): await asyncio.sleep(0)` keeps a loop alive. Shapes must be equal.
    """
    if source.shape != target.shape:
        raise ValueError(f"cannot copy shape {source.shape} into shape {target.shape}")
    if max(source.nbytes, target.nbytes) <= nbytes:
        copy(source, target)
        return
    first = True
    for part, into in slices(source, target, nbytes):
        if not first:
            yield
        copy(part, into)
        first = False


def slices(source: Array, target: Array, nbytes: int = PIECE_BYTES) -> Iterator[tuple[Array, Array]]:
    """Two arrays of one shape as pairs of views of at most `nbytes`."""
    # Outermost first: slices then lie together in the target's memory, whatever the order of its axes.
    order = sorted(range(target.ndim), key=lambda axis: -abs(target.strides[axis]))
    return _slices(source.transpose(order), target.transpose(order), nbytes)


def _slices(source: Array, target: Array, nbytes: int) -> Iterator[tuple[Array, Array]]:
    if target.ndim == 0 or max(source.nbytes, target.nbytes) <= nbytes:
        yield source, target
        return
    rows = target.shape[0]
    row_bytes = max(source.nbytes, target.nbytes) // rows
    if row_bytes > nbytes:
        for row in range(rows):
            yield from _slices(source[row, ...], target[row, ...], nbytes)
        return
    step = nbytes // row_bytes
    for start in range(0, rows, step):
        yield source[start : start + step], target[start : start + step]
