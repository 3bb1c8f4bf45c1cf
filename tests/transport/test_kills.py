"""Ranks that are killed, or stopped, while they work: short storms of scripts/kill_storm.py over memory and sockets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kill_storm.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(("how", "rounds"), [("kills", 20), ("stops", 1)])
def test_survivors_say_who_it_was_and_nothing_is_left(how: str, rounds: int, transport: str) -> None:
    options = ["--rounds", str(rounds), "--seed", "3", "--seconds", "60", "--transport", transport]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options, *(["--stop"] if how == "stops" else [])],
        capture_output=True, text=True, timeout=280, check=False, cwd=SCRIPT.parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = re.search(rf"^(\d+) {how} in \d+ worlds .*: (\d+) times a survivor heard who", done.stdout, re.M)
    assert summary and int(summary[1]) >= rounds <= int(summary[2]), done.stdout
    assert "0 worlds went wrong" in done.stdout and ", 0 things left" in done.stdout
