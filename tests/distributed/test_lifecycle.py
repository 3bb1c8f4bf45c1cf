"""Joining and leaving in the documented API: again and again, after failures, in files, and with a rank that dies."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import GroupBrokenError, RendezvousError, RendezvousTimeoutError, UsageError
from tests.distributed.processes import spawn
from tests.distributed.ranks import ranks
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("left_behind")


def summed() -> list[float]:
    x = np.arange(3.0) + 10 * dist.get_rank()
    dist.all_reduce(x)
    return x.tolist()


def test_k1_at_one_address_also_after_a_failure() -> None:
    """Join, work, leave, at one address, twenty times; a subgroup in between, and now and then a call that failed."""
    url = f"tcp://127.0.0.1:{free_port()}"
    for turn in range(20):

        def program(rank: int, turn: int = turn) -> Any:
            pair = dist.new_group([0, 1])
            result = summed()
            dist.barrier(pair)
            dist.barrier()
            if turn % 4 == 1:
                with pytest.raises(UsageError):
                    dist.all_reduce(np.zeros(3), op="no such op")
            if turn % 4 == 3 and isinstance(pair, dist.ProcessGroup):
                pair.abort()
                with pytest.raises(GroupBrokenError):
                    dist.barrier(pair)
            return result

        size = 2 + turn % 2
        got = ranks(size, program, join=lambda _: {"init_method": url})
        assert got == [sum(np.arange(3.0) + 10 * rank for rank in range(size)).tolist()] * size


def test_h7_files_of_all_sorts(tmp_path: Path) -> None:
    """A file to meet in: a missing or forbidden directory, something else's file, a world of one, one after another."""
    refused = [tmp_path / "missing" / "f", tmp_path]
    (tmp_path / "other").write_text("not ours")
    refused.append(tmp_path / "other")
    for path in refused:
        with pytest.raises(RendezvousError, match=str(path)) as caught:
            dist.init_process_group("tcp", f"file://{path}", rank=0, world_size=1)
        assert isinstance(caught.value, RuntimeError)
    path = tmp_path / "meet"
    for _ in range(3):
        dist.init_process_group("tcp", f"file://{path}", rank=0, world_size=1)
        assert path.exists() and summed() == [0, 1, 2]
        dist.destroy_process_group()
        assert not path.exists()
    with pytest.raises(RendezvousTimeoutError, match="missing rank 1"):
        dist.init_process_group("tcp", f"file://{path}", rank=0, world_size=2, timeout=0.2)
    assert ranks(8, lambda _: summed()[0], join=lambda _: {"init_method": f"file://{path}"}) == [280] * 8
    assert not path.exists()


def test_k5_a_dead_rank_is_left_behind(tmp_path: Path) -> None:
    """A rank dies; the others shrink the world without it, and go on under new numbers."""
    body = f"""
    from aiocoll.errors import PeerLostError
    dist.init_process_group('auto', 'file://{tmp_path}/meet', rank=rank, world_size=size, timeout=30)
    x = np.arange(3.0) + 10 * rank
    dist.all_reduce(x)
    if rank == 1:
        for other in (0, 2):
            dist.recv(x, other)  # nobody is in the call before any more
        print("[]", flush=True)
        os._exit(0)
    dist.send(x, 1)
    try:
        while True:
            dist.all_reduce(np.ones(2))
    except PeerLostError as error:
        lost = error.rank
    dist.shrink_group([lost])
    x = np.arange(3.0) + 10 * dist.get_rank()
    dist.all_reduce(x)
    answer = [lost, dist.get_rank(), dist.get_world_size(), x.tolist()]
    dist.destroy_process_group()
    """
    assert spawn(3, body) == [[1, 0, 2, [10, 12, 14]], [], [1, 1, 2, [10, 12, 14]]]


def test_h7_the_file_of_a_rank_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    """A file to meet in: what a killed process left there stands in nobody's way."""
    path = tmp_path / "meet"
    child = os.fork()
    if child == 0:  # it waits for a second rank that never comes, and dies of it without a word
        import signal

        signal.setitimer(signal.ITIMER_REAL, 0.3)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        try:
            dist.init_process_group("tcp", f"file://{path}", rank=0, world_size=2, timeout=timedelta(seconds=50))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert path.exists()
    assert ranks(2, lambda _: summed(), join=lambda _: {"init_method": f"file://{path}"}) == [[10, 12, 14]] * 2
    assert not path.exists()
