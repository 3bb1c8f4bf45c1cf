"""Who failed first, what the job's exit code is, and what is said about it at the end; pure, no processes, no clock.

Rule: a rank that ends because another one did (PeerLostError, GroupBrokenError) or because the runner ended it is never
the first failure, unless nothing else can be.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_CONSEQUENCE = re.compile(r"^(?:[\w.]+\.)?(PeerLostError|GroupBrokenError)\b")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Report:
    """What a rank said of its uncaught exception (`aiocoll.observe.report`)."""

    name: str
    message: str
    traceback: str
    operation: str = ""
    consequence: bool = False
    time: float = 0.0

    @classmethod
    def parse(cls, data: bytes) -> Report | None:
        """The last report in what came through the pipe, None if there is none; a rank is not trusted to be sane."""
        for line in reversed(data.splitlines()):
            try:
                found: dict[str, Any] = json.loads(line)
                return cls(
                    name=str(found["class"]),
                    message=str(found["message"]),
                    traceback=str(found["traceback"]),
                    operation=str(found["operation"]),
                    consequence=bool(found["consequence"]),
                    time=float(found["time"]),
                )
            except (ValueError, KeyError, TypeError):
                continue
        return None


@dataclass(frozen=True, slots=True)
class Ending:
    """How one rank ended: ``code`` as Python has it (negative for a signal), ``at`` by the monotonic clock."""

    rank: int
    code: int
    at: float = 0.0
    pid: int = 0
    report: Report | None = None
    tail: tuple[str, ...] = ()
    """The last lines of its stderr."""
    asked: bool = False
    """Whether the runner had begun to end the ranks before."""
    start_errno: int = 0
    """Why it could not even be started."""
    number: int = 0
    """Which replacement it was; 0 for a rank that was there from the beginning."""

    @property
    def name(self) -> str:
        return f"rank {self.rank}" + (f" (replacement {self.number})" if self.number else "")

    @property
    def exit_code(self) -> int:
        """As a shell has it."""
        return 128 - self.code if self.code < 0 else self.code

    @property
    def failed(self) -> bool:
        return self.code != 0

    @property
    def when(self) -> float:
        return self.report.time if self.report is not None and 0 < self.report.time <= self.at else self.at

    @property
    def consequence(self) -> bool:
        """Whether another rank's failure looks so from here; by its last line where no report came."""
        if not self.failed or self.code < 0:
            return False
        if self.report is not None:
            return self.report.consequence
        lines = [line for line in self.tail if line.strip()]
        return any(_CONSEQUENCE.match(_ANSI.sub("", line).lstrip()) for line in lines[-3:])

    def error(self) -> str:
        """One line: class and message, or the decoded code."""
        if self.start_errno:
            return f"could not be started: {os.strerror(self.start_errno)}"
        if self.report is not None and self.code == 1:
            return f"{self.report.name}: {self.report.message}".partition("\n")[0]
        if self.code == 1 and any(line.startswith("Traceback") for line in self.tail) and self.tail[-1].strip():
            return _ANSI.sub("", self.tail[-1]).strip()
        return decode(self.code)


@dataclass(slots=True)
class Verdict:
    """Collects the endings of one attempt."""

    on_failure: str = "kill"
    endings: dict[int, Ending] = field(default_factory=dict)
    """Of each rank's present process, once it has ended."""
    earlier: list[Ending] = field(default_factory=list)
    """Of those that another process has replaced."""
    replaced_by: dict[tuple[int, int], int] = field(default_factory=dict)
    """(rank, its number) -> the number of the process that took its place."""
    not_replaced: dict[tuple[int, int], str] = field(default_factory=dict)
    """(rank, its number) -> why nobody took its place."""
    pids: dict[int, int] = field(default_factory=dict)
    """The number of a replacement -> its process."""
    too_late: set[int] = field(default_factory=set)
    """Ranks whose replacement nobody took in."""
    started: float = 0.0

    def add(self, ending: Ending) -> None:
        self.endings[ending.rank] = ending

    def started_as(self, rank: int, number: int, pid: int) -> None:
        """A process of a rank runs."""
        if number:
            self.pids[number] = pid

    def replace(self, rank: int, number: int) -> None:
        """The rank's process has failed, and another one takes its place."""
        ending = self.endings.pop(rank)
        self.earlier.append(ending)
        self.replaced_by[rank, ending.number] = number

    @property
    def failures(self) -> list[Ending]:
        """All that have failed, the first in front."""
        found = [ending for ending in (*self.earlier, *self.endings.values()) if ending.failed]
        return sorted(found, key=lambda ending: (ending.when, ending.rank))

    @property
    def struck(self) -> list[Ending]:
        """Survivors that could not go on without another rank, and that nobody replaced."""
        return [e for _, e in sorted(self.endings.items()) if e.failed and e.consequence and not e.asked]

    @property
    def cause(self) -> Ending | None:
        """The first failure, None while every ended rank did well."""
        failed = self.failures
        for candidates in (
            [e for e in failed if not e.consequence and not (e.asked and _by_us(e))],
            [e for e in failed if e.consequence],
            failed,
        ):
            if candidates:
                return candidates[0]
        return None

    @property
    def only_consequences(self) -> bool:
        """Something failed, but its cause is still to come."""
        failed = [e for e in self.endings.values() if e.failed and not e.asked]
        return bool(failed) and all(e.consequence for e in failed)

    @property
    def exit_code(self) -> int:
        """Of the whole attempt, when no signal and no deadline ended it."""
        cause = self.cause
        if cause is None:
            return 0
        if self.on_failure == "shrink":
            if not self.struck and any(not e.failed for e in self.endings.values()):
                return 0
        return cause.exit_code or 1


