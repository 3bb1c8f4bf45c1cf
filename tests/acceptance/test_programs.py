"""Whole programs under the runner, as a user would start them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run_program(ranks: int, script: str, *arguments: str, limit: float = 120) -> str:
    """What the ranks printed; fails the test with it if the job failed."""
    command = [sys.executable, "-m", "aiocoll", "run", "-n", str(ranks), str(HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_many_calls_at_once_in_one_order_and_by_name_in_many_orders() -> None:
    assert run_program(3, "concurrent_calls.py").count("all sums are right") == 3
