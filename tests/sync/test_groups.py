"""Blocking groups over real sockets: one thread per rank, each with a loop and a driver of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

import aiocoll
from aiocoll.errors import CollectiveTimeoutError, MismatchError, NotInitializedError, UsageError
from aiocoll.sync import SyncGroup, Work, connect

T = TypeVar("T")


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """`ranks(size, body)` runs body(group) on that many threads and returns the results in rank order."""
    meetings = iter(range(1000))

    def run(size: int, body: Callable[[SyncGroup], T], **options: Any) -> list[T]:
        url = f"file://{tmp_path}/meet{next(meetings)}"

        def rank(number: int) -> T:
            with connect(url, rank=number, size=size, transport="tcp", timeout=30, **options) as group:
                return body(group)

        with concurrent.futures.ThreadPoolExecutor(size) as pool:
            return list(pool.map(rank, range(size)))

    return run


def data(rank: int) -> Any:
    return np.arange(6.0).reshape(2, 3) * (rank + 1) + rank


def test_every_method_against_numpy(ranks: Callable[..., list[Any]]) -> None:
    size = 3
    everything = [data(rank) for rank in range(size)]

    def body(g: SyncGroup) -> None:
        mine, rank = data(g.rank), g.rank
        same = np.testing.assert_array_equal
        same(g.all_reduce(mine), sum(everything))
        same(g.broadcast(mine if rank == 1 else None, 1), everything[1])
        total = g.reduce(mine, aiocoll.MAX, 2)
        assert (total is None) == (rank != 2)
        if total is not None:
            same(total, np.maximum.reduce(everything))
        gathered = g.gather(mine[: rank + 1], 0)
        if rank == 0:
            for other, part in enumerate(gathered):
                same(part, everything[other][: other + 1])
        same(np.stack(g.all_gather(mine)), np.stack(everything))
        same(g.scatter([data(9)[:, :n] for n in range(size)] if rank == 0 else None), data(9)[:, :rank])
        same(g.reduce_scatter(mine), np.array_split(sum(everything), size)[rank])
        same(np.stack(g.all_to_all([mine * n for n in range(size)])), np.stack(everything) * rank)
        same(g.scan(mine), sum(everything[: rank + 1]))
        same(g.exscan(mine), sum(everything[:rank], np.zeros((2, 3))))
        assert g.barrier() is None
        assert g.all_gather_object({"r": rank}) == [{"r": n} for n in range(size)]
        assert g.broadcast_object((rank, "x"), 2) == (2, "x")
        assert g.gather_object(rank, 1) == (list(range(size)) if rank == 1 else None)
        assert g.scatter_object([[n] for n in range(size)] if rank == 0 else None) == [rank]
        assert g.all_to_all_object([(rank, n) for n in range(size)]) == [(n, rank) for n in range(size)]
        right, left = (rank + 1) % size, (rank - 1) % size
        g.send(mine, right, 3)
        same(g.recv(left, 3), everything[left])
        g.send_object([rank], right)
        assert g.recv_object(left) == [left]
        g.send(mine, rank, 5)
        message = g.recv_message()
        assert (message.source, message.tag) == (rank, 5)
        same(message.data, mine)
        assert (g.size, g.name, g.ranks, g.local_size, g.local_rank) == (size, "world", (0, 1, 2), size, rank)
        assert len(g.hosts) == size and g.timeout == 30 and g.broken is None
        assert g.empty((2, 3), "i4").shape == (2, 3) and not g.zeros(4).any()
        assert g.statistics()["calls"]["all_reduce"] == 1
        assert f"rank {rank} of 3" in repr(g) and "inline" in repr(g)

    ranks(size, body)


def test_every_started_method(ranks: Callable[..., list[Any]]) -> None:
    size = 3
    everything = [data(rank) for rank in range(size)]

    def body(g: SyncGroup) -> None:
        mine, rank, s = data(g.rank), g.rank, g.start
        right, left = (rank + 1) % size, (rank - 1) % size
        works: list[Work[Any]] = [
            s.all_reduce(mine),
            s.broadcast(mine, 1),
            s.reduce(mine, "max", 2),
            s.gather(mine, 0),
            s.all_gather(mine),
            s.scatter([data(9) * n for n in range(size)]),
            s.reduce_scatter(mine),
            s.all_to_all([mine * n for n in range(size)]),
            s.scan(mine),
            s.exscan(mine),
            s.barrier(),
            s.all_gather_object(rank),
            s.broadcast_object(rank, 2),
            s.gather_object(rank, 1),
            s.scatter_object([[n] for n in range(size)]),
            s.all_to_all_object([(rank, n) for n in range(size)]),
            s.send(mine, right),
            s.recv(left),
            s.send_object(rank, right),
            s.recv_object(left),
            s.recv_message(left, 1),
            s.send(mine, right, 1),
        ]
        results = [work.result(30) for work in reversed(works)][::-1]
        np.testing.assert_array_equal(results[0], sum(everything))
        np.testing.assert_array_equal(results[4][left], everything[left])
        np.testing.assert_array_equal(results[8], sum(everything[: rank + 1]))
        assert results[11] == [0, 1, 2] and results[12] == 2 and results[14] == [rank]
        np.testing.assert_array_equal(results[17], everything[left])
        assert results[19] == left and results[20].source == left
        assert "threaded" in repr(g) and repr(s).endswith(".start")
        np.testing.assert_array_equal(g.all_reduce(mine), sum(everything))  # blocking calls go on working

    ranks(size, body)


def test_groups_of_groups(ranks: Callable[..., list[Any]]) -> None:
    def body(g: SyncGroup) -> None:
        with g.split(g.rank % 2, -g.rank) or pytest.fail("no group") as half:
            assert half.ranks == ((2, 0) if g.rank % 2 == 0 else (3, 1))
            assert half.all_gather_object(g.rank) == list(half.ranks)
        alone = g.split(None if g.rank else 1)
        assert (alone is None) == (g.rank > 0)
        if alone is not None:
            alone.close()
        if g.rank in (3, 1):
            pair = g.subgroup([3, 1], "pair")
            assert pair.ranks == (3, 1) and pair.name == "pair" and pair.all_gather_object(g.rank) == [3, 1]
            pair.close()
            pair.close()
            with pytest.raises(NotInitializedError, match="'pair' is closed"):
                pair.barrier()
        with g.dup() as twin:
            assert twin.ranks == g.ranks and twin.all_reduce(1) == 4

    ranks(4, body)


def test_a_world_of_one_and_reconnecting() -> None:
    for _ in range(3):
        with connect() as group:
            assert (group.rank, group.size) == (0, 1)
            assert group.all_reduce(np.arange(3)).tolist() == [0, 1, 2]
            assert group.start.all_reduce(5).result() == 5
    with pytest.raises(NotInitializedError, match="'world' is closed"):
        group.barrier()
    with pytest.raises(NotInitializedError, match="'world' is closed"):
        group.start.barrier()
    group.close()
    group.__exit__(None, None, None)


def test_messages_from_many_threads_while_another_thread_waits(ranks: Callable[..., list[Any]]) -> None:
    """Both sides run one thread per tag; each blocks in its own receive while the others come and go."""

    def body(g: SyncGroup) -> None:
        other = 1 - g.rank

        def talk(tag: int) -> list[int]:
            got = []
            for number in range(10):
                if g.rank == 0:
                    g.send(np.array([tag * 100 + number]), other, tag)
                    got.append(int(g.recv(other, tag)[0]))
                else:
                    value = g.recv(other, tag)
                    g.send(value + 1, other, tag)
                    got.append(int(value[0]) + 1)
            return got

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for tag, got in enumerate(pool.map(talk, range(6))):
                assert got == [tag * 100 + number + 1 for number in range(10)]

    ranks(2, body)


def test_everyone_sends_first_whatever_the_size(ranks: Callable[..., list[Any]]) -> None:
    def body(g: SyncGroup) -> None:
        for count in (1, 1 << 13, 1 << 20):
            g.send(np.full(count, float(g.rank)), (g.rank + 1) % g.size)
            assert (g.recv((g.rank - 1) % g.size) == (g.rank - 1) % g.size).all()

    ranks(3, body)


def test_peers_hear_of_a_refused_first_call_though_the_caller_goes_away(ranks: Callable[..., list[Any]]) -> None:
    """Over TCP there is no link yet when the news of the refusal is sent, and nobody runs the loop afterwards."""
    heard = threading.Event()

    def body(g: SyncGroup) -> bool:
        with pytest.raises(UsageError, match="nonsense"):
            g.all_reduce(data(g.rank), "nonsense" if g.rank == 0 else "sum")
        if g.rank == 1:
            heard.set()
        return heard.wait(25) or g.rank != 0  # rank 0 is away until rank 1 has heard

    assert ranks(2, body) == [True, True]


def test_inside_a_running_loop(ranks: Callable[..., list[Any]]) -> None:
    def body(g: SyncGroup) -> None:
        async def notebook() -> None:
            assert g.all_reduce(1) == 2
            assert await g.start.all_reduce(2) == 4
            with pytest.raises(MismatchError):
                g.all_reduce(np.zeros(1 + g.rank))

        asyncio.run(notebook())

    ranks(2, body)


def test_connecting_inside_a_running_loop() -> None:
    async def notebook() -> None:
        with connect() as group:
            assert "threaded" in repr(group) and group.all_reduce(3) == 3

    asyncio.run(notebook())


def test_a_call_from_an_op_would_deadlock_and_says_so() -> None:
    with connect() as group:
        asked: list[BaseException] = []

        async def inside() -> None:
            try:
                group.all_reduce(1)
            except UsageError as error:
                asked.append(error)

        group.run(lambda _: inside())
        assert "would deadlock" in str(asked[0])

        async def closes() -> None:
            group.close()

        with pytest.raises(UsageError, match="would deadlock"):
            group.run(lambda _: closes())
        assert group.all_reduce(2) == 2


def test_a_wait_that_is_too_short_and_a_receive_that_is_cancelled(ranks: Callable[..., list[Any]]) -> None:
    def body(g: SyncGroup) -> None:
        if g.rank == 0:
            buffer = np.zeros(3)
            first = g.start.recv(1, out=buffer)
            with pytest.raises(TimeoutError, match="recv of group 'world' is still running"):
                first.wait(0.02)
            assert first.cancel() and first.done()
            g.barrier()
            assert g.recv(1).tolist() == [5, 6, 7] and not buffer.any()
            with pytest.raises(CollectiveTimeoutError):
                g.recv(1, timeout=0.02)
        else:
            g.barrier()
            g.send(np.array([5.0, 6.0, 7.0]), 0)
        assert g.all_reduce(1) == 2

    ranks(2, body)


@pytest.mark.parametrize("threaded", [False, True])
def test_a_group_that_is_dropped_unclosed_is_a_resource_warning(threaded: bool) -> None:
    group = connect()
    if threaded:
        group.start.barrier().wait()
    with pytest.warns(ResourceWarning, match="SyncGroup.*never closed"):
        del group
        gc.collect()


@pytest.mark.parametrize("threaded", [False, True])
def test_a_forked_child_is_refused_by_name_and_leaves_the_parent_alone(threaded: bool, tmp_path: Path) -> None:
    words = tmp_path / "words"
    with connect() as group:
        if threaded:
            group.start.barrier().wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forks with threads
            child = os.fork()
        if child == 0:
            try:
                with group:
                    for use in (lambda: group.all_reduce(1), lambda: group.start.all_reduce(1), group.dup):
                        try:
                            use()
                        except UsageError as error:
                            with words.open("a") as file:
                                file.write(f"{error}\n")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        lines = words.read_text().splitlines()
        assert len(lines) == 3 and all("'world'" in line and str(os.getpid()) in line for line in lines)
        assert group.all_reduce(2) == 2 and group.start.all_reduce(3).result(10) == 3


def test_ctrl_c_ends_a_blocked_receive_and_only_withdraws_it() -> None:
    with connect() as group:
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            group.recv(0)
        timer.join()
        group.send(np.arange(3), 0)
        assert group.recv(0).tolist() == [0, 1, 2]


def test_inproc_is_refused_where_every_group_has_a_loop_of_its_own(tmp_path: Path) -> None:
    def rank(number: int) -> str:
        with pytest.raises(UsageError) as caught:
            connect(f"file://{tmp_path}/meet", rank=number, size=2, transport="inproc")
        return str(caught.value)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert all("one event loop" in words for words in pool.map(rank, range(2)))
    with connect(transport="inproc") as alone:
        assert alone.size == 1


def test_a_blocked_rank_spins_only_where_there_is_a_cpu_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpus, spins in (({0}, True), (set(), False)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=cpus: cpus)
        with connect() as group:
            endpoint = group.asynchronous._endpoint
            assert endpoint.inline and (endpoint.spin_seconds > 0) == spins
            group.start.barrier().wait()
            assert not endpoint.inline and endpoint.spin_seconds == 0


def test_connect_refuses_and_leaves_nothing() -> None:
    for options in ({"rank": 1}, {"transport": "pigeon"}, {"timeout": -1}):
        with pytest.raises(UsageError):
            connect("tcp://127.0.0.1:1", **options)
