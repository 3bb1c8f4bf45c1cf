"""scripts/environment.py makes an environment once, reuses it, notices changes, and says what to do when it cannot."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script's module, for a checkout in ``tmp_path``, with a list of installs in place of pip."""
    spec = importlib.util.spec_from_file_location("environment", ROOT / "scripts" / "environment.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    module.installed = []
    monkeypatch.setattr(module, "_pip", lambda python, what: module.installed.append(what))
    monkeypatch.setattr(module, "_create", _bare)
    return module


def _bare(home: Path) -> None:
    """Stands in for a virtual environment: its Python is ours."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to(sys.executable)


def test_it_is_made_once_and_then_reused(environment: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    python = environment.prepare("dev", "examples")
    assert python == environment.ROOT / ".venv" / "bin" / "python"
    assert environment.installed == [["--editable", ".[dev,examples]"]]
    assert "making a virtual environment in .venv" in capsys.readouterr().out
    assert environment.prepare("dev", "examples") == python
    assert len(environment.installed) == 1
    assert "using .venv (made earlier" in capsys.readouterr().out


def test_two_scripts_share_it(environment: ModuleType) -> None:
    for extras in (("examples",), ("dev", "examples"), ("examples",), ("dev", "examples")):
        environment.prepare(*extras)
    assert environment.installed == [["--editable", ".[examples]"], ["--editable", ".[dev,examples]"]]


def test_other_requirements_are_another_install(environment: ModuleType) -> None:
    environment.prepare()
    (environment.ROOT / "pyproject.toml").write_text("[project]\nname = 'changed'\n")
    environment.prepare()
    assert environment.installed == [["--editable", "."]] * 2


def test_peers_stand_apart(environment: ModuleType) -> None:
    python = environment.prepare_peer("gloo", "torch==2.13.0", "numpy")
    assert python == environment.ROOT / ".venv-gloo" / "bin" / "python"
    assert environment.installed == [["torch==2.13.0", "numpy"]]


def test_an_old_python_is_told_apart(environment: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(environment, "OLDEST", (9, 9))
    with pytest.raises(SystemExit) as ended:
        environment.prepare()
    assert ended.value.code == 2
    assert "needs Python 9.9 or newer" in capsys.readouterr().err


def test_a_python_that_can_make_none_says_what_to_install(tmp_path: Path, monkeypatch, capsys) -> None:
    spec = importlib.util.spec_from_file_location("environment_bare", ROOT / "scripts" / "environment.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        module._create(tmp_path / "env")
    assert "apt-get install python3-venv" in capsys.readouterr().err
