"""Which cells there are: collective x op x dtype x layout x form, with the rest dealt out, and fair parts.

Rule: pure; a cell is a line of text that replays it. Ops and algorithms come from their registries, so that a new one
is in the matrix as soon as it is written.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from ... import ops
from . import kinds, loops

REDUCTIONS: Final = ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan")
MOVEMENTS: Final = ("broadcast", "gather", "all_gather", "scatter", "all_to_all", "send_recv")
USER_OPS: Final = ("first", "last")
"""Functions of two arrays that do not commute and work on every dtype: the left one, the right one."""
FORMS: Final = ("await", "blocking", "started", "facade", "facade async_op")
LOOPS: Final = ("sim", "inproc", "tcp", "shm")
"""Where awaited calls are made: many ranks in one loop."""
PROCESSES: Final = ("tcp", "shm")
"""Where blocking calls are made: a process per rank."""
SIZES: Final = (1, 2, 3, 4, 5)
OUTS: Final = ("new", "out", "in place")
FACADE: Final = (
    "all_reduce", "reduce", "reduce_scatter", "broadcast", "gather", "all_gather", "scatter", "all_to_all", "send_recv",
)  # fmt: skip
TAKES_OUT: Final = ("broadcast", "reduce", "all_reduce", "all_gather", "scatter", "reduce_scatter", "send_recv")
IN_PLACE: Final = ("broadcast", "reduce", "all_reduce")


def op_names() -> tuple[str, ...]:
    """The ops of the registry and two of a user's."""
    return (*ops.names(), *USER_OPS)


@dataclass(frozen=True, slots=True)
class Cell:
    """One call: what is called, on what, how, among how many, over what."""

    collective: str
    op: str
    dtype: str
    layout: str
    form: str
    transport: str
    size: int
    out: str
    turn: int
    """Deals out the root, the values and the length."""

    @property
    def root(self) -> int:
        return self.turn % self.size

    @property
    def facade(self) -> bool:
        return self.form.startswith("facade")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what each rank gives."""
        if self.layout in ("0-d", "number"):
            return ()
        if self.layout == "empty":
            return kinds.EMPTY_SHAPES[self.turn % 3]
        long = self.turn % 8 == 7
        return (1200 if long else 2 * self.size + self.turn % 3, 2, 3)

    @property
    def extreme(self) -> bool:
        """Whether the values overflow (not in MEAN of long integers, which rounds in some order)."""
        wide = self.op == "MEAN" and kinds.dtypes()[self.dtype].itemsize > 4
        return self.turn % 2 == 1 and not wide

    def __str__(self) -> str:
        return "/".join(
            (self.collective, self.op or "-", self.dtype, self.layout, self.form, self.transport, str(self.size),
             self.out, str(self.turn))
        )  # fmt: skip


def cell_of(text: str) -> Cell:
    """The cell that a line stands for."""
    collective, op, dtype, layout, form, transport, size, out, turn = text.split("/")
    return Cell(collective, op.strip("-"), dtype, layout, form, transport, int(size), out, int(turn))


def rows() -> Iterator[tuple[str, str]]:
    """(collective, op): reductions with each op, movements without."""
    yield from itertools.product(REDUCTIONS, op_names())
    yield from ((each, "") for each in MOVEMENTS)


def cells(seed: int = 0, sizes: Iterable[int] = SIZES) -> Iterator[Cell]:
    """All: each row x dtype x layout x form once, with transport, size, out and turn dealt out."""
    every = tuple(sizes)
    draw = random.Random(f"cells {seed}")
    for (collective, op), dtype, layout in itertools.product(rows(), kinds.dtypes(), kinds.LAYOUTS):
        if _exists(dtype, layout):
            for form in FORMS:
                if form.startswith("facade") and collective not in FACADE:
                    continue
                transport = draw.choice(LOOPS if form == "await" else PROCESSES)
                out = draw.choice(_outs(collective, layout))
                size, turn = draw.choice(every), draw.randrange(240)
                if op and not loops.able(op, dtype):
                    turn |= 7  # what is refused is long, so that bytes that leave are seen
                yield Cell(collective, op, dtype, layout, form, transport, size, out, turn)


def sample(seed: int = 0, worlds: Iterable[tuple[str, int]] = (), share: float = 1.0) -> Iterator[Cell]:
    """A fair part of them: of each row x dtype x form one of some layout, and of each row x layout x form one of some
    dtype. Those that are not awaited are played in the `worlds` (transport, size) alone, if given, since each costs a
    process per rank, and only a `share` of them."""
    draw, few = random.Random(f"sample {seed}"), tuple(worlds)
    strata: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells(seed):
        row = (cell.collective, cell.op, cell.form)
        strata.setdefault((*row, "dtype", cell.dtype), []).append(cell)
        strata.setdefault((*row, "layout", cell.layout), []).append(cell)
    for chosen in dict.fromkeys(draw.choice(each) for each in strata.values()):
        if chosen.form != "await" and draw.random() >= share:
            continue
        if few and chosen.form != "await":
            transport, size = draw.choice(few)
            chosen = replace(chosen, transport=transport, size=size)
        yield chosen


def _exists(dtype: str, layout: str) -> bool:
    """Whether there is such an array."""
    kind = kinds.dtypes()[dtype]
    if layout == "number":  # scalars of text are as wide as they are long, and those of others are no scalars
        return kind.kind not in "OTSU" and not kind.names
    if layout == "swapped bytes":
        return kind.kind not in "OT" and kind.newbyteorder("S") != kind
    return True


def _outs(collective: str, layout: str) -> tuple[str, ...]:
    if collective not in TAKES_OUT:
        return OUTS[:1]
    return OUTS if collective in IN_PLACE and layout != "number" else OUTS[:2]


__all__ = [
    "FACADE", "FORMS", "IN_PLACE", "LOOPS", "MOVEMENTS", "OUTS", "PROCESSES", "REDUCTIONS", "SIZES", "TAKES_OUT",
    "USER_OPS", "Cell", "cell_of", "cells", "op_names", "rows", "sample",
]  # fmt: skip
