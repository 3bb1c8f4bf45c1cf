"""The manual builds as a site without a warning, and its generated pages are what their scripts would write."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import aiocoll
import aiocoll.distributed as dist
from aiocoll import errors

from .snippets import PAGES, ROOT

pytestmark = pytest.mark.timeout(300)  # building takes ten seconds of a core, on a busy machine a minute
BUILT = [sys.executable, "-W", "ignore", "-m", "sphinx"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning is an error: a link that leads nowhere, a page without a place, a broken docstring."""
    folder = tmp_path_factory.mktemp("site")
    command = [*BUILT, "-q", "-W", "--keep-going", "-b", "html", "-d", str(folder / "doctrees"), "docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in PAGES:
        assert (site / page.with_suffix(".html").name).stat().st_size > 3000


def test_the_front_page_leads_to_every_page(site: Path) -> None:
    links = set(re.findall(r'href="([a-z_0-9]+\.html)"', (site / "index.html").read_text()))
    assert {page.with_suffix(".html").name for page in PAGES} - links - {"index.html"} == set()


def test_the_reference_holds_what_the_package_exports(site: Path) -> None:
    text = (site / "reference.html").read_text()
    names = {f"aiocoll.{name}" for name in ("run", "connect", "launch", "op", "Group", "Message")}
    names |= {f"aiocoll.Group.{name}" for name in dir(aiocoll.Group) if not name.startswith("_")}
    names |= {f"aiocoll.errors.{name}" for name in vars(errors) if name.endswith("Error")}
    missing = sorted(name for name in names if f'id="{name}"' not in text)
    assert not missing
    text = (site / "reference_blocking.html").read_text()
    public = [name for name in dist.__all__ if not name.startswith("_")]
    functions = [name for name in public if isinstance(getattr(dist, name), FunctionType)]
    missing = sorted(name for name in functions if f'id="aiocoll.distributed.{name}"' not in text)
    assert len(functions) > 50 and not missing


def test_pictures_and_code_are_in_the_site(site: Path) -> None:
    for page in ("algorithms", "examples"):
        sources = re.findall(r'src="(_images/[^"]+)"', (site / f"{page}.html").read_text())
        assert sources and all((site / source).stat().st_size > 1000 for source in sources)
    assert "swap_edges" in (site / "examples.html").read_text()


def test_programs_are_shown_from_a_name_on() -> None:
    """Not from a line's number, which the next change of the program makes wrong."""
    page = (ROOT / "docs" / "examples.md").read_text()
    shown = re.findall(r"literalinclude} \.\./(.*)\n:start-at: (.*)\n```", page)
    assert len(shown) == page.count("literalinclude") > 6
    for file, start in shown:
        lines = [line for line in (ROOT / file).read_text().splitlines() if start in line]
        assert lines and lines[0].startswith(start), f"{file}: {start}"


def test_tables_and_drawings_of_the_algorithms_are_current() -> None:
    command = [sys.executable, "scripts/draw_algorithms.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, env={}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"run python scripts/draw_algorithms.py:\n{done.stdout}{done.stderr}"