def _by_us(ending: Ending) -> bool:
    """Whether an ending after the runner's signals is what those signals do."""
    ended_by = (-signal.SIGINT, -signal.SIGTERM, -signal.SIGKILL)
    name = ending.report.name if ending.report is not None else ""
    interrupted = name in ("KeyboardInterrupt", "asyncio.exceptions.CancelledError")
    # An exception from before the signals, or one that has nothing to do with them, may still be the cause.
    return ending.code in ended_by or ending.report is None or interrupted


_HINTS: dict[int, str] = {
    signal.SIGKILL: "; if nobody did that, the kernel ran out of memory: see dmesg",
    signal.SIGSEGV: ": segmentation fault",
    signal.SIGABRT: ": abort",
    signal.SIGBUS: ": bus error; is /dev/shm or the disk full?",
    signal.SIGILL: ": illegal instruction",
    signal.SIGFPE: ": arithmetic error",
}


def decode(code: int, *, hint: bool = False) -> str:
    """What an exit code or a signal number says."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unnamed"
    return f"was killed by signal {-code} ({name}{_HINTS.get(-code, '') if hint else ''})"


def names(ranks: Iterable[int]) -> str:
    """ "rank 1", "ranks 0, 2 and 3"."""
    found = [str(rank) for rank in sorted(ranks)]
    if len(found) == 1:
        return f"rank {found[0]}"
    return f"ranks {', '.join(found[:-1])} and {found[-1]}"


def traceback_of(ending: Ending) -> list[str]:
    """The lines that show why: the reported traceback, or what stderr ended with."""
    if ending.report is not None and ending.code in (1, -signal.SIGINT, 130):
        return ending.report.traceback.rstrip("\n").split("\n")
    tail = [_ANSI.sub("", line) for line in ending.tail]
    beginnings = ("Traceback (most recent call last)", "Fatal Python error", "  + Exception Group Traceback")
    starts = [number for number, line in enumerate(tail) if line.startswith(beginnings)]
    if not starts:
        return tail[-10:]
    start = starts.pop()
    # What led to the last exception belongs to it; what was logged earlier does not.
    while starts and any(line in _CHAINED for line in tail[starts[-1] : start]):
        start = starts.pop()
    return tail[start:]


def summary(verdict: Verdict, *, size: int, host: str, running: Iterable[int] = (), told: bool = False) -> list[str]:
    """The last words on screen: what became of the others first, the cause last.

    ``told``: of those that failed it has been said already (`chronicle`).
    """
    cause = verdict.cause
    if cause is None or (size == 1 and cause.code == -signal.SIGPIPE):  # a shell says nothing of that, either
        return []
    prefix = f"[r{cause.rank}] " if size > 1 else ""
    lines: list[str] = []
    if size > 1:
        lines.append(f"aiocoll: {cause.name} (pid {cause.pid} on {host}) failed first: {cause.error()}")
        lines += [f"aiocoll: {line}" for line in _others(verdict, cause, running, told)]
    shown = traceback_of(cause)
    if size > 1:
        lines += [prefix + line for line in shown]
    if cause.code < 0:
        lines.append(f"aiocoll: rank {cause.rank} {decode(cause.code, hint=True)}; exit code {cause.exit_code}")
    elif cause.start_errno or (size > 1 and not (cause.code == 1 and any("Traceback (most" in line for line in shown))):
        script = "; a Python script needs no --no-python" if cause.start_errno == errno.ENOEXEC else ""
        lines.append(f"aiocoll: rank {cause.rank} {cause.error()}{script}")
    return lines


def whereabouts(verdict: Verdict) -> list[str]:
    """In which calls the ranks were when they were interrupted, as far as they said."""
    places: dict[str, list[int]] = {}
    for ending in verdict.endings.values():
        if ending.report is not None and ending.report.operation:
            places.setdefault(ending.report.operation, []).append(ending.rank)
    ordered = sorted(places.items(), key=lambda item: item[1])
    return [f"{names(ranks)} {'was' if len(ranks) == 1 else 'were'} in {operation}" for operation, ranks in ordered]


def _others(verdict: Verdict, cause: Ending, running: Iterable[int], told: bool) -> list[str]:
    """What is known of the survivors, those of one fate in one line."""
    fates: dict[str, list[int]] = {}
    for ending in verdict.endings.values():
        if ending is cause or (told and ending.failed):
            continue
        report = ending.report
        where = f" in {report.operation}" if report is not None and report.operation else ""
        if not ending.failed:
            fate = "had finished"
        elif ending.consequence:
            name = report.name.rpartition(".")[2] if report is not None else "a lost peer"
            fate = f"ended with {name}{where}"
        elif ending.asked and _by_us(ending):
            fate = f"ended by the runner{' while' + where if where else ''}"
        else:
            fate = f"failed too: {ending.error()}"
        fates.setdefault(fate, []).append(ending.rank)
    for rank in running:
        fates.setdefault("could not be ended", []).append(rank)
    return [f"{names(ranks)} {fate}" for fate, ranks in sorted(fates.items(), key=lambda item: item[1])]
