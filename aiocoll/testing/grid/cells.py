"""Which cells there are: collective x op x dtype x layout x form x transport, with the rest dealt out, and fair parts.

Rule: pure; a cell is a line of text that replays it. Ops and algorithms come from their registries, so that a new one
is in the matrix as soon as it is written.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


def ways() -> Iterator[tuple[str, str]]:
    """(form, transport)."""
    yield from (("await", transport) for transport in LOOPS)
    yield from itertools.product(FORMS[1:], PROCESSES)


def cells(seed: int = 0, sizes: Iterable[int] = SIZES) -> Iterator[Cell]:
    """All: each row x dtype x layout x way once, with size, out and turn dealt out."""
    every = tuple(sizes)
    draw = random.Random(f"cells {seed}")
    for (collective, op), dtype, layout in itertools.product(rows(), kinds.dtypes(), kinds.LAYOUTS):
        if _exists(dtype, layout):
            for form, transport in ways():
                if form.startswith("facade") and collective not in FACADE:
                    continue
                out = draw.choice(_outs(collective, dtype, layout))
                size, turn = draw.choice(every), draw.randrange(240)
                if op and not loops.able(op, dtype):
                    turn |= 7  # what is refused is long, so that bytes that leave are seen
                yield Cell(collective, op, dtype, layout, form, transport, size, out, turn)


def sample(seed: int = 0, per_stratum: int = 1, sizes: Iterable[int] = SIZES) -> Iterator[Cell]:
    """A fair part: of each row x dtype x form some cells, of whatever layout and transport."""
    draw = random.Random(f"sample {seed}")
    for _, group in itertools.groupby(cells(seed, sizes), lambda cell: (cell.collective, cell.op, cell.dtype)):
        by_form: dict[str, list[Cell]] = {}
        for cell in group:
            by_form.setdefault(cell.form, []).append(cell)
        for found in by_form.values():
            yield from draw.sample(found, min(per_stratum, len(found)))


def _exists(dtype: str, layout: str) -> bool:
    """Whether there is such an array."""
    kind = kinds.dtypes()[dtype]
    if layout == "number":  # NumPy has no scalars of these that are not arrays themselves
        return kind.kind not in "OT" and not kind.names
    if layout == "swapped bytes":
        return kind.kind not in "OT" and kind.newbyteorder("S") != kind
    return True


def _outs(collective: str, dtype: str, layout: str) -> tuple[str, ...]:
    text = layout == "number" and kinds.dtypes()[dtype].kind in "SU"  # is as wide as it is long
    if collective not in TAKES_OUT or text:
        return OUTS[:1]
    return OUTS if collective in IN_PLACE and layout != "number" else OUTS[:2]


__all__ = [
    "FACADE", "FORMS", "IN_PLACE", "LOOPS", "MOVEMENTS", "OUTS", "PROCESSES", "REDUCTIONS", "SIZES", "TAKES_OUT",
    "USER_OPS", "Cell", "cell_of", "cells", "op_names", "rows", "sample", "ways",
]  # fmt: skip
