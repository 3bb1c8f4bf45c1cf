"""What must be reached: bounds on the ratio of our time to a peer's, as data, and the verdicts over measured rows.

The rule: a cell is one call at one size; a row is a set of cells under one bound, and it is missed when one of them is
above its bound in two measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench_teams import KIB, MIB, Row, size_text, spread

SMALL = (4, KIB)
LARGE = tuple(n * KIB for n in (16, 64, 256)) + tuple(n * MIB for n in (1, 4, 16, 32, 64))
HALF = LARGE[1:]
MPI = ("mpich", "openmpi")
MPI_TCP = ("mpich tcp", "openmpi tcp")
OURS_BY_CALL = {"reduce_scatter": "sync", "all_to_all": "sync"}  # the documented API of old does not have them


@dataclass(frozen=True, slots=True)
class Cell:
    """One call at one size on the stage of that name, where ranks and transport are settled."""

    stage: str
    what: str
    nbytes: int
    dtype: str = "float32"

    def __str__(self) -> str:
        size = "" if self.what == "barrier" else f" {size_text(self.nbytes)}"
        return f"{self.what}{size}" + ("" if self.dtype == "float32" else f" {self.dtype}")


@dataclass(frozen=True, slots=True)
class Bound:
    """Our ``ours`` over the best of ``against``. With ``rate`` a share of its rate: at least, not at most."""

    cell: Cell
    ours: str
    against: tuple[str, ...]
    bound: float
    rate: bool = False


@dataclass(frozen=True, slots=True)
class Must:
    """A row of the table of what must be reached."""

    name: str
    against: str
    aim: str
    bounds: tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one cell came out."""

    bound: Bound
    peer: str
    ours_seconds: float
    peer_seconds: float
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median over the blocks."""
        return statistics.median(self.ratios)

    @property
    def excess(self) -> float:
        """The ratio by its bound, from below for a share of a rate: more is worse."""
        return self.bound.bound / max(self.ratio, 1e-9) if self.bound.rate else self.ratio / self.bound.bound

    @property
    def met(self) -> bool:
        """Is it within the bound?"""
        return self.ratio >= self.bound.bound if self.bound.rate else self.ratio <= self.bound.bound

    def __str__(self) -> str:
        sign = ">=" if self.bound.rate else "<="
        times = f"{1e6 * self.ours_seconds:>11.2f}{1e6 * self.peer_seconds:>12.2f} {self.peer:<12}"
        return f"{self.bound.cell!s:<26}{times} {spread(self.ratios, 3):<24} {sign} {self.bound.bound:g}"


@dataclass(slots=True)
class Result:
    """A row and the verdicts over its cells: those that count, after repetition."""

    must: Must
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def met(self) -> bool:
        """Are all its cells within their bounds? A row of which nothing was measured is not."""
        return bool(self.verdicts) and all(verdict.met for verdict in self.verdicts)

    @property
    def worst(self) -> Verdict:
        """The cell nearest to its bound, or furthest above it."""
        return max(self.verdicts, key=lambda verdict: verdict.excess)


def judge(bound: Bound, row: Row) -> Verdict | None:
    """The verdict over a measured row; None if none of the peers was measured."""
    peer = row.best(bound.against)
    if peer is None:
        return None
    ratios = tuple(row.ratios(bound.ours, peer, inverse=bound.rate))
    return Verdict(bound, peer, row.median(bound.ours), row.median(peer), ratios)


def one(
    stage: str, what: str, sizes: tuple[int, ...], against: tuple[str, ...], bound: float, **more: str
) -> list[Bound]:
    """Bounds for one call at several sizes."""
    ours = more.get("ours") or OURS_BY_CALL.get(what, "aiocoll")
    dtype = more.get("dtype", "float32")
    sizes = sizes if what != "barrier" else sizes[:1]
    return [Bound(Cell(stage, what, nbytes, dtype), ours, against, bound, bool(more.get("rate"))) for nbytes in sizes]


def musts() -> Iterator[Must]:
    """Every row that compares blocks of calls."""
    host, four, tcp, gloo = "2 ranks", "4 ranks", "2 ranks, tcp", ("gloo",)
    moving = ("all_reduce", "broadcast", "all_gather")

    def row(name: str, against: str, aim: str, *bounds: list[Bound]) -> Must:
        return Must(name, against, aim, tuple(bound for part in bounds for bound in part))

    small = [one(host, what, SMALL, gloo, 0.07) for what in (*moving, "barrier")]
    yield row("all_reduce, broadcast, all_gather, barrier <= 1 KiB, blocking", "Gloo", "0.03", *small)
    small = [one(host, what, SMALL, MPI, 8) for what in moving]
    yield row("the same (barrier)", "best MPI", "3 (4)", *small, one(host, "barrier", SMALL, MPI, 12))
    small = [one(host, what, SMALL, ("aiocoll",), 1.5, ours="await") for what in (*moving, "barrier")]
    yield row("the same, await in a running loop", "our blocking", "1.1", *small)
    large = [one(host, what, LARGE, gloo, 0.2) for what in ("all_reduce", "all_gather", "reduce_scatter")]
    exchange = [one(host, "all_to_all", tuple(n for n in LARGE if n < 16 * MIB), gloo, 0.2)]
    exchange += [one(host, "all_to_all", tuple(n for n in LARGE if n >= 16 * MIB), gloo, 0.35)]
    yield row("all_reduce, all_gather, reduce_scatter, all_to_all 16 KiB-64 MiB", "Gloo", "0.1", *large, *exchange)
    yield row("all_reduce 16 KiB-64 MiB", "best MPI", "0.5", one(host, "all_reduce", LARGE, MPI, 1.0))
    large = [one(host, what, HALF, MPI, 1.2) for what in ("all_gather", "reduce_scatter", "broadcast")]
    yield row("all_gather, reduce_scatter, broadcast >= 64 KiB", "best MPI", "0.8", *large)
    heap = one(host, "all_reduce", tuple(n for n in LARGE if n >= MIB), MPI, 0.7, ours="empty()")
    yield row("all_reduce in place of arrays from group.empty(), >= 1 MiB", "best MPI", "0.35", heap)
    small4, large4 = one(four, "all_reduce", SMALL, gloo, 0.3), one(four, "all_reduce", HALF, gloo, 0.3)
    yield row("four ranks on two cores, all_reduce <= 1 KiB and >= 64 KiB", "Gloo", "0.1", small4, large4)
    yield row(
        "four ranks on two cores, all_reduce >= 64 KiB", "best MPI", "0.6", one(four, "all_reduce", HALF, MPI, 1.2)
    )
    low, high = (4, KIB, 16 * KIB), (MIB, 4 * MIB, 16 * MIB, 64 * MIB)
    both = one(tcp, "all_reduce", low, gloo, 0.4), one(tcp, "all_reduce", high, gloo, 0.8)
    yield row('transport="tcp", all_reduce <= 16 KiB and >= 1 MiB', "Gloo", "0.15, 0.5", *both)
    both = one(tcp, "all_reduce", low, MPI_TCP, 4), one(tcp, "all_reduce", high, MPI_TCP, 2)
    yield row("the same", "best MPI over TCP", "2, 1", *both)
    rates = one(tcp, "one_way", (16 * MIB, 64 * MIB), ("raw",), 0.9, rate="yes")
    yield row("TCP one-way >= 16 MiB, share of the rate", "raw sendall and recv_into", "0.98", rates)
    half = one(host, "all_reduce", (4 * MIB,), gloo, 1.0, dtype="float16")
    yield row("float16 all_reduce 4 MiB", "Gloo", "0.5", half)


def shown_cells() -> list[Cell]:
    """What the table of times shows besides: every collective from 4 B to 32 MiB on the stages of one host."""
    calls = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
    sizes = (4, 16 * KIB, 256 * KIB, 4 * MIB, 32 * MIB)
    cells = [Cell("2 ranks", what, nbytes) for what in calls for nbytes in sizes]
    cells += [Cell("4 ranks", what, nbytes) for what in calls for nbytes in sizes]
    return [*cells, Cell("2 ranks", "barrier", 4), Cell("4 ranks", "barrier", 4)]
