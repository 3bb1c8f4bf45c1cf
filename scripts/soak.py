"""Plays cases of the matrix of failures by the thousand or by the million, each in virtual time: scripts/soak.py --help

Every algorithm and kind of call, on 2 to 9 ranks, each of which crashes, freezes or is cancelled at any instant. The
rule: what is wrong is printed as a line that replays it, and the exit status says whether anything was.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aiocoll.errors import UsageError
from aiocoll.testing.matrix import CUTS, FAULTS, SIZES, Case, Cell, cells, collecting_now_and_then, evenly, play, sample

logging.getLogger("aiocoll").addHandler(logging.NullHandler())  # of so many failures nobody wants to read
CHUNK = 2_000
"""Cases that one process plays before it says how it went."""
_FAULTS = (*FAULTS, *CUTS)
_SHOWN_MAX = 50
_CPU_SECONDS_MAX = 60


@dataclass(frozen=True)
class Chunk:
    """Some of the cases of a soak."""

    number: int
    start: int
    seed: int
    even: bool
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Played:
    """What came of a chunk: how many cases, and lines with findings."""

    number: int
    wrong: list[tuple[str, list[str]]]


class _Stuck(KeyboardInterrupt):
    """What gets a case out of its loop; event loops keep other exceptions to themselves."""


def main(arguments: list[str] | None = None) -> int:
    """Soaks, or replays; gives the exit status."""
    options = _parsed(arguments)
    try:
        if options.replay:
            return _replay(options.replay)
        chosen = tuple(cells(options.sizes, options.faults, options.only))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    if not chosen:
        print(f"no program's name contains {options.only!r}", file=sys.stderr)
        return 2
    number = options.each * len(chosen) or options.cases
    print(f"{number} cases of {len(chosen)} kinds, seed {options.seed}, {options.jobs} processes", flush=True)
    chunks = [
        Chunk(min(CHUNK, number - start), start, options.seed, options.each > 0, chosen)
        for start in range(0, number, CHUNK)
    ]
    began, done, wrong = time.monotonic(), 0, 0
    for played in _played(chunks, options.jobs):
        done += played.number
        for line, findings in played.wrong:
            wrong += 1
            if wrong <= _SHOWN_MAX:
                _show(line, findings)
        seconds = time.monotonic() - began
        print(f"{done} cases, {wrong} wrong, {seconds:.0f} s, {done / seconds:.0f} cases/s", flush=True)
    return 1 if wrong else 0


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument(
        "--cases", type=int, default=20_000,
        help="how many to play, large worlds less often, which take longer (default %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--each", type=int, default=0, metavar="N",
        help="instead: strike each rank of each size in each program with each fault at N instants",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="other seeds give other cases (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per CPU)")
    parser.add_argument("--only", default="", metavar="TEXT", help="programs whose name contains this: all_reduce:")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of ranks (default 2 to 9)")
    parser.add_argument("--faults", nargs="+", choices=_FAULTS, default=list(_FAULTS), help="default: all of them")
    parser.add_argument("--replay", nargs="+", metavar="CASE", help="cases as they were printed, each in quotes")
    options = parser.parse_args(arguments)
    if options.cases < 1 or options.each < 0 or options.jobs < 1 or min(options.sizes) < 2:
        parser.error("--cases and --jobs are at least 1, --each is not negative, sizes at least 2")
    return options


def _played(chunks: list[Chunk], jobs: int) -> Iterator[Played]:
    if jobs == 1 or len(chunks) == 1:
        yield from map(_play, chunks)
        return
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(chunks))) as pool:
        yield from pool.imap_unordered(_play, chunks)


def _play(chunk: Chunk) -> Played:
    wrong = []
    draw = evenly if chunk.even else sample
    with collecting_now_and_then() as tidy:
        for case in draw(chunk.cells, chunk.number, chunk.seed, chunk.start):
            findings = _watched(case)
            tidy()
            if findings:
                wrong.append((str(case), findings))
    return Played(chunk.number, wrong)


def _watched(case: Case) -> list[str]:
    """What is wrong with the case; also that it does not end: where no virtual time passes, no deadline helps."""

    def too_long(number: int, frame: object) -> None:
        raise _Stuck

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_SECONDS_MAX)
    try:
        return play(case)
    except _Stuck:
        return [f"it still ran after {_CPU_SECONDS_MAX} seconds of a CPU"]
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def _replay(lines: list[str]) -> int:
    wrong = 0
    for case in map(Case.parse, lines):
        findings = _watched(case)
        wrong += bool(findings)
        if findings:
            _show(str(case), findings)
        else:
            print(f"right: {case}")
    return 1 if wrong else 0


def _show(line: str, findings: list[str]) -> None:
    print(f"wrong: python scripts/soak.py --replay '{line}'")
    for finding in findings:
        print(f"    {finding}")


if __name__ == "__main__":
    sys.exit(main())
