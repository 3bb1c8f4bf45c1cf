"""scripts/shrink_grow.py: real processes are killed, the rest shrinks, computes and takes replacements in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--transport", "shm"], ["--transport", "tcp", "--everybody", "--wild"]])
def test_some_rounds_of_it(options: list[str]) -> None:
    command = [sys.executable, "scripts/shrink_grow.py", "--rounds", "3", "--ranks", "3", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 rounds" in done.stdout
