"""How the tests of the examples start a job: the real command line, in a process group of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Job = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def job() -> Job:
    """``job(4, "train_digits.py", "--check")`` runs an example on 4 ranks (0: with no runner); gives its output."""

    def run(ranks: int, example: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        runner = ["-m", "aiocoll", "run", "-n", str(ranks)] if ranks else []
        command = [sys.executable, *runner, str(ROOT / "examples" / example), *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done

    return run
