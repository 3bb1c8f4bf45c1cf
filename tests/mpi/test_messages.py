"""Messages: statuses, wildcards, nobody, probes, both directions at once, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll.errors import CollectiveTimeoutError, MismatchError, SerializationError, UsageError
from aiocoll.mpi import MPI

same = np.testing.assert_array_equal
Ranks = Callable[..., list[Any]]


def test_a_status_says_who_what_and_how_much(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        status = MPI.Status()
        if comm.rank:
            comm.Send([np.arange(5, dtype="i4"), comm.rank, MPI.INT], dest=0, tag=10 + comm.rank)
            return
        seen = set()
        for _ in range(2):
            box = np.full(6, -1, dtype="i4")
            comm.Recv(box, status=status)
            n = status.Get_count(MPI.INT)
            assert (n, status.tag, status.Get_elements(MPI.INT)) == (status.source, 10 + status.source, n)
            assert status.count == 4 * n and status.Get_count(MPI.DOUBLE) in (MPI.UNDEFINED, n // 2)
            same(box, [*range(n), *[-1] * (6 - n)])
            seen.add(status.Get_source())
        assert seen == {1, 2} and "Status(source=" in repr(status)

    ranks(3, body)


def test_nobody_is_a_neighbour_at_the_end(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        rank, size = comm.rank, comm.size
        left = rank - 1 if rank else MPI.PROC_NULL
        right = rank + 1 if rank < size - 1 else MPI.PROC_NULL
        box, status = np.full(1, -1.0), MPI.Status()
        comm.Sendrecv(np.array([rank + 0.5]), right, 3, box, left, 3, status)
        assert (box[0], status.source) == ((rank - 0.5, rank - 1) if rank else (-1, MPI.PROC_NULL))
        assert comm.sendrecv({"of": rank}, left, source=right) == (None if rank == size - 1 else {"of": rank + 1})
        comm.Send(np.ones(1), MPI.PROC_NULL)
        comm.send(object(), MPI.PROC_NULL)  # never looked at
        assert comm.recv(source=MPI.PROC_NULL, status=status) is None and status.count == 0
        assert comm.irecv(source=MPI.PROC_NULL).wait(status) is None and status.tag == MPI.ANY_TAG
        assert comm.isend(1, MPI.PROC_NULL).test() == (True, None)
        assert comm.Iprobe(MPI.PROC_NULL) and comm.Mprobe(MPI.PROC_NULL).recv() is None

    ranks(3, body)


@pytest.mark.parametrize("object_form", [False, True])
def test_e6_everybody_sends_first_whatever_the_size(ranks: Ranks, object_form: bool) -> None:
    """A ring in which every rank sends before it receives does not depend on how large its messages are."""
    size = 2

    def body(comm: Any) -> None:
        right, left = (comm.rank + 1) % size, (comm.rank - 1) % size
        for count in (1, 100_000, 9_000_000 if not object_form else 10_000):  # 72 MB: beyond what is taken unasked
            x = np.full(count, comm.rank + 1.0)
            if object_form:
                comm.send([x, count], right)
                came, n = comm.recv(source=left)
                assert n == count
            elif count < 1_000_000:
                comm.Send(x, right)
                came = np.zeros(count)
                comm.Recv(came, left)
            else:
                comm.Sendrecv_replace(x, right, source=left)
                came = x
            assert (came == left + 1).all()

    ranks(size, body)


def test_e8_a_probed_message_is_received_once_and_its_sender_does_not_wait(ranks: Ranks) -> None:
    """A message that a probe has seen goes to the next receive that it fits, or only to whoever took it by Mprobe."""

    def body(comm: Any) -> None:
        status = MPI.Status()
        if comm.rank == 1:
            comm.Send(np.arange(3.0), 0, tag=1)
            comm.Send(np.arange(4.0) * 2, 0, tag=1)
            comm.send({"third": 3}, 0, tag=2)
            comm.Send(np.arange(5.0), 0, tag=3)
            comm.Ibarrier().Wait()
            return
        assert comm.Probe(1, 1, status)
        assert comm.Probe(MPI.ANY_SOURCE, 1, status)  # the same one
        assert status.Get_count(MPI.DOUBLE) == 3 and (status.source, status.tag) == (1, 1)
        pending = comm.Irecv(np.zeros(9), tag=3)  # posted now, but for another tag
        assert comm.Iprobe(1, 2) or comm.Probe(1, 2)
        taken = comm.Mprobe(1, 1)
        second = np.zeros(4)
        comm.Recv(second, MPI.ANY_SOURCE, 1, status)
        same(second, np.arange(4.0) * 2)
        with pytest.raises(UsageError, match="a buffer: receive it with Recv"):
            taken.recv()
        first = np.zeros(3)
        taken.Recv(first, status)
        same(first, np.arange(3.0))
        assert not taken and repr(taken) == "MESSAGE_NULL" and status.Get_count(MPI.DOUBLE) == 3
        with pytest.raises(UsageError, match="received already"):
            taken.Recv(first)
        assert comm.recv(status=status) == {"third": 3} and status.tag == 2
        pending.Wait(status)
        assert status.Get_count(MPI.DOUBLE) == 5
        assert comm.iprobe() is False and comm.Improbe() is None
        comm.Ibarrier().Wait()

    ranks(2, body)


def test_probes_keep_the_order_of_messages(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 0:
            for number in range(20):
                comm.send(number, 1, tag=number % 2)
        else:
            got: dict[int, list[int]] = {0: [], 1: []}
            status = MPI.Status()
            while sum(map(len, got.values())) < 20:
                comm.probe(0, MPI.ANY_TAG, status)
                got[status.tag].append(comm.recv(source=status.source, tag=status.tag))
            assert got == {0: list(range(0, 20, 2)), 1: list(range(1, 20, 2))}

    ranks(2, body)


def test_a_message_that_does_not_fit_is_consumed_and_says_so(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 0:
            comm.Send(np.arange(4.0), 1, tag=1)
            comm.Send(np.arange(4.0), 1, tag=1)
            comm.Send([np.arange(2.0), MPI.DOUBLE], 1, tag=1)
            comm.Send(b"ending", 1, tag=1)
        else:
            with pytest.raises(MismatchError, match="4 elements of float64 came, and the .* room for 3") as caught:
                comm.Recv(np.zeros(3), 0, 1)
            assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
            with pytest.raises(MismatchError, match="elements of float64 came, and the buffer is for int64"):
                comm.Recv(np.zeros(9, int), 0, 1)
            raw = bytearray(16)
            comm.Recv([raw, MPI.BYTE], 0, 1)  # bytes are anything
            same(np.frombuffer(raw), [0, 1])
            raw = bytearray(6)
            comm.Recv(raw)
            assert bytes(raw) == b"ending"
        assert comm.allreduce(1) == 2

    ranks(2, body)


def test_objects_travel_as_they_are_when_they_are_sent(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 0:
            mine = {"numbers": [1, 2]}
            request = comm.isend(mine, 1)
            mine["numbers"].append(3)  # isend has taken it
            request.wait()
            with pytest.raises(SerializationError, match="AIOCOLL_ALLOW_PICKLE|allow_pickle"):
                comm.send(object(), 1)
        else:
            assert comm.recv() == {"numbers": [1, 2]}
            with pytest.raises(SerializationError, match="rank 0 could not serialise"):
                comm.recv(source=0)
        assert comm.bcast(np.arange(3) if comm.rank else None, root=1).tolist() == [0, 1, 2]

    ranks(2, body)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda c: c.Send(np.ones(1), 2), "dest=2 is no rank of this communicator of 1"),
        (lambda c: c.send(1, "0"), "dest='0' is no rank"),
        (lambda c: c.send(1, 0, tag=-1), "tag=-1 must be from 0"),
        (lambda c: c.recv(source=7), "source=7 is no rank"),
        (lambda c: c.Recv(np.ones(1), tag=1.5), "tag=1.5 must be"),
        (lambda c: c.Send(1.0, 0), "float has no memory"),
        (lambda c: c.Recv("text"), "str has no memory"),
        (lambda c: c.Recv(b"constant"), "read-only"),
        (lambda c: c.Send([np.ones(1), 1, 1, 1, 1], 0), "a buffer is"),
        (lambda c: c.Send([np.ones(4), 2, 3], 0), "do not lie in a buffer of 4"),
        (lambda c: c.Send([np.ones(4), -1], 0), "must not be negative"),
        (lambda c: c.Send([np.ones(4), 1.5], 0), "must be an integer"),
        (lambda c: c.Send([np.ones(4), MPI.DATATYPE_NULL], 0), "no type of elements"),
        (lambda c: c.Send(np.array([None]), 0), "Python objects"),
        (lambda c: c.Send([bytearray(7), MPI.DOUBLE], 0), "7 bytes are no whole number of MPI_DOUBLE"),
        (lambda c: c.Send(MPI.IN_PLACE, 0), "IN_PLACE does not stand here"),
    ],
)
def test_what_is_refused(ranks: Ranks, call: Callable[[Any], None], words: str) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(MPI.Exception, match=words) as caught:
            call(comm)
        assert isinstance(caught.value, UsageError)

    ranks(1, body)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda c: c.Bcast(np.ones(2), root=1), "ERR_ROOT"),
        (lambda c: c.gather(1, root=-2), "ERR_ROOT"),
        (lambda c: c.Reduce(np.ones(2), np.ones(2), root=1), "ERR_ROOT"),
        (lambda c: c.send(1, dest=1), "ERR_RANK"),
        (lambda c: c.Recv(np.ones(2), source=1), "ERR_RANK"),
        (lambda c: c.iprobe(source=1), "ERR_RANK"),
        (lambda c: c.Get_group().Incl([1]), "ERR_RANK"),
        (lambda c: c.Send(np.ones(2), dest=0, tag=-3), "ERR_TAG"),
        (lambda c: c.isend(1, dest=0, tag=MPI.ANY_TAG), "ERR_TAG"),
        (lambda c: c.Send([np.ones(4), -1], 0), "ERR_COUNT"),
        (lambda c: c.Allreduce(np.ones(2), np.ones(2), op=5), "ERR_OP"),
        (lambda c: c.allreduce(2, op=5), "ERR_OP"),
        (lambda c: c.Create_cart([2]), "ERR_DIMS"),
        (lambda c: MPI.Compute_dims(5, [2, 0]), "ERR_DIMS"),
    ],
)
def test_a_refusal_is_of_the_class_that_mpi_names(ranks: Ranks, call: Callable[[Any], None], kind: str) -> None:
    def body(comm: Any) -> None:
        with pytest.raises(MPI.Exception) as caught:
            call(comm)
        assert isinstance(caught.value, UsageError) and caught.value.Get_error_class() == getattr(MPI, kind)

    ranks(1, body)


def test_a_receive_that_nobody_answers_says_whom_it_waits_for(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 0:
            with pytest.raises(CollectiveTimeoutError, match="rank 1 with tag 4") as caught:
                comm.Recv(np.zeros(1), source=1, tag=4)
            assert isinstance(caught.value, MPI.Exception)
            request = comm.irecv(source=1, tag=5)
            with pytest.raises(CollectiveTimeoutError, match="irecv from rank 1.* still running"):
                request.wait()
            assert request  # it goes on
            comm.send("now", 1)
            assert request.wait() == "then"
        else:
            comm.recv(source=0)
            comm.send("then", 0, tag=5)

    ranks(2, lambda comm: setattr(comm.group_of_aiocoll, "timeout", 0.2 if comm.rank == 0 else 30) or body(comm))
