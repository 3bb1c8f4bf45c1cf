"""Threads, forks, loops and interrupts around the calls: situations reported of other systems (M1, M3, M5, M8, M10)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll
import aiocoll.distributed as dist
from aiocoll import Group, UsageError
from aiocoll.errors import MismatchError
from aiocoll.store import MemoryStore
from aiocoll.sync import SyncGroup
from aiocoll.testing import run
from aiocoll.world import new_event_loop
from tests.distributed.processes import spawn
from tests.distributed.ranks import ranks as facade

new_event_loop().close()  # libuv keeps a pipe for signals from its first loop on
TURN_SECONDS_MAX = 0.1  # of CPU time: five times the promise, for machines that are slow or share their caches


def threads(tmp_path: Path, size: int, body: Callable[[SyncGroup], Any], transport: str = "tcp") -> list[Any]:
    """`body(group)` on blocking groups of `size` ranks, a thread each; what they return, in rank order."""

    def rank(number: int) -> Any:
        url = f"file://{tmp_path}/meet-{transport}"
        with aiocoll.sync.connect(url, rank=number, size=size, transport=transport, timeout=30) as group:
            return body(group)

    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        return list(pool.map(rank, range(size)))


# ---------------------------------------------------------------------------------------------- M1


FORKS = """
import concurrent.futures, fcntl, multiprocessing, os, subprocess, threading
import aiocoll
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which is what this is about
context = multiprocessing.get_context("fork")
g = aiocoll.sync.connect("file://{place}/meet", rank=rank, size=size, transport="{transport}", timeout=30)
shared = g.zeros(1000)
def child(seed):  # works, is refused, and ends as programs end
    total = float((np.arange(64.0 * 64).reshape(64, 64) @ np.full((64, 64), float(seed))).sum())
    try:
        g.all_reduce(seed)
    except aiocoll.UsageError as error:
        return total, str(PARENT) in str(error) and str(os.getpid()) in str(error), bool(g.empty(1000).any() and False)
PARENT = os.getpid()
expected = [float((np.arange(64.0 * 64).reshape(64, 64) @ np.full((64, 64), float(seed))).sum()) for seed in range(4)]
answer = []
for threaded in (False, True):
    if threaded:
        g.start.barrier().wait()  # from now on the loop has a thread
    assert g.all_reduce(np.arange(3.0) + rank).tolist() == [1, 3, 5]
    if rank == 1:
        pid = os.fork()
        if pid == 0:
            with g:
                ok = child(2)[1]
            sys.exit(0 if ok else 3)
        with context.Pool(2) as pool:
            found = pool.map(child, range(4))
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            found += list(pool.map(child, range(4)))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        answer.append([total for total, _, _ in found] == expected * 2 and all(refused for _, refused, _ in found))
    for turn in range(20):  # the parent goes on, with its links and its memory as they were
        assert (g.all_reduce(np.arange(2000.0) * (rank + 1) + turn) == np.arange(2000.0) * 3 + 2 * turn).all()
    assert not shared.any()
open_to_programs = [
    os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")
    if os.path.exists("/proc/self/fd/" + fd) and not fcntl.fcntl(int(fd), fcntl.F_GETFD) & fcntl.FD_CLOEXEC
]
answer.append([name for name in open_to_programs if "socket" in name or "memfd" in name or "eventfd" in name])
g.close()
"""


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_m1_children_of_a_fork_are_refused_and_harm_nobody(tmp_path: Path, transport: str) -> None:
    """A forked child is told in which process its group was made; its end closes nothing of its parent's."""
    body = FORKS.format(place=tmp_path, transport=transport)
    assert spawn(2, body) == [[[]], [True, True, []]]


def test_m1_a_fork_in_an_async_program(tmp_path: Path) -> None:
    words = tmp_path / "words"

    async def child(group: Group) -> None:
        async with group:
            for call in (group.all_reduce, group.all_gather_object, lambda _: group.barrier(), group.split):
                try:
                    await call(1)
                except UsageError as error:
                    with words.open("a") as file:
                        file.write(f"{error}\n")

    async def main(group: Group) -> None:
        await group.barrier()
        if group.rank == 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from 3.12 on
                pid = os.fork()
            if pid == 0:
                try:
                    await child(group)
                finally:
                    os._exit(0)
            assert await asyncio.to_thread(os.waitpid, pid, 0) == (pid, 0)
        assert await group.all_reduce(group.rank + 1) == 3

    run(2, main, "tcp")
    lines = words.read_text().splitlines()
    assert len(lines) == 4 and all(f"made in process {os.getpid()}" in line for line in lines)


# ---------------------------------------------------------------------------------------------- M3


