"""What can go wrong in a simulation, as records: when, to whom, and for how long.

Rule: pure data, checked before the run begins; what a fault does to the run stands in `trouble`.

    Crash(rank)                  power cut: runs no further, its links end as a dead process's do
    Freeze(rank, until=)         says nothing and hears nothing, and nobody is told; goes on at `until`
    Cancel(rank)                 its task is cancelled, once
    Partition(ranks, until=)     nothing passes between these ranks and the others, either way
    OneWay(src, dst, until=)     what `src` sends to `dst` does not arrive, acknowledgements included
    SlowLink(src, dst, factor=)  messages take `factor` times as long, and `latency` seconds more
    SlowRank(rank, seconds)      each step of its loop takes so long

Crash, Freeze and Cancel strike at a time (`at`, seconds after the start), when so many more `frames` have left the
rank, or after so many `steps` of its loop: between two steps nothing in a rank changes, so these are all the instants
there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class Crash:
    """A rank that stops as if its power were cut: `at` seconds after the start, or after `frames` more frames, or
    `steps` of its loop. Without any it is only expected that the rank dies, by its own hand."""

    rank: int
    at: float | None = None
    frames: int | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Freeze:
    """A rank that stands still, as under SIGSTOP, and goes on at the time `until` (never, unless given)."""

    rank: int
    at: float | None = None
    frames: int | None = None
    steps: int | None = None
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class Cancel:
    """The task of a rank is cancelled; its program may catch that."""

    rank: int
    at: float | None = None
    frames: int | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """`ranks` on one side, all others on the other: what is sent across waits, as TCP repeats it, until `until`, and a
    link that hears nothing for `lost_seconds` is given up by both of its ends, each at its own time."""

    ranks: tuple[int, ...]
    at: float = 0.0
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class OneWay:
    """What `src` sends to `dst` waits until `until`; as with a partition both ends give the link up after
    `lost_seconds`, since the one sees nothing acknowledged and the other hears no answer."""

    src: int
    dst: int
    at: float = 0.0
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Messages from `src` to `dst` take `factor` times as long as the network says, and `latency` seconds more."""

    src: int
    dst: int
    factor: float = 1.0
    latency: float = 0.0
    at: float = 0.0
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class SlowRank:
    """Each step of a rank's loop takes `seconds`, in which it does nothing else."""

    rank: int
    seconds: float


Fault = Crash | Freeze | Cancel | Partition | OneWay | SlowLink | SlowRank
Strike = Crash | Freeze | Cancel
"""What strikes one rank at one instant."""
STRIKES: Final = (Crash, Freeze, Cancel)


def check_faults(faults: Fault | Iterable[Fault] | None, size: int) -> tuple[Fault, ...]:
    """The faults as a tuple; UsageError for what cannot happen to `size` ranks."""
    checked = () if faults is None else (faults,) if isinstance(faults, Fault) else tuple(faults)
    for fault in checked:
        if not isinstance(fault, Fault):
            raise UsageError(f"{fault!r} is no fault; give e.g. Crash(rank, at=seconds)")
        for rank in _ranks(fault):
            if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < size:
                raise UsageError(f"{fault!r}: {rank!r} is no one of {size} ranks; they are 0 to {size - 1}")
        _check_times(fault)
    for kind in STRIKES:
        struck = [fault.rank for fault in checked if isinstance(fault, kind)]
        if len(set(struck)) < len(struck):
            raise UsageError(f"{kind.__name__} befalls a rank at most once: {checked!r}")
    return checked


def _ranks(fault: Fault) -> tuple[Any, ...]:
    if isinstance(fault, Partition):
        return tuple(fault.ranks)
    return (fault.src, fault.dst) if isinstance(fault, OneWay | SlowLink) else (fault.rank,)


def _check_times(fault: Fault) -> None:
    if isinstance(fault, SlowRank):
        if not 0 <= fault.seconds < math.inf:
            raise UsageError(f"{fault!r}: seconds= from 0 up are needed")
        return
    if fault.at is not None and not 0 <= fault.at < math.inf:
        raise UsageError(f"{fault!r}: at= is seconds after the start")
    if isinstance(fault, STRIKES):
        given = [each for each in (fault.at, fault.frames, fault.steps) if each is not None]
        if len(given) > 1 or (not given and not isinstance(fault, Crash)):
            raise UsageError(f"{fault!r}: one of at=, frames= and steps= says when")
    elif not fault.until >= fault.at:
        raise UsageError(f"{fault!r}: until= is a time after at=")
    if isinstance(fault, SlowLink) and not (fault.factor >= 0 and fault.latency >= 0):
        raise UsageError(f"{fault!r}: factor= and latency= from 0 up are needed")


__all__ = [
    "STRIKES", "Cancel", "Crash", "Fault", "Freeze", "OneWay", "Partition", "SlowLink", "SlowRank", "Strike",
    "check_faults",
]  # fmt: skip
