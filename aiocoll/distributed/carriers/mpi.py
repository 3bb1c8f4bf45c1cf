"""The backend "mpi": an MPI library, through mpi4py.

The rule: MPI says who is who and moves the arrays; its own errors come out as Python's, and nothing here waits in it
but the opening of a communicator, which has a thread for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from ..refusals import RuntimeUsageError
from .base import Array

_FOLDED = "?bhilqBHILQfdgFDG"


class MpiComm:
    """One group's communicator."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm

    def __repr__(self) -> str:
        return f"MpiComm({self._comm!r})"

    def all_reduce(self, x: Array, op: str) -> Request:
        return Request(self._comm.Iallreduce(self._mpi.IN_PLACE, x, getattr(self._mpi, op)))

    def reduce(self, x: Array, op: str, root: int) -> Request:
        mine = self._comm.Get_rank() == root
        out = x if mine else None
        return Request(self._comm.Ireduce(self._mpi.IN_PLACE if mine else x, out, getattr(self._mpi, op), root))

    def broadcast(self, data: Array, root: int) -> Request:
        return Request(self._comm.Ibcast([data, self._mpi.BYTE], root))

    def all_gather(self, buffer: Array, counts: Sequence[int], rank: int) -> Request:
        into = [buffer, list(counts), _starts(counts), self._mpi.BYTE]
        return Request(self._comm.Iallgatherv(self._mpi.IN_PLACE, into))

    def exchange(self, out: Array, out_counts: Sequence[int], into: Array, into_counts: Sequence[int]) -> Request:
        return Request(
            self._comm.Ialltoallv(
                [out, list(out_counts), _starts(out_counts), self._mpi.BYTE],
                [into, list(into_counts), _starts(into_counts), self._mpi.BYTE],
            )
        )

    def free(self) -> None:
        comm, self._comm = self._comm, None
        if comm is not None and not self._mpi.Is_finalized():
            comm.Free()


class Request:
    """An MPI request."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def test(self) -> bool:
        return bool(self._request.Test())


class MpiLibrary:
    """MPI in this process; importing mpi4py has initialised it."""

    name: str = "mpi"
    title: str = "MPI"
    rank: int
    size: int

    def __init__(self) -> None:
        from mpi4py import MPI

        if not MPI.Is_initialized():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RuntimeUsageError(
                "backend 'mpi': MPI was initialised without MPI_THREAD_MULTIPLE, and calls under way need threads: "
                "leave mpi4py.rc.thread_level at 'multiple'"
            )
        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    def __repr__(self) -> str:
        return f"MpiLibrary(rank {self.rank} of {self.size})"

    def told(self, what: Any) -> Any:
        """What rank 0 says, on every rank; blocks."""
        return self._world.bcast(what, 0)

    def hosts(self) -> list[str]:
        """The host of every rank; blocks."""
        found: list[str] = self._world.allgather(self._mpi.Get_processor_name())
        return found

    def reduces(self, dtype: np.dtype[Any], op: str) -> bool:
        if dtype.char not in _FOLDED or dtype.kind == "b":
            return False
        if dtype.kind == "c":
            return op in ("SUM", "PROD")
        return op in ("SUM", "PROD", "MIN", "MAX") or dtype.kind in "iu"

    def invite(self, hosts: Sequence[str]) -> str:
        return ""

    def open(self, meeting: str, tag: int, ranks: Sequence[int], rank: int, seconds: float) -> MpiComm:
        strangers = [each for each in ranks if each >= self.size]
        if strangers:
            raise ValueError(f"ranks {strangers} came later and are no ranks of MPI's world of {self.size}")
        members = self._world.Get_group().Incl(list(ranks))
        highest = self._world.Get_attr(self._mpi.TAG_UB)
        comm = self._world.Create_group(members, tag % (highest or 32767))
        members.Free()
        return MpiComm(self._mpi, comm)

    def close(self) -> None:
        """MPI ends with the process, as mpi4py has it."""


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *accumulate(counts)][: len(counts)]
