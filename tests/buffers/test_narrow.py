"""Narrow floats to float32 and back: every bit as NumPy's own casts, for every float16 and for float32 of all sizes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aiocoll.buffers.narrow import (
    BLOCK,
    SCALE,
    is_narrow,
    narrow,
    narrow_scaled,
    room_for,
    widen,
    widen_scaled,
)


def same_bits(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    with np.errstate(all="ignore"):
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(found), nan)
    bits = np.dtype(f"u{expected.itemsize}")
    np.testing.assert_array_equal(found.view(bits)[~nan], expected.view(bits)[~nan])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_narrow_float_widens_as_numpy_casts_it(dtype: Any) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        finite = every[np.isfinite(every)]
    for values in (every, finite):
        wide = np.empty(len(values), np.float32)
        widen(values, wide)
        with np.errstate(all="ignore"):
            same_bits(wide, values.astype(np.float32))
        back = np.empty_like(values)
        narrow(wide, back)
        same_bits(back, values)


def floats(rng: np.random.Generator, kind: str) -> np.ndarray[Any, Any]:
    count = BLOCK + 1234
    if kind == "any bits":
        return rng.integers(0, 1 << 32, count, np.uint32).view(np.float32)
    if kind == "ties":  # in the middle between two float16, and a hair to either side
        low = rng.integers(0, 0x7BFF, count).astype(np.uint16)
        middle = (low.view(np.float16).astype(np.float32) + (low + 1).astype(np.uint16).view(np.float16)) / 2
        aside = np.nextafter(middle, rng.choice(np.float32([0, 1e9]), count))
        middle = np.where(rng.random(count) < 0.5, aside, middle)
        return np.where(rng.random(count) < 0.5, middle, -middle).astype(np.float32)
    return (rng.standard_normal(count) * 10.0 ** rng.integers(-9, 4, count)).astype(np.float32)


@pytest.mark.parametrize("kind", ["any bits", "ties", "all sizes"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_float32_narrows_as_numpy_casts_it(dtype: Any, kind: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(8):
        wide = floats(rng, kind)
        found = np.empty(len(wide), dtype)
        narrow(wide, found)
        with np.errstate(all="ignore"):
            same_bits(found, wide.astype(dtype))


@pytest.mark.parametrize("spread", [1e-8, 1e-5, 1.0, 2e4])
def test_scaled_sums_are_those_of_float32(spread: float) -> None:
    rng = np.random.default_rng(3)
    for number in range(2, 6):
        with np.errstate(all="ignore"):
            operands = [(rng.standard_normal(5000) * spread).astype(np.float16) for _ in range(number)]
            operands[0][:7] = [0.0, -0.0, 65504, -65504, 2.0**-24, -(2.0**-24), 2.0**-14]
            expected = operands[0].astype(np.float32)
            for operand in operands[1:]:
                expected += operand.astype(np.float32)
            total, wide = np.empty(5000, np.float32), np.empty(5000, np.float32)
            whole = all(np.isfinite(operand).all() for operand in operands)
            assert widen_scaled(operands[0], total) == bool(np.isfinite(operands[0]).all())
            if not whole:
                continue
            for operand in operands[1:]:
                assert widen_scaled(operand, wide)
                total += wide
            found = np.empty(5000, np.float16)
            narrow_scaled(total, found, np.empty(room_for(5000), np.uint8))
            same_bits(found, expected.astype(np.float16))


def test_every_scaled_float16_comes_back() -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    total, found = np.empty(len(finite), np.float32), np.empty_like(finite)
    assert widen_scaled(finite, total) and not widen_scaled(every, np.empty(1 << 16, np.float32))
    same_bits(total * SCALE, finite.astype(np.float32))
    narrow_scaled(total, found, np.empty(4 * len(finite), np.uint8))
    same_bits(found, finite)


def test_what_is_narrow() -> None:
    assert is_narrow(np.dtype(np.float16)) and is_narrow(np.dtype(ml_dtypes.bfloat16))
    assert not any(is_narrow(np.dtype(each)) for each in (np.float32, np.int16, np.uint16, ml_dtypes.float8_e4m3))
    nothing = np.empty(0, np.float16)
    widen(nothing, np.empty(0, np.float32))
    narrow(np.empty(0, np.float32), nothing)
