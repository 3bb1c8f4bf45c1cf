"""Plays the matrix of calls and writes its page: python3 scripts/matrix.py [--sample] [--seed S] [--write] [CELL ...]

Without CELLs all of them: collective x op x dtype x layout x form, with transports, sizes, outputs and values dealt out
by the seed. A CELL is a line that a run has printed. The rule: the page says what this run has seen, and nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aiocoll.testing import grid
from aiocoll.testing.grid.page import HEAD, squares, written

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "matrix.md"
INTRODUCTION = """# What works on what

Every reduction and movement on every dtype and layout, as a run of `scripts/matrix.py` has found it: **✓** right,
element by element as NumPy computes it; **–** refused with `UsageError` on all ranks, before anything of the array
has left any of them; **✓ –** depends on what else is asked, as the notes say. `first` and `last` are functions of a
user's that do not commute: they give the left and the right operand.

A cell is one call of one op on one dtype in one layout and form; its number of ranks (1 to 5), its transport
(awaited: simulated, in-process, TCP, shared memory; blocking, started and documented calls: TCP and shared memory
between processes), its root, values (overflow, NaN and infinities among them), length and output are dealt out by a
seed, and so is the algorithm, where calls are simulated. A test plays a sample of the same cells, another one every
day, and compares its tables with these.

Integers wrap as NumPy's do, and `SUM` of bool is `or`. float16, bfloat16 and other narrow floats are added and
multiplied in float32 and rounded once. `MEAN` of integers is float64 unless it is computed in place, or into an `out`
of another dtype. Text, raw bytes and structures have no built-in reductions, dates no sums; objects and `StringDType`
have no fixed size and belong to the object calls. `float8_e8m0fnu` has no 0, and therefore no false.

An output must be writable and its elements must not overlap, so views that were broadcast and arrays that
are read-only are inputs only (the root of a documented `broadcast`, whose tensor is only read, may have them). A number
cannot be filled, has no axis along which `reduce_scatter` could cut it, and is no tensor for `aiocoll.distributed`.
"""


def main() -> int:
    """Plays, prints findings and counts; exit status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description="Play the matrix of calls.", allow_abbrev=False)
    parser.add_argument("--sample", action="store_true", help="a fair part of the cells instead of all")
    parser.add_argument("--seed", type=int, default=0, help="what deals out sizes, outputs and values")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    parser.add_argument("cells", nargs="*", metavar="CELL", help="a cell that a run has printed")
    options = parser.parse_args()
    chosen = [grid.cell_of(text) for text in options.cells]
    every = chosen or list(grid.sample(options.seed) if options.sample else grid.cells(options.seed))
    print(f"{len(every)} cells", flush=True)
    started, verdicts = time.monotonic(), []
    for verdict in grid.play(every):
        verdicts.append(verdict)
        if verdict.wrong:
            print(verdict.cell, verdict.found, sep="\n    ", flush=True)
        if len(verdicts) % 5000 == 0:
            print(f"{len(verdicts)} cells after {time.monotonic() - started:.0f} s", flush=True)
    counts = grid.grouped(verdicts)
    summary = f"{len(verdicts)} cells: {counts['right']} right, {counts['refused']} refused, {counts['wrong']} wrong"
    print(f"{summary}, in {time.monotonic() - started:.0f} s")
    if options.write and not chosen:
        PAGE.write_text(f"{INTRODUCTION}\n{HEAD}\n\n{summary}.\n\n{written(squares(verdicts))}", "utf-8")
    return 1 if counts["wrong"] or len(verdicts) < len(every) else 0


if __name__ == "__main__":
    sys.exit(main())
