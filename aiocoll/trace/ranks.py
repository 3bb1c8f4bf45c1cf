"""Which processes of this user are ranks, and asking them for dumps.

The rule: nobody is signalled who would not survive it: SIGUSR2 ends a process that does not handle it, and a rank that
has not connected yet does not.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiocoll.errors import AiocollError, UsageError
from aiocoll.observe.dump import SUFFIX

from .dumps import Dump, read


@dataclass(frozen=True, slots=True)
class Process:
    """A process that may be a rank."""

    pid: int
    parent: int
    job: str
    rank: str
    directory: str
    """Where its dumps go; "" for its stderr."""
    listens: bool
    """Whether it handles SIGUSR2."""

    @property
    def name(self) -> str:
        return f"rank {self.rank} (pid {self.pid})" if self.rank else f"process {self.pid}"


def look(pid: int) -> Process | None:
    """One process; None if there is none, or it is somebody else's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = dict(item.split("=", 1) for item in os.fsdecode(file.read()).split("\0") if "=" in item)
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    except OSError:
        return None
    rank = variables.get("AIOCOLL_RANK", "")
    return Process(
        pid, int(fields[1]), variables.get("AIOCOLL_JOB_ID", ""), rank if rank.isdecimal() else "",
        variables.get("AIOCOLL_TRACE_DIR", ""), bool(int(caught, 16) >> (signal.SIGUSR2 - 1) & 1),
    )  # fmt: skip


def everybody() -> dict[int, Process]:
    """All processes that can be looked at."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError as error:
        raise AiocollError(f"aiocoll trace dump needs /proc: {error.strerror}") from error
    found = (look(pid) for pid in pids)
    return {process.pid: process for process in found if process is not None}


def chosen(pids: Sequence[int], job: str | None, processes: Mapping[int, Process]) -> list[Process]:
    """The ranks that are meant: of one job (``""``: the only one), or those that ``pids`` are or have started.

    Raises UsageError where there are none, or several jobs.
    """
    if pids:
        found: list[Process] = []
        for pid in pids:
            if pid not in processes:
                raise UsageError(f"aiocoll trace dump: there is no process {pid} that you may look at")
            process = processes[pid]
            below = [] if process.rank and process.listens else _tops(_below(pid, processes))
            found += below or [process]
        return found
    ranks = [process for process in processes.values() if process.job and process.rank]
    jobs = sorted({process.job for process in ranks})
    if job:
        ranks = [process for process in ranks if process.job == job]
    elif len(jobs) > 1:
        raise UsageError(f"aiocoll trace dump: several jobs run here: {', '.join(jobs)}; say which with --job NAME")
    if not ranks:
        running = f"; running: {', '.join(jobs)}" if jobs else ""
        raise UsageError(f"aiocoll trace dump: no ranks of {f'job {job!r}' if job else 'any job'} run here{running}")
    return sorted(_tops(ranks), key=lambda process: (int(process.rank), process.pid))


def _below(pid: int, processes: Mapping[int, Process]) -> list[Process]:
    """The ranks that a process has started, itself or through others."""
    return [each for each in processes.values() if each.rank and each.pid != pid and pid in _line(each, processes)]


def _line(process: Process, processes: Mapping[int, Process]) -> set[int]:
    """Its parent, and so on."""
    line: set[int] = set()
    parent = process.parent
    while parent in processes and parent not in line:
        line.add(parent)
        parent = processes[parent].parent
    return line


def _tops(ranks: Iterable[Process]) -> list[Process]:
    """One process for each rank: what a rank has started has its variables too, and so has the shell that started it.
    The one nearest to the runner that listens is the rank."""
    by_rank: dict[tuple[str, str], list[Process]] = {}
    for process in ranks:
        by_rank.setdefault((process.job, process.rank), []).append(process)
    return [_top(family) for family in by_rank.values()]


def _top(family: list[Process]) -> Process:
    by_pid = {process.pid: process for process in family}
    return min(family, key=lambda process: (not process.listens, len(_line(process, by_pid)), process.pid))


def ask(processes: Sequence[Process], seconds: float) -> tuple[list[Dump], list[str]]:
    """Has each rank dump what it knows, and waits for the files; the dumps, and a line for each that gives none."""
    before = {process.pid: _files(process) for process in processes}
    asked, lines = [], []
    for process in processes:
        if not process.listens:
            lines.append(f"{process.name} does not listen for SIGUSR2: it is not connected (yet), or handles it itself")
            continue
        try:
            os.kill(process.pid, signal.SIGUSR2)
        except OSError as error:
            lines.append(f"{process.name} cannot be signalled: {error.strerror}")
            continue
        if process.directory:
            asked.append(process)
        else:
            lines.append(f"{process.name} has no AIOCOLL_TRACE_DIR: its dump went to its own stderr")
    dumps: list[Dump] = []
    until = time.monotonic() + seconds
    while asked and time.monotonic() < until:
        for process in list(asked):
            fresh = sorted(_files(process) - before[process.pid])
            if fresh:
                asked.remove(process)
                dumps += [read(path) for path in fresh]
        if asked:
            time.sleep(0.01)
    late = f"wrote no dump within {seconds:g} s: it is stopped, or in a long call of C"
    return dumps, [*lines, *(f"{process.name} {late}" for process in asked)]


def _files(process: Process) -> set[str]:
    """The dumps of a process that lie in its directory."""
    try:
        names = os.listdir(process.directory) if process.directory else []
    except OSError:
        return set()
    ours = f"-pid{process.pid}-"
    return {os.path.join(process.directory, name) for name in names if ours in name and name.endswith(SUFFIX)}
