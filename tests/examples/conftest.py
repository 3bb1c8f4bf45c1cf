"""How the tests of the examples start a job: as somebody who has installed the wheel and copied the examples.

The rule: the source tree is out of reach. The wheel is built once, and stands in an environment with exactly what its
metadata asks for, taken from the environment of the tests, and nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Job = Callable[..., "subprocess.CompletedProcess[str]"]
_REQUIREMENT = re.compile(r"([\w.-]+)(\[[\w,]+\])?")


@dataclass(frozen=True)
class Installed:
    """A Python with the wheel, and a folder with the examples."""

    python: Path
    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """Variables that lead nowhere else."""
        return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(self, *command: str, seconds: float = 100) -> subprocess.CompletedProcess[str]:
        """Runs that Python in the folder; gives its output."""
        whole = [str(self.python), *command]
        return subprocess.run(whole, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=seconds)


def wanted(name: str, found: dict[str, Distribution], extra: str = "") -> None:
    """Adds a distribution of this environment and all that it needs."""
    known = distribution(name)
    found[name] = known
    for line in known.requires or ():
        requirement, _, condition = line.partition(";")
        if "extra" in condition and f'extra == "{extra}"' not in condition.replace("'", '"'):
            continue
        needed = _REQUIREMENT.match(requirement.strip())
        assert needed
        if needed[1] not in found:
            try:
                wanted(needed[1], found)
            except ModuleNotFoundError:  # for another platform or version of Python
                assert condition, f"{name} needs {needed[1]}, which is not here"


def lend(known: Distribution, target: Path) -> None:
    """Links a distribution's files into another site-packages, folder by folder."""
    for top in sorted({file.parts[0] for file in known.files or () if not file.parts[0].startswith("..")}):
        source = Path(str(known.locate_file(top)))
        if top != "__pycache__" and source.exists() and not (target / top).exists():
            (target / top).symlink_to(source)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The built wheel in an environment of its own."""
    base = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(base)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, text=True)
    (wheel,) = base.glob("aiocoll-*.whl")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(base / "env")
    python = base / "env" / "bin" / "python"
    (site,) = (base / "env").glob("lib/python*/site-packages")
    shutil.unpack_archive(wheel, site, "zip")
    (ours,) = (each for each in Distribution.discover(name="aiocoll", path=[str(site)]))
    needed: dict[str, Distribution] = {}
    for line in ours.requires or ():
        if "extra" not in line or re.search(r"extra == ['\"]examples['\"]", line):
            match = _REQUIREMENT.match(line)
            assert match
            wanted(match[1], needed)
    for each in needed.values():
        lend(each, site)
    shutil.copytree(ROOT / "examples", base / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    where = Installed(python, base / "examples")
    told = where.run("-c", "import aiocoll; print(aiocoll.__file__)")
    assert told.stdout.startswith(str(site)), told.stderr
    return where


@pytest.fixture
def job(installed: Installed) -> Job:
    """``job(4, "train_digits.py", "--check")`` runs an example on 4 ranks (0: with no runner); gives its output."""

    def run(ranks: int, example: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        runner = ["-m", "aiocoll", "run", "-n", str(ranks)] if ranks else []
        done = installed.run(*runner, example, *arguments)
        assert done.returncode == 0, f"{example} {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done

    return run
