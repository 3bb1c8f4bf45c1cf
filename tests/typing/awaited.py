"""What type checkers know of the awaited API: checked by mypy and pyright, and run, so that it is true as well.

The rule: beside each `assert_type` stands what the value really is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, assert_type

import numpy as np
from numpy.typing import NDArray

import aiocoll

T = TypeVar("T")
F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


def one(values: T, dtype: type[np.generic]) -> T:
    assert isinstance(values, np.ndarray) and values.dtype == dtype, repr(values)
    return values


def each(values: T, dtype: type[np.generic]) -> T:
    assert isinstance(values, list)
    for value in values:
        one(value, dtype)
    return values


async def reductions(group: aiocoll.Group) -> None:
    x: F32 = np.arange(6, dtype=np.float32).reshape(3, 2) + group.rank
    n: I64 = np.arange(6, dtype=np.int64).reshape(3, 2) + group.rank
    number = np.float32(group.rank)
    one(assert_type(await group.all_reduce(x), F32), np.float32)
    one(assert_type(await group.all_reduce(x, aiocoll.MEAN), F32), np.float32)
    one(assert_type(await group.all_reduce(x, "max", timeout=5), F32), np.float32)
    one(assert_type(await group.all_reduce(n, aiocoll.MAX, name="n"), I64), np.int64)
    mean = await group.all_reduce(n, aiocoll.MEAN)
    one(assert_type(mean, Any), np.float64)
    one(assert_type(await group.all_reduce(n, out=n), I64), np.int64)
    assert type(assert_type(await group.all_reduce(number), np.float32)) is np.float32
    assert type(assert_type(await group.all_reduce(3), Any)) is np.int64
    reduced = assert_type(await group.reduce(x, aiocoll.op(np.maximum, commutative=True), root=0), F32 | None)
    assert (reduced is None) == (group.rank != 0)
    one(assert_type(await group.reduce_scatter(x), F32), np.float32)
    one(assert_type(await group.reduce_scatter([n] * group.size, counts=None), I64), np.int64)
    mean_rows = await group.reduce_scatter(n, aiocoll.MEAN)
    one(assert_type(mean_rows, Any), np.float64)
    one(assert_type(await group.scan(n), I64), np.int64)
    mean_below = await group.scan(n, aiocoll.MEAN)
    one(assert_type(mean_below, Any), np.float64)
    one(assert_type(await group.exscan(x), F32 | None), np.float32)
    assert (await group.exscan(x, aiocoll.MAX) is None) == (group.rank == 0)


async def movement(group: aiocoll.Group) -> None:
    x: F32 = np.arange(group.rank + 1, dtype=np.float32)
    flags: NDArray[np.bool_] = np.array([True, False])
    table: NDArray[np.int64] = np.zeros((group.size, 2), np.int64)
    one(assert_type(await group.broadcast(x, root=1), F32), np.float32)
    given = flags if group.rank == 0 else None
    taken: NDArray[np.bool_] = await group.broadcast(given)
    one(taken, np.bool_)
    one(assert_type(await group.broadcast(table, out=table), I64), np.int64)
    gathered = assert_type(await group.gather(x), list[F32] | None)
    each(gathered if group.rank == 0 else [], np.float32)
    each(assert_type(await group.all_gather(x), list[F32]), np.float32)
    one(assert_type(await group.all_gather(table[0].copy(), out=table), I64), np.int64)
    parts = [flags[:rank] for rank in range(group.size)]
    rooted = parts if group.rank == 1 else None
    one(assert_type(await group.scatter(rooted, 1), NDArray[np.bool_]), np.bool_)
    each(assert_type(await group.all_to_all(table), list[I64]), np.int64)
    each(assert_type(await group.all_to_all(parts), list[NDArray[np.bool_]]), np.bool_)
    assert_type(await group.barrier(), None)


async def messages(group: aiocoll.Group) -> None:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    x: F32 = np.zeros(3, np.float32)
    for _ in range(2):
        assert_type(await group.send(x, right), None)
    one(assert_type(await group.recv(left, out=x), F32), np.float32)
    message = assert_type(await group.recv_message(), aiocoll.Message)
    assert type(assert_type(message.source, int)) is int and message.source == left


async def objects(group: aiocoll.Group) -> None:
    mine = {"rank": group.rank}
    assert assert_type(await group.all_gather_object(mine), list[dict[str, int]])[1] == {"rank": 1}
    theirs = await group.broadcast_object(mine if group.rank == 1 else None, 1)
    assert assert_type(theirs, dict[str, int]) == {"rank": 1}
    assert assert_type(await group.scatter_object(list("abc") if group.rank == 0 else None), str) == "abc"[group.rank]
    assert_type(await group.gather_object(group.rank), list[int] | None)
    assert assert_type(await group.all_to_all_object([group.rank] * group.size), list[int]) == [0, 1, 2]


async def groups(group: aiocoll.Group) -> None:
    async with assert_type(await group.dup(), aiocoll.Group) as twin:
        assert assert_type(twin.ranks, tuple[int, ...]) == group.ranks
        assert type(assert_type(twin.timeout, float)) is float
    one(assert_type(group.empty(3), NDArray[np.float64]), np.float64)
    one(assert_type(group.zeros((2, 3), np.float32), F32), np.float32)
    one(assert_type(group.zeros(2, "i4"), NDArray[Any]), np.int32)
    half = assert_type(await group.split(0 if group.rank else None), aiocoll.Group | None)
    if half is not None:
        await half.close()
    assert_type(group.broken, BaseException | None)


PROGRAMS: tuple[Callable[[aiocoll.Group], Any], ...] = (reductions, movement, messages, objects, groups)
