"""docs/cases.md is true: every case has a test, every test listed exists, and no test of a case is missing there.

The rule: a test of a case is named after it, `test_<case>_<what>` (`test_j2_k5_…` for two of them).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "cases.md"
NUMBERS = {
    "A": (1, 2, 3, 5, 6, 8, 10, 11), "B": (1, 3, 4, 5, 7, 9), "C": (1, 2, 3, 5, 7), "D": (1, 3, 5),
    "E": (1, 3, 5, 6, 8), "F": (1, 2, 3, 5, 7, 8, 10, 11), "G": (1, 3, 5, 6), "H": (1, 3, 4, 5, 7, 8, 9),
    "I": (1, 3, 5, 6, 7), "J": (1, 2, 4, 6, 7), "K": (1, 3, 5), "L": (1, 3, 5, 6, 7), "M": (1, 3, 5, 7, 8, 10),
    "N": (1, 3, 5, 7, 8, 10, 11), "P": (1, 3, 4), "Q": (1, 3), "R": (1, 3, 5), "S": (1, 3),
}  # fmt: skip
CASES = [f"{letter}{number}" for letter, numbers in NUMBERS.items() for number in numbers]
ROW = re.compile(r"^\| ([A-S]\d+) \| (.*?) \| (.*) \|$", re.MULTILINE)
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


@cache
def listed() -> dict[str, list[tuple[str, str]]]:
    """(file, test) by case, as the page has them; a case may have several rows."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for case, _, tests in ROW.findall(PAGE.read_text()):
        found[case] += TEST.findall(tests)
    return found


@cache
def names_in(file: str) -> frozenset[str]:
    """The names of a file's tests."""
    tree = ast.parse((ROOT / file).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def cases_of(test: str) -> list[str]:
    """The cases after which a test is named."""
    start = re.match(r"test((?:_[a-s]\d+)+)_", test)
    return [case for case in start[1].upper().split("_") if case in CASES] if start else []


def test_the_page_has_every_case_and_no_other() -> None:
    assert len(CASES) == 87
    assert list(dict.fromkeys(case for case, _, _ in ROW.findall(PAGE.read_text()))) == CASES
    assert all(len(what) > 10 for _, what, _ in ROW.findall(PAGE.read_text()))


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_a_test_that_exists_and_is_named_after_it(case: str) -> None:
    assert listed()[case], f"no test of {case} in docs/cases.md"
    for file, test in listed()[case]:
        assert (ROOT / file).exists() and test in names_in(file), f"{file}::{test} is not there"
        assert case in cases_of(test), f"{test} is not named after {case}"


def test_every_test_of_a_case_is_on_the_page() -> None:
    missing = [
        f"| {case} | … | {file}::{test} |"
        for file in sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
        for test in sorted(names_in(file))
        for case in cases_of(test)
        if (file, test) not in listed()[case]
    ]
    assert not missing, "docs/cases.md lacks:\n" + "\n".join(missing)
