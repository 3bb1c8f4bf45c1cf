"""The benchmark's side of its contestants: a team of ranks each, which take turns block by block.

The rule: contestants take turns in blocks of at least 40 ms in one run; a block's time is that of its slowest rank, and
ratios are formed between neighbouring blocks, so that a busy machine disturbs all sides alike.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from environment import ROOT, clean_environment

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
BLOCK_SECONDS = 0.04
CALLS_MIN = 2
ANSWER_SECONDS_MAX = 120.0  # a team that hangs ends its part in the benchmark, too
END_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Contestant:
    """How a team is started: the library of bench_libraries, its Python, and what precedes it on the command line."""

    name: str
    peer: str
    python: Path
    size: int = 2
    transport: str = "auto"
    launcher: tuple[str, ...] = ()  # MPI's: starts all ranks at once
    variables: tuple[tuple[str, str], ...] = ()
    cores: int | None = None  # all ranks share so many, where the machine has more


class TeamError(RuntimeError):
    """A rank ended in the middle, gave a wrong result, or said nothing for too long."""


class Team:
    """The ranks of one contestant; between orders they sleep on their control connections."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ranks: list[tuple[socket.socket, Any]] = []
        self._start()

    def __repr__(self) -> str:
        return f"<Team {self.contestant.name} of {self.contestant.size}>"

    def _start(self) -> None:
        it = self.contestant
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {key: value for key, value in clean_environment().items() if not key.startswith("OPENBLAS_")}
        environment |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **dict(it.variables)}
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
            control = f"{folder}/control"
            server.bind(control)
            server.listen(it.size)
            usable = os.sched_getaffinity(0)
            os.sched_setaffinity(0, sorted(usable)[: it.cores])  # children inherit it
            try:
                for rank in [-1] if it.launcher else range(it.size):
                    program = [str(it.python), str(ROOT / "scripts" / "bench_rank.py"), it.peer, it.transport]
                    command = [*it.launcher, *program, str(rank), str(it.size), str(port), control]
                    self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment))
            finally:
                os.sched_setaffinity(0, usable)
            until = time.monotonic() + ANSWER_SECONDS_MAX
            while len(self.ranks) < it.size:
                if select.select([server], [], [], 0.2)[0]:
                    connection = server.accept()[0]
                    self.ranks.append((connection, connection.makefile("r")))
                elif time.monotonic() > until or any(process.poll() is not None for process in self.processes):
                    self.close()
                    raise TeamError(f"{it.name}: not all of its {it.size} ranks started; their own words are above")
        self._answers()

    def order(self, what: str, nbytes: int, calls: int, dtype: str = "float32") -> float:
        """Seconds per call of one block, the slowest rank's."""
        line = json.dumps({"what": what, "nbytes": nbytes, "dtype": dtype, "calls": calls}) + "\n"
        try:
            for connection, _ in self.ranks:
                connection.sendall(line.encode())
        except OSError as problem:
            self.close()
            raise TeamError(f"{self.contestant.name}: a rank is gone ({problem})") from problem
        return max(answer["seconds"] for answer in self._answers()) / calls

    def block(self, what: str, nbytes: int, calls: int, dtype: str = "float32") -> tuple[float, int]:
        """Seconds per call of a block that is long enough, and its number of calls: ``calls``, or as many as it takes
        (when they were counted, a disturbance may have made them look slow). Shorter ones warm up."""
        while True:
            seconds = self.order(what, nbytes, calls, dtype) * calls
            if seconds >= BLOCK_SECONDS and calls >= CALLS_MIN:
                return seconds / calls, calls
            wanted = math.ceil(calls * 1.2 * BLOCK_SECONDS / max(seconds, 1e-7))
            calls = max(CALLS_MIN, min(10 * calls, max(wanted, calls + 1)))

    def close(self) -> None:
        """Ends all ranks."""
        for connection, lines in self.ranks:
            lines.close()
            connection.close()
        self.ranks = []
        for process in self.processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()  # MPI's launchers end their ranks
                try:
                    process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.processes = []

    def _answers(self) -> list[dict[str, float]]:
        lines = []
        for connection, reader in self.ranks:
            said = select.select([connection], [], [], ANSWER_SECONDS_MAX)[0]
            try:
                lines.append(reader.readline() if said else "")
            except OSError:
                lines.append("")
        if not all(lines):
            name = self.contestant.name
            self.close()
            raise TeamError(
                f"a rank of {name} ended in the middle, or said nothing for {ANSWER_SECONDS_MAX:.0f} s; "
                "its own words are above"
            )
        return [json.loads(line) for line in lines]


@dataclass(frozen=True, slots=True)
class Row:
    """One call at one size: seconds per call of each contestant, block by block; None where a contestant failed."""

    what: str
    nbytes: int
    seconds: dict[str, list[float] | None]
    dtype: str = "float32"

    def median(self, name: str) -> float:
        """Seconds per call; infinite for a contestant that failed."""
        seconds = self.seconds.get(name)
        return statistics.median(seconds) if seconds else math.inf

    def ratios(self, ours: str, peer: str, *, inverse: bool = False) -> list[float]:
        """Our time by the peer's, block by block; with ``inverse`` the rates instead of the times."""
        mine, theirs = self.seconds.get(ours), self.seconds.get(peer)
        if not mine or not theirs:
            return [0.0 if inverse else math.inf]
        return [b / a if inverse else a / b for a, b in zip(mine, theirs, strict=True)]

    def best(self, peers: Iterable[str]) -> str | None:
        """The peer with the smallest median, of those that were measured."""
        there = [peer for peer in peers if self.seconds.get(peer)]
        return min(there, key=self.median, default=None)


class Arena:
    """Teams by name: started when first asked for, and started afresh after they failed."""

    def __init__(self, contestants: Sequence[Contestant]) -> None:
        self.contestants = {contestant.name: contestant for contestant in contestants}
        self.teams: dict[str, Team] = {}
        self.failures: list[str] = []

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for team in self.teams.values():
            team.close()

    def team(self, name: str) -> Team:
        """The team of that name."""
        if name not in self.teams or not self.teams[name].ranks:
            self.teams[name] = Team(self.contestants[name])
        return self.teams[name]

    def measure(self, names: Sequence[str], what: str, nbytes: int, rounds: int, dtype: str = "float32") -> Row:
        """These teams take turns, ``rounds`` times, another one first in each round. One that fails is None in the row,
        and its words are kept."""
        seconds: dict[str, list[float] | None] = {name: [] for name in names}
        calls = dict.fromkeys(names, 1)
        for turn in range(-1, rounds):
            first = max(turn, 0) % len(names)
            for name in (*names[first:], *names[:first]):
                kept = seconds[name]
                if kept is None:
                    continue
                try:
                    took, calls[name] = self.team(name).block(what, nbytes, calls[name], dtype)
                    if turn >= 0:  # before that, everybody warms up
                        kept.append(took)
                except TeamError as problem:
                    seconds[name] = None
                    self.failures.append(f"{what} of {size_text(nbytes)}: {problem}")
        return Row(what, nbytes, seconds, dtype)


def size_text(nbytes: int) -> str:
    """4 B, 16 KiB, 32 MiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def spread(values: Sequence[float], places: int = 2) -> str:
    """Median, then lowest and highest."""
    return f"{statistics.median(values):.{places}f} ({min(values):.{places}f}..{max(values):.{places}f})"


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))
