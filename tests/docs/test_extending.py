"""Whoever follows the pages on adding an algorithm, a transport or a launcher gets what they promise.

The rule: files are taken out of the page as they stand, put where it says into a copy of the package, and the commands
of the page are run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .snippets import ROOT, python, snippets, taken
from .test_console import commands, words

HERE = "tests/docs/test_extending.py::"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package, to which files may be added."""
    shutil.copytree(ROOT / "aiocoll", tmp_path / "aiocoll", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def follow(page: str, folder: Path, *, code: int = 0) -> None:
    """Saves the page's files and runs its commands; what they show is what they say."""
    for each in python(ROOT / "docs" / page):
        if each.how == "file":
            (folder / each.argument).write_text(each.code)
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    for each in snippets(ROOT / "docs" / page):
        for command, shown in commands(each.code) if each.language == "console" else ():
            done = subprocess.run(
                words(command), cwd=folder, env=environ, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
            assert sorted(done.stdout.splitlines()) == sorted(shown), done.stdout + done.stderr


def test_the_transport_of_the_manual(copy: Path) -> None:
    added = copy / "aiocoll" / "transport" / "unix.py"
    added.write_text(taken("add_transport.md", HERE + "test_the_transport_of_the_manual"))
    follow("add_transport.md", copy)
