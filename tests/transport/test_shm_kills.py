"""Ranks that are killed while they work through shared memory: a short storm of scripts/kill_storm.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kill_storm.py"
ROUNDS = 20


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_survivors_say_who_died_and_nothing_is_left() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--rounds", str(ROUNDS), "--seed", "3", "--seconds", "60"],
        capture_output=True, text=True, timeout=280, check=False, cwd=SCRIPT.parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = re.search(r"^(\d+) kills in \d+ worlds .*: (\d+) times a survivor heard who died", done.stdout, re.M)
    assert summary and int(summary[1]) >= ROUNDS <= int(summary[2]), done.stdout
    assert "0 worlds went wrong" in done.stdout and ", 0 things left" in done.stdout
