"""Narrow floats to float32 and back: every bit as NumPy's own casts, for every float16 and for float32 of all sizes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aiocoll.buffers.narrow import BLOCK, is_narrow, narrow, widen


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


def test_what_is_narrow() -> None:
    assert is_narrow(np.dtype(np.float16)) and is_narrow(np.dtype(ml_dtypes.bfloat16))
    assert not any(is_narrow(np.dtype(each)) for each in (np.float32, np.int16, np.uint16, ml_dtypes.float8_e4m3))
    nothing = np.empty(0, np.float16)
    widen(nothing, np.empty(0, np.float32))
    narrow(np.empty(0, np.float32), nothing)
