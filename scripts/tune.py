"""Measures the algorithms on this machine and writes the table by which they are chosen.

    python3 scripts/tune.py --quick                  # what would change, in a minute or two
    python3 scripts/tune.py --write                  # into aiocoll/tuning/default.json
    python3 scripts/tune.py --transport tcp --output table.json

The rule: algorithms take turns in blocks, a block's time is that of its slowest rank, and only who is clearly faster
than the present choice becomes a rule. All ranks must choose alike, so a table is for all ranks of a job: it ships with
the package, and nothing is measured when ranks connect.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environment import ROOT, clean_environment, prepare, say

KIB, MIB = 1 << 10, 1 << 20
COLLECTIVES = ("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "scan", "exscan", "barrier")
SIZES = (8, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB)
QUICK = (8, 16 * KIB, 256 * KIB, 4 * MIB)
INLINE_BYTES = 4 * KIB
"""An all_gather of blocks up to this makes no choice: they travel with their description."""
CLEARLY = 0.92
"""What is not faster than this share of the other's time is no reason to change."""
ANSWER_SECONDS_MAX = 120.0
TABLE = ROOT / "aiocoll" / "tuning" / "default.json"


@dataclass(frozen=True)
class Cell:
    """One call whose algorithms are compared."""

    collective: str
    size: int
    nbytes: int


@dataclass
class Times:
    """Median seconds by algorithm for each cell, and what is chosen there without these measurements."""

    seconds: dict[Cell, dict[str, float]] = field(default_factory=dict)
    chosen: dict[Cell, str] = field(default_factory=dict)


