"""One program on every fabric: same results, same failures, how to run it again, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from aiocoll import Group, errors
from aiocoll.sim import Simulation
from aiocoll.testing import CRASHED, FABRICS, Crash, run
from aiocoll.testing.leaks import Belongings, LeakError, left_behind, no_leaked_tasks, no_leaks
from aiocoll.testing.processes import RankDiedError

LOCAL_FACTOR = 3.0  # a global of this module, which is not importable in the ranks' processes


class Refused(Exception):
    """With a constructor that pickle cannot call."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


async def program(group: Group) -> tuple[list[float], list[int], str]:
    x = np.arange(4.0) * LOCAL_FACTOR + group.rank
    total = await group.all_reduce(x)
    sizes = [len(each) for each in await group.all_gather(np.zeros(group.rank))]
    await group.send_object({"from": group.rank}, (group.rank + 1) % group.size)
    told = await group.recv_object((group.rank - 1) % group.size)
    return total.tolist(), sizes, str(told)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("fabric", FABRICS)
def test_the_same_program_on_every_fabric(fabric: str, size: int) -> None:
    results = run(size, program, fabric, seed=7)
    total = [sum(3.0 * n + rank for rank in range(size)) for n in range(4)]
    for rank, (mine, sizes, told) in enumerate(results):
        assert mine == total and sizes == list(range(size))
        assert told == str({"from": (rank - 1) % size})


@pytest.mark.parametrize("fabric", FABRICS)
def test_the_cause_of_a_failure_is_raised_with_the_way_to_run_it_again(fabric: str) -> None:
    async def main(group: Group) -> None:
        await group.barrier()
        if group.rank == 1:
            raise ZeroDivisionError("on purpose")
        await group.barrier()

    with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
        run(3, main, fabric, seed=11, timeout=30.0)
    notes = "\n".join(caught.value.__notes__)
    assert "raised on rank 1 of 3" in notes
    assert f"{fabric!r}, seed=11" in notes and "-m pytest 'tests/sim/test_fabrics.py::test_the_cause" in notes
    if fabric == "process":
        assert "in main" in notes, "the rank's own traceback"


@pytest.mark.parametrize("fabric", ["inproc", "tcp", "shm", "process"])
def test_ranks_that_hang_are_stopped_and_named(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 1:
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match="rank 1"):
        run(2, main, fabric, limit=1.0)


@pytest.mark.parametrize("fabric", ["sim", "inproc", "process"])
def test_survivors_of_a_crash_go_on(fabric: str) -> None:
    async def main(group: Group) -> str:
        try:
            if group.rank == 1:
                await asyncio.sleep(30)
            await group.barrier()
        except errors.PeerLostError as error:
            await asyncio.sleep(0.1)
            return f"lost {error.rank}"
        return "through"

    assert run(3, main, fabric, faults=Crash(1, at=0.5)) == ["lost 1", CRASHED, "lost 1"]


def test_a_rank_that_kills_itself_is_expected_only_when_said() -> None:
    async def main(group: Group) -> int:
        if group.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return group.rank

    assert run(2, main, "process", faults=Crash(0)) == [CRASHED, 1]
    with pytest.raises(RankDiedError, match="rank 0 was ended by SIGKILL"):
        run(2, main, "process")


def test_results_and_errors_that_cannot_travel_are_told() -> None:
    async def thread(group: Group) -> object:
        return threading.Lock()

    async def refused(group: Group) -> None:
        raise Refused(1, 2)

    with pytest.raises(RankDiedError, match="cannot travel.*lock"):
        run(1, thread, "process")
    with pytest.raises(RankDiedError, match="1 and 2"):
        run(1, refused, "process")


def test_processes_have_their_own_pids_the_environment_of_now_and_a_choice_of_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(group: Group) -> tuple[int, str, str, float]:
        loop = type(asyncio.get_running_loop()).__module__
        return os.getpid(), os.environ["A_VARIABLE_OF_NOW"], loop, group.timeout

    monkeypatch.setenv("A_VARIABLE_OF_NOW", "first")
    first = run(2, main, "process")
    monkeypatch.setenv("A_VARIABLE_OF_NOW", "second")
    second = run(2, main, "process", uvloop=True, timeout=7.0)
    assert len({pid for pid, *_ in first + second} | {os.getpid()}) == 5
    assert [rest[0] for _, *rest in first + second] == ["first"] * 2 + ["second"] * 2
    assert first[0][2].startswith("asyncio") and second[0][2].startswith("uvloop") and second[0][3] == 7.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"size": 2, "fabric": "pigeon"}, "sim, inproc, tcp, shm, process"),
        ({"size": 0}, "size=0"),
        ({"size": 2, "faults": Crash(5)}, "one of 2 ranks"),
        ({"size": 2, "fabric": "tcp", "faults": Crash(1, at=1.0)}, "use 'process'"),
        ({"size": 2, "fabric": "shm", "faults": Crash(1, at=1.0)}, "use 'process'"),
        ({"size": 2, "fabric": "process", "faults": Crash(1, frames=1)}, "'sim'"),
    ],
)
def test_impossible_runs_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.UsageError, match=words):
        run(main=program, **arguments)


# ------------------------------------------------------------------------------------------------ leaks


def test_what_is_left_behind_is_named() -> None:
    before = Belongings.now()
    a, b = socket.socketpair()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="the lazy one")
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    left = left_behind(before, grace=0.01)
    child.kill()
    child.wait()
    stop.set()
    thread.join()
    a.close()
    b.close()
    assert [each for each in left if "the lazy one" in each] and [each for each in left if f"child {child.pid}" in each]
    assert len([each for each in left if "socket" in each]) == 2 and len(left) == 4
    assert left_behind(before) == []


def test_no_leaks_waits_for_what_is_ending_and_raises_for_what_is_not() -> None:
    with no_leaks():
        threading.Timer(0.05, lambda: None).start()
    kept: list[socket.socket] = []
    with pytest.raises(LeakError, match="socket"), no_leaks(grace=0.01):
        kept.append(socket.socket())
    kept.pop().close()
    with pytest.raises(KeyError), no_leaks(grace=0.01):
        kept.append(socket.socket())
        raise KeyError
    kept.pop().close()


async def test_leaked_tasks_are_named_and_ended() -> None:
    async with no_leaked_tasks():
        asyncio.create_task(asyncio.sleep(0.01))
    with pytest.raises(LeakError, match="sleeper"):
        async with no_leaked_tasks(grace=0.01):
            task = asyncio.create_task(asyncio.sleep(60), name="sleeper")
    assert task.cancelled()


@pytest.mark.parametrize("fabric", ["sim", "inproc", "tcp"])
async def test_in_a_running_loop_it_is_refused_and_in_a_thread_it_runs(fabric: str) -> None:
    async def main(group: Group) -> int:
        return int(await group.all_reduce(group.rank + 1))

    with pytest.raises(errors.UsageError, match=f"fabric '{fabric}' has a loop of its own, .*: use await asyncio.to_t"):
        run(3, main, fabric)  # without a warning of a coroutine that nobody awaited
    assert await asyncio.to_thread(run, 3, main, fabric) == [6, 6, 6]


async def test_a_simulation_in_a_running_loop_is_refused() -> None:
    async def main(group: Group) -> None:
        await group.barrier()

    with pytest.raises(errors.UsageError, match="a simulation has a loop of its own, and one runs here already"):
        Simulation(2).run(main)
