"""Every collective is called, timed and checked on every fabric, and a wrong result is seen.

The rule: the measuring program is the one of ``aiocoll bench``; only the machine's floor is left out where the ranks
share one thread, in which they cannot wait for one another by looking.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiocoll import Group
from aiocoll.bench.callers import Awaited, stepped
from aiocoll.bench.measure import Table
from aiocoll.bench.records import Floor, Row
from aiocoll.bench.request import COLLECTIVES, REDUCTIONS, ROOTED, Request
from aiocoll.errors import AiocollError
from aiocoll.testing import run

IN_PLACE = {"all_reduce", "reduce", "broadcast"}


class NoFloor:
    async def floor(self, nbytes: float) -> Floor:
        return Floor()


def request(**facts: Any) -> Request:
    usual = {"collectives": COLLECTIVES, "sizes": (4,), "calls": 7, "warmup": 2, "checks": 2, "caller": "await"}
    return Request(**(usual | facts))


async def measured(group: Any, wanted: Request, collective: str, dtype: str, op: str, nbytes: int) -> Row | None:
    table = Table(wanted, Awaited(group), NoFloor())
    return await table.row(collective, dtype, op, nbytes)


@pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=pytest.mark.slow), 5])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_is_right_for_every_count_and_root(collective: str, size: int) -> None:
    async def main(group: Group) -> None:
        for root in dict.fromkeys((0, size - 1)):
            for count in (0, 1, size, 17, 4099):
                op = "sum" if collective in REDUCTIONS else ""
                row = await measured(group, request(root=root), collective, "float32", op, 4 * count)
                if group.rank:
                    assert row is None
                    continue
                assert row is not None and (row.ranks, row.count, row.algorithm) == (size, count, row.algorithm)
                assert row.root == (root if collective in ROOTED else -1)
                places = {"out", "in"} if collective in IN_PLACE else {"out"}
                assert set(row.cells) == (set() if collective == "ping_pong" and size == 1 else places)
                for cell in row.cells.values():
                    assert (cell.wrong, cell.calls) == (0, 7)
                    assert 0 < cell.low <= cell.seconds <= cell.high and cell.p99 > 0

    run(size, main, "inproc")


@pytest.mark.parametrize("collective", [each for each in REDUCTIONS if each != "reduce"])
def test_every_op_and_dtype(collective: str) -> None:
    async def main(group: Group) -> None:
        wanted = request(ops=("sum", "prod", "max", "mean", "bxor", "lor"), calls=3)
        for dtype in ("float16", "bfloat16", "int8", "bool", "complex64"):
            for op in wanted.folds(collective, dtype):
                row = await measured(group, wanted, collective, dtype, op, 4096)
                if row is not None:
                    assert [cell.wrong for cell in row.cells.values()] == [0] * len(row.cells), (dtype, op)
                    no_place = op == "mean" and dtype in ("int8", "bool")  # the mean of integers is no integer
                    assert ("in" in row.cells) == (collective == "all_reduce" and not no_place)

    run(3, main, "inproc")


def test_the_number_of_calls_is_found_and_the_same_everywhere() -> None:
    async def main(group: Group) -> int:
        wanted = request(calls=0, seconds=0.02, warmup=0, checks=0)
        row = await measured(group, wanted, "all_reduce", "float32", "sum", 64)
        return -1 if row is None else row.cells["out"].calls

    first, *others = run(2, main, "inproc")
    assert first >= 5 and others == [-1]


class Corrupt:
    """A group that makes a mistake now and then in one element of what it reduces."""

    def __init__(self, group: Group, element: int, which: range) -> None:
        self._group, self._element, self._which, self._calls = group, element, which, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    async def all_reduce(self, x: Any, op: Any, out: Any = None) -> Any:
        result = await self._group.all_reduce(x, op, out=out)
        self._calls += 1
        if self._calls in self._which:
            result[self._element] += 1
        return result


@pytest.mark.parametrize(
    ("element", "which", "wrong"),
    [(0, range(100), 11), (777, range(100), 2), (1000, range(3, 100), 9), (500, range(5, 6), 1), (0, range(0), 0)],
)
def test_a_wrong_element_is_counted_once_per_call(element: int, which: range, wrong: int) -> None:
    """2 checked calls, 2 to warm up, 7 timed; in all but the first the ends and the middle are looked at."""

    async def main(group: Group) -> int:
        suspect = Corrupt(group, element, which) if group.rank == 1 else group
        row = await measured(suspect, request(places=("out",)), "all_reduce", "float32", "sum", 4 * 1001)
        return -1 if row is None else row.cells["out"].wrong

    assert run(2, main, "inproc") == [wrong, -1]


def test_a_forced_algorithm_that_cannot_serve_a_size_leaves_the_cell_empty() -> None:
    from aiocoll.algorithms import all_of

    unable = next(each for each in all_of("all_reduce") if not each.when(3, 4) or not each.when(3, 12))

    async def main(group: Group) -> Row | None:
        forcing = await Awaited(group).forcing(f"all_reduce:{unable.name}")
        try:
            table = Table(request(), forcing, NoFloor(), unable.name)
            return await table.row("all_reduce", "float32", "sum", 4)
        finally:
            await forcing.close()

    row = run(3, main, "inproc")[0]
    assert row.cells == {} and row.algorithm == f"{unable.name}: refused" and row.forced == unable.name


def test_arrays_of_the_group_are_used_where_they_are_wanted() -> None:
    async def main(group: Group) -> list[str]:
        made = []

        class Lending:
            def __getattr__(self, name: str) -> Any:
                return getattr(group, name)

            def empty(self, shape: Any, dtype: Any) -> Any:
                made.append(np.dtype(dtype).name)
                return group.empty(shape, dtype)

        await measured(Lending(), request(shared=True, places=("out",)), "all_reduce", "int16", "sum", 64)
        return made

    assert run(2, main, "inproc") == [["int16", "int16"]] * 2


def test_a_blocking_program_that_waits_for_a_loop_is_told() -> None:
    class Never:
        def __await__(self) -> Any:
            yield None

    async def program() -> None:
        await Never()

    async def at_once() -> int:
        return 7

    assert stepped(at_once) == 7
    with pytest.raises(AiocollError, match="event loop"):
        stepped(program)
