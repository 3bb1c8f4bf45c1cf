"""Runs ``aiocoll run`` as a user does, and can tell what a job has left behind.

The rule: every process of a job carries a mark in its environment, so "nothing is left" is looked up, not believed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
MARK = "TEST_OF_THE_RUNNER"
DEADLINE_S = 60.0  # a hang, on the slowest machine


@dataclass
class Done:
    """What a finished runner gave."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line on screen."""
        return self.err.rstrip("\n").rpartition("\n")[2]


@dataclass
class Runner:
    """Starts runners in a directory of their own."""

    directory: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def script(self, text: str, name: str = "script.py") -> Path:
        path = self.directory / name
        path.write_text(textwrap.dedent(text))
        return path

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
        return {**env, "PYTHONPATH": str(ROOT), MARK: self.mark, **(more or {})}

    def start(self, *arguments: Any, env: Mapping[str, str] | None = None, **popen: Any) -> subprocess.Popen[bytes]:
        popen.setdefault("stdout", subprocess.PIPE)
        popen.setdefault("stderr", subprocess.PIPE)
        popen.setdefault("stdin", subprocess.DEVNULL)
        argv = [*popen.pop("before", ()), sys.executable, "-m", "aiocoll", "run", *map(str, arguments)]
        process = subprocess.Popen(argv, cwd=self.directory, env=self.environment(env), **popen)
        self.started.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes], send: bytes | None = None) -> Done:
        out, err = process.communicate(send, timeout=DEADLINE_S)
        return Done(process.returncode, (out or b"").decode(errors="replace"), (err or b"").decode(errors="replace"))

    def run(self, *arguments: Any, **options: Any) -> Done:
        return self.finish(self.start(*arguments, **options))

    def left(self) -> list[str]:
        """The command lines of living processes that carry our mark."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):  # it has ended in this moment
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid}: {' '.join(process.cmdline())}")
        return found

    def nothing_left(self, seconds: float = 10.0) -> bool:
        return wait_for(lambda: not self.left(), seconds)

    def line(self, process: subprocess.Popen[bytes], wanted: bytes) -> bytes:
        """Reads stdout up to a line that holds `wanted`."""
        assert process.stdout is not None
        for line in process.stdout:
            if wanted in line:
                return line
        raise AssertionError(f"{wanted!r} never came; stderr: {process.stderr.read() if process.stderr else b''!r}")


def wait_for(fact: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether `fact()` becomes true in time."""
    until = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > until:
            return False
        select_nothing(0.01)
    return True


def select_nothing(seconds: float) -> None:
    """Lets other processes run while we poll for something that nothing announces."""
    import select

    select.select([], [], [], seconds)


@pytest.fixture
def runner(tmp_path: Path) -> Generator[Runner, None, None]:
    made = Runner(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.wait(DEADLINE_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    assert made.nothing_left(), made.left()


@pytest.fixture(name="wait_for")
def wait_for_fixture() -> Callable[..., bool]:
    return wait_for


@pytest.fixture
def port() -> int:
    """Where runners of several nodes may meet."""
    return free_port()
