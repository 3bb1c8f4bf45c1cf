"""The script that checks every documented function, under the runner, on 2 to 5 ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "check_documented_api.py"


@pytest.mark.parametrize(
    ("size", "backend"),
    [
        (2, "tcp"),
        pytest.param(5, "tcp", marks=pytest.mark.slow),
        pytest.param(3, "shm", marks=pytest.mark.slow),
        pytest.param(3, "auto", marks=pytest.mark.slow),
    ],
)
def test_every_function_against_numpy(size: int, backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aiocoll", "run", "-n", str(size), str(SCRIPT), backend],
        cwd=HERE.parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    for rank in range(size):
        assert f"rank {rank} of {size}: " in done.stdout, done.stdout
    assert done.stdout.count("checks passed") == size, done.stdout