def test_m3_in_a_coroutine_in_a_pool_and_on_our_own_thread(tmp_path: Path) -> None:
    """The blocking API works where a loop runs and in any thread; on its own loop's thread it would deadlock."""

    def body(g: SyncGroup) -> None:
        async def coroutine() -> None:
            assert g.all_reduce(g.rank + 1) == 3
            assert await asyncio.to_thread(g.all_reduce, g.rank + 2) == 5
            with pytest.raises(RuntimeError, match="no running event loop"):
                await asyncio.to_thread(asyncio.get_running_loop)
            with pytest.raises(UsageError, match="RuntimeError: this event loop is already running"):
                g.all_reduce(1, aiocoll.op(already_running))
            with pytest.raises(MismatchError):
                g.all_reduce(np.zeros(1 + g.rank))

        asyncio.run(coroutine())

    def already_running(left: Any, right: Any) -> Any:
        raise RuntimeError("this event loop is already running")

    threads(tmp_path, 2, body)


def test_m3_a_callback_that_blocks_is_refused(tmp_path: Path) -> None:
    """On the thread of the library's loop a blocking call would wait for itself."""
    dist.init_process_group("tcp", f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        refused: list[BaseException] = []

        def blocks(future: Any) -> int:
            for call in (dist.barrier, lambda: dist.all_reduce(np.ones(2)), lambda: dist.recv(np.zeros(1))):
                try:
                    call()
                except UsageError as error:
                    refused.append(error)
            return 7

        got = np.zeros(2)
        waits = dist.irecv(got, 0)
        assert waits is not None
        following = waits.get_future().then(blocks)
        assert not refused
        dist.isend(np.array([4.0, 5.0]), 0)
        assert following.wait() == 7 and got.tolist() == [4, 5]
        assert len(refused) == 3 and all("would deadlock" in str(error) for error in refused)
        dist.barrier()
    finally:
        dist.destroy_process_group()


WHICH = ("first", "second")


def test_collectives_of_several_threads_come_one_after_the_other(tmp_path: Path) -> None:
    """In the order in which they were called, or by name where threads race."""

    def body(g: SyncGroup) -> None:
        def named(number: int) -> list[int]:
            return [int(g.all_reduce(turn + number * 100 + g.rank, name=f"thread {number}")) for turn in range(25)]

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for number, found in enumerate(pool.map(named, range(4))):
                assert found == [3 * (turn + number * 100) + 3 for turn in range(25)]
            if g.rank == 0:
                first = pool.submit(g.all_gather_object, "first of 0")
                while g.statistics()["calls"].get("all_gather_object", 0) < 1:
                    os.sched_yield()
                second = pool.submit(g.all_gather_object, "second of 0")
                g.send(np.zeros(1), 1), g.send(np.zeros(1), 2)  # messages at any time
                found_first, found_second = first.result(20), second.result(20)
            else:
                g.recv(0)
                found_first, found_second = (g.all_gather_object(f"{which} of {g.rank}") for which in WHICH)
        assert found_first == [f"first of {rank}" for rank in range(3)]
        assert found_second == [f"second of {rank}" for rank in range(3)]

    threads(tmp_path, 3, body)


# ---------------------------------------------------------------------------------------------- M5


INTERRUPTED = """
import asyncio, signal, threading
import aiocoll
from aiocoll.errors import GroupBrokenError
if rank == 0:
    def strike(came):
        os.kill(os.getpid(), signal.SIGINT)
    def blocking(threaded):
        with aiocoll.sync.connect("file://{place}/meet%d" % threaded, rank=0, size=2, timeout=30) as g:
            if threaded:
                g.start.barrier().wait()
            try:
                threading.Thread(target=strike, args=[g.recv(1)]).start()
                g.all_reduce(np.arange(3.0))
            except KeyboardInterrupt:
                return "interrupted"
    def awaiting(uvloop):
        async def main(g):
            await g.recv(1)
            threading.Thread(target=strike, args=[0]).start()
            await g.all_reduce(np.arange(3.0))
        try:
            aiocoll.run(main, uvloop=uvloop, init_method="file://{place}/run%d" % uvloop, rank=0, size=2, timeout=30)
        except KeyboardInterrupt:
            return "interrupted"
    answer = [blocking(False), blocking(True), awaiting(False), awaiting(True)]
else:
    def peer(url):
        with aiocoll.sync.connect("file://{place}/" + url, rank=1, size=2, timeout=30) as g:
            if url == "meet1":
                g.barrier()
            g.send(np.zeros(1), 0)
            try:
                g.recv(0)
            except (GroupBrokenError, aiocoll.PeerLostError) as error:
                return error.rank
    answer = [peer("meet0"), peer("meet1"), peer("run0"), peer("run1")]
"""


def test_m5_ctrl_c_arrives_in_the_call_on_every_loop_and_peers_hear_of_it(tmp_path: Path) -> None:
    """KeyboardInterrupt in the blocked call, at once and without noise, blocking and awaited, on asyncio and uvloop."""
    began = time.monotonic()
    assert spawn(2, INTERRUPTED.format(place=tmp_path)) == [["interrupted"] * 4, [0] * 4]
    assert time.monotonic() - began < 25  # not the calls' own deadlines, which are 30 s


# ---------------------------------------------------------------------------------------------- M8


@pytest.mark.parametrize("uvloop", [False, True])
def test_m8_calls_are_awaitables_among_others(uvloop: bool) -> None:
    """Task groups, timeouts, other tasks and other libraries' tasks on the same loop."""

    async def main(group: Group) -> None:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(20):
            first = tasks.create_task(group.all_reduce(group.rank + 1, name="first"))
            second = tasks.create_task(group.all_gather(np.arange(group.rank + 1.0), name="second"))
            third = asyncio.ensure_future(group.send(np.arange(3.0), (group.rank + 1) % group.size, tag=9))
            fourth = await group.recv((group.rank - 1) % group.size, tag=9)
            await third
        assert first.result() == 6 and [len(part) for part in second.result()] == [1, 2, 3]
        assert fourth.tolist() == [0, 1, 2]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await group.recv((group.rank + 1) % group.size, tag=10)
        assert await asyncio.wait_for(group.all_reduce(2), 20) == 6  # a receive is only withdrawn
        results = await asyncio.gather(*(group.all_reduce(number) for number in range(5)))
        assert results == [3 * number for number in range(5)]

    async def everybody() -> None:
        store = MemoryStore()

        async def one(rank: int) -> None:
            async with aiocoll.connect(store=store, rank=rank, size=3, timeout=30) as group:
                await main(group)

        await asyncio.gather(*map(one, range(3)))

    with asyncio.Runner(loop_factory=new_event_loop if uvloop else None) as runner:
        runner.run(everybody())


@pytest.mark.parametrize("fabric", ["inproc", "tcp", "shm"])
def test_m8_the_loop_is_never_held_for_long(fabric: str) -> None:
    """While 64 MiB per rank are reduced, no turn of the loop that both share takes long; CPU time, so that other
    programs do not count."""
    longest = 0.0

    async def main(group: Group) -> None:
        nonlocal longest
        x = np.arange(8 << 20, dtype=np.float64) + group.rank
        over = False

        async def watch() -> None:
            nonlocal longest
            while not over:
                before = time.thread_time()
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - before)

        await group.all_reduce(x[: 1 << 20])  # memory that is touched for the first time is the kernel's affair
        watching = asyncio.ensure_future(watch())
        total = await group.all_reduce(x, out=x)
        over = True
        await watching
        assert total[0] == 1 and total[-1] == 2 * (8 << 20) - 1

    run(2, main, fabric)
    assert 0 < longest < TURN_SECONDS_MAX, longest


