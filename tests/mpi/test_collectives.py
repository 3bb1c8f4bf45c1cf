"""The collectives on buffers against NumPy, in all the ways to write a buffer; what is refused is refused for all."""

from __future__ import annotations

import array
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll.errors import AiocollError, MismatchError, UsageError
from aiocoll.mpi import MPI

same = np.testing.assert_array_equal
Ranks = Callable[..., list[Any]]


def data(rank: int, count: int = 6) -> Any:
    return np.arange(float(count)) * (rank + 1) + rank


def test_reductions_in_all_ways_to_write_a_buffer(ranks: Ranks) -> None:
    size = 3
    everything = np.stack([data(rank) for rank in range(size)])

    def body(comm: Any) -> None:
        mine, out = data(comm.rank), np.zeros(6)
        comm.Allreduce(mine, out)
        same(out, everything.sum(0))
        for _ in range(3):  # a call that comes again takes the short way
            comm.Allreduce(mine, out, op=MPI.MAX)
            same(out, everything.max(0))
        comm.Allreduce([mine, MPI.DOUBLE], [out, "d"], MPI.MIN)
        same(out, everything.min(0))
        out[:] = -1
        comm.Allreduce([mine, 2], [out, 2], op=MPI.PROD)
        same(out, [*everything.prod(0)[:2], -1, -1, -1, -1])
        comm.Allreduce([mine, (2, 3), MPI.DOUBLE], [out, (2, 1), MPI.DOUBLE])
        same(out[1:3], everything.sum(0)[3:5])
        assert out[3] == -1
        inside = mine.copy()
        comm.Allreduce(MPI.IN_PLACE, inside)
        same(inside, everything.sum(0))
        comm.Allreduce(inside, inside)  # the same array twice is in place, too
        same(inside, everything.sum(0) * size)

        strided = np.full((6, 2), -1.0)
        comm.Allreduce(mine.reshape(2, 3).T, strided[:, 0])  # a Fortran array travels as it lies in memory
        same(strided[:, 0], everything.sum(0))
        assert (strided[:, 1] == -1).all()
        backwards = np.zeros(6)[::-1]
        comm.Reduce(mine[::-1], backwards, root=1)
        same(backwards, everything.sum(0)[::-1] if comm.rank == 1 else np.zeros(6))
        raw = bytearray(48)
        comm.Allreduce([mine.tobytes(), MPI.DOUBLE], [raw, MPI.DOUBLE])
        same(np.frombuffer(raw), everything.sum(0))
        numbers = array.array("i", [comm.rank, 5])
        comm.Allreduce(MPI.IN_PLACE, numbers, op=MPI.BOR)
        assert numbers.tolist() == [3, 5]
        scalar = np.array(float(comm.rank))
        comm.Allreduce(MPI.IN_PLACE, scalar)
        assert scalar.shape == () and scalar == 3
        comm.Reduce(mine, out if comm.rank == 2 else None, op=MPI.SUM, root=2)
        comm.Reduce(MPI.IN_PLACE if comm.rank == 0 else inside, inside if comm.rank == 0 else None)
        if comm.rank == 0:
            same(inside, everything.sum(0) * size * size)
        below = np.full(6, -5.0)
        comm.Exscan(mine, below)
        same(below, everything[: comm.rank].sum(0) if comm.rank else np.full(6, -5.0))
        comm.Scan(MPI.IN_PLACE, mine)
        same(mine, everything[: comm.rank + 1].sum(0))

    ranks(size, body)


