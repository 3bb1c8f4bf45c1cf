"""The collectives on buffers, blocking (Bcast) and started (Ibcast): one plan each, from ``plans``.

The rule: a method here names the call and its plan, and does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import AiocollError
from . import plans
from .calling import Calling, Plan, collective, started
from .constants import IN_PLACE
from .exceptions import translated
from .reductions import SUM, Op
from .requests import Request
from .specs import writing


class Collectives(Calling):
    """See the module's docstring; what a communicator mixes in."""

    def _soon(self, what: str, planned: Callable[[int, int], Plan]) -> Request:
        """Starts it."""
        group = self._group
        plan = collective(group, what, lambda: planned(group.rank, group.size))
        return Request(started(group, plan, what), group.timeout)

    def Barrier(self) -> None:
        """Returns when every rank has come here."""
        try:
            self._group.barrier()
        except AiocollError as error:
            raise translated(error) from error.__cause__

    barrier = Barrier

    def Ibarrier(self) -> Request:
        """Starts a Barrier."""
        return self._soon("Ibarrier", lambda rank, size: lambda group: group.barrier())

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Root's elements into everybody's buffer."""
        if type(buf) is np.ndarray and type(root) is int and buf.ndim == 1:
            group = self._group
            try:  # a call that was made before with an array like this one
                if group.broadcast_again(buf, root, None if group.rank == root else buf) is not NotImplemented:
                    return
            except AiocollError as error:
                raise translated(error) from error.__cause__
        self._now("Bcast", lambda rank, size: plans.bcast(rank, size, buf, root))

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        """Starts a Bcast."""
        return self._soon("Ibcast", lambda rank, size: plans.bcast(rank, size, buf, root))

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """The reduction into root's recvbuf; sendbuf may be MPI.IN_PLACE there, recvbuf None elsewhere."""
        self._now("Reduce", lambda rank, size: plans.reduction("reduce", rank, size, sendbuf, recvbuf, op, root))

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Request:
        """Starts a Reduce."""
        return self._soon(
            "Ireduce", lambda rank, size: plans.reduction("reduce", rank, size, sendbuf, recvbuf, op, root)
        )

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """The reduction, bit-identical in every rank's recvbuf; sendbuf may be MPI.IN_PLACE on all ranks."""
        if type(recvbuf) is np.ndarray and type(op) is Op and self._all_reduced_again(sendbuf, recvbuf, op._kernel):
            return
        self._now("Allreduce", lambda rank, size: plans.reduction("all_reduce", rank, size, sendbuf, recvbuf, op))

    def _all_reduced_again(self, sendbuf: Any, recvbuf: Any, kernel: Any) -> bool:
        """Whether this was a call that was made before with arrays alike, and is over."""
        given, out = sendbuf, None
        if sendbuf is IN_PLACE:
            given = out = recvbuf
        elif type(sendbuf) is not np.ndarray or sendbuf.shape != recvbuf.shape or sendbuf.dtype is not recvbuf.dtype:
            return False
        if not recvbuf.flags.carray or recvbuf.ndim != 1:  # the others, too, may give an array of any shape
            return False
        try:
            result = self._group.all_reduce_again(given, kernel, out)
        except AiocollError as error:
            raise translated(error) from error.__cause__
        if result is NotImplemented:
            return False
        if result is not recvbuf:
            recvbuf[...] = result
        return True

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """Starts an Allreduce."""
        return self._soon(
            "Iallreduce", lambda rank, size: plans.reduction("all_reduce", rank, size, sendbuf, recvbuf, op)
        )

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """The reduction over the ranks up to and including mine."""
        self._now("Scan", lambda rank, size: plans.reduction("scan", rank, size, sendbuf, recvbuf, op))

    def Iscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """Starts a Scan."""
        return self._soon("Iscan", lambda rank, size: plans.reduction("scan", rank, size, sendbuf, recvbuf, op))

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """The reduction over the ranks below mine; rank 0's recvbuf is left as it is."""
        self._now("Exscan", lambda rank, size: plans.reduction("exscan", rank, size, sendbuf, recvbuf, op))

    def Iexscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """Starts an Exscan."""
        return self._soon("Iexscan", lambda rank, size: plans.reduction("exscan", rank, size, sendbuf, recvbuf, op))

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Equal parts into root's recvbuf, in rank order."""
        self._now("Gather", lambda rank, size: plans.gather(rank, size, sendbuf, recvbuf, root, varying=False))

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Starts a Gather."""
        return self._soon("Igather", lambda rank, size: plans.gather(rank, size, sendbuf, recvbuf, root, varying=False))

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Parts of any length into root's recvbuf, ``[array, counts, displacements, datatype]``."""
        self._now("Gatherv", lambda rank, size: plans.gather(rank, size, sendbuf, recvbuf, root, varying=True))

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Starts a Gatherv."""
        return self._soon("Igatherv", lambda rank, size: plans.gather(rank, size, sendbuf, recvbuf, root, varying=True))

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Equal parts into everybody's recvbuf, in rank order."""
        self._now("Allgather", lambda rank, size: plans.all_gather(rank, size, sendbuf, recvbuf, varying=False))

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Starts an Allgather."""
        return self._soon(
            "Iallgather", lambda rank, size: plans.all_gather(rank, size, sendbuf, recvbuf, varying=False)
        )

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Parts of any length into everybody's recvbuf, ``[array, counts, displacements, datatype]``."""
        self._now("Allgatherv", lambda rank, size: plans.all_gather(rank, size, sendbuf, recvbuf, varying=True))

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Starts an Allgatherv."""
        return self._soon(
            "Iallgatherv", lambda rank, size: plans.all_gather(rank, size, sendbuf, recvbuf, varying=True)
        )

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """My equal part of root's sendbuf; recvbuf may be MPI.IN_PLACE on root."""
        self._now("Scatter", lambda rank, size: plans.scatter(rank, size, sendbuf, recvbuf, root, varying=False))

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Starts a Scatter."""
        return self._soon(
            "Iscatter", lambda rank, size: plans.scatter(rank, size, sendbuf, recvbuf, root, varying=False)
        )

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """My part of root's sendbuf, ``[array, counts, displacements, datatype]``."""
        self._now("Scatterv", lambda rank, size: plans.scatter(rank, size, sendbuf, recvbuf, root, varying=True))

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Request:
        """Starts a Scatterv."""
        return self._soon(
            "Iscatterv", lambda rank, size: plans.scatter(rank, size, sendbuf, recvbuf, root, varying=True)
        )

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """An equal part for every rank, and one from every rank."""
        self._now("Alltoall", lambda rank, size: plans.all_to_all(rank, size, sendbuf, recvbuf, varying=False))

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Starts an Alltoall."""
        return self._soon("Ialltoall", lambda rank, size: plans.all_to_all(rank, size, sendbuf, recvbuf, varying=False))

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Parts of any length, ``[array, counts, displacements, datatype]`` both."""
        self._now("Alltoallv", lambda rank, size: plans.all_to_all(rank, size, sendbuf, recvbuf, varying=True))

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> Request:
        """Starts an Alltoallv."""
        return self._soon("Ialltoallv", lambda rank, size: plans.all_to_all(rank, size, sendbuf, recvbuf, varying=True))

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM) -> None:
        """My block of the reduction; blocks of ``recvcounts`` elements, or of the lengths of the ranks' recvbufs."""
        counts = self._counts_of(recvbuf, recvcounts)
        self._now(
            "Reduce_scatter",
            lambda rank, size: plans.reduce_scatter(rank, size, sendbuf, recvbuf, counts, op, varying=True),
        )

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> Request:
        """Starts a Reduce_scatter; without ``recvcounts`` it first waits for the ranks to tell theirs."""
        counts = self._counts_of(recvbuf, recvcounts)
        return self._soon(
            "Ireduce_scatter",
            lambda rank, size: plans.reduce_scatter(rank, size, sendbuf, recvbuf, counts, op, varying=True),
        )

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """My block of the reduction; equal blocks."""
        self._now(
            "Reduce_scatter_block",
            lambda rank, size: plans.reduce_scatter(rank, size, sendbuf, recvbuf, None, op, varying=False),
        )

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Request:
        """Starts a Reduce_scatter_block."""
        return self._soon(
            "Ireduce_scatter_block",
            lambda rank, size: plans.reduce_scatter(rank, size, sendbuf, recvbuf, None, op, varying=False),
        )

    def _counts_of(self, recvbuf: Any, recvcounts: Sequence[int] | None) -> Sequence[int] | None:
        """MPI wants the counts on every rank; mpi4py asks the ranks where they are left out, and so do we."""
        if recvcounts is not None:
            return recvcounts

        def planned(rank: int, size: int) -> Plan:
            mine = np.int64(writing(recvbuf, "Reduce_scatter: recvbuf", rank).flat.size)
            return lambda group: group.all_gather(mine)

        return [int(each) for each in self._now("Reduce_scatter", planned)]
