"""Dumps of real ranks: asked for by signal while they wait, whatever runs their loop; unasked when a rank dies."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiocoll.trace.dumps import Dump, files, read
from aiocoll.trace.ranks import look
from aiocoll.trace.verdict import verdict

ROOT = pathlib.Path(__file__).resolve().parents[2]
HANG_SECONDS = 60.0
PROGRAMS = {
    "asyncio": "aiocoll.run(awaited, uvloop=False)",
    "uvloop": "aiocoll.run(awaited)",
    "blocking": "blocking()",
    "threaded": "blocking(threaded=True)",
}
SCRIPT = """
import os, sys, time
import numpy as np
import aiocoll

def wait_for_the_end():
    sys.stdin.read()

async def awaited(group):
    await group.barrier()
    if group.rank == 0:
        import asyncio
        print("here", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, wait_for_the_end)
    else:
        print("here", flush=True)
    await group.all_reduce(np.arange(3.0) + group.rank)

def blocking(threaded=False):
    with aiocoll.sync.connect() as group:
        if threaded:
            group.start.barrier().wait()
        else:
            group.barrier()
        print("here", flush=True)
        if group.rank == 0:
            wait_for_the_end()
        group.all_reduce(np.arange(3.0) + group.rank)
"""


def _until(found: Callable[[], Any]) -> Any:
    until = time.monotonic() + HANG_SECONDS
    while not (result := found()):
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.005)
    return result


class Job:
    """A job under the runner, whose rank 0 waits for the end of its input."""

    def __init__(self, directory: pathlib.Path, program: str, *arguments: str, **env: str) -> None:
        script = directory / "program.py"
        script.write_text(SCRIPT + textwrap.dedent(program) + "\n")
        self.errors = directory / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "aiocoll", "run", "-n", "3", "--json", *arguments, str(script)],
                cwd=directory, env={**os.environ, "PYTHONPATH": str(ROOT), **env},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self.pids: dict[int, int] = {}
        self.said: list[dict[str, Any]] = []

    def wait_for(self, event: str, times: int) -> None:
        """Reads the runner's events until so many of one kind have come."""
        assert self.process.stdout is not None
        while sum(each["event"] == event for each in self.said) < times:
            line = self.process.stdout.readline()
            assert line, self.errors.read_text()
            said = json.loads(line)
            self.said.append(said)
            if said["event"] == "start":
                self.pids[said["rank"]] = said["pid"]

    def end(self) -> int:
        """Ends the input of rank 0; the exit code."""
        self.process.communicate(timeout=HANG_SECONDS)
        return self.process.returncode


@contextlib.contextmanager
def _job(directory: pathlib.Path, program: str, *arguments: str, **env: str) -> Iterator[Job]:
    job = Job(directory, program, *arguments, **env)
    try:
        yield job
    finally:
        if job.process.poll() is None:
            job.process.kill()
        job.process.communicate()


def _trace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aiocoll", "trace", *arguments], cwd=ROOT, capture_output=True, text=True,
        timeout=HANG_SECONDS,
    )  # fmt: skip


def _dumps(directory: pathlib.Path) -> list[Dump]:
    return [read(path) for path in files([str(directory)])] if any(directory.glob("*.json")) else []


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_ranks_that_wait_tell_when_they_are_asked(tmp_path: pathlib.Path, program: str) -> None:
    dumps = tmp_path / "dumps"
    with _job(tmp_path, PROGRAMS[program], "--stdin", "0", AIOCOLL_TRACE_DIR=str(dumps)) as job:
        job.wait_for("output", 3)
        _until(lambda: all((found := look(pid)) and found.listens for pid in job.pids.values()))

        def all_wait() -> str:
            done = _trace("dump", *(str(pid) for pid in job.pids.values()), "--facts", "3")
            assert done.returncode == 0, done.stderr
            return done.stdout if "for rank 0 in all_reduce (call 1)" in done.stdout else ""

        said = _until(all_wait)
        assert "rank 0 waits for nobody: its last call, barrier (call 0) of group 'world', ended" in said
        assert program != "blocking" or f"{tmp_path / 'program.py'}:" in said  # the line in which it stands
        assert "asked for (SIGUSR2)" in said and "[r1]" in said
        runner = _trace("dump", str(job.process.pid))  # the runner stands for all its ranks
        assert runner.returncode == 0 and "rank 0 waits for nobody" in runner.stdout
        assert job.end() == 0


