"""The table as text, Markdown and CSV, and sizes and times as people read them.

The rule: the columns are those of nccl-tests, in its order and units; text and Markdown show both places side by side,
CSV has a line for each.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

from .records import Cell, Report, Row

_LEFT: Final = ("size", "count", "type", "op", "root")
_CELL: Final = ("time", "p99", "algbw", "busbw", "#wrong", "eff")
_WIDTHS: Final = {
    "size": 10, "count": 10, "type": 8, "op": 4, "root": 4, "time": 9, "p99": 9, "algbw": 6, "busbw": 6, "#wrong": 6,
    "eff": 5, "floor": 9,
}  # fmt: skip
_UNITS: Final = {
    "size": "(B)", "count": "(elements)", "time": "(us)", "p99": "(us)", "algbw": "(GB/s)", "busbw": "(GB/s)",
    "floor": "(us)",
}  # fmt: skip
_PLACES: Final = {"out": "out-of-place", "in": "in-place"}
_KIB: Final = 1 << 10


def size_text(nbytes: int) -> str:
    """4 B, 16 KiB, 1.5 MiB."""
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < _KIB:
            break
        size, unit = size / _KIB, larger
    return f"{size:g} {unit}" if size == int(size) else f"{size:.1f} {unit}"


def time_text(seconds: float) -> str:
    """Microseconds, with as many digits as mean something."""
    micros = seconds * 1e6
    return f"{micros:.2f}" if micros < 100 else f"{micros:.1f}" if micros < 10_000 else f"{micros:.0f}"


def _rate_text(rate: float) -> str:
    return f"{rate:.2f}" if rate < 1000 else f"{rate:.0f}"


def _left(row: Row) -> list[str]:
    return [str(row.nbytes), str(row.count), row.dtype or "-", row.op or "none", str(row.root)]


def _cell(row: Row, cell: Cell | None) -> list[str]:
    if cell is None:
        return ["N/A", "", "", "", "", ""]
    efficiency = row.efficiency(cell)
    return [
        time_text(cell.seconds), time_text(cell.p99), _rate_text(row.algbw(cell)), _rate_text(row.busbw(cell)),
        str(cell.wrong), "-" if efficiency is None else f"{efficiency:.2f}",
    ]  # fmt: skip


def _right(row: Row) -> list[str]:
    floor = row.floor.of(row.transport)
    return ["-" if floor is None else time_text(floor), row.transport or "-", row.algorithm or "-"]


def text_head(row: Row, places: Sequence[str]) -> Iterator[str]:
    """The lines above the first row of a collective."""
    names = [*_LEFT, *_CELL * len(places), "floor"]
    left = sum(_WIDTHS[name] + 1 for name in _LEFT)
    each = sum(_WIDTHS[name] + 1 for name in _CELL)
    calls = dict.fromkeys(cell.call for cell in row.cells.values())
    yield f"# {row.collective}: {', '.join(calls)}"
    yield "#" + " " * (left - 1) + "".join(_PLACES[place].center(each) for place in places).rstrip()
    for line in (names, [_UNITS.get(name, "") for name in names]):
        cells = " ".join(text.rjust(_WIDTHS[name]) for text, name in zip(line, names, strict=True))
        yield "#" + cells[1:] + ("  over  algorithm" if line is names else "")


def text_row(row: Row, places: Sequence[str]) -> str:
    """One line."""
    names = [*_LEFT, *_CELL * len(places), "floor"]
    floor, over, algorithm = _right(row)
    cells = [text for place in places for text in _cell(row, row.cells.get(place))]
    texts = [*_left(row), *cells, floor]
    line = " ".join(text.rjust(_WIDTHS[name]) for text, name in zip(texts, names, strict=True))
    return f"{line}  {over:4}  {algorithm}".rstrip()


def text_machine(machine: dict[str, Any]) -> str:
    """Where it was measured, above everything."""
    plural = {name: "s" if machine[name] > 1 else "" for name in ("ranks", "hosts", "cpus")}
    return (
        f"# aiocoll {machine['aiocoll']}, {machine['python']}, NumPy {machine['numpy']}; {machine['cpu']}, "
        f"{machine['cpus']} usable CPU{plural['cpus']}, {machine['system']}\n"
        f"# {machine['ranks']} rank{plural['ranks']} on {machine['hosts']} host{plural['hosts']}, "
        f"transport {machine['transport']}, calls: {machine['caller']}"
    )


def text_end(report: Report) -> Iterator[str]:
    """The last lines."""
    if report.rows:
        yield from _floors(report)
    yield f"# out of bounds values: {report.wrong} {'OK' if not report.wrong else 'FAILED'}"
    yield f"# avg bus bandwidth: {report.mean_busbw:.4f} GB/s"


def _floors(report: Report) -> Iterator[str]:
    """What the machine can do, at the smallest and the largest size that was measured."""
    rows = [row for row in report.rows if row.floor.memcpy and row.nbytes]
    if not rows:
        return
    small, large = min(rows, key=lambda row: row.nbytes), max(rows, key=lambda row: row.nbytes)
    kinds = (("memcpy", "copy"), ("memory", "flag through shared memory and copy"), ("socket", "raw socket, one way"))
    for name, text in kinds:
        ends = {row.nbytes: getattr(row.floor, name) for row in (small, large)}
        if None not in ends.values():
            said = "; ".join(f"{time_text(seconds)} us for {size_text(nbytes)}" for nbytes, seconds in ends.items())
            yield f"# floor, {text}: {said}"


def markdown_head(places: Sequence[str]) -> Iterator[str]:
    """The two lines that open a table."""
    several = len(places) > 1
    names = ["collective", *_LEFT]
    for place in places:
        names += [f"{_PLACES[place]} {name}" if several else name for name in _with_units(_CELL)]
    names += [*_with_units(("floor",)), "over", "algorithm"]
    yield f"| {' | '.join(names)} |"
    yield f"|{'|'.join([' --- '] + [' ---: '] * (len(names) - 3) + [' --- ', ' --- '])}|"


def _with_units(names: Sequence[str]) -> list[str]:
    return [f"{name} {_UNITS[name]}" if name in _UNITS else name for name in names]


def markdown_row(row: Row, places: Sequence[str]) -> str:
    """One line."""
    cells = [text for place in places for text in _cell(row, row.cells.get(place))]
    size, *rest = _left(row)
    return f"| {' | '.join([row.collective, size_text(int(size)), *rest, *cells, *_right(row)])} |"


CSV_COLUMNS: Final = (
    "collective", "place", "size_bytes", "count", "type", "op", "root", "ranks", "over", "algorithm", "caller",
    "shared", "time_us", "low_us", "high_us", "p99_us", "algbw_gb_s", "busbw_gb_s", "wrong", "calls", "floor_memcpy_us",
    "floor_memory_us", "floor_socket_us", "efficiency",
)  # fmt: skip


def csv_head() -> str:
    """The names of the columns."""
    return _csv_line(CSV_COLUMNS)


def csv_lines(row: Row) -> Iterator[str]:
    """One line per place; exact numbers, empty where there is none."""
    floors = [_micros(seconds) for seconds in (row.floor.memcpy, row.floor.memory, row.floor.socket)]
    for place, cell in row.cells.items():
        efficiency = row.efficiency(cell)
        yield _csv_line([
            row.collective, place, row.nbytes, row.count, row.dtype, row.op, row.root, row.ranks, row.transport,
            row.algorithm, row.caller, int(row.shared), *map(_micros, (cell.seconds, cell.low, cell.high, cell.p99)),
            f"{row.algbw(cell):.6g}", f"{row.busbw(cell):.6g}", cell.wrong, cell.calls, *floors,
            "" if efficiency is None else f"{efficiency:.4g}",
        ])  # fmt: skip


def _micros(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.6g}"


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()
