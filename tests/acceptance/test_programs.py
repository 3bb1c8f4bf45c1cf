"""Whole programs under the runner, as a user would start them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

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


@pytest.mark.timeout(60)
def test_a_program_that_ends_without_leaving_keeps_nobody_waiting() -> None:
    port = free_port()
    script = str(HERE / "leaves_without_a_word.py")
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), str(port)], stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=40)[0] for rank in ranks]  # 60 s would be the deadline of the receive
    assert [rank.returncode for rank in ranks] == [0, 0, 0], said
    assert "rank 0 is gone" in said[2], said
