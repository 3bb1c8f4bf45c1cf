"""Synchronous and persistent messages under MPI's names, as course material uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll.errors import CollectiveTimeoutError, UsageError
from aiocoll.mpi import MPI

Ranks = Callable[..., list[Any]]
Request, Prequest = MPI.Request, MPI.Prequest


def test_a_synchronous_send_is_over_when_it_has_been_taken(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        box = np.zeros(3)
        if comm.rank == 0:
            request = comm.Issend(np.arange(3.0) + 1, 1, tag=1)
            assert not request.Test() and "Issend to rank 1" in repr(request)
            comm.send("go", 1)
            comm.Ssend(np.arange(3.0) + 2, 1, tag=2)
            assert comm.iprobe(source=1) and comm.recv(source=1) == "about to"
            assert request.Wait()
            later = comm.issend({"n": 3}, 1, tag=3)
            comm.ssend({"n": 4}, 1, tag=4)
            assert comm.recv(source=1) == "objects" and later.wait() is None
        else:
            assert comm.recv(source=0) == "go"
            comm.Recv(box, 0, tag=1)
            assert box.tolist() == [1, 2, 3]
            comm.send("about to", 0)
            comm.Recv(box, 0, tag=2)
            assert box.tolist() == [2, 3, 4]
            assert comm.recv(source=0, tag=3) == {"n": 3}
            comm.send("objects", 0)
            assert comm.recv(source=0, tag=4) == {"n": 4}

    ranks(2, body)


def test_a_synchronous_send_to_oneself_to_nobody_and_past_a_probe(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        box = np.zeros(2)
        comm.Ssend(box, MPI.PROC_NULL)
        comm.ssend(None, MPI.PROC_NULL)
        assert comm.Issend(box, MPI.PROC_NULL).Wait() and comm.issend(None, MPI.PROC_NULL).wait() is None
        receive = comm.Irecv(box, comm.rank)
        comm.Ssend(np.array([4.0, comm.rank]), comm.rank)
        assert receive.Wait() and box.tolist() == [4, comm.rank]
        request, status = comm.Issend(np.ones(2), comm.rank, tag=5), MPI.Status()
        assert comm.Probe(tag=MPI.ANY_TAG, status=status) and status.Get_tag() == 5
        comm.Recv(box, tag=5)
        assert request.Wait() and (box == 1).all()

    ranks(2, body)


def test_a_synchronous_send_that_nobody_takes_says_whom_it_waits_for(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        if comm.rank == 0:
            with pytest.raises(CollectiveTimeoutError, match="send to rank 1") as caught:
                comm.Ssend(np.ones(2), 1)
            assert isinstance(caught.value, MPI.Exception)
            comm.send("late", 1)
        else:
            request = comm.irecv(source=0)
            while not request.Test():
                pass  # it waits past the deadline of the other one

    ranks(2, body, timeout=0.2)


@pytest.mark.parametrize("kind", ["Send_init", "Bsend_init", "Rsend_init", "Ssend_init"])
def test_a_ring_that_is_described_once(ranks: Ranks, kind: str) -> None:
    def body(comm: Any) -> None:
        ahead, behind = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        out, box, status = np.zeros(4), np.zeros(4), MPI.Status()
        requests = [comm.Recv_init(box, behind, 9), getattr(comm, kind)(out, ahead, 9)]
        assert all(isinstance(each, Prequest) and each for each in requests) and "not started" in repr(requests[0])
        assert Request.Waitall(requests) and Request.Testall(requests)  # nothing has been started
        assert Request.Waitany(requests) == MPI.UNDEFINED and Request.Waitsome(requests) is None
        for step in range(5):
            out[:] = 10 * step + comm.rank
            Prequest.Startall(requests)
            if step % 2:
                assert sorted(Request.Waitany(requests) for _ in requests) == [0, 1]
            else:
                statuses = [status]
                assert Request.Waitall(requests, statuses) and status.source == behind and status.tag == 9
            assert (box == 10 * step + behind).all() and requests[0] != MPI.REQUEST_NULL
        for request in requests:
            request.Free()
            assert not request and request == MPI.REQUEST_NULL
            with pytest.raises(UsageError, match="was freed"):
                request.Start()

    ranks(3, body)


def test_what_is_wrong_is_said_when_it_is_described_or_started_twice(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        box = np.zeros(2)
        for describe in (
            lambda: comm.Send_init(box, 5),
            lambda: comm.Ssend_init(object(), 0),
            lambda: comm.Recv_init(box, tag=-7),
            lambda: comm.Recv_init(np.zeros(2).tobytes(), 0),
        ):
            with pytest.raises(MPI.Exception, match=r"(Send|Ssend|Recv)_init"):
                describe()
        receive = comm.Recv_init(box, 0)
        receive.Start()
        with pytest.raises(UsageError, match="has been started and not been waited for"):
            receive.Start()
        comm.Send(np.array([1.0, 2.0]), 0)
        receive.Wait()
        receive.Start()
        receive.Cancel()
        receive.Wait()
        receive.Start()
        comm.Send(np.array([3.0, 4.0]), 0)
        assert receive.Wait() and box.tolist() == [3, 4]
        nobody = comm.Recv_init(box, MPI.PROC_NULL)
        for _ in range(2):
            nobody.Start()
            assert nobody.Wait() and box.tolist() == [3, 4]

    ranks(1, body)
