"""The project around the package: what README and pyproject promise is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_readme_has_exactly_two_set_up_commands() -> None:
    commands = re.findall(r"^python3 .*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [command.split("#")[0].strip() for command in commands] == [
        "python3 scripts/demo.py",
        "python3 scripts/test.py",
    ]


def test_ci_calls_the_readme_test_command() -> None:
    lines = [line.strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    assert any(line.endswith("python3 scripts/test.py") and not line.startswith(("#", "echo")) for line in lines)
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_every_extra_that_a_message_names_exists() -> None:
    named = set()
    for path in (ROOT / "aiocoll").rglob("*.py"):
        named |= set(re.findall(r"aiocoll\[([a-z]+)\]", path.read_text()))
    assert named <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_every_example_is_run_by_a_test() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "examples").glob("test_*.py"))
    for example in (ROOT / "examples").glob("*.py"):
        assert example.name in tests, f"no test in tests/examples runs {example.name}"
