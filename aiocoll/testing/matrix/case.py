"""One case: a program on some ranks, and what befalls one of them at which instant; as a line of text, too.

Rule: the line says everything; equal lines give equal runs.

    all_reduce:ring size=5 victim=2 crash frames=7 seed=123
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ...config import Settings
from ...errors import UsageError
from ...sim import Cancel, Crash, Fault, Freeze, OneWay, Partition
from .programs import FAULTS, VARIANTS

CUTS: Final = ("partition", "oneway")
"""What befalls the network; for programs that go on afterwards."""
INSTANTS: Final = ("at", "frames", "steps")
DEADLINE: Final = 5.0
"""Seconds that a call may take; a fault-free run takes milliseconds."""
LATENCY: Final = 1e-3
_LINE: Final = re.compile(
    r"(?P<program>.+?) size=(?P<size>\d+) victim=(?P<victim>\d+) (?P<fault>\w+) (?P<kind>\w+)=(?P<instant>\S+)"
    r" seed=(?P<seed>\d+)"
)


@dataclass(frozen=True, slots=True)
class Case:
    """`kind` and `instant` say when the fault strikes: see `aiocoll.sim.faults`."""

    program: str
    size: int
    victim: int
    fault: str
    kind: str
    instant: float
    seed: int

    def __str__(self) -> str:
        instant = f"{self.instant!r}" if self.kind == "at" else f"{int(self.instant)}"
        return (
            f"{self.program} size={self.size} victim={self.victim} {self.fault} {self.kind}={instant} seed={self.seed}"
        )

    @classmethod
    def parse(cls, line: str) -> Case:
        """The case that `line` describes. UsageError for what is none."""
        found = _LINE.fullmatch(line.strip())
        if found is None or found["fault"] not in (*FAULTS, *CUTS) or found["kind"] not in INSTANTS:
            raise UsageError(f"{line!r} is no case; write e.g. all_reduce:ring size=5 victim=2 crash frames=7 seed=123")
        return cls(
            found["program"], int(found["size"]), int(found["victim"]), found["fault"], found["kind"],
            float(found["instant"]), int(found["seed"]),
        )  # fmt: skip

    # -- what the seed chooses besides the order of events

    @property
    def variant(self) -> int:
        """Which data."""
        return self.seed % VARIANTS

    @property
    def jitter(self) -> float:
        """How much later than others a message may arrive."""
        return (0.0, LATENCY, 5 * LATENCY)[self.seed // 8 % 3]

    @property
    def latency_max(self) -> float:
        """The longest that a message takes."""
        return LATENCY + self.jitter

    @property
    def leaves(self) -> bool:
        """Whether a rank that is through, or that fails, closes its world at once."""
        return self.seed // 24 % 2 == 1

    @property
    def settings(self) -> Settings:
        """Every fourth case has so little room for unreceived data that most of it has to be asked for."""
        return _ROOMY if self.seed // 48 % 4 else _TIGHT

    @property
    def hosts(self) -> tuple[int, ...]:
        """Which ranks share a host: nobody, all, or some."""
        return layout(self.size, self.seed // 5 % 7)

    @property
    def side(self) -> tuple[int, ...]:
        """The victim's side of a partition; somebody is always on the other."""
        bits = self.seed // 3
        side = {rank for rank in range(self.size) if bits >> rank & 1} | {self.victim}
        return tuple(sorted(side if len(side) < self.size else {self.victim}))

    @property
    def heals(self) -> float:
        """When a cut network is whole again: before a call's deadline, before links are given up, after both, never."""
        return (math.inf, math.inf, 2.0, 8.0, 15.0, 40.0)[self.seed // 7 % 6]

    @property
    def thaws(self) -> float | None:
        """How many seconds after the start a frozen rank goes on, if it does: before the deadline, or after it."""
        return (None, None, DEADLINE / 2, 2 * DEADLINE)[self.seed // 11 % 4]


_ROOMY: Final = Settings(timeout=DEADLINE, stall_seconds=0.0)
_TIGHT: Final = replace(_ROOMY, unreceived_bytes_max=300)


@lru_cache(512)
def layout(size: int, which: int) -> tuple[int, ...]:
    """Hosts of unequal sizes whose ranks lie anywhere; now and then one for all, or one for each."""
    if which < 2:
        return tuple(range(size)) if which else (0,) * size
    return tuple(np.random.default_rng((size, which)).integers(0, 1 + which % 3, size).tolist())


def fault_of(case: Case) -> Fault:
    """What befalls the victim, or the network around it."""
    if case.fault == "partition":
        return Partition(case.side, case.instant, case.heals)
    if case.fault == "oneway":
        other = (case.victim + 1 + case.seed // 3 % (case.size - 1)) % case.size
        return OneWay(case.victim, other, case.instant, case.heals)
    when: dict[str, Any] = {case.kind: case.instant if case.kind == "at" else int(case.instant)}
    if case.fault == "crash":
        return Crash(case.victim, **when)
    if case.fault == "cancel":
        return Cancel(case.victim, **when)
    return Freeze(case.victim, **when, until=math.inf if case.thaws is None else case.thaws)


__all__ = ["CUTS", "DEADLINE", "INSTANTS", "LATENCY", "Case", "fault_of"]
