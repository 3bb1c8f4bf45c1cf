"""The rows that are no calls back to back: waiting, stalls, memory, import, start-up, and a training in three ways.

The rule: what is compared runs in turns, in processes of its own; each measurement returns numbers, no verdicts but
those of the bounds in ``OTHERS``.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from bench_teams import ANSWER_SECONDS_MAX, GIB, MIB, TeamError, spread
from environment import ROOT, clean_environment

WAITS = (("wait_recv", 2), ("wait_await", 2), ("wait_barrier", 2), ("wait_facade", 2), ("wait_barrier", 8))
WAIT_WORDS = {
    "recv": "blocking recv",
    "await": "await recv",
    "barrier": "barrier",
    "facade": "all_reduce of the facade",
}
DIGITS = ("shm", "tcp", "gloo")

JOINS = "import aiocoll\nasync def main(group): pass\naiocoll.run(main)\n"
EMPTY_GLOO = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.destroy_process_group()\n"
IMPORTS = (
    "import time, numpy\nbegun = time.perf_counter()\nimport aiocoll\nprint((time.perf_counter() - begun) * 1e3)\n"
)


@dataclass(frozen=True, slots=True)
class Pythons:
    """The interpreters: ours, and Gloo's where it is asked for."""

    ours: Path
    gloo: Path | None


@dataclass(frozen=True, slots=True)
class Measured:
    """One value of a row: what it is of, the value, its unit, the bound, and what else is worth saying."""

    name: str
    value: float
    unit: str
    bound: float
    note: str = ""

    @property
    def met(self) -> bool:
        """Is it within the bound?"""
        return self.value <= self.bound

    def __str__(self) -> str:
        note = f"   {self.note}" if self.note else ""
        return f"{self.name:<44}{self.value:>10.3f} {self.unit:<3} <= {self.bound:g}{note}"


def environment(**more: str) -> dict[str, str]:
    """For the benchmark's own processes."""
    kept = {key: value for key, value in clean_environment().items() if not key.startswith("OPENBLAS_")}
    return kept | {"PYTHONPATH": str(ROOT), **more}


def start(pythons: Pythons, what: str, size: int, seconds: float) -> list[subprocess.Popen[str]]:
    """The ranks of one of bench_programs' programs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = [str(pythons.ours), str(ROOT / "scripts" / "bench_programs.py"), what]
    return [
        subprocess.Popen(
            [*program, str(rank), str(size), str(port), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for rank in range(size)
    ]


def facts(ranks: Iterable[subprocess.Popen[str]]) -> list[dict[str, float]]:
    """What the ranks printed, those that had something to say."""
    said = []
    ranks = list(ranks)
    try:
        for rank in ranks:
            text = rank.communicate(timeout=ANSWER_SECONDS_MAX)[0]
            if rank.returncode:
                raise TeamError(f"{rank.args!r} ended with {rank.returncode}; its own words are above")
            said.append(json.loads(text.splitlines()[-1]))
    except subprocess.TimeoutExpired as late:
        raise TeamError(f"{late.cmd} was not over after {late.timeout:.0f} s") from late
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.communicate()
    return [fact for fact in said if fact]


def waiting(pythons: Pythons, quick: bool) -> list[Measured]:
    """The share of a core that a waiting rank uses, the worst of the ranks; all programs wait at once."""
    seconds = 3.0 if quick else 20.0
    programs = [(what, size, start(pythons, what, size, seconds)) for what, size in WAITS]
    said = iter(facts(rank for _, _, ranks in programs for rank in ranks))
    values = []
    for what, size, _ in programs:
        shares = [next(said)["share"] for _ in range(size - 1)]
        words = WAIT_WORDS[what.removeprefix("wait_")]
        ranks_text = "" if size == 2 else f", {size} ranks"
        values.append(Measured(f"{words}{ranks_text}", 100 * max(shares), "%", 1.0, f"over {seconds:.0f} s"))
    return values


def stall(pythons: Pythons, quick: bool) -> list[Measured]:
    """How long the loop is kept from another task while a late peer is awaited."""
    (got,) = facts(start(pythons, "stall", 2, 0.0))
    names = ("longest", "median", "by_the_clock", "idle", "idle_by_the_clock")
    longest, median, clock, idle, idle_clock = (1e3 * got[name] for name in names)
    note = f"median of waits {median:.2f}; by the clock, other processes' turns included {clock:.2f}; "
    note += f"the same loop without a peer {idle:.2f}, by the clock {idle_clock:.2f}"
    return [Measured("longest stall of the loop", longest, "ms", 1.0, note)]


def memory(pythons: Pythons, quick: bool) -> list[Measured]:
    """Memory of a 1 GiB all_reduce beyond the array, and its time per byte next to 64 MiB."""
    got = facts(start(pythons, "memory", 2, 0.0))
    small, large = (max(fact[size] for fact in got) for size in ("small", "large"))
    per_byte = (large / GIB) / (small / (64 * MIB))
    note = f"64 MiB {1e3 * small:.1f} ms, 1 GiB {1e3 * large:.0f} ms"
    return [
        Measured("peak memory of a 1 GiB all_reduce, beyond it", max(fact["mib"] for fact in got), "MiB", 64.0),
        Measured("time per byte, 1 GiB by 64 MiB", per_byte, "", 1.5, note),
    ]


def imports(pythons: Pythons, quick: bool) -> list[Measured]:
    """How long ``import aiocoll`` takes after ``import numpy``."""
    took = []
    for _ in range(4 if quick else 10):
        done = subprocess.run([str(pythons.ours), "-c", IMPORTS], capture_output=True, text=True, env=environment())
        if done.returncode:
            raise TeamError(f"import aiocoll failed:\n{done.stderr}")
        took.append(float(done.stdout))
    took = took[1:]  # the first compiles
    return [Measured("import aiocoll beyond import numpy", statistics.median(took), "ms", 80.0, spread(took, 1))]


def start_up(pythons: Pythons, quick: bool) -> list[Measured]:
    """A job of four that joins and leaves, minus four bare interpreters, by torchrun's."""
    if pythons.gloo is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        joins, empty = Path(folder) / "joins.py", Path(folder) / "empty.py"
        joins.write_text(JOINS)
        empty.write_text(EMPTY_GLOO)
        ours = [str(pythons.ours), "-m", "aiocoll", "run", "-n", "4", str(joins)]
        theirs = [str(pythons.gloo.parent / "torchrun"), "--nproc-per-node", "4", str(empty)]
        bare = [str(pythons.ours), "-c", "import numpy"]
        times: list[tuple[float, float, float]] = []
        for _ in range(2 if quick else 5):
            times.append((seconds_of([ours]), seconds_of([bare] * 4), seconds_of([theirs])))
    ratios = [(mine - four) / peer for mine, four, peer in times]
    mine, four, peer = (statistics.median(column) for column in zip(*times, strict=True))
    note = f"{spread(ratios)}: {mine:.2f} s - {four:.2f} s, torchrun {peer:.2f} s"
    return [Measured("start-up of four ranks by torchrun's", statistics.median(ratios), "", 0.3, note)]