def test_equal_parts(ranks: Ranks) -> None:
    size = 3

    def body(comm: Any) -> None:
        rank = comm.rank
        mine = np.array([rank, 10 * rank], dtype="i4")
        everything = np.array([[each, 10 * each] for each in range(size)], dtype="i4")
        table = np.zeros((size, 2), dtype="i4")
        comm.Gather(mine, table if rank == 1 else None, root=1)
        same(table, everything if rank == 1 else np.zeros((size, 2)))
        comm.Allgather([mine, MPI.INT], [table, MPI.INT])
        same(table, everything)
        table[:] = 0
        table[rank] = mine
        comm.Allgather(MPI.IN_PLACE, table)
        same(table, everything)
        part = np.zeros(2, dtype="i4")
        comm.Scatter(everything * 7 if rank == 2 else None, part, root=2)
        same(part, mine * 7)
        whole = everything * 3
        comm.Scatter(whole if rank == 0 else None, MPI.IN_PLACE if rank == 0 else part)
        same(whole, everything * 3)
        if rank:
            same(part, mine * 3)
        if rank == 0:
            comm.Gather(MPI.IN_PLACE, whole)
            same(whole, everything * 3)
        else:
            comm.Gather(part, None)
        outgoing = np.arange(size * 2.0).reshape(size, 2) + 100 * rank
        incoming = np.zeros((2 * size, 2))[::2]  # rows with gaps between them
        comm.Alltoall(outgoing, incoming)
        same(incoming, [[2.0 * rank + 100 * each, 2 * rank + 1 + 100 * each] for each in range(size)])
        comm.Alltoall(MPI.IN_PLACE, incoming)
        same(incoming, outgoing)
        block = np.zeros(2)
        comm.Reduce_scatter_block(outgoing, block)
        same(block, sum(np.arange(6.0) + 100 * each for each in range(size))[2 * rank : 2 * rank + 2])
        both = outgoing.reshape(-1).copy()
        comm.Reduce_scatter_block(MPI.IN_PLACE, both)
        same(both[:2], block)
        comm.Bcast(everything if rank == 0 else table, root=0)
        empty = np.zeros(0)
        comm.Bcast(empty)
        comm.Allgather(empty, np.zeros(0))
        comm.Barrier()

    ranks(size, body)


def test_parts_of_any_length(ranks: Ranks) -> None:
    size = 3

    def body(comm: Any) -> None:
        rank = comm.rank
        counts, starts = [1, 2, 3], [7, 4, 0]
        mine = np.arange(rank + 1.0) + 10 * rank
        joined = np.concatenate([np.arange(each + 1.0) + 10 * each for each in range(size)])
        out = np.zeros(6)
        comm.Allgatherv(mine, [out, counts])
        same(out, joined)
        out[:] = 0
        comm.Allgatherv([mine, MPI.DOUBLE], [out, counts, None, MPI.DOUBLE])
        same(out, joined)
        spread = np.full(8, -1.0)
        for spec in ([spread, counts, starts, MPI.DOUBLE], [spread, (counts, starts)], (spread, (counts, starts), "d")):
            spread[:] = -1
            comm.Gatherv(mine, spec if rank == 2 else None, root=2)
            if rank == 2:
                same(spread, [20, 21, 22, -1, 10, 11, -1, 0])
        even = np.zeros(3 - (rank == 2))
        comm.Scatterv(np.arange(8.0) if rank == 0 else None, even)  # without counts as even as can be
        same(even, np.array_split(np.arange(8.0), size)[rank])
        part = np.zeros(rank + 1)
        comm.Scatterv([spread, counts, starts, MPI.DOUBLE] if rank == 2 else None, part, root=2)
        same(part, mine)
        sending = [(rank + each) % 3 for each in range(size)]
        outgoing = np.concatenate([np.full(n, 100.0 * rank + each) for each, n in enumerate(sending)])
        incoming = np.full(sum(sending), -1.0)
        comm.Alltoallv([outgoing, sending], [incoming, sending])
        same(incoming, np.concatenate([np.full(n, 100.0 * each + rank) for each, n in enumerate(sending)]))
        block = np.zeros(rank + 1)
        comm.Reduce_scatter(np.arange(6.0) * (rank + 1), block, counts)
        same(block, (np.arange(6.0) * 6)[[0, 1, 3][rank] :][: rank + 1])
        block[:] = 0
        comm.Reduce_scatter(np.arange(6.0) * (rank + 1), block)  # the ranks tell one another their counts
        same(block, (np.arange(6.0) * 6)[[0, 1, 3][rank] :][: rank + 1])

    ranks(size, body)


