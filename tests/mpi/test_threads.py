"""Threads, launch(), and communicators of groups that were there before."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import numpy as np

from aiocoll.mpi import MPI

Ranks = Callable[..., list[Any]]


def test_threads_of_one_rank_send_and_receive_at_once(ranks: Ranks) -> None:
    """Several threads of each rank talk at once, each under a tag of its own, and nothing is mixed up."""

    def body(comm: Any) -> None:
        other = 1 - comm.rank

        def talk(tag: int) -> None:
            for turn in range(5):
                sending = comm.isend((comm.rank, tag, turn), other, tag)
                box = np.empty(2)
                comm.Sendrecv(np.array([tag, turn + 10.0 * comm.rank]), other, tag, box, other, tag)
                assert comm.recv(source=other, tag=tag) == (other, tag, turn)
                assert box.tolist() == [tag, turn + 10 * other]
                sending.wait()

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for each in [pool.submit(talk, tag) for tag in range(4)]:
                each.result()
        assert comm.allreduce(1) == 2

    ranks(2, body)


def test_a_communicator_of_a_group_stands_beside_it(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        group = comm.group_of_aiocoll
        again = MPI.Intracomm(group)
        assert again == comm and (again.rank, again.size) == (group.rank, group.size)
        total = np.empty(3)
        again.Allreduce(np.arange(3.0) * (group.rank + 1), total)
        assert (group.all_reduce(total) == np.arange(3.0) * 18).all()
        assert MPI.Comm(comm) == comm and repr(again) == f"Intracomm(rank {group.rank} of 3)"

    ranks(3, body)
