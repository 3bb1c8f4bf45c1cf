"""One rank does something else than the others, in every way and on every rank: all learn of it, with both sides.

The rule: MismatchError on all ranks, in its own class, once, and about the same call; whoever was through with that
call hears of it in a later one. Afterwards the group is broken, and its twin works.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from aiocoll import MAX, Group, GroupBrokenError, MismatchError
from tests.group.cases import outcome, ranks, values

Call = Callable[[Group], Awaitable[Any]]


def program(size: int) -> list[Call]:
    """What all ranks call: some wait for everybody, some for one, some ranks for nobody."""

    def x(g: Group) -> Any:
        return values(g.rank, (6,))

    return [
        lambda g: g.all_reduce(x(g)),
        lambda g: g.broadcast(x(g) if g.rank == 0 else None, 0),
        lambda g: g.reduce(x(g), root=1),
        lambda g: g.all_gather(x(g)),
        lambda g: g.all_reduce(x(g)),
        lambda g: g.barrier(),
    ]


# What one rank does instead, the call in which that shows, and words of the two sides.
SLIPS: dict[str, tuple[Callable[[list[Call], int], None], int, str, str]] = {
    "order": (lambda calls, size: calls.insert(3, calls.pop(4)), 3, "all_gather", "all_reduce"),
    "collective": (lambda calls, size: _put(calls, 4, lambda g: g.scan(values(9, (6,)))), 4, "all_reduce", "scan"),
    "op": (lambda calls, size: _put(calls, 4, lambda g: g.all_reduce(values(9, (6,)), MAX)), 4, "op=SUM", "op=MAX"),
    "dtype": (
        lambda calls, size: _put(calls, 4, lambda g: g.all_reduce(values(9, (6,), np.float32))), 4, "dtype=float64",
        "dtype=float32",
    ),
    "count": (
        lambda calls, size: _put(calls, 4, lambda g: g.all_reduce(values(9, (7,)))), 4, "shape=(6,)", "shape=(7,)",
    ),
    "root": (
        lambda calls, size: _put(calls, 2, lambda g: g.reduce(values(9, (6,)), root=0)), 2, "root=1", "root=0",
    ),
    "missing": (lambda calls, size: _drop(calls, 3), 3, "all_gather", "all_reduce"),
    "extra": (lambda calls, size: calls.insert(4, lambda g: g.barrier()), 4, "all_reduce", "barrier"),
}  # fmt: skip


def _put(calls: list[Call], place: int, call: Call) -> None:
    calls[place] = call


def _drop(calls: list[Call], place: int) -> None:
    del calls[place]


def slips(fabric: str, size: int, what: str, guilty: int) -> None:
    change, number, mine, theirs = SLIPS[what]

    async def main(group: Group) -> None:
        twin = await group.dup()
        calls = program(size)
        if group.rank == guilty:
            change(calls, size)
        errors = []
        for call in [*calls, *[Group.barrier] * 4]:  # whoever waited for nobody hears of it in one of the next
            found = await outcome(call(twin))
            if isinstance(found, Exception):
                errors.append(found)
        assert errors and type(errors[0]) is MismatchError, errors
        assert {type(error) for error in errors[1:]} <= {GroupBrokenError}, errors
        text = str(errors[0])
        assert mine in text and theirs in text and f"call {number}" in text and twin.name in text, text
        assert errors[0].call == number and errors[0].group == twin.name and errors[0].rank is not None
        assert all(error.cause is twin.broken for error in errors[1:])
        assert group.broken is None and await group.all_reduce(group.rank) == size * (size - 1) // 2
        await twin.close()

    ranks(size, main, fabric, timeout=8.0)


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("what", SLIPS)
def test_f1_every_slip_of_every_rank_is_a_mismatch_on_all(size: int, what: str) -> None:
    for guilty in range(size):
        slips("sim", size, what, guilty)
        slips("inproc", size, what, guilty)


@pytest.mark.parametrize("fabric", ["tcp", "shm"])
@pytest.mark.parametrize("what", SLIPS)
def test_f1_over_sockets_and_shared_memory(fabric: str, what: str) -> None:
    for guilty in range(3):
        slips(fabric, 3, what, guilty)
