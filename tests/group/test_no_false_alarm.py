"""Correct programs of very many calls of all kinds: nothing is ever taken for a mismatch.

The rule: every rank draws the same program from the same seed; results differ per rank, per call and per element, and
each of them is checked.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from aiocoll import MAX, MIN, SUM, Group
from tests.group.cases import FABRICS, on_every_fabric, ranks

Step = Callable[[Group, int, int], Awaitable[None]]


def mine(rank: int, turn: int, count: int) -> Any:
    """What a rank gives in one call."""
    return np.arange(count) * (rank + 2) + turn % 1000


def total(size: int, turn: int, count: int) -> Any:
    return np.arange(count) * (size * (size + 3) // 2) + size * (turn % 1000)


async def summed(group: Group, turn: int, count: int) -> None:
    assert (await group.all_reduce(mine(group.rank, turn, count)) == total(group.size, turn, count)).all()


async def in_place(group: Group, turn: int, count: int) -> None:
    x = mine(group.rank, turn, count).astype(float)
    assert await group.all_reduce(x, out=x) is x and (x == total(group.size, turn, count)).all()


async def largest(group: Group, turn: int, count: int) -> None:
    op, who = (MAX, group.size - 1) if turn % 2 else (MIN, 0)
    assert (await group.all_reduce(mine(group.rank, turn, count), op) == mine(who, turn, count)).all()


async def shown(group: Group, turn: int, count: int) -> None:
    root = turn % group.size
    x = await group.broadcast(mine(root, turn, count) if group.rank == root else None, root)
    assert (x == mine(root, turn, count)).all()


async def reduced(group: Group, turn: int, count: int) -> None:
    root = turn % group.size
    x = await group.reduce(mine(group.rank, turn, count), SUM, root)
    assert x is None if group.rank != root else (x == total(group.size, turn, count)).all()


async def gathered(group: Group, turn: int, count: int) -> None:
    parts = await group.all_gather(mine(group.rank, turn, count + group.rank))
    assert all((part == mine(rank, turn, count + rank)).all() for rank, part in enumerate(parts))


async def to_root(group: Group, turn: int, count: int) -> None:
    root = turn % group.size
    parts = await group.gather(mine(group.rank, turn, count), root)
    assert parts is None or all((part == mine(rank, turn, count)).all() for rank, part in enumerate(parts))


async def dealt(group: Group, turn: int, count: int) -> None:
    root = turn % group.size
    parts = [mine(rank, turn, count) for rank in range(group.size)] if group.rank == root else None
    assert (await group.scatter(parts, root) == mine(group.rank, turn, count)).all()


async def swapped(group: Group, turn: int, count: int) -> None:
    parts = await group.all_to_all([mine(group.rank, turn + rank, count) for rank in range(group.size)])
    assert all((part == mine(rank, turn + group.rank, count)).all() for rank, part in enumerate(parts))


async def cut(group: Group, turn: int, count: int) -> None:
    x = np.arange(3 * group.size) * (group.rank + 1) + turn
    block = slice(3 * group.rank, 3 * group.rank + 3)
    wanted = np.arange(3 * group.size) * (group.size * (group.size + 1) // 2) + group.size * turn
    assert (await group.reduce_scatter(x) == wanted[block]).all()


async def prefix(group: Group, turn: int, count: int) -> None:
    assert await group.scan(turn + group.rank) == sum(turn + rank for rank in range(group.rank + 1))
    assert await group.exscan(turn + group.rank) == sum(turn + rank for rank in range(group.rank))


async def together(group: Group, turn: int, count: int) -> None:
    await group.barrier()


async def by_name(group: Group, turn: int, count: int) -> None:
    assert await group.all_reduce(group.rank + turn, name=f"n{turn % 7}") == sum(range(group.size)) + group.size * turn


async def plain(group: Group, turn: int, count: int) -> None:
    wanted = [{"rank": rank, "turn": turn} for rank in range(group.size)]
    assert await group.all_gather_object({"rank": group.rank, "turn": turn}) == wanted


async def around(group: Group, turn: int, count: int) -> None:
    await group.send(mine(group.rank, turn, count), (group.rank + 1) % group.size, tag=turn % 5)
    source = (group.rank - 1) % group.size
    assert (await group.recv(source, tag=turn % 5) == mine(source, turn, count)).all()


STEPS: list[Step] = [
    summed, in_place, largest, shown, reduced, gathered, to_root, dealt, swapped, cut, prefix, together, by_name, plain,
    around,
]  # fmt: skip
COMMON = [summed, shown, together, largest]  # those that come again with arguments alike


async def program(group: Group, calls: int, seed: int) -> int:
    """Calls of all kinds on the world, a twin of it and a part, which come anew now and then; how many were made."""
    draw = random.Random(f"{seed} {group.size}")
    made = 0
    while made < calls:
        twin = await group.dup()
        part = await group.split(group.rank % 2, key=-group.rank)
        members = [rank for rank in range(group.size) if rank != made % group.size][::-1]
        some = await group.subgroup(members) if group.rank in members else None
        assert part is not None
        for turn in range(min(calls, 2500)):
            step, place = draw.choice(STEPS if turn % 4 else COMMON), draw.randrange(8)
            count = draw.choice((1, 1, 4, 4, 4, 33, 700))
            each = {5: twin, 6: part, 7: some}.get(place, group)
            if each is not None:
                await step(each, turn, count)
        made += min(calls, 2500)
        for each in (twin, part, some):
            if each is not None:
                await each.close()
    assert group.broken is None
    return made


@pytest.mark.slow
@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize(("size", "calls"), [(2, 15_000), (3, 10_000)])
def test_f2_a_hundred_thousand_mixed_calls(fabric: str, size: int, calls: int) -> None:
    """So many in all, over the four fabrics and the two sizes."""
    assert min(ranks(size, lambda group: program(group, calls, size), fabric, timeout=60.0)) >= calls


@pytest.mark.slow
def test_f2_mixed_calls_between_processes() -> None:
    ranks(3, lambda group: program(group, 2_000, 1), "process", timeout=60.0, limit=100.0)


@on_every_fabric
def test_f2_mixed_calls_on_every_fabric(fabric: str) -> None:
    ranks(4, lambda group: program(group, 500, 4), fabric, timeout=60.0)
