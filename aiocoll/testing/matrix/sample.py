"""Which cases there are, and a part of them in which every kind has its share.

Rule: pure; equal arguments give equal cases. A cell is a program, a size, a victim and a fault; instants are drawn.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .case import CUTS, INSTANTS, Case
from .play import Profile, profile, programs
from .programs import FAULTS

SIZES: Final = range(2, 10)
_BEYOND: Final = 1.05
"""Instants are drawn up to a little after the end."""


@dataclass(frozen=True, slots=True)
class Cell:
    """All cases that differ in the instant only."""

    program: str
    size: int
    victim: int
    fault: str

    def case(self, number: int, seed: int) -> Case:
        """One of them, drawn."""
        draw = random.Random(f"{self} {number} {seed}")
        found: Profile = profile(self.program, self.size)
        kind = "at" if self.fault in CUTS else INSTANTS[number % len(INSTANTS)]
        if kind == "at":
            instant = draw.random() * found.seconds * _BEYOND or 1e-9
        else:
            counts = found.frames if kind == "frames" else found.steps
            instant = float(1 + int(draw.random() * counts[self.victim] * _BEYOND))
        return Case(self.program, self.size, self.victim, self.fault, kind, instant, draw.randrange(1 << 30))


def cells(sizes: Iterable[int] = SIZES, faults: Sequence[str] = (*FAULTS, *CUTS), only: str = "") -> Iterator[Cell]:
    """All cells; `only` leaves those whose program's name contains it."""
    for name, program in programs().items():
        if only in name:
            for size in sizes:
                if program.serves(size):
                    for victim in range(size):
                        for fault in (each for each in faults if each in program.faults):
                            yield Cell(name, size, victim, fault)


def sample(every: Iterable[Cell], number: int, seed: int, start: int = 0) -> Iterator[Case]:
    """`number` cases, from the `start`-th on, in an order in which any beginning is a fair sample, too."""
    for cell, which in drawn(every, number, seed, start):
        yield cell.case(which, seed)


def drawn(every: Iterable[Cell], number: int, seed: int, start: int = 0) -> Iterator[tuple[Cell, int]]:
    """The same as cells, each with how often it has come before: every cell as often as any other of its size, and
    those of large worlds and long programs less often, since each costs as much as several of others."""
    draw = random.Random(f"order {seed}")
    order = [(cell, draw.random(), (2 / cell.size) ** 1.5 * programs()[cell.program].share) for cell in every]
    draw.shuffle(order)
    here, end = 0, start + number
    for turn in itertools.count():
        for cell, first, share in order:
            before = int(first + turn * share)
            if int(first + (turn + 1) * share) > before:
                if here >= start:
                    yield cell, before
                here += 1
                if here == end:
                    return


def evenly(every: Iterable[Cell], number: int, seed: int, start: int = 0) -> Iterator[Case]:
    """The same, but every cell as often as any other, whatever it costs: all once, then all once more."""
    order = list(every)
    random.Random(f"order {seed}").shuffle(order)
    for here in range(start, start + number):
        before, which = divmod(here, len(order))
        yield order[which].case(before, seed)


__all__ = ["SIZES", "Cell", "cells", "drawn", "evenly", "sample"]
