"""The lower-case collectives: any plain data, folded in rank order by MPI's ops or a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll.errors import SerializationError, UsageError
from aiocoll.mpi import MPI

Ranks = Callable[..., list[Any]]


def test_every_call(ranks: Ranks) -> None:
    size = 3

    def body(comm: Any) -> None:
        rank = comm.rank
        assert comm.bcast({"of": (rank, {1, 2})}, root=2) == {"of": (2, {1, 2})}
        assert comm.bcast(root=1) is None
        assert comm.gather([rank], root=1) == ([[0], [1], [2]] if rank == 1 else None)
        assert comm.allgather(rank * "x") == ["", "x", "xx"]
        assert comm.scatter((n * 1.5 for n in range(size)) if rank == 0 else None) == rank * 1.5
        assert comm.scatter(np.arange(3) if rank == 2 else None, root=2) == rank
        assert comm.alltoall([(rank, each) for each in range(size)]) == [(each, rank) for each in range(size)]
        assert comm.allreduce(rank + 1) == 6
        assert comm.allreduce([rank]) == [0, 1, 2]  # SUM is Python's +, in rank order
        assert comm.allreduce(np.arange(2) + rank).tolist() == [3, 6]
        assert comm.reduce("abc"[rank], op=lambda a, b: b + a, root=1) == ("cba" if rank == 1 else None)
        assert comm.scan(str(rank)) == "012"[: rank + 1]
        assert comm.exscan(str(rank)) == (None if rank == 0 else "012"[:rank])
        values = [4, 9, 9]
        assert comm.allreduce((values[rank], rank), op=MPI.MAXLOC) == (9, 1)
        assert comm.allreduce((values[rank], rank), op=MPI.MINLOC) == (4, 0)
        for op, wanted in [
            (MPI.MAX, 3), (MPI.MIN, 1), (MPI.PROD, 6), (MPI.BAND, 0), (MPI.BOR, 3), (MPI.BXOR, 0),
            (MPI.LAND, True), (MPI.LOR, True), (MPI.LXOR, True),
        ]:  # fmt: skip
            assert comm.allreduce(rank + 1, op=op) == wanted, op
        assert comm.allreduce({"a", rank}, op=MPI.BOR) == {"a", 0, 1, 2}
        mine = MPI.Op.Create(lambda x, y, datatype: (x, y))  # on objects a function of one's own gets them as they are
        assert comm.reduce(rank, op=mine) == (((0, 1), 2) if rank == 0 else None)
        comm.barrier()

    ranks(size, body)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda c: c.scatter([1, 2, 3] if c.rank == 0 else None), "2 objects are needed, one per rank, not 3"),
        (lambda c: c.scatter(5 if c.rank == 0 else None), "2 objects are needed, one per rank, not 'int'"),
        (lambda c: c.alltoall([1] if c.rank == 0 else [1, 2]), "2 objects are needed"),
        (lambda c: c.bcast(1, root=2), "root=2 is no rank"),
        (lambda c: c.allreduce(1, op="sum"), "neither an MPI.Op nor a function"),
    ],
)
def test_what_one_rank_refuses_is_refused_for_all(ranks: Ranks, call: Callable[[Any], None], words: str) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(UsageError, match=words) as caught:
            call(comm)
        assert isinstance(caught.value, MPI.Exception)
        assert comm.allgather(comm.rank) == [0, 1]

    ranks(2, body)


def test_what_cannot_travel_names_its_rank_everywhere(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(SerializationError, match="rank 1") as caught:
            comm.allgather(object() if comm.rank == 1 else 3)
        assert isinstance(caught.value, MPI.Exception) and caught.value.Get_error_class() == MPI.ERR_TYPE
        assert comm.allreduce(1) == 3

    ranks(3, body)


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


def test_classes_travel_where_pickle_is_allowed(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        assert [each.x for each in comm.allgather(Point(comm.rank))] == [0, 1]

    ranks(2, body, allow_pickle=True)


@pytest.mark.parametrize("call", ["isend", "ibsend", "issend"])
def test_a_large_object_is_sent_as_it_was_when_the_call_was_made(ranks: Ranks, call: str) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 0:
            mine = {"array": np.arange(2e5)}
            request = getattr(comm, call)(mine, 1)
            mine["array"][:] = -1
            comm.send("changed", 1, tag=1)
            request.wait()
        else:
            assert comm.recv(source=0, tag=1) == "changed"
            assert (comm.recv(source=0)["array"] == np.arange(2e5)).all()

    ranks(2, body)
