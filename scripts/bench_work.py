"""What one call of a collective does, so that any library can be measured on it: what is written before, checked after.

The rule: every contestant runs these same two loops. Elements of the input change before each call and results are
checked after it, inside the measured time; after each block every element is checked. A wrong result is an error.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
TURN = 500  # numbers of calls are taken modulo this: sums of a few of them are exact in float16, too
WAVE = 251


@dataclass(frozen=True, slots=True)
class Case:
    """One collective at one size on one rank. Before call n every element of ``writes`` becomes n % TURN + rank; after
    it, the element at each position of ``checks`` must be ``factor`` * (n % TURN) + its constant."""

    what: str
    rank: int
    size: int
    count: int  # elements of the input
    out: int  # elements of the output
    in_place: bool
    writes: tuple[int, ...]
    checks: tuple[tuple[int, float], ...]
    factor: int

    def filled(self) -> Array:
        """An input of which no two neighbours are equal, and which differs from rank to rank."""
        return np.arange(self.count) % WAVE * (self.rank + 1)

    def wanted(self) -> Array:
        """What the call must make of everybody's ``filled()`` on this rank."""
        wave = np.arange(self.count) % WAVE
        everybody = self.size * (self.size + 1) // 2
        mine = slice(self.rank * self.out, (self.rank + 1) * self.out)
        share = self.count // self.size
        match self.what:
            case "all_reduce":
                return wave * everybody
            case "broadcast" | "one_way":
                return wave
            case "all_gather":
                return np.concatenate([wave * (rank + 1) for rank in range(self.size)])
            case "reduce_scatter":
                return (wave * everybody)[mine]
            case "all_to_all":
                block = wave[self.rank * share : (self.rank + 1) * share]
                return np.concatenate([block * (rank + 1) for rank in range(self.size)])
        return wave[:0]


def case_of(what: str, rank: int, size: int, nbytes: int, itemsize: int = 4) -> Case:
    """``nbytes`` are the bytes of one rank's input, for all_gather its contribution."""
    count = 0 if what == "barrier" else max(1, nbytes // itemsize)
    mine = float(size * (size - 1) // 2)
    if what in ("reduce_scatter", "all_to_all"):
        share = max(1, count // size)
        count = share * size
        writes = tuple(block * share + probe for block in range(size) for probe in _ends(share))
        if what == "reduce_scatter":
            checks = [(probe, mine) for probe in _probes(share) if probe in _ends(share)]
            return Case(what, rank, size, count, share, False, writes, tuple(checks), size)
        checks = [(source * share + probe, float(source)) for source in range(size) for probe in _ends(share)]
        return Case(what, rank, size, count, count, False, writes, tuple(checks), 1)
    probes = _probes(count)
    if what == "all_gather":
        checks = [(source * count + probe, float(source)) for source in range(size) for probe in _ends(count)]
        return Case(what, rank, size, count, size * count, False, probes, tuple(checks), 1)
    if what == "all_reduce":
        return Case(what, rank, size, count, count, True, probes, tuple((probe, mine) for probe in probes), size)
    if what in ("broadcast", "one_way"):
        checks = [(probe, 0.0) for probe in probes] if rank else []
        return Case(what, rank, size, count, count, True, () if rank else probes, tuple(checks), 1)
    return Case(what, rank, size, 0, 0, True, (), (), 1)


def _ends(count: int) -> tuple[int, ...]:
    return tuple(sorted({0, count - 1})) if count else ()


def _probes(count: int) -> tuple[int, ...]:
    return tuple(sorted({0, count // 2, count - 1})) if count else ()


@dataclass(slots=True)
class Call:
    """A library's call over its buffers. ``make`` does it, or returns what must be awaited; ``result`` says that what
    it gives is the output, a list of equal parts, instead of ``out``."""

    case: Case
    make: Callable[[], Any]
    array: Array
    out: Array
    result: bool = False

    def fill(self) -> None:
        """Before a block: all zero, so that sums repeated in place neither grow nor overflow; every page touched."""
        self.array[:] = 0
        self.out[:] = 0

    def fill_all(self) -> None:
        """Before the one call of which every element is checked."""
        self.array[:] = self.case.filled()

    def check_all(self, given: Any) -> None:
        """After it."""
        got = np.concatenate([np.ravel(part) for part in given]) if self.result else self.out
        if not np.array_equal(got, self.case.wanted()):
            raise ArithmeticError(f"{self.case.what} of {self.array.nbytes} B gave a wrong result")

    def blocking(self, calls: int) -> float:
        """Seconds for ``calls`` calls back to back."""
        case, make, result = self.case, self.make, self.result
        source, target = _cells(self.array), _cells(self.out)
        writes, checks, rank, factor = case.writes, case.checks, case.rank, case.factor
        begun = time.perf_counter()
        for number in range(calls):
            turn = number % TURN
            mine = float(turn + rank)
            for cell in writes:
                source[cell] = mine
            given = make()
            if result:
                target = Parts(given)
            turn *= factor
            for cell, constant in checks:
                if target[cell] != turn + constant:
                    raise ArithmeticError(f"call {number}: element {cell} is {target[cell]}, not {turn + constant}")
        return time.perf_counter() - begun

    async def awaiting(self, calls: int) -> float:
        """The same, awaited."""
        case, make, result = self.case, self.make, self.result
        source, target = _cells(self.array), _cells(self.out)
        writes, checks, rank, factor = case.writes, case.checks, case.rank, case.factor
        begun = time.perf_counter()
        for number in range(calls):
            turn = number % TURN
            mine = float(turn + rank)
            for cell in writes:
                source[cell] = mine
            given = await make()
            if result:
                target = Parts(given)
            turn *= factor
            for cell, constant in checks:
                if target[cell] != turn + constant:
                    raise ArithmeticError(f"call {number}: element {cell} is {target[cell]}, not {turn + constant}")
        return time.perf_counter() - begun


class Parts:
    """A list of equal arrays, indexed as if they were one after the other."""

    def __init__(self, parts: list[Array]) -> None:
        self.parts, self.share = parts, len(parts[0])

    def __getitem__(self, cell: int) -> Any:
        return self.parts[cell // self.share][cell % self.share]


def _cells(array: Array) -> Any:
    """What writes and reads single elements: a memoryview takes 40 ns for a float32, NumPy 100."""
    return array.data if array.dtype == np.float32 else array


def block(call: Call, synchronise: Callable[[], Any], calls: int) -> float:
    """Seconds for a block of ``calls`` calls; the ranks begin together, and afterwards every element is checked."""
    call.fill()
    synchronise()
    seconds = call.blocking(calls)
    call.fill_all()
    call.check_all(call.make())
    return seconds


async def block_awaited(call: Call, synchronise: Callable[[], Awaitable[Any]], calls: int) -> float:
    """The same, awaited."""
    call.fill()
    await synchronise()
    seconds = await call.awaiting(calls)
    call.fill_all()
    call.check_all(await call.make())
    return seconds