# ---------------------------------------------------------------------------------------------- M10


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="lost")


@pytest.mark.parametrize("threaded", [False, True])
def test_m10_ops_and_tasks_see_their_callers_context(tmp_path: Path, threaded: bool) -> None:
    """A ContextVar and np.errstate reach the caller's own op, on whatever thread the loop runs; built-in ops are
    quiet, as documented."""

    folds: list[int] = []

    def body(g: SyncGroup) -> None:
        seen: list[str] = []

        def multiply(left: Any, right: Any) -> Any:
            seen.append(VARIABLE.get())
            return left * right

        if threaded:
            g.start.barrier().wait()
        VARIABLE.set(f"of rank {g.rank}")
        big = np.array([1e200, 2.0 + g.rank])
        with np.errstate(over="ignore"):
            assert g.all_reduce(big, aiocoll.op(multiply, commutative=True)).tolist() == [float("inf"), 6.0]
        assert set(seen) <= {f"of rank {g.rank}"}
        folds.append(len(seen))
        with np.errstate(over="raise"):
            assert g.all_reduce(big, aiocoll.ops.PROD).tolist() == [float("inf"), 6.0]
            with pytest.raises(UsageError, match="FloatingPointError: overflow"):
                g.all_reduce(big, aiocoll.op(multiply))

    threads(tmp_path, 2, body)
    assert sum(folds) > 0


def test_m10_completion_callbacks_see_the_context_of_who_gave_them() -> None:
    def program(rank: int) -> str:
        VARIABLE.set(f"of rank {rank}")
        work = dist.all_reduce(np.arange(3.0) + rank, async_op=True)
        assert work is not None
        found: str = work.get_future().then(lambda future: VARIABLE.get()).wait()
        return found

    assert facade(2, program) == ["of rank 0", "of rank 1"]
