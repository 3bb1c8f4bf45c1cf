"""The leak checks of tests/conftest.py catch what they promise to catch, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = """
import asyncio, socket, subprocess, sys, threading
import pytest

kept = []

async def test_task():
    kept.append(asyncio.create_task(asyncio.sleep(1000)))

def test_thread():
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()

def test_descriptor():
    kept.append(socket.socket())

def test_child():
    kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

def test_warning():
    import warnings
    warnings.warn("old", DeprecationWarning)

async def test_tidy(tmp_path):
    task = asyncio.create_task(asyncio.sleep(0.01))
    threading.Thread(target=threading.Event().wait, args=(0.1,)).start()
    with socket.socket(), subprocess.Popen([sys.executable, "-c", ""]):
        await asyncio.sleep(0)

@pytest.mark.leaks("shows the marker")
def test_excused():
    kept.append(socket.socket())
"""


@pytest.mark.slow
def test_what_is_left_behind_fails_the_test(tmp_path: Path) -> None:
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    assert "_GRACE_SECONDS = 5.0" in conftest
    (tmp_path / "conftest.py").write_text(conftest.replace("_GRACE_SECONDS = 5.0", "_GRACE_SECONDS = 0.3"))
    (tmp_path / "test_samples.py").write_text(SAMPLES)
    settings = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *settings, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "the test left tasks running: <Task pending" in output
    assert "the test left behind: thread 'forgotten'" in output
    assert "the test left behind: descriptor" in output
    assert "the test left behind: child " in output
    assert "DeprecationWarning: old" in output
    for name, errors in {"tidy": 0, "excused": 0, "thread": 1, "descriptor": 1, "child": 1}.items():
        assert output.count(f"ERROR test_samples.py::test_{name}") == errors, output
