"""scripts/test.py runs every folder of tests in one job or another, shows what each said, and adds it up.

The rule: small folders that are made here stand for ours.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for a checkout whose tests are in the folders one, two and three."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("side_by_side", ROOT / "scripts" / "test.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for number, name in enumerate(("one", "two", "three"), 1):
        folder = tmp_path / "tests" / name
        folder.mkdir(parents=True)
        (folder / f"test_{name}.py").write_text("".join(f"def test_{each}(): pass\n" for each in range(number)))
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "JOBS", ("two one",))
    return module


def test_all_folders_are_run_and_added_up(script: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    assert script._side_by_side(Path(sys.executable), ["-q"]) == 0
    said = capfd.readouterr().out
    assert "== tests of two one\n" in said and "== tests of three\n" in said
    assert len(re.findall(r"^3 passed in ", said, re.MULTILINE)) == 2
    assert re.fullmatch(r"== 6 passed in [\d.]+s ==", said.splitlines()[-1])


def test_what_fails_is_shown_and_is_the_exit_status(script: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    (script.ROOT / "tests" / "three" / "test_more.py").write_text("def test_more(): assert 'this' == 'that'\n")
    (script.ROOT / "tests" / "one" / "test_more.py").write_text("import os\ndef test_more(): os.kill(os.getpid(), 9)\n")
    assert script._side_by_side(Path(sys.executable), ["-q"]) in (1, 9)
    said = capfd.readouterr().out
    assert "FAILED tests/three/test_more.py::test_more" in said
    last = said.splitlines()[-1]
    assert "3 passed" in last and "1 failed" in last and re.search(r"\(exit status [19]\) ==$", last)


def test_folders_that_are_named_are_there(script: ModuleType) -> None:
    """One that is not would end its job; one that nobody has named is run all the same."""
    named = re.search(r'^JOBS = \(\n(.*?)^\)', (ROOT / "scripts" / "test.py").read_text(), re.MULTILINE | re.DOTALL)
    assert named
    folders = [name for job in re.findall(r'"(.*?)"', named[1]) for name in job.split()]
    assert len(folders) == len(set(folders)) and all((ROOT / "tests" / name).is_dir() for name in folders)
