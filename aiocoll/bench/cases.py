"""How each collective is called, what goes in, and what must come out: one function per collective.

The rule: a case says what is expected in the words of the collective, never by calling it; and where a collective has
no form for a place (``out=`` beside the input, or the input itself), its function gives None and the cell stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .. import patterns
from .pattern import PERIOD, Stretch, folded
from .request import op_named

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One cell of the table, seen from one rank."""

    group: Any
    """A ``SyncGroup`` or a ``Group``: the methods have the same names."""
    facade: Any
    """``aiocoll.distributed``, or None."""
    dtype: np.dtype[Any]
    op: str
    root: int
    count: int
    """Elements of one rank's input."""
    in_place: bool
    tables: list[Array]
    shared: bool = False
    awaited: bool = False
    """Whether the group's methods give awaitables."""

    @property
    def rank(self) -> int:
        return int(self.group.rank)

    @property
    def size(self) -> int:
        return int(self.group.size)

    def empty(self, count: int) -> Array:
        """An array of the row's dtype, written to once: a first touch is no part of a call."""
        made: Array = self.group.empty(count, self.dtype) if self.shared else np.empty(count, self.dtype)
        made[...] = np.zeros((), self.dtype)
        return made

    def of(self, rank: int, start: int = 0, count: int | None = None) -> Stretch:
        """What another rank puts in."""
        return Stretch(self.tables[rank], start, self.count if count is None else count)

    def folded(self, ranks: range, start: int = 0, count: int | None = None) -> Stretch:
        """What the op makes of it."""
        result = op_named(self.op).result_dtype(self.dtype)
        table = folded(self.op, [self.tables[rank] for rank in ranks], result)
        return Stretch(table, start, self.count if count is None else count)

    def marks(self) -> list[int]:
        """Where somebody looks at an input that is split: at the ends and the middle of each block."""
        return [start + at for start, count in self.blocks() for at in Stretch(self.tables[0], start, count).probes()]

    def blocks(self) -> list[tuple[int, int]]:
        """(start, count) of each rank's block of an input that is split."""
        counts = patterns.even(self.count, self.size)
        return list(zip([0, *accumulate(counts)], counts, strict=False))


