"""Lint and types, run as tests so that one summary line tells about everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def check(*module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *module], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"python -m {' '.join(module)}\n{done.stdout}"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_ruff() -> None:
    check("ruff", "check", ".")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mypy_strict() -> None:
    check("mypy")
