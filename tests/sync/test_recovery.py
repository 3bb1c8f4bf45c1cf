"""agree and shrink for code that blocks: over sockets, a thread per rank."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import numpy as np
import pytest

from aiocoll.errors import CollectiveTimeoutError, GroupBrokenError, NotInitializedError
from aiocoll.sync import SyncGroup, connect


def run(tmp_path: Path, body: object, transport: str) -> None:
    def rank(number: int) -> None:
        url = f"file://{tmp_path}/meet"
        with connect(url, rank=number, size=3, transport=transport, timeout=30) as group:
            body(group)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(rank, range(3)))


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_blocking_groups_agree_and_shrink(tmp_path: Path, transport: str) -> None:
    def body(group: SyncGroup) -> None:
        assert group.agree() is True and group.agree(group.rank != 2) is False
        for turn in range(20):
            assert group.agree(group.rank != turn % 4) is (turn % 4 == 3)
        with group.shrink() as new:
            assert new.name == "world.1" and new.ranks == (0, 1, 2)
            assert new.all_reduce(np.arange(5.0) * new.rank).tolist() == [0, 3, 6, 9, 12]
            group.close()
            with pytest.raises(NotInitializedError):
                group.agree()
            assert new.all_reduce(1) == 3
            work = new.start.agree(True)
            assert work.result() is True
            with new.shrink() as newer:  # on the thread that the loop has now
                assert newer.all_reduce(2) == 6 and newer.agree(0) is False

    run(tmp_path, body, transport)


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_blocking_group_that_broke_goes_on_after_shrink(tmp_path: Path, transport: str) -> None:
    def body(group: SyncGroup) -> None:
        if group.rank != 1:
            with pytest.raises((CollectiveTimeoutError, GroupBrokenError)):
                group.all_reduce(np.ones(1000), timeout=0.1)
        with group.shrink() as new:
            assert new.ranks == (0, 1, 2) and new.all_reduce(np.ones(1000)).sum() == 3000
        assert group.broken is not None

    run(tmp_path, body, transport)
