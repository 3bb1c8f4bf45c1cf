"""Deadlines and busy ranks: situations reported of other systems (J1, J6, J7)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll.sync
from aiocoll import CollectiveTimeoutError, Group, UsageError
from aiocoll.config import Settings
from aiocoll.store import MemoryStore
from tests.group.cases import on_every_fabric, outcome, ranks

X = np.arange(4.0)
Op = Callable[..., Awaitable[Any]]
# Every call in which rank 0 waits for somebody; ``t`` is its timeout.
OPS: dict[str, Op] = {
    "broadcast": lambda g, t: g.broadcast(None, 1, timeout=t), "reduce": lambda g, t: g.reduce(X, timeout=t),
    "all_reduce": lambda g, t: g.all_reduce(X, timeout=t), "gather": lambda g, t: g.gather(X, timeout=t),
    "all_gather": lambda g, t: g.all_gather(X, timeout=t), "scatter": lambda g, t: g.scatter(None, 1, timeout=t),
    "reduce_scatter": lambda g, t: g.reduce_scatter(X, timeout=t),
    "all_to_all": lambda g, t: g.all_to_all([X] * g.size, timeout=t),
    "exscan": lambda g, t: g.exscan(X, timeout=t) if g.rank else g.all_reduce(X, timeout=t),  # rank 0 waits for none
    "barrier": lambda g, t: g.barrier(timeout=t), "split": lambda g, t: g.split(0, timeout=t),
    "dup": lambda g, t: g.dup(timeout=t),
    "broadcast_object": lambda g, t: g.broadcast_object(None, 1, timeout=t),
    "gather_object": lambda g, t: g.gather_object(1, timeout=t),
    "all_gather_object": lambda g, t: g.all_gather_object(1, timeout=t),
    "scatter_object": lambda g, t: g.scatter_object(None, 1, timeout=t),
    "all_to_all_object": lambda g, t: g.all_to_all_object([1] * g.size, timeout=t),
    "named": lambda g, t: g.barrier(timeout=t, name="n"),
    "recv": lambda g, t: g.recv(1, timeout=t), "recv_message": lambda g, t: g.recv_message(timeout=t),
    "recv_object": lambda g, t: g.recv_object(1, timeout=t),
}  # fmt: skip


@on_every_fabric
def test_j1_every_call_has_its_own_deadline_and_says_who_is_missing(fabric: str) -> None:
    async def main(group: Group) -> None:
        control = await group.dup()
        clock = asyncio.get_running_loop().time
        for what, op in OPS.items():
            twin = await control.dup()
            if group.rank == 0:
                for timeout, seconds in ((0.02, 0.02), (timedelta(milliseconds=30), 0.03)):
                    began = clock()
                    error = await outcome(op(twin, timeout))
                    assert isinstance(error, CollectiveTimeoutError) or timeout != 0.02, (what, error)
                    if isinstance(error, CollectiveTimeoutError):  # else the first one has broken the group
                        assert seconds * 0.99 <= error.elapsed < seconds + 5 and clock() - began < 10
                        assert "timed out after" in str(error)
                        assert error.missing == (() if what == "recv_message" else (1,)), (what, error)
                        assert what in (error.collective, "named", "exscan")
            await control.barrier()
            await twin.close()
        await control.close()

    ranks(2, main, fabric, timeout=60.0)


@on_every_fabric
def test_j1_the_groups_deadline_holds_where_the_call_has_none(fabric: str) -> None:
    async def main(group: Group) -> None:
        control = await group.dup()
        for what in ("all_reduce", "recv", "split", "all_gather_object"):
            twin = await control.dup()
            twin.timeout = 0.02
            if group.rank == 0:
                error = await outcome(OPS[what](twin, None))
                assert type(error) is CollectiveTimeoutError and error.collective == what, error
            await control.barrier()
            await twin.close()
        await control.close()

    ranks(2, main, fabric, timeout=60.0)


def test_j1_time_between_calls_does_not_count() -> None:
    async def main(group: Group) -> None:
        for turn in range(3):
            await asyncio.sleep(100.0 + (0.6 if group.rank == turn % 3 else 0.0))  # simulated seconds
            assert await group.all_reduce(turn) == 3 * turn

    ranks(3, main, "sim", timeout=1.0)


@pytest.mark.parametrize("wrong", [-1, math.nan, "soon", [1]])
def test_j1_what_is_no_time_is_refused(wrong: Any) -> None:
    async def main(group: Group) -> None:
        for what in ("barrier", "recv", "split"):
            error = await outcome(OPS[what](group, wrong))
            assert type(error) is UsageError and "timeout=" in str(error) and "seconds" in str(error), error

    ranks(2, main, "inproc")


def test_j1_in_the_blocking_driver(tmp_path: Path) -> None:
    gave_up = threading.Event()

    def rank(number: int) -> None:
        url = f"file://{tmp_path}/meet"
        with aiocoll.sync.connect(url, rank=number, size=2, transport="tcp", timeout=60) as group:
            if number:
                assert gave_up.wait(30)
                return
            for call in (group.recv, group.recv_object, group.recv_message):
                with pytest.raises(CollectiveTimeoutError, match="timed out after 0.") as info:
                    call(timeout=0.05)
                assert info.value.group == "world"
            with pytest.raises(TimeoutError, match="still running"):
                work = group.start.recv(1, timeout=timedelta(seconds=0.2))
                work.wait(timedelta(seconds=0.01))
            with pytest.raises(CollectiveTimeoutError, match="timed out after 0.2"):
                work.wait()
            with pytest.raises(CollectiveTimeoutError, match=r"missing: rank 1") as info:
                group.start.all_reduce(1, timeout=0.05).result()
            assert info.value.missing == (1,) and info.value.call == 0
            gave_up.set()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(rank, range(2)))


@pytest.mark.slow
def test_j6_a_rank_that_computes_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far longer than a silent host is waited for; while it computes, nobody turns its loop."""
    monkeypatch.setenv("AIOCOLL_LOST_SECONDS", "1")

    async def main(group: Group) -> None:
        for busy in range(2):
            if group.rank == busy:
                until, turns = time.monotonic() + 1.7, 0
                while time.monotonic() < until:
                    turns += 1
            total = await group.all_reduce(np.arange(3.0) + group.rank)
            assert total.tolist() == [1.0, 3.0, 5.0]
        stop = threading.Event()

        def hold() -> None:  # pure Python, which never lets the interpreter go by itself
            turns = 0
            while not stop.is_set():
                turns += 1

        thread = threading.Thread(target=hold)
        if group.rank == 1:
            thread.start()
        try:
            total = await group.all_reduce(np.arange(200_000) * (group.rank + 1))
            assert (total == np.arange(200_000) * 3).all()
        finally:
            stop.set()
            if group.rank == 1:
                thread.join()
        assert group.broken is None

    ranks(2, main, "process", transport="tcp", timeout=60.0, limit=100.0)


@pytest.mark.parametrize(
    ("variables", "timeout", "words"),
    [
        ({}, 0.5, []),
        ({"AIOCOLL_STALL_SECONDS": "20"}, 20, ["AIOCOLL_STALL_SECONDS=20", "timeout=20 s"]),
        ({"AIOCOLL_STALL_SECONDS": "0"}, 20, []),
        ({"AIOCOLL_STALL_SECONDS": "19", "AIOCOLL_LOST_SECONDS": "19"}, 20, []),
        ({"AIOCOLL_LOST_SECONDS": "90"}, None, ["AIOCOLL_LOST_SECONDS=90", "timeout=60 s"]),
    ],
)
def test_j7_timeouts_that_contradict_one_another_are_named(
    variables: dict[str, str], timeout: float | None, words: list[str], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    async def main() -> None:
        store = MemoryStore()
        async with aiocoll.connect(store=store, rank=0, size=1, timeout=timeout) as group:
            await group.barrier()
        await store.close()

    with caplog.at_level(logging.WARNING, "aiocoll"):
        asyncio.run(main())
    assert [record.levelname for record in caplog.records] == (["WARNING"] if words else [])
    assert all(word in caplog.text for word in words)
    assert Settings().contradictions(0.1) == []