@dataclass(slots=True)
class Case:
    """One way to call one collective, with its data."""

    call: Callable[[], Any]
    what: str
    """The call as a user writes it."""
    given: Array | None = None
    """My input, if I have one."""
    stretch: Stretch | None = None
    wanted: list[Stretch] = field(default_factory=list)
    results: Callable[[Any], Sequence[Array]] = lambda value: ()
    """The arrays in which the results lie, in the order of ``wanted``."""
    trips: int = 1
    """What is timed is so many times what is shown."""
    marks: list[int] | None = None
    """The elements of my input that change from call to call, where somebody looks at others than its ends."""
    _arm: list[tuple[int, int, list[Any]]] = field(default_factory=list)
    _look: list[tuple[int, int, int, list[Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.stretch is not None:
            values = list(self.stretch.table)
            marks = self.stretch.probes() if self.marks is None else self.marks
            self._arm = [(at, self.stretch.start + at, values) for at in marks]
        for number, stretch in enumerate(self.wanted):
            values = list(stretch.table)
            self._look += [(number, at, stretch.start + at, values) for at in stretch.probes()]

    def fill(self, call: int) -> None:
        """The whole input of one call."""
        if self.given is not None and self.stretch is not None:
            self.stretch.fill(self.given, call)

    def arm(self, call: int) -> None:
        """Changes a few elements of the input, before a timed call."""
        given = self.given
        if given is not None:
            for at, index, values in self._arm:
                given[at] = values[(index + call) % PERIOD]

    def look(self, value: Any, call: int) -> int:
        """How many of the changed elements did not come through."""
        arrays = self.results(value)
        wrong = 0
        for number, at, index, values in self._look:
            if arrays[number][at] != values[(index + call) % PERIOD]:
                wrong += 1
        return wrong

    def wrong(self, value: Any, call: int) -> int:
        """How many elements of the whole result are wrong."""
        arrays = self.results(value)
        if len(arrays) != len(self.wanted):
            return max(1, sum(stretch.count for stretch in self.wanted))
        return sum(stretch.wrong(array, call) for stretch, array in zip(self.wanted, arrays, strict=True))


def all_reduce(it: Setting) -> Case | None:
    """Every rank has the fold of all."""
    x, op = it.empty(it.count), op_named(it.op)
    if it.in_place and op.result_dtype(it.dtype) != it.dtype:
        return None
    wanted = [it.folded(range(it.size))]
    if it.in_place:
        if it.facade is not None:
            dist = it.facade
            return _case(it, lambda: dist.all_reduce(x, op), "dist.all_reduce(x)", x, wanted, [x])
        return _case(it, lambda: it.group.all_reduce(x, op, out=x), "group.all_reduce(x, out=x)", x, wanted, [x])
    y = _result(it, it.count)
    return _case(it, lambda: it.group.all_reduce(x, op, out=y), "group.all_reduce(x, out=y)", x, wanted, [y])


def reduce(it: Setting) -> Case | None:
    """Root has the fold of all."""
    x, op, mine = it.empty(it.count), op_named(it.op), it.rank == it.root
    if it.in_place and op.result_dtype(it.dtype) != it.dtype:
        return None
    wanted = [it.folded(range(it.size))] if mine else []
    if it.in_place and it.facade is not None:
        dist = it.facade
        return _case(it, lambda: dist.reduce(x, it.root, op), "dist.reduce(x, root)", x, wanted, [x] if mine else [])
    y = x if it.in_place else _result(it, it.count)
    out = y if mine else None
    what = f"group.reduce(x, root, out={'x' if it.in_place else 'y'})"
    return _case(it, lambda: it.group.reduce(x, op, it.root, out=out), what, x, wanted, [y] if mine else [])


def broadcast(it: Setting) -> Case | None:
    """Every rank has root's array."""
    x, mine, root = it.empty(it.count), it.rank == it.root, it.root
    wanted = [it.of(root)]
    given = x if mine else None
    if it.in_place and it.facade is not None:
        dist = it.facade
        return _case(it, lambda: dist.broadcast(x, root), "dist.broadcast(x, root)", given, wanted, [x])
    y = x if it.in_place else it.empty(it.count)
    what = f"group.broadcast(x, root, out={'x' if it.in_place else 'y'})"
    return _case(it, lambda: it.group.broadcast(given, root, out=y), what, given, wanted, [y])


def all_gather(it: Setting) -> Case | None:
    """Every rank has everybody's array."""
    if it.in_place:
        return None
    x, wanted = it.empty(it.count), [it.of(rank) for rank in range(it.size)]
    table = it.empty(it.size * it.count).reshape(it.size, it.count)
    rows = list(table)
    if it.facade is not None:
        dist = it.facade
        return _case(it, lambda: dist.all_gather(rows, x), "dist.all_gather(list, x)", x, wanted, rows)
    return _case(it, lambda: it.group.all_gather(x, out=table), "group.all_gather(x, out=table)", x, wanted, rows)


def gather(it: Setting) -> Case | None:
    """Root has everybody's array."""
    if it.in_place:
        return None
    x, mine, root = it.empty(it.count), it.rank == it.root, it.root
    wanted = [it.of(rank) for rank in range(it.size)] if mine else []
    if it.facade is not None:
        dist, rows = it.facade, [it.empty(it.count) for _ in range(it.size)] if mine else None
        return _case(it, lambda: dist.gather(x, rows, root), "dist.gather(x, list, root)", x, wanted, rows or [])
    case = _case(it, lambda: it.group.gather(x, root), "group.gather(x, root)", x, wanted, [])
    if mine:
        case.results = _as_returned
    return case


def scatter(it: Setting) -> Case | None:
    """Every rank has its block of root's array."""
    if it.in_place:
        return None
    mine, root = it.rank == it.root, it.root
    x = it.empty(it.count)
    parts = [x[start : start + count] for start, count in it.blocks()] if mine else None
    start, count = it.blocks()[it.rank]
    y, given, wanted = it.empty(count), x if mine else None, [it.of(root, start, count)]
    if it.facade is not None and it.count % it.size == 0:  # the facade's parts are all alike
        dist = it.facade
        words = "dist.scatter(y, list, root)"
        return _case(it, lambda: dist.scatter(y, parts, root), words, given, wanted, [y], it.marks())
    words = "group.scatter(list, root, out=y)"
    return _case(it, lambda: it.group.scatter(parts, root, out=y), words, given, wanted, [y], it.marks())


def reduce_scatter(it: Setting) -> Case | None:
    """Every rank has its block of the fold of all."""
    if it.in_place:
        return None
    x, op = it.empty(it.count), op_named(it.op)
    start, count = it.blocks()[it.rank]
    y, wanted = _result(it, count), [it.folded(range(it.size), start, count)]
    words = "group.reduce_scatter(x, out=y)"
    return _case(it, lambda: it.group.reduce_scatter(x, op, out=y), words, x, wanted, [y], it.marks())


def all_to_all(it: Setting) -> Case | None:
    """Every rank has its block of everybody's array."""
    if it.in_place:
        return None
    x, (start, count) = it.empty(it.count), it.blocks()[it.rank]
    wanted = [it.of(rank, start, count) for rank in range(it.size)]
    case = _case(it, lambda: it.group.all_to_all(x), "group.all_to_all(x)", x, wanted, [], it.marks())
    case.results = _as_returned
    return case


def scan(it: Setting) -> Case | None:
    """Every rank has the fold of those up to itself."""
    if it.in_place:
        return None
    x, op = it.empty(it.count), op_named(it.op)
    case = _case(it, lambda: it.group.scan(x, op), "group.scan(x)", x, [it.folded(range(it.rank + 1))], [])
    case.results = _alone
    return case


def exscan(it: Setting) -> Case | None:
    """Every rank has the fold of those below itself; the first has nothing that is worth a look."""
    if it.in_place:
        return None
    x, op = it.empty(it.count), op_named(it.op)
    wanted = [it.folded(range(it.rank))] if it.rank else []
    case = _case(it, lambda: it.group.exscan(x, op), "group.exscan(x)", x, wanted, [])
    if it.rank:
        case.results = _alone
    return case


def barrier(it: Setting) -> Case | None:
    """Nothing goes in, and nothing comes out."""
    if it.in_place:
        return None
    if it.facade is not None:
        return Case(it.facade.barrier, "dist.barrier()")
    return Case(it.group.barrier, "group.barrier()")


def ping_pong(it: Setting) -> Case | None:
    """From rank 0 to rank 1 and back; the time is that of one way."""
    if it.in_place or it.size < 2:
        return None
    group, x, y, other = it.group, it.empty(it.count), it.empty(it.count), 1 - it.rank

    def call() -> Any:
        if it.rank == 0:
            group.send(x, other)
            group.recv(other, out=y)
        elif it.rank == 1:
            group.recv(other, out=y)
            group.send(x, other)

    async def call_awaited() -> None:
        if it.rank == 0:
            await group.send(x, other)
            await group.recv(other, out=y)
        elif it.rank == 1:
            await group.recv(other, out=y)
            await group.send(x, other)

    plays = it.rank < 2
    case = Case(
        call_awaited if it.awaited else call, "group.send(x), group.recv(out=y)", x if plays else None,
        it.of(it.rank) if plays else None, [it.of(other)] if plays else [], lambda _: [y] if plays else [],
    )  # fmt: skip
    case.trips = 2
    return case


CASES: Final[dict[str, Callable[[Setting], Case | None]]] = {
    each.__name__: each
    for each in (
        all_reduce, reduce, broadcast, all_gather, gather, scatter, reduce_scatter, all_to_all, scan, exscan, barrier,
        ping_pong,
    )
}  # fmt: skip


def case_of(collective: str, it: Setting) -> Case | None:
    """The case of one cell, or None where the collective has no such form."""
    return CASES[collective](it)


def _case(
    it: Setting, call: Callable[[], Any], what: str, given: Array | None, wanted: list[Stretch], results: list[Array],
    marks: list[int] | None = None,
) -> Case:  # fmt: skip
    """A case whose results lie in arrays that are known before the call."""
    stretch = None if given is None else it.of(it.rank)
    return Case(call, what, given, stretch, wanted, lambda _: results, marks=marks)


def _result(it: Setting, count: int) -> Array:
    """Where a fold goes: of the dtype that the op gives."""
    return replace(it, dtype=op_named(it.op).result_dtype(it.dtype)).empty(count)


def _as_returned(value: Any) -> Sequence[Array]:
    parts: Sequence[Array] = value
    return parts


def _alone(value: Any) -> Sequence[Array]:
    return [value]