def test_started_calls(ranks: Ranks) -> None:
    size = 3

    def body(comm: Any) -> None:
        rank = comm.rank
        total, table, part = np.zeros(2), np.zeros((size, 2)), np.zeros(2)
        word = np.arange(4) * 5 if rank == 1 else np.zeros(4, dtype=int)
        outgoing, incoming = np.arange(3.0) + 10 * rank, np.zeros(3)
        upto, below, block = np.zeros(1), np.full(1, -1.0), np.zeros(1)
        requests = [
            comm.Iallreduce(np.array([rank, 1.0]), total),
            comm.Ibcast(word, root=1),
            comm.Iallgather(np.full(2, float(rank)), table),
            comm.Iscatter(np.arange(6.0) if rank == 2 else None, part, root=2),
            comm.Ialltoall(outgoing, incoming),
            comm.Iscan(np.array([rank + 1.0]), upto),
            comm.Iexscan(np.array([rank + 1.0]), below),
            comm.Ireduce_scatter_block(np.arange(3.0), block),
            comm.Ibarrier(),
        ]
        assert MPI.Request.Waitall(requests)
        same(total, [3, 3])
        same(word, np.arange(4) * 5)
        same(table, [[0, 0], [1, 1], [2, 2]])
        same(part, [2 * rank, 2 * rank + 1])
        same(incoming, [rank, 10 + rank, 20 + rank])
        assert (upto[0], below[0], block[0]) == ([1, 3, 6][rank], [-1, 1, 3][rank], 3 * rank)
        gathered, reduced = np.zeros(6), np.zeros(1)
        more = [
            comm.Igatherv(np.ones(rank + 1) * rank, [gathered, [1, 2, 3]] if rank == 0 else None),
            comm.Ireduce(np.ones(1), reduced if rank == 1 else None, root=1),
            comm.Igather(np.ones(2) * rank, np.zeros(6) if rank == 2 else None, root=2),
        ]
        MPI.Request.Waitall(more)
        if rank == 0:
            same(gathered, [0, 1, 1, 2, 2, 2])
        assert reduced[0] == (3 if rank == 1 else 0)

    ranks(size, body)


class Stranger:
    """Raises when it is looked at."""

    def __index__(self) -> int:
        raise ZeroDivisionError("asked for a number")

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("compared")


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda c: c.Allreduce(np.ones(3), np.ones(4)), "sendbuf has 3 elements and recvbuf 4"),
        (lambda c: c.Allreduce(np.ones(3), np.ones(3, "f4")), "sendbuf is of float64, recvbuf of float32"),
        (lambda c: c.Allreduce([np.ones(3, "i8"), MPI.INT], np.ones(3, "i4")), "MPI_INT.*name MPI.LONG"),
        (lambda c: c.Allreduce(np.ones(3), np.ones(3), op=sum), "is no MPI.Op; wrap a function"),
        (lambda c: c.Allreduce(np.ones(3), np.ones(3), op=MPI.BAND), "op BAND does not work on dtype float64"),
        (lambda c: c.Allreduce(MPI.IN_PLACE, MPI.IN_PLACE), "IN_PLACE does not stand here"),
        (lambda c: c.Bcast(np.ones(3), root=5), "root=5 is no rank of this communicator of 2"),
        (lambda c: c.Bcast([1, 2, 3]), "int has no memory"),
        (lambda c: c.Bcast(np.ones(3), root=np.zeros(2)), "root=array.* is no rank of this communicator"),
        (lambda c: c.Bcast(np.ones(3), root=Stranger()), "asked for a number"),
        (lambda c: c.Allgather(np.ones(2), np.ones(5)), "cannot be one equal part"),
        (lambda c: c.Allgather(np.ones(2), np.ones(6)), "do not fill a buffer of 6"),
        (lambda c: c.Gatherv(np.ones(2), [np.ones(4), [2, 3]] if c.rank == 0 else None), "does not lie in a buffer"),
        (lambda c: c.Gatherv(np.ones(2), [np.ones(4), [2, 2], [0, 1]] if c.rank == 0 else None), "overlap"),
        (lambda c: c.Gatherv(np.ones(2), [np.ones(4), [4]] if c.rank == 0 else None), "1 counts for 2 ranks"),
        (lambda c: c.Scatter(np.ones(3) if c.rank == 0 else None, np.ones(1)), "cannot be one equal part"),
        (lambda c: c.Alltoallv([np.ones(2), [1, 1]], [np.ones(2), [2, 0]]), "gives itself 1 elements|recvbuf is for"),
        (lambda c: c.Allreduce(np.ones(2), np.broadcast_to(np.zeros(1), (2,))), "read-only"),
        (lambda c: c.Reduce_scatter_block(np.ones(5), np.ones(2)), "cannot be one equal part"),
        (lambda c: c.Allreduce([np.ones(2), 3], np.ones(3)), "do not lie in a buffer of 2 elements"),
        (lambda c: c.Allreduce([np.ones(2), "x"], np.ones(3)), "no type code"),
    ],
)
def test_what_is_refused_is_refused_for_all_and_the_communicator_lives(
    ranks: Ranks, call: Callable[[Any], None], words: str
) -> None:
    def body(comm: Any) -> str:
        try:
            call(comm)
        except AiocollError as error:
            assert isinstance(error, MPI.Exception)
            assert isinstance(error, UsageError | MismatchError), error
            assert error.Get_error_string() == str(error)
            if isinstance(error, MismatchError):
                return str(error)
            said = str(error)
        else:
            assert comm.rank == 1, "a leaf of Gatherv is through before root refuses; nobody else is"
            said = ""
        assert comm.allreduce(comm.rank) == 1
        return said

    said = " / ".join(ranks(2, body))
    assert re.search(words, said), said


