"""The import contract of pyproject.toml holds: rooms import downwards only, pure rooms stay pure."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from importlinter import configuration
from importlinter.application import use_cases

ROOT = Path(__file__).resolve().parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def test_every_contract_is_kept(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    configuration.configure()
    kept = use_cases.lint_imports(config_filename="pyproject.toml", cache_dir=None)
    assert kept, "\n" + capsys.readouterr().out


def test_every_room_has_its_layer() -> None:
    """The layers name each module of the package once, so that a new one must be given its place."""
    layers = next(contract for contract in CONTRACTS if contract["type"] == "layers")["layers"]
    named = [name.strip("() ") for layer in layers for name in re.split(r"[|:]", layer)]
    optional = {name.strip("() ") for layer in layers for name in layer.split("|") if "(" in name}
    package = ROOT / "aiocoll"
    present = {path.stem for path in package.glob("*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    present.discard("__init__")
    assert len(named) == len(set(named)), "a room stands in two layers"
    assert present - set(named) == set(), "rooms without a layer"
    assert set(named) - present - optional == set(), "layers without a room"
