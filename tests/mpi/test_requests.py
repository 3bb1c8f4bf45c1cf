"""Requests: one, all, any and some of them, and what is over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll.errors import AiocollError, MismatchError
from aiocoll.mpi import MPI

Ranks = Callable[..., list[Any]]
Request = MPI.Request


def test_one(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        status = MPI.Status()
        if comm.rank == 0:
            request = comm.irecv(source=1)
            assert request and request.test() == (False, None) and not request.Test() and not request.Get_status()
            comm.barrier()
            while not request.get_status(status):
                pass
            assert status.source == 1 and request  # looked at, and still there
            assert request.test(status) == (True, {"a": 1}) and status.tag == 6
            assert not request and request == MPI.REQUEST_NULL and repr(request) == "REQUEST_NULL"
            assert request.wait() is None and request.test() == (True, None) and request.Wait(status)
            assert status.source == MPI.ANY_SOURCE
        else:
            comm.barrier()
            request = comm.isend({"a": 1}, 0, tag=6)
            assert "isend to rank 0" in repr(request) and request.Wait() is True and request.wait() is None

    ranks(2, body)


def test_all_any_and_some(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        if comm.rank:
            comm.recv(source=0)
            comm.send(comm.rank, 0, tag=1)
            comm.Send(np.full(3, comm.rank), 0, tag=2)
            return
        boxes = [np.zeros(3, int) for _ in range(3)]
        objects = [comm.irecv(source=each, tag=1) for each in (1, 2, 3)]
        buffers = [comm.Irecv(boxes[each - 1], each, tag=2) for each in (1, 2, 3)]
        assert Request.Testall(objects) is False and Request.testall(objects) == (False, None)
        assert Request.Testany(objects) == (MPI.UNDEFINED, False) and Request.Testsome(objects) == []
        comm.send("go", 2)
        statuses = [MPI.Status()]
        assert Request.waitany(objects, statuses[0]) == (1, 2) and statuses[0].source == 2
        comm.send("go", 1)
        comm.send("go", 3)
        came: dict[int, Any] = {}
        while (some := Request.waitsome(objects, statuses))[0] is not None:
            came.update(zip(some[0], some[1] or [], strict=True))
        assert came == {0: 1, 2: 3}
        assert Request.Waitsome(objects) is None and Request.Waitany(objects) == MPI.UNDEFINED
        assert Request.testany(objects) == (MPI.UNDEFINED, True, None) and Request.waitall(objects) == [None] * 3
        statuses = []
        assert Request.Waitall(buffers, statuses) is True
        assert [each.source for each in statuses] == [1, 2, 3] and [each.tolist() for each in boxes] == [
            [1] * 3, [2] * 3, [3] * 3
        ]  # fmt: skip
        assert Request.Testall(buffers) and Request.waitall([]) == []

    ranks(4, body)


def test_waiting_for_any_gives_up_after_the_timeout_and_leaves_them_running(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        requests = [comm.irecv(tag=each) for each in range(2)]
        with pytest.raises(TimeoutError, match="none of 2 requests was over"):
            Request.Waitany(requests)
        comm.send("late", 0, tag=1)
        assert Request.waitany(requests) == (1, "late")
        requests[0].Cancel()

    ranks(1, body, timeout=0.1)


def test_a_world_without_a_deadline(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        other, box = 1 - comm.rank, np.zeros(2)
        requests = [comm.irecv(source=other), comm.Irecv(box, other)]
        comm.isend({"of": comm.rank}, other).wait()
        assert Request.waitany(requests[:1]) == (0, {"of": other})
        comm.Send(np.full(2, comm.rank + 1.0), other)
        assert Request.Waitall(requests) and (box == other + 1).all()

    ranks(2, body, timeout=math.inf)


def test_a_request_that_is_cancelled_gives_its_message_to_the_next(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        box, status = np.zeros(2), MPI.Status()
        request = comm.Irecv(box, tag=3)
        request.Cancel()
        assert request.Wait(status) and status.Is_cancelled() and not request
        comm.Send(np.ones(2), 0, tag=3)
        assert (box == 0).all()
        comm.Recv(box, tag=3)
        assert (box == 1).all()
        request = comm.Isend(np.ones(2) * 2, 0)
        request.Free()
        comm.Recv(box)
        assert (box == 2).all()

    ranks(1, body)


def test_an_error_comes_where_it_is_waited_for_and_only_there(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        boxes = [np.zeros(1), np.zeros(9)]
        requests = [comm.Irecv(box, source=0, tag=tag) for tag, box in enumerate(boxes)]
        comm.Send(np.ones(3), 0, tag=0)
        comm.Send(np.ones(3), 0, tag=1)
        with pytest.raises(MismatchError, match="room for 1") as caught:
            Request.Waitall(requests)  # the others are waited for all the same
        assert isinstance(caught.value, MPI.Exception) and isinstance(caught.value, AiocollError)
        assert boxes[1].sum() == 3 and not any(requests)

    ranks(1, body)


def test_an_op_may_start_a_message_from_the_thread_of_its_calls(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        notes = []

        def noting(first: Any, second: Any, datatype: Any) -> None:
            notes.append(comm.isend(len(notes), comm.rank))  # would wait for itself, if it waited to have begun
            np.frombuffer(second)[...] += np.frombuffer(first)

        out, since = np.zeros(2), time.monotonic()
        comm.Iallreduce(np.array([1.0, comm.rank]), out, MPI.Op.Create(noting)).Wait()
        assert out.tolist() == [2.0, 1.0] and comm.allreduce(len(notes)) >= 1
        for number, note in enumerate(notes):
            note.wait()
            assert comm.recv(source=comm.rank) == number
        assert time.monotonic() - since < 25

    ranks(2, body)


def test_both_directions_started(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        other = 1 - comm.rank
        out, box = np.arange(3.0) + comm.rank, np.zeros(3)
        assert comm.Isendrecv(out, other, 1, box, other, 1).Wait()
        assert (box == np.arange(3.0) + other).all()
        comm.Isendrecv_replace(out, other, 2, other, 2).Wait()
        assert (out == np.arange(3.0) + other).all()
        assert comm.Isendrecv(out, MPI.PROC_NULL, 0, box, MPI.PROC_NULL).Wait()

    ranks(2, body)


@pytest.mark.parametrize("seen", [False, True])
def test_both_directions_are_over_when_the_send_is_too(ranks: Ranks, seen: bool) -> None:
    """Also where there is nothing to wait for on the other side: nobody, or a message that a probe has seen."""

    def body(comm: Any) -> None:
        big, box, status = np.zeros(9 << 20), np.zeros(1), MPI.Status()  # more than may wait unreceived
        if comm.rank:
            comm.Send(np.full(1, 7.0), 0)
            comm.recv(source=0)
            comm.Recv(big, 0)
            assert (big == 3.0).all()
            return
        big[:] = 3.0
        source = 1 if seen else MPI.PROC_NULL
        comm.Probe(1)
        request = comm.Isendrecv(big, 1, 0, box, source)
        assert not request.Test() and "to rank 1" in repr(request)
        comm.send("I may not change what I send yet", 1)
        request.Wait(status)
        big[:] = 4.0
        assert status.source == source and box[0] == (7.0 if seen else 0.0)
        if not seen:
            comm.Recv(box, 1)

    ranks(2, body)


def test_what_a_request_says_without_ending_is_what_its_end_says(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        status, box = MPI.Status(), np.zeros(2)
        request = comm.Irecv(box, comm.rank, tag=1)
        request.Cancel()
        assert request.Get_status(status) and status.Is_cancelled() and request.Wait()
        assert request.Wait(status) and not status.Is_cancelled()  # it is over, as good as REQUEST_NULL
        comm.Send(np.ones(2), comm.rank, tag=5)
        comm.Probe(comm.rank)
        request = comm.Irecv(box)  # gets what the probe has seen, at once
        assert request.Get_status(status) and (status.source, status.tag, status.count) == (comm.rank, 5, 16)
        assert request.Wait(status) and status.tag == 5
        request = comm.Issend(np.ones(2), 1 - comm.rank, tag=6) if comm.rank == 0 else None
        comm.barrier()
        if request is not None:
            with pytest.raises(ConnectionError, match="rank 1") as caught:
                while not request.Get_status():
                    pass
            assert isinstance(caught.value, MPI.Exception) and request  # looked at, and still there
            with pytest.raises(MPI.Exception, match="rank 1"):
                request.Test()
            assert not request

    ranks(2, body)
