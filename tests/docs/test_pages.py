"""What the pages of the manual say beside their blocks: names that exist, programs that need more than one command."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aiocoll
import aiocoll.distributed
import aiocoll.mpi
import aiocoll.sync

from .snippets import HERE, PAGES, ROOT, taken

LOGGERS = ("stall",)


@pytest.fixture(scope="module")
def things() -> dict[str, tuple[Any, ...]]:
    """What the words before a dot stand for in the manual: a group may be an awaited or a blocking one."""

    async def joined() -> aiocoll.Group:
        async with aiocoll.connect() as group:
            return group

    with aiocoll.sync.connect() as blocking:
        pass
    return {
        "aiocoll": (aiocoll,),
        "group": (asyncio.run(joined()), blocking, aiocoll.distributed.group),
        "dist": (aiocoll.distributed,),
        "MPI": (aiocoll.mpi,),
        "comm": (aiocoll.mpi.Intracomm,),  # the class: to ask COMM_WORLD itself is to join
    }


def exists(thing: Any, path: str) -> bool:
    if thing is aiocoll and path in LOGGERS:
        return True
    for name in path.split("."):
        if isinstance(thing, ModuleType):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(f"{thing.__name__}.{name}")
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_the_text_exist(page: Path, things: dict[str, tuple[Any, ...]]) -> None:
    """Also in the column of what other libraries call it, where the shims have their names."""
    missing = set()
    for code in re.findall(r"`([^`\n]+)`", page.read_text()):
        for word, path in re.findall(r"(?<![\w./])(aiocoll|group|dist|MPI|comm)\.([A-Za-z_][\w.]*\w)", code):
            if not any(exists(thing, path) for thing in things[word]):
                missing.add(f"{word}.{path}")
    assert not missing


def test_two_processes_meet_without_a_runner(tmp_path: Path) -> None:
    script = tmp_path / "meet.py"
    script.write_text(taken("running.md", "tests/docs/test_pages.py::test_two_processes_meet_without_a_runner"))
    command = [sys.executable, str(script)]
    where = f"file://{tmp_path}/meeting"
    ranks = [
        subprocess.Popen([*command, str(rank), where], env=HERE, stdout=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    assert [each.communicate(timeout=60)[0] for each in ranks] == ["[{'rank': 0}, {'rank': 1}]\n"] * 2


def test_a_newcomer_without_a_runner(tmp_path: Path) -> None:
    script = tmp_path / "grow.py"
    script.write_text(taken("failure.md", "tests/docs/test_pages.py::test_a_newcomer_without_a_runner"))
    command = [sys.executable, "-W", "error", str(script), f"file://{tmp_path}/meeting"]
    every = [
        subprocess.Popen([*command, who], env=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for who in ("new", "0", "1")
    ]
    said = [each.communicate(timeout=60) for each in every]
    assert said == [(f"{rank} of 3 new: (2,) ['0', '1', 'new']\n", "") for rank in (2, 0, 1)]


def test_an_mpi4py_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(taken("from_mpi4py.md", "tests/docs/test_pages.py::test_an_mpi4py_script"))
    command = [sys.executable, "-m", "aiocoll", "run", "-n", "3", str(script)]
    done = subprocess.run(command, env=HERE, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[r0] [3. 3. 3. 3.] [{'rank': 0}, {'rank': 1}, {'rank': 2}]\n"


def test_every_example_says_how_it_is_started() -> None:
    page = (ROOT / "docs" / "examples.md").read_text()
    shown = re.findall(r"```\n((?:[^`\n]+\n)+)```\n\n```{literalinclude} \.\./(examples/.*)\n", page)
    assert len(shown) == page.count("literalinclude") > 6
    for commands, example in shown:
        said = (ROOT / example).read_text().split('"""')[1]
        assert commands.splitlines() == [line[4:] for line in said.splitlines() if line.startswith("    ")]
        assert example in commands
