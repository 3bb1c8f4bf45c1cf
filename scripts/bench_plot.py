"""The plot of docs/performance.md: time per call over bytes, from what scripts/bench.py wrote as JSON.

    bench_plot.py REPORT.json PLOT.svg

The rule: draws what is in the file, and decides nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib

CALLS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
LINES = {  # name, colour, marker
    "aiocoll": ("aiocoll", "tab:red", "o"),
    "sync": ("aiocoll", "tab:red", "o"),
    "empty()": ("aiocoll, empty()", "tab:orange", "s"),
    "gloo": ("Gloo", "tab:gray", "^"),
    "mpich": ("MPICH", "tab:blue", "v"),
    "openmpi": ("Open MPI", "tab:green", "D"),
}


def main() -> None:
    """One panel per collective."""
    source, target = map(Path, sys.argv[1:])
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "aiocoll", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    rows: list[dict[str, Any]] = json.loads(source.read_text())["rows"]
    rows = [row for row in rows if row["stage"] == "2 ranks" and row["dtype"] == "float32"]
    figure, panels = pyplot.subplots(1, len(CALLS), figsize=(3.1 * len(CALLS), 3.2), sharey=True)
    for panel, call in zip(panels, CALLS, strict=True):
        mine = sorted((row for row in rows if row["what"] == call), key=lambda row: row["nbytes"])
        for name, (label, colour, marker) in LINES.items():
            points = [
                (row["nbytes"], 1e6 * statistics.median(row["seconds"][name]))
                for row in mine
                if row["seconds"].get(name)
            ]
            if points:
                panel.plot(
                    *zip(*points, strict=True), label=label, color=colour, marker=marker, markersize=3, linewidth=1
                )
        panel.set(title=call, xscale="log", yscale="log", xlabel="bytes")
        panel.set_xscale("log", base=2)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("µs per call")
    panels[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main()
