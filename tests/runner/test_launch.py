"""aiocoll.launch: results in rank order, exceptions with rank and traceback, and a caller that stays as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll.errors import CollectiveTimeoutError, MismatchError, PeerLostError, SerializationError, UsageError

ROOT = Path(__file__).resolve().parents[2]


async def summed(group: Any, start: int) -> tuple[int, float]:
    total = await group.all_reduce(np.arange(3.0) + group.rank + start)
    return group.rank, float(total.sum())


def test_an_async_function_gets_a_group() -> None:
    assert aiocoll.launch(summed, 10, n=3) == [(rank, 108.0) for rank in range(3)]


def test_a_plain_function_gets_a_blocking_group() -> None:
    def plain(group: Any) -> Any:
        return group.all_gather(np.full(2, group.rank))

    for gathered in aiocoll.launch(plain, n=2):
        np.testing.assert_array_equal(gathered, [[0, 0], [1, 1]])


@pytest.mark.slow
def test_a_lambda_around_an_async_function() -> None:
    assert aiocoll.launch(lambda group: summed(group, 0), n=2) == [(0, 9.0), (1, 9.0)]


@pytest.mark.slow
def test_big_results_and_arguments() -> None:
    given = np.arange(1_000_000) * 3
    for rank, result in enumerate(aiocoll.launch(lambda group, x: x + group.rank, given, n=2)):
        np.testing.assert_array_equal(result, given + rank)


@pytest.mark.slow
def test_inside_a_running_loop() -> None:
    async def notebook() -> list[Any]:
        return aiocoll.launch(lambda group: group.rank, n=2)

    assert asyncio.run(notebook()) == [0, 1]


class Odd(Exception):
    """An exception that needs two arguments, so it cannot be unpickled as most can."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"odd {one} {two}")


def failing(group: Any, how: str) -> None:
    if group.rank == 1:
        if how == "raise":
            raise KeyError("bad key")
        if how == "odd":
            raise Odd(1, 2)
        if how == "exit":
            sys.exit(3)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "quit":
            os._exit(0)
    group.barrier()


def test_an_exception_is_raised_here_with_rank_and_traceback() -> None:
    with pytest.raises(KeyError, match="bad key") as raised:
        aiocoll.launch(failing, "raise", n=3)
    (note,) = raised.value.__notes__
    assert "rank 1" in note and "in failing" in note and "worker.py" not in note
    assert "what the ranks knew, together:" not in note or note.index("in failing") < note.index("what the ranks knew")
    assert raised.value.rank == 1


@pytest.mark.slow
def test_an_exception_that_cannot_travel_is_told() -> None:
    with pytest.raises(aiocoll.AiocollError, match=r"rank 1 raised .*Odd: odd 1 2"):
        aiocoll.launch(failing, "odd", n=2)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exit", "exited with code 3"),
        pytest.param("kill", "SIGKILL", marks=pytest.mark.slow),
        pytest.param("quit", "exited with code 0", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_gone(how: str, words: str) -> None:
    with pytest.raises(PeerLostError, match=f"rank 1 .*{words}") as raised:
        aiocoll.launch(failing, how, n=2)
    assert raised.value.rank == 1


@pytest.mark.slow
def test_what_cannot_be_pickled() -> None:
    with pytest.raises(SerializationError, match="fn or one of its arguments"):
        aiocoll.launch(lambda group, lock: None, threading.Lock(), n=1)
    with pytest.raises(SerializationError, match="rank 0: the function returned a lock"):
        aiocoll.launch(lambda group: threading.Lock(), n=1)


@pytest.mark.slow
def test_a_deadline() -> None:
    def late(group: Any) -> int:
        if group.rank == 1:
            threading.Event().wait(60.0)
        group.barrier()
        return 0

    with pytest.raises(CollectiveTimeoutError, match="ranks 0 and 1 had not returned after 5 s") as raised:
        aiocoll.launch(late, n=2, timeout=5)
    assert raised.value.missing == (0, 1)
    assert "for rank 1 in barrier (call 0) of group 'world'" in "".join(raised.value.__notes__)


def test_calls_that_differ_are_shown_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("AIOCOLL_TRACE_DIR", raising=False)

    def differs(group: Any) -> None:
        group.barrier()
        if group.rank == 1:
            group.broadcast(np.arange(3.0))
        group.all_reduce(np.arange(3.0))

    with pytest.raises(MismatchError) as raised:
        aiocoll.launch(differs, n=3)
    (note,) = raised.value.__notes__
    assert "first divergence in group 'world': rank 1 called broadcast #1 [" in note.partition("what the ranks knew")[2]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [({"n": 0}, "n=0"), ({"n": 2.0}, "n=2.0"), ({"n": "many"}, "'many'"), ({"launcher": "cloud"}, "'cloud'")],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        aiocoll.launch(summed, 0, **options)
    with pytest.raises(UsageError, match="cannot be called"):
        aiocoll.launch(5, n=1)


def test_options_reach_the_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(group: Any) -> tuple[str, str]:
        print("hello", group.rank)
        return os.environ["GREETING"], group.name

    told_back = aiocoll.launch(told, n=2, env={"GREETING": "hi"}, name="mine", log_dir=tmp_path, ranks=[1])
    assert told_back == [("hi", "mine")] * 2
    assert capsys.readouterr().out == "[r1] hello 1\n"
    assert (tmp_path / "r0.stdout.log").read_text() == "hello 0\n"


def test_the_callers_process_stays_as_it_was() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), dict(os.environ)
    aiocoll.launch(lambda group: None, n=1)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), dict(os.environ)) == before


def script(runner: Any, text: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, runner.script(text)], env=runner.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    runner.started.append(process)
    return process


SLEEP = """
    import aiocoll, time
    def sleep(group):
        try:
            print("up", flush=True)
            time.sleep(600)
        finally:
            print("finally")
    aiocoll.launch(sleep, n=2)
"""


def test_ctrl_c_interrupts_the_ranks_and_is_raised(runner: Any) -> None:
    process = script(runner, SLEEP)
    for _ in range(2):
        runner.line(process, b"up")
    process.send_signal(signal.SIGINT)
    done = runner.finish(process)
    assert done.code == -signal.SIGINT and done.last == "KeyboardInterrupt"
    assert sorted(done.out.splitlines()) == ["[r0] finally", "[r1] finally"]


def test_a_killed_caller_leaves_nothing(runner: Any) -> None:
    process = script(runner, SLEEP)
    for _ in range(2):
        runner.line(process, b"up")
    process.kill()
    process.wait(60)
    assert runner.nothing_left(), runner.left()
