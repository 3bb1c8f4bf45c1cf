"""The code blocks of the manual, with the comments that say how each one is run.

The rule: a Python block runs on every rank of a job unless an HTML comment right above it, which readers never see,
says otherwise. Its first word is one of

    given            what follows runs first, with a fresh ``group``                        (the default, without more)
    blocking         the same between init_process_group and destroy_process_group
    alone            once, in the process of the test: what starts ranks by itself
    file NAME        is saved under that name for the commands of the page, which run it
    by TEST          another test takes it from the page: ``tests/x/test_y.py::test_z``

A line ``replace: A => B`` of that comment changes the text (a minute to wait becomes a moment), and a comment that
begins with ``then`` below the block holds what must be true afterwards.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = {**os.environ, "PYTHONPATH": str(ROOT)}
"""Variables for a program that lies elsewhere and whose library is this one."""
PAGES = sorted((ROOT / "docs").glob("*.md"))
HOW = ("given", "blocking", "alone", "file", "by")
_BLOCK = re.compile(
    r"(?:^<!-- (?P<how>given|blocking|alone|file|by|exits)\b(?P<more>[^\n]*?)(?P<lines>(?:\n(?:(?!-->).)*)?)-->\n)?"
    r"^(?P<fence>```+)(?P<language>[a-z]+)\n(?P<code>.*?)^(?P=fence)\n"
    r"(?:<!-- then\b(?P<then>(?:(?!-->).)*)-->)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Snippet:
    """One block of one page."""

    page: str
    line: int
    language: str
    code: str
    how: str
    argument: str
    given: str
    then: str

    @property
    def where(self) -> str:
        """docs/page.md:LINE"""
        return f"{self.page}:{self.line}"


def snippets(page: Path) -> list[Snippet]:
    """All blocks of a page that say in which language they are."""
    text = page.read_text()
    found = []
    for each in _BLOCK.finditer(text):
        given, code = [], each["code"]
        for line in (each["lines"] or "").strip("\n").splitlines():
            if line.startswith("replace: "):
                before, _, after = line.removeprefix("replace: ").partition(" => ")
                assert before in code, f"{page.name}: {before!r} is to be replaced, and is not there"
                code = code.replace(before, after)
            else:
                given.append(line)
        found.append(
            Snippet(
                page=str(page.relative_to(ROOT)),
                line=text.count("\n", 0, each.start("code")) + 1,
                language=each["language"],
                code=code,
                how=each["how"] or "given",
                argument=(each["more"] or "").strip(),
                given="\n".join(given),
                then=(each["then"] or "").strip("\n"),
            )
        )
    return found


def python(page: Path) -> list[Snippet]:
    """The Python blocks of a page."""
    return [each for each in snippets(page) if each.language == "python"]


def taken(page: str, name: str) -> str:
    """The code of the block of ``docs/page`` that is saved as ``name``, or run by the test of that name."""
    blocks = python(ROOT / "docs" / page)
    (found,) = [each for each in blocks if each.how in ("file", "by") and each.argument == name]
    return found.code
