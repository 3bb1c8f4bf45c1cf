"""The memory that a reduction works in: the result's own where the dtypes allow it, else private.

The rule: what is worked in is flat and of the op's work dtype, and the input is never it, unless it is the output, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithms import Algorithm, pace
from ..endpoint import Channel
from ..ops import Op
from .cuts import fresh

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a reduction of one op, dtype and shape needs every time."""

    description: str
    algorithm: Algorithm
    op: Op
    work: np.dtype[Any]
    result: np.dtype[Any]


@dataclass(slots=True)
class Input:
    array: Array
    scalar: bool
    op: Op
    plan: Plan


def home_of(target: Array | None, shape: tuple[int, ...], plan: Plan) -> Array | None:
    """The result's own memory, if the algorithm can work in it."""
    if target is None:
        return np.empty(shape, plan.work) if plan.work == plan.result else None
    if target.dtype == plan.work and target.flags.c_contiguous:
        return target
    return None


async def loaded(ch: Channel, given: Input, home: Array | None) -> Array:
    """Flat work space that holds the input: the result's own memory, or private."""
    array = given.array
    work = fresh(ch, array.size, given.plan.work) if home is None else home.reshape(-1)
    if not _same(home, array):
        await pace.copy(ch, array, work.reshape(array.shape))
    return work


def _same(home: Array | None, given: Array) -> bool:
    """Whether the work space is the input itself, so that nothing is to be copied."""
    if home is None or home is given:
        return home is given
    return (
        home.shape == given.shape
        and given.flags.c_contiguous
        and home.dtype == given.dtype
        and home.__array_interface__["data"][0] == given.__array_interface__["data"][0]
    )


async def deliver(
    ch: Channel, work: Array, shape: tuple[int, ...], plan: Plan, home: Array | None, target: Array | None, out: Any,
    scalar: bool,
) -> Any:  # fmt: skip
    """The caller's result out of the work space."""
    if target is not None:
        if home is None:
            await pace.copy(ch, work.reshape(shape), target)
        return out
    if home is None:
        home = np.empty(shape, plan.result)
        await pace.copy(ch, work.reshape(shape), home)
    return home[()] if scalar else home
