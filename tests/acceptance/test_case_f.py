"""Handles, order and cancellation: situations reported of other systems (F1, F2 and F10 have tests elsewhere, too)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll.sync
from aiocoll import CollectiveTimeoutError, Group, GroupBrokenError, MismatchError
from tests.group.cases import on_every_fabric, outcome, ranks, same, values


@on_every_fabric
@pytest.mark.parametrize("seed", range(3))
def test_f5_the_order_of_calls_counts_and_a_different_one_is_a_mismatch(fabric: str, seed: int) -> None:
    async def main(group: Group) -> None:
        twin = await group.dup()
        order = random.Random(seed * 10 + group.rank)
        lengths = [3, 5, 8, 13, 21]
        calls = [group.all_reduce(values(group.rank, (length,))) for length in lengths]  # made in one order on all

        async def later(number: int) -> Any:
            for _ in range(order.randrange(6)):
                await asyncio.sleep(0)
            return await calls[number]

        for length, result in zip(lengths, await asyncio.gather(*map(later, range(5))), strict=True):
            same(result, sum(values(rank, (length,)) for rank in range(3)))
        mine = lengths[group.rank :] + lengths[: group.rank]  # made in another order on each
        errors = await asyncio.gather(*[outcome(twin.all_reduce(values(0, (length,)))) for length in mine])
        assert type(errors[0]) is MismatchError, errors
        assert {type(error) for error in errors} <= {MismatchError, GroupBrokenError}, errors
        await twin.close()

    ranks(3, main, fabric)


def test_f8_after_a_timeout_the_call_is_dead_and_closing_and_meeting_again_are_quick(tmp_path: Path) -> None:
    gave_up = threading.Event()

    def rank(number: int) -> float:
        def meet(name: str) -> aiocoll.sync.SyncGroup:
            return aiocoll.sync.connect(f"file://{tmp_path}/{name}", rank=number, size=3, transport="tcp", timeout=30)

        out = np.full(50_000, 7.0)
        with meet("first") as group:
            if number == 2:
                assert gave_up.wait(30)
                with pytest.raises((CollectiveTimeoutError, GroupBrokenError)):
                    group.all_reduce(np.ones(50_000))
            else:
                with pytest.raises((CollectiveTimeoutError, GroupBrokenError)):
                    group.all_reduce(np.ones(50_000), out=out, timeout=0.3)
                assert group.broken is not None
                gave_up.set()
            before, began = out.copy(), time.monotonic()
        closed = time.monotonic() - began
        with meet("second") as group:
            assert group.all_reduce(1) == 3
            assert (out == before).all()
        return closed

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert max(pool.map(rank, range(3))) < 5.0


@on_every_fabric
def test_f10_what_was_started_and_dropped_goes_on(fabric: str) -> None:
    async def main(group: Group) -> None:
        peer = 1 - group.rank
        out = np.zeros(40)

        async def receive() -> None:
            await group.recv(peer, out=out)

        tasks = {asyncio.ensure_future(receive())}  # a task of the user's is the user's to keep
        await asyncio.sleep(0)
        for _ in range(3):
            gc.collect()
            await asyncio.sleep(0)
        await group.send(values(group.rank, (40,)), peer)
        await asyncio.wait(tasks)
        same(out, values(peer, (40,)))

    ranks(2, main, fabric)


@pytest.mark.parametrize("threaded", [False, True])
def test_f10_a_work_that_was_dropped_goes_on(tmp_path: Path, threaded: bool) -> None:
    def rank(number: int) -> None:
        with aiocoll.sync.connect(f"file://{tmp_path}/meet", rank=number, size=2, transport="tcp", timeout=30) as group:
            outs = [np.zeros(100) for _ in range(5)]
            for tag, out in enumerate(outs):
                group.start.recv(1 - number, tag, out)
            gc.collect()
            for tag in range(5):
                if threaded:
                    group.start.send(values(number + tag, (100,)), 1 - number, tag)
                    gc.collect()
                else:
                    group.send(values(number + tag, (100,)), 1 - number, tag)
            group.barrier()  # of another order than messages: wait for the last of those, too
            group.send(number, 1 - number, tag=9)
            assert group.recv(1 - number, tag=9) == 1 - number
            until = time.monotonic() + 20
            for tag, out in enumerate(outs):
                while not (out == values(1 - number + tag, (100,))).all():
                    assert time.monotonic() < until

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(rank, range(2)))


@pytest.mark.parametrize("count", [1, 3000])
@pytest.mark.parametrize("seed", range(4))
def test_f11_cycles_of_requests_and_answers_never_lock(seed: int, count: int) -> None:
    """Each rank serves the one before it, and asks the next one before it answers; links are slow by chance."""
    rounds = 250  # times four seeds

    async def main(group: Group) -> None:
        before, after = (group.rank - 1) % 3, (group.rank + 1) % 3

        async def serve() -> None:
            for turn in range(rounds):
                question = await group.recv(before, tag=1)
                await group.send(question * 2, after, tag=3)  # a handler that sends before it answers
                aside = await group.recv(before, tag=3)
                assert aside[0] == 2 * (turn + 10 * ((before - 1) % 3))
                await group.send(question + 1, before, tag=2)

        async def ask() -> None:
            for turn in range(rounds):
                await group.send(np.full(count, turn + 10 * group.rank), after, tag=1)
                assert (await group.recv(after, tag=2) == turn + 10 * group.rank + 1).all()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve())
            tasks.create_task(ask())

    ranks(3, main, "sim", seed=seed, latency=1e-3, jitter=1.0, timeout=1e6)
