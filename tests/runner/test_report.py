"""What a rank tells its runner of an uncaught exception, and that it changes nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiocoll.observe import report

ROOT = Path(__file__).resolve().parents[2]


def run(program: str, *, hand_over: bool = True) -> tuple[subprocess.CompletedProcess[str], list[dict[str, object]]]:
    """Runs a program with a report pipe; gives what it did and what it reported."""
    read, write = os.pipe()
    env = {**os.environ, "PYTHONPATH": str(ROOT), report.VARIABLE: str(write)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, pass_fds=[write] if hand_over else [], capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    os.close(write)
    with os.fdopen(read) as pipe:
        return done, [json.loads(line) for line in pipe if line.startswith("{")]  # words of `tell` are none


INSTALL = "from aiocoll.observe import report; report.install(); report.install()\n"


def test_an_uncaught_exception_is_reported_once_and_shown_as_always() -> None:
    done, reports = run(INSTALL + "raise ValueError('boom')")
    plain = subprocess.run([sys.executable, "-c", "\nraise ValueError('boom')"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, plain.stderr)
    assert [(entry["class"], entry["message"], entry["consequence"]) for entry in reports] == [
        ("ValueError", "boom", False)
    ]
    assert str(reports[0]["traceback"]).endswith("ValueError: boom\n")


def test_the_programs_own_hook_still_gets_it() -> None:
    done, reports = run("import sys; sys.excepthook = lambda *a: print('mine')\n" + INSTALL + "1 / 0")
    assert done.stdout == "mine\n" and reports[0]["class"] == "ZeroDivisionError"


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "pass", "try: 1/0\nexcept ZeroDivisionError: pass"])
def test_nothing_to_report(program: str) -> None:
    assert run(INSTALL + program)[1] == []


def test_a_forked_child_is_no_rank() -> None:
    program = "import os\nif os.fork() == 0: raise ValueError('child')\nos.wait()"
    assert run(INSTALL + program)[1] == []


def test_a_process_without_the_pipe_is_left_alone() -> None:
    done, reports = run(INSTALL + "import sys; assert sys.excepthook is sys.__excepthook__", hand_over=False)
    assert (done.returncode, reports) == (0, []), done.stderr


def test_a_huge_or_unprintable_exception_fits_the_pipe() -> None:
    program = "class E(Exception):\n    def __str__(self): raise TypeError\nraise E from ValueError('x' * 10_000_000)"
    _, (entry,) = run(INSTALL + program)
    assert len(json.dumps(entry)) < 1 << 16
    assert "without a readable message" in str(entry["message"])


def test_the_call_is_found_in_the_frames_of_a_blocking_call() -> None:
    program = INSTALL + (
        "import aiocoll.sync, signal, threading, os\n"
        "group = aiocoll.sync.connect().__enter__()\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "group.recv(0)\n"
    )
    done, reports = run(program)
    assert reports, done.stderr
    assert str(reports[0]["operation"]).startswith("recv")
