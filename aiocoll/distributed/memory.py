"""empty and zeros: arrays in memory that suits the transport of the world or of a group.

The rule: what is returned is an ordinary writable ndarray, also where nothing is joined that could lend its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .state import WORLD, member_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


def empty(shape: int | Sequence[int], dtype: Any = np.float64, group: Any = WORLD) -> NDArray[Any]:
    """An array with no particular content, which travels in ``group`` with as few copies as its transport allows."""
    member = member_of(group)
    return np.empty(shape, dtype) if member is None else member.empty(shape, dtype)


def zeros(shape: int | Sequence[int], dtype: Any = np.float64, group: Any = WORLD) -> NDArray[Any]:
    """The same, filled with zeros."""
    member = member_of(group)
    return np.zeros(shape, dtype) if member is None else member.zeros(shape, dtype)
