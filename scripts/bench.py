"""Measures aiocoll over TCP on this machine, next to a raw socket pair and, if asked, other libraries.

    python3 scripts/bench.py
    python3 scripts/bench.py --peers gloo      # makes .venv-gloo with torch for the comparison, once

The rule: contestants take turns in blocks of at least 40 ms in one run; a block's time is that of the slower of its two
ranks, and ratios are formed between neighbouring blocks, so that a busy machine disturbs both sides alike.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import select
import socket
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from environment import ROOT, clean_environment, prepare, prepare_peer, say

KIB, MIB = 1 << 10, 1 << 20
SMALL = (4, 64, KIB, 4 * KIB, 16 * KIB)
LARGE = (1 * MIB, 4 * MIB, 16 * MIB, 32 * MIB)
ONE_WAY = (16 * MIB, 32 * MIB)
BLOCK_SECONDS = 0.04
ANSWER_SECONDS_MAX = 120.0  # a pair that hangs ends the benchmark, too
TORCH = "torch==2.13.0"


class Pair:
    """Two processes that run one contestant; between orders they sleep on their standard input."""

    def __init__(self, name: str, python: Path) -> None:
        self.name = name
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {key: value for key, value in clean_environment().items() if not key.startswith("OPENBLAS_")}
        self.ranks = [
            subprocess.Popen(
                [str(python), str(ROOT / "scripts" / "bench_rank.py"), name, str(rank), str(port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in (0, 1)
        ]
        self._answers()

    def block(self, what: str, nbytes: int, calls: int) -> float:
        """Seconds per call of one block, the slower rank's."""
        for rank in self.ranks:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps({"what": what, "nbytes": nbytes, "calls": calls}) + "\n")
            rank.stdin.flush()
        return max(answer["seconds"] for answer in self._answers()) / calls

    def calibrate(self, what: str, nbytes: int) -> int:
        """Warms up; gives the number of calls that fill a block."""
        calls = 1
        while True:
            seconds = self.block(what, nbytes, calls) * calls
            if seconds >= BLOCK_SECONDS / 2:
                return max(2, math.ceil(calls * 1.2 * BLOCK_SECONDS / seconds))
            calls = min(10 * calls, math.ceil(calls * 1.5 * BLOCK_SECONDS / max(seconds, 1e-7)))

    def close(self) -> None:
        """Ends both processes."""
        for rank in self.ranks:
            rank.kill()
            rank.communicate()

    def _answers(self) -> list[dict[str, float]]:
        lines = []
        for rank in self.ranks:
            assert rank.stdout is not None
            said = select.select([rank.stdout], [], [], ANSWER_SECONDS_MAX)[0]
            lines.append(rank.stdout.readline() if said else "")
        if not all(lines):
            self.close()
            raise SystemExit(
                f"a rank of {self.name} ended in the middle of the benchmark, or said nothing for "
                f"{ANSWER_SECONDS_MAX:.0f} s; its own words are above"
            )
        return [json.loads(line) for line in lines]


@dataclass(frozen=True, slots=True)
class Row:
    """One call at one size: seconds per call of each contestant, block by block."""

    what: str
    nbytes: int
    seconds: dict[str, list[float]]

    def ratios(self, peer: str, *, inverse: bool = False) -> list[float]:
        """aiocoll's time by the peer's, block by block; with ``inverse`` the rates instead of the times."""
        pairs = zip(self.seconds["aiocoll"], self.seconds[peer], strict=True)
        return [theirs / ours if inverse else ours / theirs for ours, theirs in pairs]


def measure(pairs: Sequence[Pair], what: str, nbytes: int, rounds: int) -> Row:
    """The pairs take turns, ``rounds`` times."""
    calls = {pair.name: pair.calibrate(what, nbytes) for pair in pairs}
    seconds: dict[str, list[float]] = {pair.name: [] for pair in pairs}
    for _ in range(rounds):
        for pair in pairs:
            seconds[pair.name].append(pair.block(what, nbytes, calls[pair.name]))
    return Row(what, nbytes, seconds)


