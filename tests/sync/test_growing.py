"""Blocking groups that grow: members and a newcomer, each in a thread with a loop of its own."""

from __future__ import annotations

import concurrent.futures
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiocoll.errors import NotInitializedError
from aiocoll.sync import SyncGroup, connect

Body = Callable[[SyncGroup], Any]


class Threads:
    """Ranks of one job, each in a thread."""

    def __init__(self, url: str, pool: concurrent.futures.Executor) -> None:
        self.url, self.pool = url, pool

    def run(self, size: int, main: Body, *newcomers: Body) -> list[Any]:
        def one(body: Body, **place: Any) -> Any:
            return body(connect(self.url, timeout=30, **place))

        members = [self.pool.submit(one, main, rank=rank, size=size) for rank in range(size)]
        others = [self.pool.submit(one, body, join=True) for body in newcomers]
        return [each.result(60) for each in [*members, *others]]


@pytest.fixture
def threads(tmp_path: Path) -> Iterator[Threads]:
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        yield Threads(f"file://{tmp_path}/meet", pool)


def adds_up(group: SyncGroup) -> None:
    for _ in range(3):
        total = group.all_reduce(np.arange(5.0) * (group.rank + 1))
        assert np.array_equal(total, np.arange(5.0) * (group.size * (group.size + 1) / 2))


@pytest.mark.parametrize("threaded", [False, True])
def test_leaving_the_block_disconnects(threads: Threads, threaded: bool) -> None:
    def main(first: SyncGroup) -> Any:
        if threaded:
            first.start.barrier().wait()
        with first:
            second = first.grow(1, wait=20.0)
            assert first.followed and not second.followed
            adds_up(second)
            adds_up(first)
            third = second.grow()
            adds_up(third)
        assert first.closed and second.closed and third.closed
        with pytest.raises(NotInitializedError):
            third.barrier()
        third.close()
        return second.new_ranks, third.new_ranks, second.ranks

    def new(second: SyncGroup) -> Any:
        with second:
            adds_up(second)
            third = second.grow()
            adds_up(third)
        return second.new_ranks, third.new_ranks, second.ranks

    assert threads.run(2, main, new) == [((2,), (), (0, 1, 2))] * 3


def test_a_successor_outlives_what_it_followed(threads: Threads) -> None:
    def main(first: SyncGroup) -> None:
        second = first.grow(1, wait=20.0)
        first.close()
        assert first.closed and not second.closed
        adds_up(second)
        part = second.split(0)
        adds_up(part)
        second.close()
        assert part.closed

    def new(second: SyncGroup) -> None:
        adds_up(second)
        part = second.split(0)
        adds_up(part)
        second.disconnect()
        second.disconnect()
        assert part.closed

    threads.run(2, main, new)


def test_a_loop_that_drops_what_was_followed_says_nothing(threads: Threads) -> None:
    def main(group: SyncGroup) -> int:
        for _ in range(5):
            group = group.grow()
            adds_up(group)
            gc.collect()
        held = len(group._driver.endpoints)
        group.close()
        return held

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert max(threads.run(2, main)) <= 2


@pytest.mark.leaks("a world that nobody closes keeps its store open")
def test_only_the_last_one_is_missed_when_nobody_closes(threads: Threads) -> None:
    def main(group: SyncGroup) -> None:
        group = group.grow()
        adds_up(group)

    with pytest.warns(ResourceWarning, match=r"'world\.1'.* was never closed") as told:
        threads.run(2, main)
        gc.collect()
    assert all("'world.1'" in str(each.message) for each in told if each.category is ResourceWarning)