class Ranks:
    """So many processes that do what they are told; a hanging one ends the script."""

    def __init__(self, size: int, transport: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {key: value for key, value in clean_environment().items() if not key.startswith("OPENBLAS_")}
        environment["PYTHONPATH"] = str(ROOT)
        command = [sys.executable, str(ROOT / "scripts" / "tune_rank.py")]
        self.ranks = [
            subprocess.Popen(
                [*command, str(rank), str(size), str(port), transport],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )
            for rank in range(size)
        ]  # fmt: skip

    def order(self, **order: Any) -> float:
        """The slowest rank's answer."""
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps(order) + "\n")
            rank.stdin.flush()
        answers = []
        for rank in self.ranks:
            assert rank.stdout is not None
            line = rank.stdout.readline()
            if not line:
                raise SystemExit(f"a rank ended with status {rank.wait()} during {order}")
            answers.append(float(json.loads(line)))
        return max(answers)

    def close(self) -> None:
        """Ends the processes, which close their worlds."""
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(ANSWER_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
            assert rank.stdout is not None
            rank.stdout.close()


def candidates(cell: Cell, link: str) -> list[str]:
    """The algorithms that may serve a cell on this kind of link."""
    from aiocoll.algorithms import all_of

    kinds = ("", "memory") if link == "memory" else ("",)
    return [each.name for each in all_of(cell.collective) if each.on in kinds and each.when(cell.size, cell.nbytes)]


def present(cell: Cell, link: str) -> str:
    """What the shipped table chooses."""
    from aiocoll.ops import SUM
    from aiocoll.tuning import choose

    reduces = cell.collective in ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan")
    return choose(
        cell.collective, nbytes=cell.nbytes, size=cell.size, count=max(cell.nbytes // 4, cell.size),
        op=SUM if reduces else None, shared=link == "memory",
    ).name  # fmt: skip


def measure(ranks: Ranks, cells: Sequence[Cell], link: str, block_seconds: float, blocks: int) -> Times:
    """All candidates of all cells, in turn within each cell; those that are far off after two turns drop out."""
    times = Times()
    for cell in cells:
        names = candidates(cell, link)
        calls: dict[str, int] = {}
        taken: dict[str, list[float]] = {name: [] for name in names}
        for name in names:
            forced = f"{cell.collective}:{name}"
            seconds = ranks.order(algorithm=forced, nbytes=cell.nbytes, calls=2, warm=2)
            calls[name] = max(2, min(5000, math.ceil(block_seconds / max(seconds, 1e-7))))
        for turn in range(blocks):
            best = min((statistics.median(each) for each in taken.values() if each), default=math.inf)
            for name in names:
                if turn >= 2 and statistics.median(taken[name]) > 3 * best:
                    continue
                forced = f"{cell.collective}:{name}"
                taken[name].append(ranks.order(algorithm=forced, nbytes=cell.nbytes, calls=calls[name], warm=1))
        times.seconds[cell] = {name: statistics.median(each) for name, each in taken.items()}
        times.chosen[cell] = present(cell, link)
        say(line(cell, times))
    ranks.order(close=True)
    return times


def line(cell: Cell, times: Times) -> str:
    """One cell for people: the present choice is in brackets, the fastest first."""
    parts = [
        f"[{name}] {seconds * 1e6:.1f}" if name == times.chosen[cell] else f"{name} {seconds * 1e6:.1f}"
        for name, seconds in sorted(times.seconds[cell].items(), key=lambda item: item[1])
    ]
    return f"{cell.collective} {cell.nbytes} bytes on {cell.size} ranks, µs: " + ", ".join(parts)


def winners(times: Times, collective: str, size: int) -> list[tuple[int, str]]:
    """(bytes, algorithm) by size: the fastest, unless the one before (or the present choice) is about as fast."""
    found: list[tuple[int, str]] = []
    cells = [cell for cell in times.seconds if (cell.collective, cell.size) == (collective, size)]
    for cell in sorted(cells, key=lambda cell: cell.nbytes):
        seconds = times.seconds[cell]
        fastest = min(seconds, key=lambda name: seconds[name])
        for kept in ([found[-1][1]] if found else []) + [times.chosen[cell]]:
            if kept in seconds and seconds[fastest] > CLEARLY * seconds[kept]:
                fastest = kept
                break
        found.append((cell.nbytes, fastest))
    return found


def rules(times: Times, link: str, machine: str) -> Iterator[dict[str, Any]]:
    """Rows of the table: for every collective and number of ranks, ranges of bytes and who is fastest there."""
    sizes = sorted({cell.size for cell in times.seconds})
    for collective in COLLECTIVES:
        fewer = 1
        for size in sizes:
            found = winners(times, collective, size)
            start = 0
            for position, (nbytes, name) in enumerate(found):
                following = found[position + 1] if position + 1 < len(found) else None
                if following is not None and following[1] == name:
                    continue
                # The border lies in the geometric middle, on a power of two.
                stop = None if following is None else 1 << round(math.log2(nbytes * following[0]) / 2)
                row: dict[str, Any] = {"collective": collective, "algorithm": name, "link": link}
                row |= {"size_min": fewer + 1, "size_max": size}
                row |= {"bytes_min": start} if start else {}
                row |= {"bytes_max": stop - 1} if stop is not None else {}
                yield row | {"why": f"fastest of those measured on {size} ranks: {machine}"}
                start = stop or 0
            if found:
                fewer = size


def fit(times: Times, link: str) -> dict[str, float]:
    """The model's constants for which its errors, each relative to what was measured, are smallest by their squares.

    A constant that would be negative is taken as zero, and the others are fitted again.
    """
    import numpy as np

    from aiocoll.algorithms import find

    rows, one = [], []
    for cell, seconds in times.seconds.items():
        for name, measured in seconds.items():
            each = find(cell.collective, name)
            path = each.path(cell.size, cell.nbytes) * (2 if link == "memory" and each.on != "memory" else 1)
            features = each.rounds(cell.size), each.messages(cell.size), path, each.folded(cell.size, cell.nbytes)
            rows.append([feature / measured for feature in features])
            one.append(1.0)
    names, columns, wanted = ["alpha", "overhead", "beta", "gamma"], np.array(rows), np.array(one)
    left = [0, 1, 2, 3]
    while left:
        solution, *_ = np.linalg.lstsq(columns[:, left], wanted, rcond=None)
        if (solution >= 0).all():
            break
        left.pop(int(np.argmin(solution)))
    fitted = dict.fromkeys(names, 0.0) | {names[i]: float(value) for i, value in zip(left, solution, strict=True)}
    return {name: float(f"{value:.3g}") for name, value in fitted.items()}


def merged(
    table: dict[str, Any], link: str, constants: dict[str, float], new: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The table with the measured rules before those that stay: what was not measured, and other kinds of links."""
    measured = {row["collective"] for row in new}
    kept = [row for row in table["rules"] if not (row["collective"] in measured and row.get("link") == link)]
    return {"links": {**table["links"], link: constants}, "rules": [*new, *kept]}


def text_of(table: dict[str, Any]) -> str:
    """JSON with a line for each link and two for each rule, as people read it."""
    links = ",\n".join(f"    {json.dumps(kind)}: {json.dumps(link)}" for kind, link in table["links"].items())
    rows = []
    for row in table["rules"]:
        facts = json.dumps({key: value for key, value in row.items() if key != "why"})
        why = json.dumps(row["why"], ensure_ascii=False)
        rows.append(f'    {{\n      {facts[1:-1]},\n      "why": {why}\n    }}')
    return f'{{\n  "links": {{\n{links}\n  }},\n  "rules": [\n' + ",\n".join(rows) + "\n  ]\n}\n"


def grid(collectives: Sequence[str], size: int, sizes: Sequence[int]) -> list[Cell]:
    """The cells for so many ranks."""
    cells = []
    for collective in collectives:
        for nbytes in (0,) if collective == "barrier" else sizes:
            if collective == "all_gather" and nbytes // size <= INLINE_BYTES:
                continue
            cells.append(Cell(collective, size, nbytes))
    return cells


def main() -> int:
    """Measures, prints what was found, and writes the table where it was told to."""
    parser = argparse.ArgumentParser(description="Measure the algorithms here and write the table of choices.")
    parser.add_argument("--quick", action="store_true", help="few sizes and short blocks")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks to measure, e.g. 2,4,8 (default 2,4)")
    parser.add_argument("--transport", choices=("shm", "tcp"), default="shm")
    parser.add_argument("--only", default=",".join(COLLECTIVES), help="collectives, e.g. all_reduce,barrier")
    parser.add_argument("--write", action="store_true", help=f"change {TABLE.relative_to(ROOT)}")
    parser.add_argument("--output", type=Path, help="write the table to this file instead")
    options = parser.parse_args()
    python = prepare()
    if Path(sys.prefix).resolve() != python.parent.parent.resolve():
        return subprocess.run([str(python), *sys.argv], env=clean_environment()).returncode
    sys.path.insert(0, str(ROOT))
    link = "memory" if options.transport == "shm" else "host"
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, CPython {platform.python_version()}"
    times = Times()
    for size in sorted({int(each) for each in options.ranks.split(",")}):
        ranks = Ranks(size, options.transport)
        try:
            cells = grid(options.only.split(","), size, QUICK if options.quick else SIZES)
            found = measure(ranks, cells, link, *((0.01, 3) if options.quick else (0.04, 7)))
        finally:
            ranks.close()
        times.seconds |= found.seconds
        times.chosen |= found.chosen
    rows, constants = list(rules(times, link, machine)), fit(times, link)
    text = text_of(merged(json.loads(TABLE.read_text()), link, constants, rows))
    say(f"constants of {link}: {constants}")
    for row in rows:
        say(f"{row['collective']}: {row['algorithm']} on {row['size_min']} to {row['size_max']} ranks, "
            f"{row.get('bytes_min', 0)} to {row.get('bytes_max', 'any number of')} bytes")  # fmt: skip
    if options.write or options.output:
        target = options.output or TABLE
        target.write_text(text)
        say(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
