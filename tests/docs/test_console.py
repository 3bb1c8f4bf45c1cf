"""The commands that the manual shows do what it shows: exit status and output, in a folder with the page's files.

The rule: a ``console`` block holds commands after ``$ `` and, below each, lines of its output; ``…`` stands for
anything. Output of several ranks may come in any order. ``<!-- exits N -->`` above it: with that status.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from .snippets import PAGES, ROOT, Snippet, snippets

CONSOLE = [each for page in PAGES for each in snippets(page) if each.language == "console" and each.how != "by"]


def commands(code: str) -> list[tuple[str, list[str]]]:
    """Each command of a block with the output that is shown below it."""
    found: list[tuple[str, list[str]]] = []
    for line in code.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def words(command: str) -> list[str]:
    """The command for this Python and this library."""
    first, *rest = shlex.split(command, comments=True)
    return {"aiocoll": [sys.executable, "-m", "aiocoll"], "python": [sys.executable]}[first] + rest


@pytest.mark.parametrize("snippet", CONSOLE, ids=lambda each: each.where)
def test_commands(snippet: Snippet, tmp_path: Path) -> None:
    for each in snippets(ROOT / snippet.page):
        if each.how == "file":
            (tmp_path / each.argument).write_text(each.code)
    exits = int(snippet.argument) if snippet.how == "exits" else 0
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples")])}
    for command, shown in commands(snippet.code):
        done = subprocess.run(words(command), cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == exits, f"{command}\n{done.stdout}{done.stderr}"
        said = (done.stdout + done.stderr).splitlines()
        for line in shown:
            pattern = ".*".join(re.escape(part) for part in line.split("…"))
            assert any(re.fullmatch(pattern, each.rstrip()) for each in said), f"{line!r} is not in\n" + "\n".join(said)
