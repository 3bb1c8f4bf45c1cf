"""The collectives on objects, in lower case: bcast, gather, scatter, allgather, alltoall, reduce, allreduce, scan.

The rule: objects travel as plain data (with AIOCOLL_ALLOW_PICKLE=1 also as whatever pickle can carry), and an op folds
them in rank order with Python's own operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .calling import Calling, Plan
from .exceptions import OpError, UsageError
from .plans import root_of
from .reductions import SUM, folded

AnyOp = Callable[[Any, Any], Any]


class Objects(Calling):
    """See the module's docstring; what a communicator mixes in."""

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        """Root's object, on every rank."""

        def planned(rank: int, size: int) -> Plan:
            where = root_of(root, size, "bcast", rank)
            return lambda group: group.broadcast_object(obj, where)

        return self._now("bcast", planned)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """All objects in rank order on root, None elsewhere."""

        def planned(rank: int, size: int) -> Plan:
            where = root_of(root, size, "gather", rank)
            return lambda group: group.gather_object(sendobj, where)

        gathered: list[Any] | None = self._now("gather", planned)
        return gathered

    def scatter(self, sendobj: Any = None, root: int = 0) -> Any:
        """My object of root's sequence of one per rank."""

        def planned(rank: int, size: int) -> Plan:
            where = root_of(root, size, "scatter", rank)
            parts = _one_each(sendobj, size, "scatter", rank) if rank == where else None
            return lambda group: group.scatter_object(parts, where)

        return self._now("scatter", planned)

    def allgather(self, sendobj: Any) -> list[Any]:
        """All objects in rank order."""
        gathered: list[Any] = self._now("allgather", lambda rank, size: lambda group: group.all_gather_object(sendobj))
        return gathered

    def alltoall(self, sendobj: Any) -> list[Any]:
        """What every rank has for me, in rank order; ``sendobj`` holds one object per rank."""

        def planned(rank: int, size: int) -> Plan:
            parts = _one_each(sendobj, size, "alltoall", rank)
            return lambda group: group.all_to_all_object(parts)

        came: list[Any] = self._now("alltoall", planned)
        return came

    def reduce(self, sendobj: Any, op: AnyOp = SUM, root: int = 0) -> Any:
        """The objects of all ranks folded on root, None elsewhere; ``op``: an MPI.Op or a function of two objects."""

        def planned(rank: int, size: int) -> Plan:
            where = root_of(root, size, "reduce", rank)
            _check(op, "reduce", rank)
            return lambda group: group.gather_object(sendobj, where)

        parts = self._now("reduce", planned)
        return None if parts is None else folded(op, parts, "reduce")

    def allreduce(self, sendobj: Any, op: AnyOp = SUM) -> Any:
        """The same on every rank."""
        return folded(op, self._all_parts("allreduce", sendobj, op), "allreduce")

    def scan(self, sendobj: Any, op: AnyOp = SUM) -> Any:
        """The objects of the ranks up to and including mine, folded."""
        parts = self._all_parts("scan", sendobj, op)
        return folded(op, parts[: self._group.rank + 1], "scan")

    def exscan(self, sendobj: Any, op: AnyOp = SUM) -> Any:
        """The objects of the ranks below mine, folded; None on rank 0."""
        parts, rank = self._all_parts("exscan", sendobj, op), self._group.rank
        return folded(op, parts[:rank], "exscan") if rank else None

    def _all_parts(self, what: str, sendobj: Any, op: Any) -> list[Any]:
        def planned(rank: int, size: int) -> Plan:
            _check(op, what, rank)
            return lambda group: group.all_gather_object(sendobj)

        parts: list[Any] = self._now(what, planned)
        return parts


def _one_each(objects: Any, size: int, what: str, rank: int) -> list[Any]:
    try:
        parts = list(objects)
    except TypeError:
        parts = []
        objects = type(objects).__name__
    if len(parts) != size:
        given = f"{len(parts)}" if parts else f"{objects!r}"
        raise UsageError(f"{what} on rank {rank}: {size} objects are needed, one per rank, not {given}")
    return parts


def _check(op: Any, what: str, rank: int) -> None:
    if not callable(op):
        raise OpError(f"{what} on rank {rank}: op={op!r} is neither an MPI.Op nor a function of two objects")
