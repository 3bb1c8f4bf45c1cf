"""Types as users see them: complete, true, and the same for mypy and pyright.

The rule: what mypy (in tests/architecture) and pyright are told in `awaited.py` and `blocking.py` is also run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiocoll
from aiocoll.testing import run
from tests.typing import awaited, blocking

ROOT = Path(__file__).resolve().parents[2]


def pyright(*arguments: str) -> dict[str, Any]:
    """What pyright says, of this environment's packages: it finds them by way of the first Python on the path."""
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "pyright", "--outputjson", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    said: dict[str, Any] = json.loads(done.stdout or "{}")
    assert "summary" in said, done.stdout + done.stderr
    return said


@pytest.mark.parametrize("program", awaited.PROGRAMS, ids=lambda program: program.__name__)
def test_what_checkers_are_told_of_awaited_calls_is_true(program: Callable[[aiocoll.Group], Any]) -> None:
    run(3, program)


@pytest.mark.parametrize("program", [blocking.blocking, blocking.started], ids=lambda program: program.__name__)
def test_what_checkers_are_told_of_blocking_calls_is_true(program: Callable[[Any], None]) -> None:
    with aiocoll.sync.connect(transport="inproc") as group:
        program(group)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pyright_agrees_with_mypy() -> None:
    said = pyright("tests/typing")
    wrong = [each for each in said["generalDiagnostics"] if each["severity"] == "error"]
    assert said["summary"]["filesAnalyzed"] >= 3 and not wrong, json.dumps(wrong, indent=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_public_name_has_a_type() -> None:
    said = pyright("--verifytypes", "aiocoll", "--ignoreexternal")["typeCompleteness"]
    lacking = [
        f"{symbol['name']}: {'; '.join(each['message'] for each in symbol['diagnostics'])}"
        for symbol in said["symbols"]
        if symbol["isExported"] and not symbol["isTypeKnown"]
    ]
    assert said["completenessScore"] == 1, "\n".join(lacking)
