"""A call that one rank refuses is refused for all, by class and by name, and the group goes on; user ops that fail too.

The rule: who refuses says so to its peers, whether they have made the call or make it later; messages and subgroups
concern nobody else.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll import MIN, SUM, Group, SerializationError, UsageError, op
from tests.group.cases import on_every_fabric, outcome, ranks, same, values

X = np.arange(6.0)
C = X.astype(complex)
OBJECTS = np.array([object()], dtype=object)


class Hostile:
    """An argument that raises what it likes."""

    @property
    def __array_interface__(self) -> Any:
        raise KeyError("no such thing")

    def __index__(self) -> int:
        raise RuntimeError("not today")


Call = Callable[[Group], Any]
# What a rank does wrong, and what the others do right.
WRONG: dict[str, tuple[Call, Call]] = {
    "complex MIN": (lambda g: g.all_reduce(C, MIN), lambda g: g.all_reduce(C)),
    "bits of floats": (lambda g: g.reduce(X, "bxor"), lambda g: g.reduce(X)),
    "unknown op": (lambda g: g.scan(X, "median"), lambda g: g.scan(X)),
    "op of another type": (lambda g: g.exscan(X, max), lambda g: g.exscan(X)),
    "objects": (lambda g: g.all_gather(OBJECTS), lambda g: g.all_gather(X)),
    "no array": (lambda g: g.all_reduce(None), lambda g: g.all_reduce(X)),
    "hostile": (lambda g: g.all_reduce(Hostile()), lambda g: g.all_reduce(X)),
    "name no text": (lambda g: g.all_reduce(X, name=5), lambda g: g.all_reduce(X)),
    "root too high": (lambda g: g.broadcast(X, g.size), lambda g: g.broadcast(X, 0)),
    "root negative": (lambda g: g.reduce(X, root=-1), lambda g: g.reduce(X)),
    "root no integer": (lambda g: g.reduce(X, root=0.0), lambda g: g.reduce(X)),
    "root a bool": (lambda g: g.reduce(X, root=True), lambda g: g.reduce(X)),
    "root an array": (lambda g: g.reduce(X, root=np.zeros(2, int)), lambda g: g.reduce(X)),
    "root hostile": (lambda g: g.reduce(X, root=Hostile()), lambda g: g.reduce(X)),
    "parts too few": (lambda g: g.all_to_all([X] * (g.size + 1)), lambda g: g.all_to_all([X] * g.size)),
    "parts none": (lambda g: g.all_to_all(None), lambda g: g.all_to_all([X] * g.size)),
    "counts": (lambda g: g.reduce_scatter(X, counts=[6.0] * g.size), lambda g: g.reduce_scatter(X)),
    "counts do not add up": (lambda g: g.reduce_scatter(X, counts=[7] * g.size), lambda g: g.reduce_scatter(X)),
    "counts negative": (lambda g: g.reduce_scatter(X, counts=[7, -1, 0]), lambda g: g.reduce_scatter(X)),
    "nothing to cut": (lambda g: g.reduce_scatter(3.0), lambda g: g.reduce_scatter(X)),
    "parts of two dtypes": (
        lambda g: g.reduce_scatter([X, C, X]), lambda g: g.reduce_scatter([X] * g.size),
    ),
    "timeout": (lambda g: g.barrier(timeout=-1), lambda g: g.barrier()),
    "timeout no number": (lambda g: g.barrier(timeout="soon"), lambda g: g.barrier()),
    "timeout a text of digits": (lambda g: g.barrier(timeout="3"), lambda g: g.barrier()),
    "timeout a bool": (lambda g: g.all_reduce(X, timeout=True), lambda g: g.all_reduce(X)),
    "timeout beyond floats": (lambda g: g.barrier(timeout=10**400), lambda g: g.barrier()),
    "color": (lambda g: g.split([1]), lambda g: g.split(0)),
    "key": (lambda g: g.split(0, key=1.5), lambda g: g.split(0)),
    "object": (lambda g: g.all_gather_object(object()), lambda g: g.all_gather_object(1)),
    "object to root": (lambda g: g.gather_object(object()), lambda g: g.gather_object(1)),
    "objects to all": (lambda g: g.all_to_all_object([1, 2, object()]), lambda g: g.all_to_all_object([1] * g.size)),
    "too few objects": (lambda g: g.all_to_all_object([1]), lambda g: g.all_to_all_object([1] * g.size)),
}  # fmt: skip
ROOTED: dict[str, tuple[Call, Call]] = {
    "object of root": (
        lambda g: g.broadcast_object(object(), g.size - 1), lambda g: g.broadcast_object(None, g.size - 1),
    ),
    "objects of root": (lambda g: g.scatter_object([{1, 2}, open, 3], 2), lambda g: g.scatter_object(None, 2)),
    "array of root": (lambda g: g.broadcast(OBJECTS, g.size - 1), lambda g: g.broadcast(None, g.size - 1)),
    "parts of root": (lambda g: g.scatter([X], g.size - 1), lambda g: g.scatter(None, g.size - 1)),
    "no parts of root": (lambda g: g.scatter(None, g.size - 1), lambda g: g.scatter(None, g.size - 1)),
}  # fmt: skip
# A rank of these may be through before it hears of the refusal.
ONE_SIDED = ("reduce", "scan", "root", "bits", "unknown", "op of")


@on_every_fabric
@pytest.mark.parametrize("later", [False, True], ids=["at once", "peers call later"])
@pytest.mark.parametrize("what", [*WRONG, *ROOTED])
def test_what_one_rank_refuses_is_refused_for_all(fabric: str, what: str, later: bool) -> None:
    wrong, right = {**WRONG, **ROOTED}[what]

    async def main(group: Group) -> Any:
        culprit = 2 if what in ROOTED else 1
        if group.rank != culprit and later:
            await group.recv(culprit, tag=9)
        error = await outcome((wrong if group.rank == culprit else right)(group))
        if group.rank == culprit and later:
            for peer in set(range(group.size)) - {culprit}:
                await group.send(1, peer, tag=9)
        same(await group.all_reduce(values(group.rank, (3,))), sum(values(r, (3,)) for r in range(3)))
        assert group.broken is None
        await outcome(group.barrier())
        return error

    errors = ranks(3, main, fabric)
    culprit = 2 if what in ROOTED else 1
    kind = type(errors[culprit])
    assert kind in (UsageError, SerializationError)
    assert f"on rank {culprit}" in str(errors[culprit])
    assert (kind is SerializationError) == ("object" in what and what not in ("objects", "too few objects"))
    for error in errors:
        if later or not what.startswith(ONE_SIDED) or isinstance(error, Exception):
            assert type(error) is kind, error
            assert f"rank {culprit}" in str(error)


@on_every_fabric
def test_a_refused_call_has_taken_its_number_and_its_turn_of_its_name(fabric: str) -> None:
    async def main(group: Group) -> None:
        # All ranks make three calls; the middle one is refused by rank 0.
        wrong = "?" if group.rank == 0 else "sum"
        calls = [group.all_reduce(group.rank), group.all_reduce(1, wrong), group.all_reduce(2)]
        first, second, third = await asyncio.gather(*map(outcome, calls))
        assert first == 3 and third == 6 and isinstance(second, UsageError)
        named = [
            outcome(group.all_reduce(1, "?" if group.rank == 1 and turn == 0 else "sum", name="loss"))
            for turn in range(2)
        ]
        refused, fine = await asyncio.gather(*named)
        assert isinstance(refused, UsageError) and "rank 1" in str(refused) and fine == 3
        assert await group.all_reduce(5, "max") == 5

    ranks(3, main, fabric)


@on_every_fabric
def test_refused_messages_and_subgroups_concern_nobody_else(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 1:
            for wrong in (
                lambda: group.send(X, 3), lambda: group.send(OBJECTS, 0), lambda: group.send(X, 0, tag=1.5),
                lambda: group.send(X, 0, tag=1 << 63), lambda: group.send(X, 0, tag=True), lambda: group.recv(-1),
                lambda: group.send(X, 0, tag=np.zeros(2, int)), lambda: group.recv(0, out=np.broadcast_to(X[:1], 6)),
                lambda: group.recv(0, timeout=-2), lambda: group.recv_message(0, "x"), lambda: group.recv_object("0"),
                lambda: group.subgroup([0, 2]), lambda: group.subgroup([1, 1]), lambda: group.subgroup([]),
                lambda: group.subgroup([1, 3]), lambda: group.subgroup({0, 1}), lambda: group.subgroup(1),
                lambda: group.subgroup([0, 1], name=3), lambda: group.subgroup([1, -1]),
            ):  # fmt: skip
                error = await outcome(wrong())
                assert type(error) is UsageError and "rank 1" in str(error), error
        await group.send(group.rank, (group.rank + 1) % 3)
        assert await group.recv((group.rank - 1) % 3) == (group.rank - 1) % 3
        pair = await group.subgroup(np.array([2, 1])) if group.rank else None
        if pair is not None:
            assert await pair.all_reduce(group.rank) == 3
            await pair.close()
        assert await group.all_reduce(1) == 3

    ranks(3, main, fabric)


def matmul(left: Any, right: Any) -> Any:
    """Associative, not commutative, and it needs whole arrays."""
    return left @ right


@on_every_fabric
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8])
def test_a_function_is_folded_in_rank_order_on_whole_arrays(fabric: str, size: int) -> None:
    product = op(matmul, identity=np.eye(2, dtype=int))

    async def main(group: Group) -> None:
        each = [np.array([[1, r + 1], [r % 3, 1]]) for r in range(size)]
        wanted = functools.reduce(matmul, each)
        x = each[group.rank]
        same(await group.all_reduce(x, product), wanted)
        same(await group.all_reduce(np.asfortranarray(x), product), wanted)
        reduced = await group.reduce(x, product, size - 1)
        assert (reduced is None) == (group.rank != size - 1)
        same(await group.scan(x, product), functools.reduce(matmul, each[: group.rank + 1]))
        same(await group.exscan(x, product), functools.reduce(matmul, each[: group.rank], np.eye(2, dtype=int)))
        same(await group.reduce_scatter(x, product), np.array_split(wanted, size)[group.rank])
        left = op(lambda a, b: a + 0 * b)
        for _ in range(3):
            same(await group.all_reduce(x, left), each[0])
        larger = op(np.hypot, commutative=True)
        np.testing.assert_allclose(await group.all_reduce(np.ones(1000), larger), np.full(1000, size**0.5))

    ranks(size, main, fabric)


def fails(left: Any, right: Any) -> Any:
    raise ZeroDivisionError("as a user's function may")


@on_every_fabric
@pytest.mark.parametrize(
    ("function", "word"),
    [
        (fails, "ZeroDivisionError"), (lambda a, b: None, "None"), (lambda a, b: (a + b)[:1], "shape"),
        (lambda a, b: (a + b).astype(np.float32), "dtype"), (lambda a, b: "text", "returned"),
    ],
    ids=["raises", "None", "shape", "dtype", "text"],
)  # fmt: skip
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_function_that_fails_is_a_usage_error_on_all_ranks(fabric: str, size: int, function: Any, word: str) -> None:
    async def main(group: Group) -> Any:
        error = await outcome(group.all_reduce(values(group.rank, (3,)), op(function)))
        assert type(error) is UsageError and word in str(error) and "rank" in str(error), error
        assert group.broken is None
        assert await group.all_reduce(1) == size
        return error

    errors = ranks(size, main, fabric)
    if function is fails:
        assert any(isinstance(error.__cause__, ZeroDivisionError) for error in errors)


@on_every_fabric
def test_a_function_sees_the_context_of_its_own_call(fabric: str) -> None:
    import contextvars

    scale: contextvars.ContextVar[int] = contextvars.ContextVar("scale")
    scaled = op(lambda a, b: a + scale.get() * b)

    async def main(group: Group) -> None:
        for factor in (1, 10):
            scale.set(factor)
            assert await group.all_reduce(group.rank + 1, scaled) == 1 + 2 * factor

    ranks(2, main, fabric)


@on_every_fabric
def test_one_rank_alone_refuses_as_many_do(fabric: str) -> None:
    async def main(group: Group) -> None:
        for wrong, _ in WRONG.values():
            error = await outcome(wrong(group))
            assert isinstance(error, (UsageError, SerializationError)) or not isinstance(error, Exception)
        assert await group.all_reduce(3, SUM) == 3

    ranks(1, main, fabric)