@pytest.mark.slow
def test_without_a_directory_the_text_goes_to_stderr(tmp_path: pathlib.Path) -> None:
    with _job(tmp_path, PROGRAMS["blocking"], "--stdin", "0", AIOCOLL_TRACE_DIR="") as job:
        job.wait_for("output", 3)
        rank = job.pids[1]
        _until(lambda: (found := look(rank)) and found.listens)
        os.kill(rank, signal.SIGUSR2)
        job.wait_for("output", 4)
        assert job.end() == 0
    assert any("rank 1 of 3" in str(each) and "SIGUSR2" in str(each) for each in job.said)


@pytest.mark.slow
def test_when_a_rank_dies_the_others_leave_dumps(tmp_path: pathlib.Path) -> None:
    dumps = tmp_path / "dumps"
    with _job(tmp_path, PROGRAMS["blocking"], "--stdin", "0", AIOCOLL_TRACE_DIR=str(dumps)) as job:
        job.wait_for("output", 3)
        os.kill(job.pids[0], signal.SIGKILL)
        assert job.end() == 128 + signal.SIGKILL
    found = _dumps(dumps)
    assert {dump.rank for dump in found} == {1, 2}
    assert all("PeerLostError: rank 0 of group 'world'" in dump.content["why"] for dump in found)
    lines = verdict(found)
    assert lines[0].startswith("rank 0 (") and f"pid {job.pids[0]}) is lost" in lines[0] and "(seen by rank" in lines[0]
    assert not list(dumps.glob("*.part"))


@pytest.mark.slow
def test_a_process_that_does_not_listen_is_not_signalled(tmp_path: pathlib.Path) -> None:
    program = 'print("here", flush=True)\nwait_for_the_end()'
    with _job(tmp_path, program, "--stdin", "0") as job:
        job.wait_for("output", 3)
        done = _trace("dump", str(job.pids[0]))
        assert done.returncode == 1
        assert f"rank 0 (pid {job.pids[0]}) does not listen for SIGUSR2: it is not connected (yet)" in done.stderr
        assert job.end() == 0


def test_what_cannot_be_asked() -> None:
    for arguments, words in (
        (("dump",), "whose?"),
        (("dump", "1", "--job", "x"), "not both"),
        (("dump", "--job", "no such job"), "no ranks of job 'no such job' run here"),
        (("dump", str(2**22 + 1)), "there is no process"),
    ):
        done = _trace(*arguments)
        assert done.returncode == 2 and words in done.stderr, (arguments, done)


SIGNALS = """
import multiprocessing, os, signal, sys, threading
import aiocoll
mine = lambda *_: print("mine", flush=True)
assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
with aiocoll.sync.connect() as outer:
    assert callable(signal.getsignal(signal.SIGUSR2))
    with aiocoll.sync.connect() as inner:
        pass
    assert callable(signal.getsignal(signal.SIGUSR2))  # the outer one is open still
    if os.fork() == 0:
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
with aiocoll.sync.connect() as group:
    group.start.barrier().wait()  # its loop has a thread of its own
assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
signal.signal(signal.SIGUSR2, mine)
with aiocoll.sync.connect() as group:
    assert signal.getsignal(signal.SIGUSR2) is mine
    os.kill(os.getpid(), signal.SIGUSR2)
assert signal.getsignal(signal.SIGUSR2) is mine
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
with aiocoll.sync.connect() as group:
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
signal.signal(signal.SIGUSR2, signal.SIG_DFL)
with aiocoll.sync.connect() as group:
    signal.signal(signal.SIGUSR2, mine)
assert signal.getsignal(signal.SIGUSR2) is mine
signal.signal(signal.SIGUSR2, signal.SIG_DFL)
import faulthandler
faulthandler.register(signal.SIGUSR2)
with aiocoll.sync.connect() as group:
    os.kill(os.getpid(), signal.SIGUSR2)  # is faulthandler's
def elsewhere():
    with aiocoll.sync.connect() as group:
        group.barrier()
faulthandler.unregister(signal.SIGUSR2)
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
print("done")
"""


def test_the_signal_is_taken_only_where_nobody_wants_it(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "signals.py"
    script.write_text(SIGNALS)
    done = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=HANG_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "mine\ndone\n" and "signals.py" in done.stderr  # faulthandler's own traceback
