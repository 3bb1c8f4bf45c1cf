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
            done = subprocess.run(words(command), cwd=folder, env=environ, capture_output=True, text=True, timeout=60)
            assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
            if shown:
                assert sorted(done.stdout.splitlines()) == sorted(shown), done.stdout + done.stderr


def test_the_transport_of_the_manual(copy: Path) -> None:
    added = copy / "aiocoll" / "transport" / "unix.py"
    added.write_text(taken("add_transport.md", HERE + "test_the_transport_of_the_manual"))
    follow("add_transport.md", copy)


DIES = """
import os, signal
import aiocoll

async def main(group):
    try:
        await group.barrier()
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        await group.barrier()
    except aiocoll.PeerLostError as error:
        print("lost", error.rank)

aiocoll.run(main, transport="unix")
"""


def test_a_death_is_seen_over_the_transport_of_the_manual(copy: Path) -> None:
    added = copy / "aiocoll" / "transport" / "unix.py"
    added.write_text(taken("add_transport.md", HERE + "test_the_transport_of_the_manual"))
    (copy / "dies.py").write_text(DIES)
    command = words("aiocoll run -n 3 --on-failure shrink dies.py")
    environ = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environ, capture_output=True, text=True, timeout=60)
    assert sorted(done.stdout.splitlines()) == ["[r0] lost 1", "[r2] lost 1"], done.stderr


def test_the_algorithm_of_the_manual(copy: Path) -> None:
    added = copy / "aiocoll" / "algorithms" / "along_a_chain.py"
    added.write_text(taken("add_algorithm.md", HERE + "test_the_algorithm_of_the_manual"))
    shutil.copytree(ROOT / "tests" / "algorithms", copy / "tests" / "algorithms")
    shutil.copy(ROOT / "pyproject.toml", copy)
    follow("add_algorithm.md", copy)


def test_the_launcher_of_the_manual(copy: Path) -> None:
    code = taken("add_launcher.md", HERE + "test_the_launcher_of_the_manual")
    added = copy / "aiocoll" / "place" / "grove.py"
    added.write_text(code)
    follow("add_launcher.md", copy)
    added.unlink()  # and the same from a package of one's own
    (copy / "your_package").mkdir()
    (copy / "your_package" / "grove.py").write_text(code)
    told = copy / "your_package-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: your_package\nVersion: 1.0\n")
    (entries,) = [each.code for each in snippets(ROOT / "docs" / "add_launcher.md") if each.language == "toml"]
    (told / "entry_points.txt").write_text(entries.replace("[project.entry-points.", "[").replace('"', ""))
    follow("add_launcher.md", copy)
