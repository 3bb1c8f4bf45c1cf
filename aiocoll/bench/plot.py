"""--plot: time and bus bandwidth over size, as a picture.

The rule: matplotlib is looked for before anything is measured, and is only imported here.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .records import Report, Row
from .table import size_text

_STYLES = {"out": "-", "in": "--"}
_WORDS = {"out": "out of place", "in": "in place"}


def check_plot() -> None:
    """UsageError where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'aiocoll[plot]'")


def plot(report: Report, path: Path) -> None:
    """Writes the picture, in the format that the name's ending says."""
    check_plot()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    FigureCanvasAgg(figure)
    times, rates = figure.subplots(1, 2)
    for number, (label, rows) in enumerate(series(report).items()):
        colour = f"C{number % 10}"
        for place, style in _STYLES.items():
            here = [row for row in rows if place in row.cells]
            if here:
                sizes = [row.nbytes for row in here]
                words = f"{label}, {_WORDS[place]}"
                times.plot(sizes, [1e6 * row.cells[place].seconds for row in here], style, color=colour, label=words)
                rates.plot(sizes, [row.busbw(row.cells[place]) for row in here], style, color=colour, label=words)
        floors = [(row.nbytes, seconds) for row in rows if (seconds := row.floor.of(row.transport))]
        if floors:
            least = [1e6 * seconds for _, seconds in floors]
            times.plot([nbytes for nbytes, _ in floors], least, ":", color=colour, label=f"{label}, floor")
    _axes(times, "time per call (µs)", logarithmic=True)
    _axes(rates, "bus bandwidth (GB/s)", logarithmic=False)
    figure.legend(*times.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize="small")
    ranks, cpu, cpus = (report.machine.get(name) for name in ("ranks", "cpu", "cpus"))
    figure.suptitle(f"world of {ranks}, {cpu}, usable CPUs: {cpus}", fontsize="medium")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:  # ValueError: an ending that means no format
        raise UsageError(f"--plot {path}: {error}") from error


def series(report: Report) -> dict[str, list[Row]]:
    """The lines of the picture by their label: rows that differ in size only."""
    found: dict[str, list[Row]] = {}
    for row in report.rows:
        if row.nbytes:
            label = " ".join(filter(None, (row.collective, row.dtype, row.op, row.forced, row.transport)))
            found.setdefault(label, []).append(row)
    return found


def _axes(axes: Any, label: str, *, logarithmic: bool) -> None:
    axes.set_xscale("log", base=2)
    if logarithmic:
        axes.set_yscale("log")
    axes.set_xlabel("bytes of one rank's input")
    axes.set_ylabel(label)
    axes.xaxis.set_major_formatter(lambda size, _: size_text(round(size)))
    axes.tick_params(axis="x", labelrotation=45)
    axes.grid(visible=True, alpha=0.3)