def seconds_of(commands: list[list[str]]) -> float:
    """Until all of them, started together, have ended."""
    begun = time.perf_counter()
    quiet = subprocess.DEVNULL
    running = [subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment()) for command in commands]
    codes = [process.wait(ANSWER_SECONDS_MAX) for process in running]
    if any(codes):
        raise TeamError(f"{' '.join(commands[0])} ended with {max(codes)}")
    return time.perf_counter() - begun


@dataclass(frozen=True, slots=True)
class Other:
    """A row of the table of what must be reached."""

    name: str
    against: str
    aim: str
    measure: Callable[[Pythons, bool], list[Measured]]


OTHERS = (
    Other("a waiting rank in recv, await recv, barrier, facade", "", "0.1 %", waiting),
    Other("a late peer awaited: longest stall of the loop", "", "0.2 ms", stall),
    Other("peak memory and time per byte of a 1 GiB all_reduce", "", "16 MiB", memory),
    Other("import aiocoll beyond import numpy", "", "40 ms", imports),
    Other("start-up: aiocoll run -n 4 minus four interpreters", "torchrun", "0.15", start_up),
)


def digits(pythons: Pythons, rounds: int) -> dict[str, list[float]]:
    """Images per second of examples/train_digits.py on four ranks, gradients added up in three ways, in turns."""
    rates: dict[str, list[float]] = {way: [] for way in DIGITS if way != "gloo" or pythons.gloo}
    for _ in range(rounds):
        for way, kept in rates.items():
            kept.append(digits_once(pythons, way))
    return rates


def digits_once(pythons: Pythons, way: str) -> float:
    """One training; the gradients travel over shared memory, over TCP, or through torch and Gloo."""
    if way == "gloo" and pythons.gloo is not None:
        starter = [str(pythons.gloo.parent / "torchrun"), "--nproc-per-node", "4"]
        command = [*starter, str(ROOT / "scripts" / "bench_digits.py")]
    else:
        command = [str(pythons.ours), "-m", "aiocoll", "run", "-n", "4", str(ROOT / "examples" / "train_digits.py")]
    variables = environment(AIOCOLL_TRANSPORT="tcp" if way == "tcp" else "auto", OMP_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=ANSWER_SECONDS_MAX)
    for line in done.stdout.splitlines():
        if line.rstrip().endswith("images per second"):
            return float(line.split()[-4].replace(",", ""))
    raise TeamError(f"train_digits over {way} ended with {done.returncode}:\n{done.stderr[-2000:]}")
