"""Rows, what they say about bandwidth, and their form in JSON.

The rule: seconds are kept, microseconds and GB/s (10^9 bytes) are shown; whoever reads a row needs no other file.

*algbw* and *busbw* are those of nccl-tests: algbw is the collective's bytes by time, where all_gather and gather count
what comes together (size times the ranks); busbw is algbw times the share of it that must pass one rank's link at best,
so that it can be held against what the link can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

FORMAT: Final = "aiocoll bench 1"


def _whole(p: int) -> float:
    return 1.0


def _others(p: int) -> float:
    return (p - 1) / p


_FACTORS: Final[dict[str, Callable[[int], float]]] = {
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "reduce": _whole, "broadcast": _whole, "scan": _whole, "exscan": _whole, "ping_pong": _whole,
    "all_gather": _others, "gather": _others, "scatter": _others, "reduce_scatter": _others, "all_to_all": _others,
    "barrier": lambda p: 0.0,
}  # fmt: skip


def moved_bytes(collective: str, nbytes: int, ranks: int) -> int:
    """What algbw counts for an input of ``nbytes`` per rank."""
    return nbytes * ranks if collective in ("all_gather", "gather") else nbytes


def link_bytes(collective: str, nbytes: int, ranks: int) -> float:
    """What busbw counts: the bytes that must pass the busiest rank's link."""
    return moved_bytes(collective, nbytes, ranks) * _FACTORS[collective](ranks)


@dataclass(frozen=True, slots=True)
class Cell:
    """One row's call in one place (out of place or in place), over all ranks."""

    call: str
    """As a user writes it."""
    seconds: float
    """Per call: the median of blocks of calls, each as long as its slowest rank took."""
    low: float
    """The block below which a tenth of the blocks lie,"""
    high: float
    """and that above which a tenth lies."""
    p99: float
    """99 of 100 single calls took no longer on their slowest rank."""
    calls: int
    wrong: int
    """Elements that were not what they must be."""

    @property
    def spread(self) -> float:
        """How far the blocks lie around their median, as a fraction of it."""
        return (self.high - self.low) / 2 / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Floor:
    """What the machine needs to move the bytes that must pass a rank's link; seconds, None where it has no such way."""

    memcpy: float | None = None
    """To copy them, with all ranks copying at once."""
    memory: float | None = None
    """One flag through shared memory, and one copy."""
    socket: float | None = None
    """One way over a loopback TCP connection between two processes that look for data without sleeping."""

    def of(self, transport: str) -> float | None:
        """That of a transport."""
        return {"shm": self.memory, "tcp": self.socket, "inproc": None}.get(transport)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    collective: str
    nbytes: int
    """Of one rank's input."""
    count: int
    dtype: str
    op: str
    root: int
    ranks: int
    transport: str
    """What the bytes went over."""
    algorithm: str
    """The one that served, where it is known."""
    forced: str
    """The one that was asked for; empty where the group chose."""
    caller: str
    shared: bool
    floor: Floor
    cells: dict[str, Cell] = field(default_factory=dict)
    """By place, "out" and "in"."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What must be equal for two rows to be of one kind; what the group chose is not."""
        return (
            self.collective, self.nbytes, self.dtype, self.op, self.root, self.ranks, self.transport, self.caller,
            self.shared, self.forced,
        )  # fmt: skip

    def algbw(self, cell: Cell) -> float:
        """GB/s."""
        return moved_bytes(self.collective, self.nbytes, self.ranks) / cell.seconds / 1e9

    def busbw(self, cell: Cell) -> float:
        """GB/s."""
        return link_bytes(self.collective, self.nbytes, self.ranks) / cell.seconds / 1e9

    def efficiency(self, cell: Cell) -> float | None:
        """Floor by time: 1.0 cannot be beaten by much."""
        floor = self.floor.of(self.transport)
        return None if floor is None else floor / cell.seconds

    def as_json(self) -> dict[str, Any]:
        """Plain data, the derived numbers included."""
        data = asdict(self)
        for place, cell in self.cells.items():
            more = {"algbw": self.algbw(cell), "busbw": self.busbw(cell), "efficiency": self.efficiency(cell)}
            data["cells"][place] |= more
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """The row that ``as_json`` made it from."""
        cells = {
            place: Cell(**{name: cell[name] for name in Cell.__dataclass_fields__})
            for place, cell in data["cells"].items()
        }
        rest = {name: data[name] for name in cls.__dataclass_fields__ if name not in ("cells", "floor")}
        return cls(**rest, floor=Floor(**data["floor"]), cells=cells)


@dataclass(slots=True)
class Report:
    """All rows of one run, and the machine that they were measured on."""

    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        """Wrong elements in all rows."""
        return sum(cell.wrong for row in self.rows for cell in row.cells.values())

    @property
    def mean_busbw(self) -> float:
        """The mean bus bandwidth of all cells that move something, in GB/s."""
        found = [row.busbw(cell) for row in self.rows if row.nbytes for cell in row.cells.values()]
        return sum(found) / len(found) if found else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"format": FORMAT, "machine": self.machine, "rows": [row.as_json() for row in self.rows]}
