"""What verdicts say of each op, dtype, layout and form, as tables in Markdown, and such tables read again.

Rule: a table is made of verdicts alone; what was not played is an empty square, and what differs within one is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from . import kinds, loops
from .cells import FORMS, MOVEMENTS, REDUCTIONS, Cell, op_names
from .play import REFUSED, RIGHT, Verdict

HEAD = "<!-- made by scripts/matrix.py -->"
_SIGNS = {RIGHT: "✓", REFUSED: "–"}
_CALLS = (*MOVEMENTS, *REDUCTIONS)
_UNUSUAL = (*kinds.NO_OUT, "0-d")

Square = tuple[str, str]
Squares = dict[Square, str]

OPS = "Reductions: op by dtype"
MOVES = "Movement: call by dtype"
FRESH = "New results: call by layout of the input"
FILLED = "Into `out`, in place, or into tensors of `aiocoll.distributed`: call by layout of all arrays"
BY_FORM = "Forms: call by form, on layouts that can be filled"


def squares(verdicts: Iterable[Verdict]) -> dict[str, Squares]:
    """The tables by title: for each row and column what was found there."""
    tables: dict[str, Squares] = {title: {} for title in (OPS, MOVES, FRESH, FILLED, BY_FORM)}

    def note(title: str, square: Square, verdict: Verdict) -> None:
        sign = "**wrong**" if verdict.wrong else _SIGNS[verdict.found]
        have = tables[title].get(square, "")
        if sign not in have.split():
            tables[title][square] = " ".join(sorted([*have.split(), sign], reverse=True))

    for verdict in verdicts:
        cell = verdict.cell
        usual = cell.layout not in _UNUSUAL
        if usual:
            note(OPS if cell.op else MOVES, (cell.dtype, cell.op or cell.collective), verdict)
        if _able(cell):
            filled = cell.out != "new" or cell.facade
            note(FILLED if filled else FRESH, (cell.layout, cell.collective), verdict)
            if usual:
                note(BY_FORM, (cell.form, cell.collective), verdict)
    return tables


def _able(cell: Cell) -> bool:
    """Whether the dtype travels and has this op, so that only the layout decides."""
    return kinds.fixed(cell.dtype) and not (cell.op and not loops.able(cell.op, cell.dtype))


def written(tables: Mapping[str, Squares]) -> str:
    """All of them in Markdown."""
    dtypes, layouts = list(kinds.dtypes()), list(kinds.LAYOUTS)
    plans: list[tuple[str, str, Sequence[str], Sequence[str]]] = [
        (OPS, "dtype", dtypes, op_names()),
        (MOVES, "dtype", dtypes, MOVEMENTS),
        (FRESH, "layout", layouts, _CALLS),
        (FILLED, "layout", layouts, _CALLS),
        (BY_FORM, "form", FORMS, _CALLS),
    ]
    return "\n".join(
        f"## {title}\n\n{_table(corner, rows, columns, tables[title].get)}" for title, corner, rows, columns in plans
    )


def _table(corner: str, rows: Sequence[str], columns: Sequence[str], sign: Callable[[Square, str], str]) -> str:
    lines = [f"| {corner} | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 1) + "|"]
    lines += [f"| {row} | " + " | ".join(sign((row, column), "") for column in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def read(text: str) -> dict[str, Squares]:
    """The tables of a page."""
    tables: dict[str, Squares] = {}
    columns: list[str] = []
    title = ""
    for line in text.splitlines():
        if line.startswith("## "):
            title, columns = line[3:], []
            tables[title] = {}
        elif line.startswith("|") and title:
            row, *cells = (each.strip() for each in line.strip("|").split("|"))
            if not columns:
                columns = cells
            elif row != "---":
                tables[title] |= {(row, column): sign for column, sign in zip(columns, cells, strict=True) if sign}
    return tables


__all__ = ["HEAD", "MOVES", "OPS", "read", "squares", "written"]
