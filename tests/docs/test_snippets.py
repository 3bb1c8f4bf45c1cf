"""Every Python block of the manual runs as it stands: on three ranks, or as the comment above it says."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aiocoll

from .ranks import compiled, executed
from .snippets import HERE, HOW, PAGES, ROOT, Snippet, python, snippets

ALL = [each for page in PAGES for each in python(page)]
ON_RANKS = [each for each in ALL if each.how in ("given", "blocking")]
ALONE = [each for each in ALL if each.how == "alone"]
BY_TESTS = [each for each in ALL if each.how == "by"]
FILES = [each for each in ALL if each.how == "file"]


def test_every_page_shows_what_it_talks_about() -> None:
    assert len(ON_RANKS) > 12
    assert {each.how for each in ALL} == set(HOW)


def test_on_three_ranks(tmp_path: Path) -> None:
    listed = tmp_path / "snippets.json"
    listed.write_text(json.dumps([dataclasses.asdict(each) for each in ON_RANKS]))
    driver = Path(__file__).with_name("ranks.py")
    command = [sys.executable, "-m", "aiocoll", "run", "-n", "3", "--timeout", "100", str(driver), str(listed)]
    done = subprocess.run(command, cwd=tmp_path, env=HERE, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


@pytest.mark.parametrize("snippet", ALONE, ids=lambda each: each.where)
def test_alone(snippet: Snippet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "snippet", "aiocoll": aiocoll, "np": np}
    pieces = [compiled(each, snippet.where) for each in (snippet.given, snippet.code, snippet.then)]
    if any(piece.co_flags & inspect.CO_COROUTINE for piece in pieces):
        asyncio.run(executed(names, *pieces))
    else:
        for piece in pieces:
            exec(piece, names)


@pytest.mark.parametrize("snippet", BY_TESTS, ids=lambda each: each.where)
def test_by_another_test(snippet: Snippet) -> None:
    file, _, name = snippet.argument.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()


@pytest.mark.parametrize("snippet", FILES, ids=lambda each: each.where)
def test_files_are_used_by_a_command_of_their_page(snippet: Snippet) -> None:
    used = [each.code for each in snippets(ROOT / snippet.page) if each.language == "console"]
    assert snippet.argument in "".join(used), f"{snippet.where}: no command of the page runs {snippet.argument}"