@pytest.mark.parametrize(
    "call",
    [
        lambda c, bad: c.Split(Stranger() if bad else 0),
        lambda c, bad: c.Split_type(17 if bad else MPI.COMM_TYPE_SHARED),
        lambda c, bad: c.Create(None if bad else c.Get_group()),
        lambda c, bad: c.Create_cart([3] if bad else [2]),
        lambda c, bad: c.Create_cart([2, 1]).Sub([True] if bad else [True, False]),
    ],
)
def test_a_communicator_that_one_rank_refuses_to_make_is_made_by_none(
    ranks: Ranks, call: Callable[[Any, bool], Any]
) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(UsageError, match="rank 1|Sub"):
            call(comm, comm.rank == 1)
        assert comm.allreduce(comm.rank) == 1

    ranks(2, body, timeout=20)


def test_d5_counts_that_root_and_leaf_see_differently_raise(ranks: Ranks) -> None:
    """Gatherv whose root expects another count than a leaf gives is an error on the root, and touches nothing."""

    def body(comm: Any) -> None:
        out = np.full(5, -1.0)
        if comm.rank == 0:
            with pytest.raises(MismatchError, match="from rank 1: 2 elements of float64 came, and the buffer is for 3"):
                comm.Gatherv(np.ones(2), [out, [2, 3]])
            same(out, np.full(5, -1.0))
        else:
            comm.Gatherv(np.ones(2), None)
        assert comm.allreduce(1) == 2

    ranks(2, body)


def test_a5_small_arrays_with_odd_strides_are_as_good_as_any(ranks: Ranks) -> None:
    """Arrays of one element or none are contiguous, whatever their strides say."""

    def body(comm: Any) -> None:
        one = np.ones((4, 4))[1:2, ::3][:, :1] * (comm.rank + 1)
        odd = np.lib.stride_tricks.as_strided(np.array([comm.rank + 1.0]), (1, 1), (-8, 24))
        none = np.ones((4, 4))[1:1, ::3]
        out, nothing = np.zeros((5, 5))[2:3, ::4][:, :1], np.zeros((3, 0))[::2]
        for given in (one, odd):
            comm.Allreduce(given, out)
            assert out[0, 0] == 3
        comm.Allreduce(none, nothing)
        comm.Bcast(nothing)

    ranks(2, body)


def test_a_buffer_that_does_not_fit_what_root_sends(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 0:
            comm.Bcast(np.ones(3))  # root waits for nobody, and learns of it in one of its next calls
            with pytest.raises(MismatchError, match="shape"):
                comm.Barrier()
        else:
            with pytest.raises(MismatchError, match="shape"):
                comm.Bcast(np.ones(4))

    ranks(2, body)
