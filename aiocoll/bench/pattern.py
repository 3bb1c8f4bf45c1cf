"""The data of the benchmark: element ``i`` of call ``n`` on rank ``r`` is ``table[r][(i + n) % PERIOD]``.

The rule: values are small whole numbers, so that sums, products and means are exact in every dtype and a single wrong
bit is a wrong element; the period is a prime, so that a block that lands in the wrong place is seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PERIOD: Final = 1021
_ROWS: Final = 1024  # of a table's length that are compared at once, so that checking needs little memory
_UFUNCS: Final = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "mean": np.add,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    "land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a part of an array holds: ``count`` elements of a table's endless repetition, from ``start`` on."""

    table: Array
    start: int
    count: int

    def fill(self, array: Array, call: int) -> None:
        """Writes the elements of one call."""
        turned = np.roll(self.table, -((self.start + call) % PERIOD))
        whole = self.count // PERIOD * PERIOD
        array[:whole].reshape(-1, PERIOD)[...] = turned
        array[whole:] = turned[: self.count - whole]

    def wrong(self, array: Array, call: int) -> int:
        """How many elements are not those of the call."""
        if array.shape != (self.count,) or array.dtype != self.table.dtype:
            return max(self.count, 1)
        turned = np.roll(self.table, -((self.start + call) % PERIOD))
        whole = self.count // PERIOD * PERIOD
        rows = array[:whole].reshape(-1, PERIOD)
        count = sum(int(np.count_nonzero(rows[at : at + _ROWS] != turned)) for at in range(0, len(rows), _ROWS))
        return count + int(np.count_nonzero(array[whole:] != turned[: self.count - whole]))

    def probes(self) -> list[int]:
        """The elements that are looked at in every call."""
        return sorted({0, self.count // 2, self.count - 1}) if self.count else []


def tables(op: str, dtype: np.dtype[Any], size: int) -> list[Array]:
    """One table per rank; ``op`` (empty where nothing is folded) decides which values stay exact."""
    made = []
    for rank in range(size):
        random = np.random.default_rng((size, rank))
        made.append(_values(op, dtype, size, random).astype(dtype))
    return made


def _values(op: str, dtype: np.dtype[Any], size: int, random: np.random.Generator) -> NDArray[np.int64]:
    if op in ("land", "lor", "lxor") or dtype.kind == "b":
        return random.integers(0, 2, PERIOD)
    if op == "prod":
        return np.where(random.integers(0, 4 * size, PERIOD), 1, 2)  # the product of many is a small power of 2
    if op == "mean":
        return size * random.integers(0, max(2, min(100, _exact(dtype) // size // size)), PERIOD)
    if op == "sum":
        return random.integers(0, max(2, min(1000, _exact(dtype) // size)), PERIOD)
    return random.integers(0, min(1000, _exact(dtype)), PERIOD)


def _exact(dtype: np.dtype[Any]) -> int:
    """Up to here the dtype holds every whole number."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max)
    exact = 1
    while exact < 1 << 20 and dtype.type(2 * exact + 1) == 2 * exact + 1 and dtype.type(2 * exact - 1) != 2 * exact:
        exact *= 2
    return exact


def folded(op: str, parts: list[Array], result: np.dtype[Any]) -> Array:
    """What the op makes of these tables, computed here and by other means than the library's."""
    if op == "mean" or parts[0].dtype.kind not in "biuc":
        parts = [part.astype(np.complex128 if part.dtype.kind == "c" else np.float64) for part in parts]
    total = parts[0].astype(np.bool_) if op in ("land", "lor", "lxor") else parts[0]
    with np.errstate(over="ignore"):
        for part in parts[1:]:
            total = _UFUNCS[op](total, part)
        return (total / len(parts) if op == "mean" else total).astype(result)
