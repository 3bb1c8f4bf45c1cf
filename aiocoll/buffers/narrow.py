"""Narrow floats as float32 and back: float16 and bfloat16 several times as fast as NumPy casts, with the same bits.

Rule of this file: flat contiguous arrays in, results into memory that the caller gives; every block gives exactly what
`astype` gives, NaN aside, of which one is as good as another.

A float16 whose bits are moved to where a float32 has them is 2**112 too small, subnormals included. Sums do not mind:
they are the same bits as far as float16 goes, so float16 can be added up *scaled*, with a pass less each way.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLOCK: Final = 32768
"""Elements converted at a time: what a conversion touches then stays in the second cache."""

_F16_INFINITE: Final = np.uint16(0x7C00)
_F16_MASK: Final = np.int32(-0x70000001)  # sign, exponent and mantissa of a float16 whose sign went the whole way up
SCALE: Final = np.float32(2.0**112)
_SCALED_OVERFLOW: Final = float(np.float32(65520.0) / SCALE)
_F16_OVERFLOW: Final = np.uint32(0x477FF000)  # 65520, which rounds to infinity
_F16_SMALLEST: Final = np.uint32(0x400)  # 2**-14, the smallest that is no subnormal
_F16_BIAS: Final = np.uint32(0x1_0000_0FFF - 0x38800000)  # the same, and half a unit less one
_MAGNITUDE: Final = np.uint32(0x7FFFFFFF)
_SIGN: Final = np.uint32(0x8000)
_HALF: Final = np.float32(0.5)
_HALF_BITS: Final = np.uint32(0x3F000000)
_ONE: Final = np.uint32(1)
_SHIFT: Final = np.uint32(13)
_SIXTEEN: Final = np.uint32(16)
_HALF_UNIT: Final = np.uint32(0xFFF)


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether this is a float of two bytes: float16 in any byte order, or bfloat16 of ml_dtypes."""
    return dtype.itemsize == 2 and (dtype.kind == "f" or dtype.name == "bfloat16")


def _cast(source: Array, target: Array) -> None:
    with np.errstate(all="ignore"):
        np.copyto(target, source, casting="unsafe")


def widen(source: Array, target: NDArray[np.float32]) -> None:
    """target = source; exact."""
    if source.dtype != np.float16 or not source.dtype.isnative:
        _cast(source, target)
        return
    for start in range(0, len(source), BLOCK):
        part, into = source[start : start + BLOCK], target[start : start + BLOCK]
        if widen_scaled(part, into):
            np.multiply(into, SCALE, out=into)
        else:
            _cast(part, into)


def widen_scaled(source: Array, target: NDArray[np.float32]) -> bool:
    """target = source / SCALE, for native float16; False, and nothing in ``target``, if some are infinite or NaN."""
    bits = source.view(np.uint16)
    if ((bits & _F16_INFINITE) == _F16_INFINITE).any():
        return False
    wide = target.view(np.int32)
    np.copyto(wide, bits.view(np.int16))
    np.left_shift(wide, 13, out=wide)
    np.bitwise_and(wide, _F16_MASK, out=wide)
    return True


def narrow_scaled(source: NDArray[np.float32], target: Array, room: NDArray[np.uint8]) -> None:
    """target = source * SCALE as float16, rounded to the nearest, ties to even; changes ``source``."""
    if source.max(initial=0.0) >= _SCALED_OVERFLOW or source.min(initial=0.0) <= -_SCALED_OVERFLOW:
        np.multiply(source, SCALE, out=source)
        narrow(source, target, room)
        return
    # Half a unit of what is shifted out is added, less one for even; the sign goes its own way.
    bits, rounded = source.view(np.uint32), room[: source.nbytes].view(np.uint32)
    np.right_shift(bits, _SHIFT, out=rounded)
    np.bitwise_and(rounded, _ONE, out=rounded)
    np.add(rounded, bits, out=rounded)
    np.add(rounded, _HALF_UNIT, out=rounded)
    np.right_shift(rounded, _SHIFT, out=rounded)
    np.right_shift(bits, _SIXTEEN, out=bits)
    np.bitwise_and(bits, _SIGN, out=bits)
    np.bitwise_or(rounded, bits, out=rounded)
    np.copyto(target.view(np.uint16), rounded, casting="unsafe")


def room_for(count: int) -> int:
    """The bytes that ``narrow`` works in for so many elements."""
    return 12 * min(count, BLOCK)


def narrow(source: NDArray[np.float32], target: Array, room: NDArray[np.uint8] | None = None) -> None:
    """target = source, rounded to the nearest, ties to even; ``room`` are bytes that ``room_for`` counts."""
    if target.dtype != np.float16 or not target.dtype.isnative:
        _cast(source, target)
        return
    bits, step = source.view(np.uint32), min(BLOCK, len(source))
    space = (np.empty(room_for(step), np.uint8) if room is None else room[: room_for(step)]).view(np.uint32)
    for start in range(0, len(source), BLOCK):
        part = bits[start : start + BLOCK]
        _to_float16(part, target[start : start + BLOCK], space.reshape(3, step)[:, : len(part)])


def _to_float16(bits: NDArray[np.uint32], target: Array, room: NDArray[np.uint32]) -> None:
    size, rounded, small = room
    np.bitwise_and(bits, _MAGNITUDE, out=size)
    if size.max(initial=0) >= _F16_OVERFLOW:
        _cast(bits.view(np.float32), target)
        return
    # Normal numbers: the exponent's bias changes, and half a unit of what is shifted out is added, less one for even.
    # Counted from the smallest of them, so that what is smaller wraps round and becomes huge.
    np.right_shift(size, _SHIFT, out=rounded)
    np.bitwise_and(rounded, _ONE, out=rounded)
    np.add(rounded, size, out=rounded)
    np.add(rounded, _F16_BIAS, out=rounded)
    np.right_shift(rounded, _SHIFT, out=rounded)
    np.add(rounded, _F16_SMALLEST, out=rounded)
    # Subnormals: beside 0.5, a float32 has their steps, so the addition itself rounds. Larger numbers come out too big.
    np.add(size.view(np.float32), _HALF, out=small.view(np.float32))
    np.subtract(small, _HALF_BITS, out=small)
    np.minimum(rounded, small, out=rounded)
    signs = np.right_shift(bits, _SIXTEEN, out=size)
    np.bitwise_and(signs, _SIGN, out=signs)
    np.bitwise_or(rounded, signs, out=rounded)
    np.copyto(target.view(np.uint16), rounded, casting="unsafe")
