"""The matrix of calls: a fair part of its cells, and its page against what they say.

The rule: no cell is wrong, and the page shows nothing that this run has not seen.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import numpy as np
import pytest

from aiocoll import ops
from aiocoll.algorithms import registry
from aiocoll.testing import grid
from aiocoll.testing.grid import kinds, page
from aiocoll.testing.grid.oracle import equal

PAGE = Path(__file__).resolve().parents[2] / "docs" / "matrix.md"
WORLDS = (("shm", 3), ("tcp", 2), ("shm", 1), ("tcp", 4))
"""Where blocking calls are made here; scripts/matrix.py has all sizes on both."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_r5_each_cell_is_right_or_refused_before_its_bytes_leave_and_the_page_says_so(
    record_property: pytest.RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    """One table of which op works on which dtype in which form, made from the calls themselves and kept true."""
    cells = list(grid.sample(seed=time.localtime().tm_yday, worlds=WORLDS, share=0.5))
    verdicts = list(grid.play(cells))
    counts = grid.grouped(verdicts)
    with capsys.disabled():
        print(f"\nmatrix of calls: {len(verdicts)} cells: {counts}")
    record_property("cells", len(verdicts))
    wrong = [f"{each.cell}: {each.found}" for each in verdicts if each.wrong]
    assert not wrong, f"again: scripts/matrix.py '{wrong[0].partition(':')[0]}'\n" + "\n".join(wrong[:20])
    assert len(verdicts) == len(cells) and counts["right"] > counts["refused"] > 1000
    _agree(page.squares(verdicts), page.read(PAGE.read_text("utf-8")))


def _agree(seen: dict[str, page.Squares], written: dict[str, page.Squares]) -> None:
    """What this run has seen is on the page, square by square, and the page leaves no op, call or dtype out."""
    assert list(seen) == list(written)
    for title, squares in seen.items():
        for square, sign in squares.items():
            also = written[title].get(square, "")
            assert set(sign.split()) <= set(also.split()), f"{title}: {square} is {sign}, docs/matrix.md says {also}"
    operations = {op for _, op in grid.rows() if op}
    movements = {collective for collective, op in grid.rows() if not op}
    for title, columns in ((page.OPS, operations), (page.MOVES, movements)):
        assert set(written[title]) == set(itertools.product(kinds.dtypes(), columns)), title
        assert len(seen[title]) > 0.9 * len(written[title]), title


def test_r5_every_op_collective_and_fixed_size_dtype_is_in_the_matrix() -> None:
    """Nothing is listed by hand that a registry knows, so that what is new cannot be forgotten."""
    collectives = {collective for collective, _ in grid.rows()}
    within = {"announce", "exchange_all", "share", "show", "spread", "barrier"}  # parts of others, or without data
    assert set(registry()) - within == collectives - {"send_recv"}
    assert {op for _, op in grid.rows()} >= set(ops.names())
    fixed = {np.dtype(char).name for char in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"}
    assert fixed <= {dtype.name for dtype in kinds.dtypes().values()}
    assert len(kinds.dtypes()) > 40, "ml_dtypes is missing"


def test_cells_are_lines_that_replay_them_and_a_seed_gives_the_same_ones() -> None:
    first, again, other = (list(itertools.islice(grid.cells(seed), 500)) for seed in (1, 1, 2))
    assert first == again != other
    assert [grid.cell_of(str(cell)) for cell in first] == first


def test_what_is_wrong_is_found() -> None:
    """A matrix that finds nothing must find what is put there."""
    wanted = np.arange(6.0).reshape(2, 3)
    assert equal(wanted.copy(), wanted) and equal(np.asfortranarray(wanted), wanted)
    for wrong in (wanted.T, wanted + 1, wanted.astype("f4"), wanted.reshape(-1), list(wanted)):
        assert not equal(wrong, wanted)
    sliced = kinds.LAYOUTS["sliced"](wanted)
    between = kinds.gaps(sliced)
    assert between is not None and kinds.untouched(between)
    between[0, 0] = 7
    assert not kinds.untouched(between)


def test_a_page_is_read_as_it_was_written() -> None:
    cells = [
        grid.Cell(collective, op, dtype, layout, "await", "inproc", 2, "new", 5)
        for collective, op in (("scan", "MEAN"), ("scan", "BOR"), ("gather", ""))
        for dtype in ("int16", "S5", "float32")
        for layout in ("C", "sliced", "0-d", "empty")
    ]
    verdicts = list(grid.play(cells))
    assert not [each for each in verdicts if each.wrong]
    squares = page.squares(verdicts)
    assert squares[page.OPS]["int16", "MEAN"] == "✓" and squares[page.OPS]["float32", "BOR"] == "–"
    assert squares[page.MOVES]["S5", "gather"] == squares[page.FRESH]["empty", "scan"] == "✓"
    assert page.read(page.written(squares)) == squares
