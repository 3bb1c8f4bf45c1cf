"""Cartcomm: a communicator whose ranks are the cells of a grid; the rule: row-major order, and arithmetic only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from ..sync import SyncGroup
from . import constants
from .calling import collective
from .communicators import Comm, Intracomm
from .exceptions import DimsError, UsageError


class Cartcomm(Intracomm):
    """Ranks in a grid; what ``Create_cart`` gives, or COMM_NULL for those that are not in it."""

    _dims: list[int]
    _periods: list[int]

    def __new__(
        cls, group: SyncGroup | Comm | None = None, parent: Comm | None = None,
        dims: Sequence[int] = (), periods: Sequence[int] = (),
    ) -> Self:  # fmt: skip
        self = super().__new__(cls, group, parent)
        if isinstance(group, Cartcomm):
            dims, periods = group._dims, group._periods
        self._dims, self._periods = list(dims), [int(bool(each)) for each in periods]
        return self

    @property
    def dims(self) -> list[int]:
        """Cells along each axis."""
        return list(self._dims)

    @property
    def periods(self) -> list[int]:
        """Whether each axis is closed to a ring, 1 or 0."""
        return list(self._periods)

    @property
    def coords(self) -> list[int]:
        """My place."""
        return self.Get_coords(self.rank)

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self._dims)

    dim = ndim

    def Get_dim(self) -> int:
        """How many axes there are."""
        return len(self._dims)

    @property
    def topo(self) -> tuple[list[int], list[int], list[int]]:
        """(dims, periods, coords)."""
        return self.dims, self.periods, self.coords

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        """(dims, periods, coords)."""
        return self.topo

    def Get_topology(self) -> int:
        """CART."""
        return constants.CART

    def Get_coords(self, rank: int) -> list[int]:
        """The place of a rank."""
        if not 0 <= rank < self.size:
            raise UsageError(f"Get_coords: {rank} is no rank of this grid of {self.size}")
        found = []
        for n in reversed(self._dims):
            rank, at = divmod(rank, n)
            found.append(at)
        return found[::-1]

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """The rank at a place; axes that are rings may be left and entered on the other side."""
        if len(coords) != len(self._dims):
            raise UsageError(f"Get_cart_rank: {list(coords)} is no place in a grid of {self._dims}")
        rank = 0
        for at, n, around in zip(coords, self._dims, self._periods, strict=True):
            if not around and not 0 <= at < n:
                raise UsageError(f"Get_cart_rank: {list(coords)} lies outside a grid of {self._dims}")
            rank = rank * n + at % n
        return rank

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """(source, destination) for a shift by ``disp`` along an axis; PROC_NULL where the grid ends."""
        if not 0 <= direction < len(self._dims):
            raise UsageError(f"Shift: {direction} is no axis of a grid of {self._dims}; axes begin at 0")
        return self._neighbour(direction, -disp), self._neighbour(direction, disp)

    def _neighbour(self, axis: int, step: int) -> int:
        place = self.coords
        place[axis] += step
        if not self._periods[axis] and not 0 <= place[axis] < self._dims[axis]:
            return constants.PROC_NULL
        return self.Get_cart_rank(place)

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """The part of the grid that I am in when the other axes are cut: rows, columns, planes."""

        def plane() -> int:
            if len(remain_dims) != len(self._dims):
                raise UsageError(f"Sub: {len(remain_dims)} flags for {len(self._dims)} axes; one per axis is needed")
            color = 0
            for at, n, remains in zip(self.coords, self._dims, remain_dims, strict=True):
                color = color * n + (0 if remains else at)
            return color

        made = self._split(collective(self._group, "split", plane), self.rank)
        kept = [axis for axis, remains in enumerate(remain_dims) if remains]
        return Cartcomm(made, self, [self._dims[axis] for axis in kept], [self._periods[axis] for axis in kept])

    def Dup(self, info: Any = None) -> Cartcomm:
        """The same grid, whose calls and messages never meet those of this one."""
        return Cartcomm(self._grown(self._group.dup), self, self._dims, self._periods)


def checked(
    dims: Sequence[int], periods: Sequence[bool] | bool | None, size: int, rank: int
) -> tuple[list[int], list[bool]]:
    """The shape of a grid that has no more cells than there are ranks."""
    shape = [int(each) for each in ([dims] if isinstance(dims, int) else dims)]
    if any(each < 1 for each in shape) or math.prod(shape) > size:
        raise DimsError(
            f"Create_cart on rank {rank}: a grid of {shape} needs {math.prod(shape)} ranks, and there are {size}; "
            "MPI.Compute_dims(size, number_of_axes) finds one that fits"
        )
    if periods is None or isinstance(periods, bool):
        periods = [bool(periods)] * len(shape)
    if len(periods) != len(shape):
        raise UsageError(f"Create_cart on rank {rank}: {len(periods)} periods for {len(shape)} axes")
    return shape, [bool(each) for each in periods]


def Compute_dims(nnodes: int, dims: int | Sequence[int]) -> list[int]:
    """The grid of ``nnodes`` cells closest to a cube, longest axes first; axes that are not 0 stay as they are."""
    given = [0] * dims if isinstance(dims, int) else [int(each) for each in dims]
    fixed = math.prod(each for each in given if each)
    if nnodes < 1 or any(each < 0 for each in given) or nnodes % fixed:
        raise DimsError(f"Compute_dims: a grid of {given} cannot have {nnodes} cells (0 is to be found)")
    free = given.count(0)
    if not free and fixed != nnodes:
        raise DimsError(f"Compute_dims: a grid of {given} has {fixed} cells, not {nnodes}")
    found = iter(min(_factors(nnodes // fixed, free, nnodes)) if free else [])
    return [each or next(found) for each in given]


def _factors(number: int, count: int, most: int) -> list[list[int]]:
    """All ways to write a number as a product of ``count`` factors that do not grow, none above ``most``."""
    if count == 1:
        return [[number]] if number <= most else []
    ways = []
    for first in range(1, min(number, most) + 1):
        if number % first == 0 and first**count >= number:
            ways += [[first, *rest] for rest in _factors(number // first, count - 1, first)]
    return ways
