"""Carried: a library as the carrier of all groups that grow out of one world.

The rule: a group's half of the library is opened by its first call and freed once the group is closed and none of its
calls is in there any more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...algorithms import Algorithm
from ...endpoint import Scope
from ...errors import UsageError
from ...ops import Op
from .base import Library
from .lane import Lane
from .operands import KNOWN, spelled, stand_in


class Carried:
    """What ``Lineage.carrier`` is for the backends "mpi", "gloo" and "nccl"."""

    def __init__(self, library: Library) -> None:
        self.name: str = library.name
        self._library = library
        self._lanes: dict[int, tuple[Scope, Lane]] = {}

    def __repr__(self) -> str:
        return f"Carried({self._library!r}, {len(self._lanes)} groups)"

    def algorithm(self, collective: str, scope: Scope) -> Algorithm | None:
        """The library's way of doing it; None for what it has none for."""
        found = self._lanes.get(scope.id)
        if found is None:
            for other, _ in list(self._lanes.values()):
                self.left(other)
            found = self._lanes[scope.id] = (scope, Lane(self._library))
        return found[1].algorithms.get(collective)

    def check(self, collective: str, op: Op, dtype: np.dtype[Any], rank: int) -> None:
        """UsageError for what the library cannot fold; scans are aiocoll's own."""
        if collective in ("scan", "exscan"):
            return
        wanted = spelled(op, dtype)
        if wanted is not None and stand_in(*wanted, self._library.reduces) is not None:
            return
        what = f"{op!r} of {dtype}" if wanted is None or wanted[1] in KNOWN else repr(op)
        raise UsageError(
            f"{collective} on rank {rank}: backend {self.name!r} ({self._library.title}) cannot do {what}; the "
            "backends 'auto', 'shm' and 'tcp' can"
        )

    def left(self, scope: Scope) -> None:
        """Frees a group's half, if it is closed; what its calls have left in there goes with the next that looks."""
        if scope.closed and not scope.calls:
            _, lane = self._lanes.pop(scope.id, (scope, None))
            if lane is not None:
                lane.close()

    @property
    def collectives(self) -> set[str]:
        """Those of open groups that have gone through the library so far."""
        return {name for _, lane in self._lanes.values() for name in lane.collectives}

    def close(self) -> None:
        """Frees what is left."""
        for _, lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        self._library.close()
