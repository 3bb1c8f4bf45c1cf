"""What reduce_scatter cuts: one array along axis 0, or one array per rank.

The rule: the caller's own memory is read where it lies, wherever its layout and dtype allow that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import patterns
from ..algorithms import pace
from ..buffers import as_array, native
from ..endpoint import Channel
from ..errors import UsageError

Array = NDArray[Any]


@dataclass(slots=True)
class Cut:
    """The input of a reduce_scatter: arrays that lie one after the other, and the shape of each rank's block."""

    parts: list[Array]
    blocks: list[tuple[int, ...]]
    scalar: bool
    """Whether my block is a number."""

    def elements(self) -> list[int]:
        """Elements per rank."""
        return [math.prod(block) for block in self.blocks]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of all blocks in one array; blocks that make none along axis 0 lie flat."""
        first = self.blocks[0]
        if first and all(block[1:] == first[1:] and block for block in self.blocks):
            return (sum(block[0] for block in self.blocks), *first[1:])
        return (sum(self.elements()),)

    def whole(self) -> Array:
        """An array like the whole input; its content does not count."""
        return self.parts[0] if len(self.parts) == 1 else np.empty(self.shape, native(self.parts[0].dtype))

    @property
    def text(self) -> str:
        """How the ranks' blocks differ from what all would do without a word."""
        shape = self.shape
        usual = [(rows, *shape[1:]) for rows in patterns.even(shape[0], len(self.blocks))]
        if self.blocks == usual:
            return ""
        alike = all(block[1:] == shape[1:] and block for block in self.blocks)
        return f" blocks={[block[0] for block in self.blocks] if alike else self.blocks}"


def cut_of(x: Any, counts: Sequence[int] | None, rank: int, size: int) -> Cut:
    """The input of a reduce_scatter, cut into blocks."""
    what = f"reduce_scatter on rank {rank}"
    if isinstance(x, (list, tuple)) and (counts is None or any(isinstance(part, np.ndarray) for part in x)):
        if len(x) != size or counts is not None:
            raise UsageError(f"{what}: a list takes one array per rank ({size}) and no counts; it has {len(x)}")
        given = [as_array(part, what=f"reduce_scatter, part {i}", rank=rank) for i, part in enumerate(x)]
        parts = [part for part, _ in given]
        for part in parts:
            if native(part.dtype) != native(parts[0].dtype):
                raise UsageError(f"{what}: the parts have dtypes {parts[0].dtype} and {part.dtype}; give them one")
        return Cut(parts, [part.shape for part in parts], given[rank][1])
    array, _ = as_array(x, what="reduce_scatter", rank=rank)
    if array.ndim == 0:
        raise UsageError(f"{what}: x has no axis 0 to be cut along; pass an array")
    if counts is None:
        rows = patterns.even(array.shape[0], size)
    else:
        try:
            rows = [index(count) for count in counts]
        except TypeError:
            rows = []
        if len(rows) != size or min(rows) < 0 or sum(rows) != array.shape[0]:
            raise UsageError(
                f"{what}: counts={counts!r} must be {size} numbers of rows that add up to {array.shape[0]}"
            )
    return Cut([array], [(row, *array.shape[1:]) for row in rows], False)


def fresh(ch: Channel, count: int, dtype: np.dtype[Any]) -> Array:
    """Private work space."""
    if not count * dtype.itemsize:
        return np.empty(count, dtype)
    return ch.borrow(count * dtype.itemsize).view(dtype)


async def readable(ch: Channel, parts: Sequence[Array], elements: Sequence[int], dtype: np.dtype[Any]) -> list[Array]:
    """Each rank's block, flat and in the work dtype: the caller's own memory where it is that already."""
    blocks: list[Array] = []
    for part in parts:
        if part.flags.c_contiguous and part.dtype == dtype:
            blocks.append(part.reshape(-1))
            continue
        flat = fresh(ch, part.size, dtype)
        await pace.copy(ch, part, flat.reshape(part.shape))
        blocks.append(flat)
    if len(blocks) == len(elements):
        return blocks
    at = patterns.offsets(elements)
    return [blocks[0][at[i] : at[i + 1]] for i in range(len(elements))]
