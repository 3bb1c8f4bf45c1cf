"""The page on notebooks and the example notebook, cell by cell on a real kernel."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.docs.snippets import ROOT, Snippet, snippets
from tests.notebook.kernel import execute

PAGE = ROOT / "docs" / "notebooks.md"
EXAMPLE = ROOT / "examples" / "notebook.ipynb"


@pytest.fixture(scope="module")
def outputs() -> dict[str, dict[str, Any]]:
    """Of the page's cells, by line, then of the example's, by number: one kernel for both."""
    cells = {each.where: each.code for each in blocks() if each.language == "python"}
    example = [cell for cell in json.loads(EXAMPLE.read_text())["cells"] if cell["cell_type"] == "code"]
    cells |= {f"example {number}": "".join(cell["source"]) for number, cell in enumerate(example)}
    return execute(cells)


def blocks() -> list[Snippet]:
    return snippets(PAGE)


def test_the_pages_cells_do_what_they_say(outputs: dict[str, dict[str, Any]]) -> None:
    cell, compared = {}, 0
    for block in blocks():
        if block.language == "python":
            cell = outputs[block.where]
            assert not cell["error"], (block.where, cell["shown"], cell["stderr"])
        else:
            assert (cell["stdout"] + cell["value"]).strip() == block.code.strip(), block.where
            compared += 1
    assert compared == 4


def test_the_example_finds_the_eigenvalue(outputs: dict[str, dict[str, Any]]) -> None:
    import numpy as np

    n = np.arange(300)
    value = float(np.linalg.eigvalsh(1.0 / (1.0 + np.abs(n[:, None] - n)))[-1])
    example = [cell for name, cell in outputs.items() if name.startswith("example")]
    assert not any(cell["error"] or cell["stderr"] for cell in example)
    assert len(example[1]["stdout"].splitlines()) == 3 and "rows 100 to 199: 0.2 MB" in example[1]["stdout"]
    assert example[2]["stdout"] == f"[r0] Out: {round(value, 6)}\n"
    lines = example[3]["stdout"].splitlines()
    assert all(line.startswith(f"[r{rank}] Out: (True, ") for rank, line in enumerate(lines))
    assert len(lines) == 3 and example[4]["stdout"] == "3 ranks have ended\n"
