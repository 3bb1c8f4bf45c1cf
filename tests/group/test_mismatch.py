"""Ranks that make different calls under one number: MismatchError on all of them, with both sides; then it is broken.

The rule: within the timeout at the latest, and never a wrong result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll import MAX, MEAN, SUM, Group, GroupBrokenError, MismatchError
from tests.group.cases import on_every_fabric, outcome, ranks

X = np.arange(6.0)
Call = Callable[[Group], Any]
# What most ranks call, what one calls, and words of both sides.
PAIRS: dict[str, tuple[Call, Call, str, str]] = {
    "collective": (lambda g: g.all_reduce(X), lambda g: g.all_gather(X), "all_reduce", "all_gather"),
    "op": (lambda g: g.all_reduce(X, SUM), lambda g: g.all_reduce(X, MAX), "op=SUM", "op=MAX"),
    "mean": (lambda g: g.all_reduce(X, SUM), lambda g: g.all_reduce(X, MEAN), "op=SUM", "op=MEAN"),
    "dtype": (
        lambda g: g.all_reduce(X), lambda g: g.all_reduce(X.astype(np.int64)), "dtype=float64", "dtype=int64",
    ),
    "count": (lambda g: g.all_reduce(X), lambda g: g.all_reduce(X[:5]), "shape=(6,)", "shape=(5,)"),
    "shape": (lambda g: g.all_reduce(X), lambda g: g.all_reduce(X.reshape(2, 3)), "shape=(6,)", "shape=(2, 3)"),
    "empty": (
        lambda g: g.all_reduce(np.zeros((5, 0))), lambda g: g.all_reduce(np.zeros((7, 0))), "(5, 0)", "(7, 0)",
    ),
    "big": (
        lambda g: g.all_reduce(np.zeros(1_000_000, "f4")), lambda g: g.all_reduce(np.zeros(1_000_004, "f4")),
        "(1000000,)", "(1000004,)",
    ),
    "counts": (
        lambda g: g.reduce_scatter(X), lambda g: g.reduce_scatter(X, counts=[6] + [0] * (g.size - 1)), "[", "blocks=",
    ),
    "barrier": (lambda g: g.barrier(), lambda g: g.all_reduce(X), "barrier", "all_reduce"),
    "objects": (lambda g: g.all_gather_object(1), lambda g: g.all_gather(1), "all_gather_object", "all_gather"),
    "split": (lambda g: g.split(0), lambda g: g.dup(), "split", "dup"),
    "all_to_all": (lambda g: g.all_to_all([1] * g.size), lambda g: g.barrier(), "all_to_all", "barrier"),
}  # fmt: skip


@on_every_fabric
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("what", PAIRS)
def test_f1_different_calls_raise_on_all_ranks_with_both_sides(fabric: str, size: int, what: str) -> None:
    most, one, mine, theirs = PAIRS[what]

    async def main(group: Group) -> None:
        assert await group.all_reduce(1) == size
        error = await outcome((one if group.rank == size - 1 else most)(group))
        assert type(error) is MismatchError and isinstance(error, RuntimeError), error
        text = str(error)
        assert mine in text and theirs in text and "call 1" in text and "group 'world'" in text, text
        assert f"rank {size - 1}" in text
        assert isinstance(group.broken, MismatchError)
        after = await outcome(group.barrier())
        assert type(after) is GroupBrokenError and after.cause is group.broken and "different calls" in str(after)

    ranks(size, main, fabric, timeout=5.0)


# Some of these send only: they are through before anybody can know, and hear of it in their next call.
ROOTS: dict[str, Callable[[Group, int], Any]] = {
    "reduce": lambda g, root: g.reduce(X, root=root), "broadcast": lambda g, root: g.broadcast(X, root),
    "gather": lambda g, root: g.gather(X, root), "scatter": lambda g, root: g.scatter([X] * g.size, root),
    "gather_object": lambda g, root: g.gather_object(1, root),
    "broadcast_object": lambda g, root: g.broadcast_object(1, root),
}  # fmt: skip


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("what", ROOTS)
def test_different_roots_are_found_by_the_next_call_at_the_latest(size: int, what: str) -> None:
    async def main(group: Group) -> None:
        errors = [
            await outcome(ROOTS[what](group, 1 if group.rank == size - 1 else 0)),
            await outcome(group.barrier(timeout=10.0)),
        ]  # fmt: skip
        kinds = [type(error) for error in errors]
        assert MismatchError in kinds, errors
        text = str(errors[kinds.index(MismatchError)])
        assert "root=0" in text and "root=1" in text, text

    ranks(size, main, "sim", timeout=0.5)


@pytest.mark.parametrize("fabric", ["inproc", "tcp", "shm"])
@pytest.mark.parametrize("what", ["gather", "reduce"])
def test_ranks_that_wait_for_one_another_need_not_wait_for_the_deadline(fabric: str, what: str) -> None:
    async def main(group: Group) -> None:
        async with asyncio.timeout(20):
            error = await outcome(ROOTS[what](group, group.rank))
        assert type(error) is MismatchError and "root=0" in str(error) and "root=1" in str(error), error

    ranks(2, main, fabric, timeout=600.0)


@on_every_fabric
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_rank_that_only_sends_hears_of_the_difference_in_its_next_call(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        errors = [await outcome(group.scan(X) if group.rank else group.exscan(X)), await outcome(group.barrier())]
        kinds = [type(error) for error in errors]
        assert MismatchError in kinds, errors
        text = str(errors[kinds.index(MismatchError)])
        assert "[scan" in text and "[exscan" in text

    ranks(size, main, fabric, timeout=5.0)


@on_every_fabric
def test_calls_before_one_whose_data_do_not_fit_go_on(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 1:  # late: the others are through with the good call, and with the bad one
            assert isinstance(await outcome(group.recv(2)), MismatchError)
        for turn in range(2):
            out = np.empty(6)
            wrong = turn == 1 and group.rank == 2
            found = await outcome(group.broadcast(X + turn, out=None if group.rank == 0 else out[:5] if wrong else out))
            if turn == 0:
                np.testing.assert_array_equal(found, X)
            elif group.rank:
                assert isinstance(found, MismatchError if group.rank == 2 else (MismatchError, GroupBrokenError)), found

    ranks(3, main, fabric)


@on_every_fabric
def test_a_call_too_few_on_one_rank_is_found_at_the_first_that_differs(fabric: str) -> None:
    async def main(group: Group) -> None:
        calls = [lambda: group.all_reduce(X), lambda: group.barrier(), lambda: group.all_gather(X)]
        if group.rank == 1:
            del calls[1]
        errors = [await outcome(call()) for call in calls]
        assert any(type(error) is MismatchError for error in errors), errors

    ranks(3, main, fabric, timeout=5.0)


@on_every_fabric
def test_a_name_of_two_calls_is_a_mismatch_that_says_the_name(fabric: str) -> None:
    async def main(group: Group) -> None:
        call = group.all_reduce(1, name="loss") if group.rank else group.barrier(name="loss")
        error = await outcome(call)
        assert type(error) is MismatchError and "'loss'" in str(error)

    ranks(3, main, fabric, timeout=5.0)


@on_every_fabric
def test_a_mismatch_breaks_the_group_it_happened_on_and_no_other(fabric: str) -> None:
    async def main(group: Group) -> None:
        twin = await group.dup()
        part = await group.split(group.rank % 2)
        error = await outcome(twin.all_reduce(X[: 3 + group.rank]))
        assert type(error) is MismatchError and twin.broken is not None
        assert await group.all_reduce(1) == 3 and group.broken is None
        assert await part.all_reduce(1) == part.size
        await twin.close()
        await part.close()

    ranks(3, main, fabric, timeout=5.0)
