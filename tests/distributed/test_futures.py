"""Work and its futures."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import UsageError
from tests.distributed.ranks import ranks


def test_result_and_future_give_the_callers_tensors() -> None:
    """result(), get_future(), synchronize() of every kind of call."""

    def program(rank: int) -> None:
        size = dist.get_world_size()

        def fresh() -> Any:
            return np.arange(2.0) + rank

        def several() -> Any:
            return [np.zeros(2) for _ in range(size)]

        x, outs, table, locals_ = fresh(), several(), [several(), several()], [fresh(), fresh()]
        wide = np.arange(2.0 * size)
        calls: list[tuple[Any, list[Any]]] = [
            (dist.all_reduce(x, async_op=True), [x]),
            (dist.broadcast(x, 0, async_op=True), [x]),
            (dist.reduce(x, 1, async_op=True), [x]),
            (dist.all_gather(outs, fresh(), async_op=True), outs),
            (dist.gather(fresh(), outs if rank == 0 else None, async_op=True), outs if rank == 0 else []),
            (dist.scatter(x, several() if rank == 0 else None, async_op=True), [x]),
            (dist.all_gather_single(wide, fresh(), async_op=True), [wide]),
            (dist.reduce_scatter(x, several(), async_op=True), [x]),
            (dist.reduce_scatter_single(x, np.zeros(2 * size), async_op=True), [x]),
            (dist.all_to_all(outs, several(), async_op=True), outs),
            (dist.all_to_all_single(wide, wide, async_op=True), [wide]),
            (dist.all_reduce_coalesced(outs, async_op=True), outs),
            (dist.all_reduce_multigpu(locals_, async_op=True), locals_),
            (dist.reduce_multigpu(locals_, 0, async_op=True), locals_),
            (dist.broadcast_multigpu(locals_, 0, async_op=True), locals_),
            (dist.all_gather_multigpu(table, [fresh()], async_op=True), [*table[0], *table[1]]),
            (dist.barrier(async_op=True), []),
            (dist.isend(fresh(), (rank + 1) % size), []),
            (dist.irecv(x, (rank - 1) % size), [x]),
        ]
        for work, tensors in calls:
            future = work.get_future()
            assert isinstance(work, dist.Work) and isinstance(future, dist.Future)
            for found in (future.wait(), future.value(), work.result()):
                assert len(found) == len(tensors) and all(a is b for a, b in zip(found, tensors, strict=True))
            assert work.synchronize() is None and work.wait(timedelta(0)) and future.done()
            assert work.is_completed() and work.is_success() and work.exception() is None
        for work, _ in calls[:-1]:
            with pytest.raises(RuntimeError, match="sourceRank"):
                work.source_rank()
        assert calls[-1][0].source_rank() == (rank - 1) % size == calls[-1][0]._source_rank()

    ranks(2, program)


def test_then_runs_when_the_result_is_there_and_carries_it_on() -> None:
    """The averaging that training code writes: a chain on the future of an all_reduce."""

    def program(rank: int) -> None:
        x, ran_on = np.arange(3.0) + rank, []

        def average(future: Any) -> Any:
            ran_on.append(threading.current_thread())
            return future.value()[0] / 2

        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        chained = work.get_future().then(average).then(lambda future: future.wait().tolist())
        assert chained.wait() == [0.5, 1.5, 2.5] and len(ran_on) == 1
        late = work.get_future().then(lambda future: threading.current_thread())
        assert late.wait() is threading.current_thread()

    ranks(2, program)


def test_a_callback_may_start_the_next_call_and_must_not_wait_for_it() -> None:
    """What communication hooks do: the next call begins where the last one ended, on the thread of the group's loop. A
    blocking call is refused there before it has begun."""

    def program(rank: int) -> None:
        x, y = np.arange(3.0), np.ones(2)
        first = dist.irecv(x, 1 - rank)
        assert first is not None

        def go_on(future: Any) -> Any:
            second = dist.all_gather_single(np.zeros(6), future.value()[0], async_op=True)
            with pytest.raises(UsageError, match="would deadlock"):
                dist.all_reduce(y)
            return second

        chained = first.get_future().then(go_on)
        dist.barrier()  # a message that had come before would have its callback run here, where waiting is allowed
        dist.isend(np.arange(3.0) + 10 * rank, 1 - rank)
        (table,) = chained.wait().result()
        assert table.tolist() == [10, 11, 12, 0, 1, 2] and y.tolist() == [1, 1]
        dist.all_reduce(y)
        assert y.tolist() == [2, 2]

    ranks(2, program)


def test_a_future_that_would_wait_for_its_own_thread_refuses() -> None:
    def program(rank: int) -> None:
        first, second = np.zeros(2), np.zeros(2)
        never = dist.irecv(second, 1 - rank, tag=9)
        came = dist.irecv(first, 1 - rank, tag=1)
        assert never is not None and came is not None

        def careless(_: Any) -> Any:
            never.get_future().then(lambda future: future.value()).wait()

        chained = came.get_future().then(careless)
        dist.barrier()
        dist.isend(np.arange(2.0), 1 - rank, tag=1)
        with pytest.raises(UsageError, match="would deadlock"):
            chained.wait()
        dist.send(np.ones(2), 1 - rank, tag=9)
        assert never.wait() and second.tolist() == [1, 1]

    ranks(2, program)


def test_errors_arrive_in_the_future_and_behind_it() -> None:
    def program(rank: int) -> None:
        small = np.zeros(2)
        work = dist.irecv(small, 1 - rank)
        dist.isend(np.zeros(3), 1 - rank)
        assert work is not None
        chained = work.get_future().then(lambda future: future.value())
        for wait in (chained.wait, work.get_future().wait, work.wait):
            with pytest.raises(RuntimeError, match="tensor sizes do not match"):
                wait()
        assert not work.is_success() and "do not match" in str(work.exception()) and work.is_completed()

    ranks(2, program)


def test_then_chains_and_hears_of_errors() -> None:
    future: dist.Future[int] = dist.Future(devices=None)
    seen: list[Any] = []
    future.add_done_callback(seen.append)
    doubled = future.then(lambda f: f.value() * 2)
    failing = doubled.then(lambda f: f.value() // 0)
    behind = failing.then(lambda f: f.value())
    assert not future.done() and "waiting" in repr(future)
    with pytest.raises(RuntimeError, match="not done"):
        future.value()
    timer = threading.Timer(0.05, future.set_result, (21,))
    timer.start()
    assert future.wait() == 21 and doubled.wait() == 42
    timer.join()
    assert doubled.value() == 42 and seen == [future] and "done" in repr(future)
    for each in (failing, behind):
        with pytest.raises(ZeroDivisionError):
            each.wait()
        with pytest.raises(ZeroDivisionError):
            each.value()
    with pytest.raises(RuntimeError, match="only once"):
        future.set_result(1)
    with pytest.raises(RuntimeError, match="only once"):
        future.set_exception(ValueError())
    wrong: dist.Future[int] = dist.Future()
    with pytest.raises(TypeError, match="exception"):
        wrong.set_exception("no")
    with pytest.raises(TypeError, match="function of one future"):
        wrong.then(5)
    wrong.set_exception(KeyError("x"))
    with pytest.raises(KeyError):
        wrong.wait()


def test_works_and_futures_can_be_awaited() -> None:
    def program(rank: int) -> None:
        async def main() -> None:
            x = np.arange(2.0) + rank
            work = dist.all_reduce(x, async_op=True)
            assert work is not None
            (found,) = await work
            assert found is x and x.tolist() == [1, 3]
            work = dist.all_reduce(x, async_op=True)
            assert work is not None
            assert (await work.get_future())[0] is x and x.tolist() == [2, 6]

        asyncio.run(main())

    ranks(2, program)


def test_tensors_go_when_their_owner_drops_them() -> None:
    """Nothing keeps a tensor after its call: no cycle of handles, futures and callbacks, which only a search frees."""

    def program(rank: int) -> None:
        gone = []
        for drop_early in (False, True):
            x = np.arange(3.0) + rank
            gone.append(weakref.ref(x))
            work = dist.all_reduce(x, async_op=True)
            assert work is not None
            chained = work.get_future().then(lambda future: float(future.value()[0][1])).then(lambda f: f.value() + 1)
            if drop_early:
                work = x = None
            assert chained.wait() == 4
        work = x = chained = None
        dist.barrier()  # its thread is through with the call before
        assert [each() is None for each in gone] == [True, True]

    gc.disable()
    try:
        ranks(2, program)
    finally:
        gc.enable()
