"""What verdicts say of each op, dtype, layout and form, as tables in Markdown.

Rule: a table is made of verdicts alone; what was not played is shown as such, and what differs within a square too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from . import kinds
from .cells import FORMS, MOVEMENTS, REDUCTIONS, op_names
from .play import REFUSED, RIGHT, Verdict

_SIGNS = {
    frozenset(): " ",
    frozenset({RIGHT}): "✓",
    frozenset({REFUSED}): "–",
    frozenset({RIGHT, REFUSED}): "✓ –",
}
HEAD = "<!-- made by scripts/matrix.py -->"


def tables(verdicts: Iterable[Verdict]) -> str:
    """All tables."""
    every = [each for each in verdicts]
    ordinary = [each for each in every if kinds.fixed(each.cell.dtype)]
    able = [each for each in ordinary if not (each.cell.op and each.found == REFUSED and _by_op(each))]
    names = list(kinds.dtypes())
    reductions = [each for each in every if each.cell.op and each.cell.layout == "C"]
    movements = [each for each in every if not each.cell.op and each.cell.layout == "C"]
    fresh = [each for each in able if each.cell.out == "new" and not each.cell.facade]
    filled = [each for each in able if each.cell.out != "new" or each.cell.facade]
    layouts, calls = list(kinds.LAYOUTS), [*MOVEMENTS, *REDUCTIONS]
    parts = [
        ("Reductions: op by dtype", _table("dtype", names, op_names(), reductions, lambda c: (c.dtype, c.op))),
        ("Movement: call by dtype", _table("dtype", names, MOVEMENTS, movements, lambda c: (c.dtype, c.collective))),
        ("New results: call by layout of the input",
         _table("layout", layouts, calls, fresh, lambda c: (c.layout, c.collective))),
        ("Into `out`, in place, or into a tensor of `aiocoll.distributed`: call by layout of input and output",
         _table("layout", layouts, calls, filled, lambda c: (c.layout, c.collective))),
        ("Forms: call by form",
         _table("form", FORMS, calls, able, lambda c: (c.form, c.collective))),
    ]  # fmt: skip
    return "\n".join(f"## {title}\n\n{text}" for title, text in parts)


def _by_op(verdict: Verdict) -> bool:
    from . import loops

    return not loops.able(verdict.cell.op, verdict.cell.dtype)


def _table(
    corner: str, rows: Sequence[str], columns: Sequence[str], verdicts: Sequence[Verdict],
    place: Callable[..., tuple[str, str]],
) -> str:  # fmt: skip
    squares: dict[tuple[str, str], set[str]] = {}
    for each in verdicts:
        squares.setdefault(place(each.cell), set()).add("wrong" if each.wrong else each.found)
    lines = [f"| {corner} | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 1) + "|"]
    for row in rows:
        signs = [_SIGNS.get(frozenset(squares.get((row, column), ())), "**wrong**") for column in columns]
        lines.append(f"| {row} | " + " | ".join(signs) + " |")
    return "\n".join(lines) + "\n"


__all__ = ["HEAD", "tables"]