def size_text(nbytes: int) -> str:
    """4 B, 16 KiB, 32 MiB."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def spread(values: list[float], places: int = 2) -> str:
    """Median, then lowest and highest."""
    return f"{statistics.median(values):.{places}f} ({min(values):.{places}f}..{max(values):.{places}f})"


def print_times(rows: list[Row], peers: list[str]) -> None:
    """Microseconds per call and the ratio to each peer, with the bounds that were set."""
    for peer in peers:
        heads = f"{'aiocoll us':>14}{peer + ' us':>14}"
        print(f"\n{'call':<12}{'size':>8}{heads}   ratio: median (lowest..highest)   bound")
        for row in rows:
            bound = 0.4 if row.nbytes <= 16 * KIB else 0.8
            ratios = row.ratios(peer)
            ours, theirs = (1e6 * statistics.median(row.seconds[name]) for name in ("aiocoll", peer))
            verdict = "met" if statistics.median(ratios) <= bound else "MISSED"
            times = f"{ours:>14.1f}{theirs:>14.1f}"
            print(f"{row.what:<12}{size_text(row.nbytes):>8}{times}   {spread(ratios):<34}<= {bound} {verdict}")


def print_rates(rows: list[Row]) -> None:
    """GB/s of send and recv, and the share of a raw socket's rate."""
    others = [name for name in rows[0].seconds if name != "aiocoll"]
    heads = "".join(f"{name + ' GB/s':>14}" for name in ["aiocoll", *others])
    print(f"\n{'send/recv':<12}{'size':>8}{heads}   share of raw: median (lowest..highest)   bound")
    for row in rows:
        rates = "".join(
            f"{row.nbytes / statistics.median(row.seconds[name]) / 1e9:>14.2f}" for name in ["aiocoll", *others]
        )
        shares = row.ratios("raw", inverse=True)
        verdict = "met" if statistics.median(shares) >= 0.9 else "MISSED"
        print(f"{'one way':<12}{size_text(row.nbytes):>8}{rates}   {spread(shares):<40}>= 0.9 {verdict}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Benchmark of aiocoll's blocking API over TCP, two ranks.")
    parser.add_argument("--peers", nargs="*", choices=["gloo"], default=[], help="libraries to compare with")
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each contestant per size (default 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every block's time there")
    return parser.parse_args()


def main() -> int:
    """Runs the benchmark and prints its tables."""
    options = arguments()
    ours = prepare()
    pythons = {"aiocoll": ours, "raw": ours}
    if "gloo" in options.peers:
        pythons["gloo"] = prepare_peer("gloo", TORCH, "numpy")
    cores = len(os.sched_getaffinity(0))
    say(f"{platform.machine()}, {cores} usable cores, Linux {platform.release()}, Python {platform.python_version()}")
    say(f"two ranks per contestant, {options.rounds} blocks of {1000 * BLOCK_SECONDS:.0f} ms or more each, in turns")
    pairs: list[Pair] = []
    try:
        pairs += [Pair(name, python) for name, python in pythons.items()]
        collective = [pair for pair in pairs if pair.name != "raw"]
        reductions = [measure(collective, "all_reduce", nbytes, options.rounds) for nbytes in SMALL + LARGE]
        messages = [measure(pairs, "one_way", nbytes, options.rounds) for nbytes in ONE_WAY]
    finally:
        for pair in pairs:
            pair.close()
    if options.peers:
        print_times(reductions, options.peers)
    else:
        print(f"\n{'call':<12}{'size':>8}   us per call: median (lowest..highest)")
        for row in reductions:
            print(f"{row.what:<12}{size_text(row.nbytes):>8}   {spread([1e6 * s for s in row.seconds['aiocoll']], 1)}")
    print_rates(messages)
    if options.json:
        rows = [{"what": row.what, "nbytes": row.nbytes, "seconds": row.seconds} for row in reductions + messages]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
