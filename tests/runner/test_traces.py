"""What the runner says of its ranks' dumps, and that it leaves none behind."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.runner.conftest import DEADLINE_S, Runner, wait_for

BEGIN = """
    import os, sys, time
    import numpy as np
    import aiocoll
    with aiocoll.sync.connect() as group:
        for _ in range(3):
            group.barrier()
"""
MISMATCH = (
    BEGIN
    + """
        if group.rank == 2:
            group.broadcast(np.arange(3.0))
        else:
            group.all_reduce(np.arange(3.0))
"""
)
HANG = (
    BEGIN
    + """
        if group.rank == 1:
            print("here", flush=True)
            while True:
                time.sleep(0.05)
        group.all_reduce(np.arange(3.0))
"""
)
KILLED = (
    BEGIN
    + """
        if group.rank == 1:
            os.kill(os.getpid(), 9)
        group.all_reduce(np.arange(3.0))
"""
)


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """A directory for temporary things of our own, so that what is left is seen."""
    (tmp_path / "temporary").mkdir()
    return {"TMPDIR": str(tmp_path / "temporary")}


def _left(place: dict[str, str]) -> list[str]:
    return sorted(os.listdir(place["TMPDIR"]))


@pytest.mark.slow
def test_the_first_divergence_stands_above_the_cause(runner: Runner, place: dict[str, str]) -> None:
    done = runner.run("-n", 4, runner.script(MISMATCH), env=place)
    lines = done.err.splitlines()
    (divergence,) = [number for number, line in enumerate(lines) if "first divergence" in line]
    # A rank that hears of it before it makes the call itself has nothing to say of that.
    assert re.fullmatch(
        r"aiocoll: first divergence in group 'world': rank 2 called broadcast #3 \[broadcast root=0\] where ranks? "
        r"[0-9, ]+ called all_reduce #3 \[all_reduce op=SUM dtype=float64 shape=\(3,\).*\]",
        lines[divergence],
    )
    assert "failed first" in "".join(lines[divergence + 1 :]) and done.code == 1
    assert "MismatchError" in done.last
    assert _left(place) == []


@pytest.mark.slow
def test_the_dead_and_who_waited_for_whom(runner: Runner, place: dict[str, str], tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    done = runner.run("-n", 3, "--log-dir", logs, runner.script(KILLED), env=place)
    assert done.code == 128 + signal.SIGKILL and done.last.startswith("aiocoll: rank 1 was killed by signal 9")
    assert any("is lost: " in line and "(seen by rank" in line for line in done.err.splitlines())
    dumps = sorted(path.name for path in logs.glob("*.trace.json"))
    assert {name.partition("-")[0] for name in dumps} == {"rank0", "rank2"}
    assert _left(place) == []


@pytest.mark.slow
def test_a_deadline_asks_everybody(runner: Runner, place: dict[str, str]) -> None:
    done = runner.run("-n", 3, "--timeout", 8, runner.script(HANG), env=place)
    assert done.code == 124 and done.last == "aiocoll: the job's --timeout passed; exit code 124"
    said = done.err
    assert " for rank 1 in all_reduce (call 3) of group 'world'" in said
    assert "rank 1 waits for nobody: its last call, barrier (call 2) of group 'world', ended" in said
    assert "it is at " in said and "script.py:" in said
    assert _left(place) == []


@pytest.mark.slow
def test_whoever_wants_no_dumps_gets_none(runner: Runner, place: dict[str, str]) -> None:
    done = runner.run("-n", 3, runner.script(KILLED), env={**place, "AIOCOLL_TRACE_DIR": ""})
    assert done.code == 128 + signal.SIGKILL and "seen by rank" not in done.err
    assert _left(place) == []


@pytest.mark.slow
def test_nothing_is_left_when_the_runner_is_killed(runner: Runner, place: dict[str, str]) -> None:
    process = runner.start("-n", 3, runner.script(HANG), env=place)
    runner.line(process, b"here")

    def asked() -> bool:
        process.send_signal(signal.SIGUSR2)
        return bool(_left(place))

    assert wait_for(asked, DEADLINE_S)  # and the ranks have made the directory
    process.kill()
    runner.finish(process)
    assert wait_for(lambda: not runner.left() and not _left(place), DEADLINE_S), (runner.left(), _left(place))
