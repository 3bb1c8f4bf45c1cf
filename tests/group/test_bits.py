"""Results whose bits depend on how operands are put together have the same bits on every fabric: those of a fold from
rank 0 on, ((x0 op x1) op x2) op ..., which NumPy does here as well.

The rule: bytes are compared, not values; and what is reduced has rounding, signed zeros and operands that do not
commute to show, in every element and on every rank.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aiocoll
from aiocoll import MAX, MEAN, MIN, PROD, SUM, Group
from aiocoll.algorithms import gathered, owner
from aiocoll.ops import Op
from tests.group.cases import on_every_fabric, ranks

DTYPES = ["float16", "float32", "float64", "complex64", "complex128", "bfloat16", "longdouble"]
SIZES = [2, 3, 4, 5, 9, *(pytest.param(size, marks=pytest.mark.slow) for size in (7,))]
LONG = 9_001
"""Elements of a long array, where blocks are short."""


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def vector(rank: int, count: int, dtype: np.dtype[Any], op: Op | None = None) -> Any:
    """Of many magnitudes where they are added up, about 1 where multiplied, zeros of both signs where compared."""
    rng = np.random.default_rng([rank, count])
    values = rng.standard_normal(count)
    if op in (MIN, MAX):
        values = rng.choice([0.0, -0.0, 1.0, -1.0], count)
    elif op is PROD:
        values = 1 + values / 8
    else:
        values *= 10.0 ** rng.integers(-2, 3, count)
    if dtype.kind == "c":
        return (values + 1j * rng.permutation(values)).astype(dtype)
    return values.astype(dtype)


def from_left(op: Op, vectors: list[Any]) -> Any:
    """The oracle. Narrow floats are added up in float32 and rounded once."""
    dtype = vectors[0].dtype
    work = op.work_dtype(dtype)

    def pair(left: Any, right: Any) -> Any:
        out = np.empty_like(left)
        op.fold(left, right, out)
        return out

    total = functools.reduce(pair, [each.astype(work) for each in vectors])
    op.finish(total, len(vectors))
    return total.astype(op.result_dtype(dtype))


def ops_for(dtype: np.dtype[Any]) -> list[Op]:
    return [SUM, PROD, MEAN, *([] if dtype.kind == "c" else [MIN, MAX])]


def uneven(left: Any, right: Any) -> Any:
    """Neither commutes nor associates: whoever puts operands together otherwise gets other bits."""
    return left * left.dtype.type(0.75) + right


UNEVEN = aiocoll.op(uneven)
SPLIT = aiocoll.op(np.subtract)


async def check_all(group: Group, op: Op, vectors: list[Any], oracle: Op | None = None) -> None:
    """All reductions of a vector on one rank, against the oracle."""
    folds = oracle or op
    rank, size, x = group.rank, group.size, vectors[group.rank]
    whole = from_left(folds, vectors)
    same_bits(await group.all_reduce(x, op), whole)
    for root in {0, size - 1, size // 2}:
        result = await group.reduce(x, op, root=root)
        if rank == root:
            same_bits(result, whole)
    same_bits(await group.reduce_scatter(x, op), np.array_split(whole, size)[rank])
    same_bits(await group.scan(x, op), from_left(folds, vectors[: rank + 1]))
    below = await group.exscan(x, op)
    if rank:
        same_bits(below, from_left(folds, vectors[:rank]))


def same_bits(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    if wanted.dtype == np.longdouble:  # there are bytes between its bits that say nothing
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
    else:
        assert found.tobytes() == wanted.tobytes()


def run_on(fabric: str, size: int, main: Callable[..., Awaitable[Any]]) -> list[Any]:
    """Simulated ranks are on one host, too."""
    return ranks(size, main, fabric, **({"hosts": [0] * size} if fabric == "sim" else {}))


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Arrays of a few KiB take as many blocks as others of many MiB."""
    monkeypatch.setattr(owner, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(owner, "ASK_BYTES", 16384)
    monkeypatch.setattr(gathered, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(gathered, "BLOCK_BYTES_MIN", 512)
    monkeypatch.setattr(gathered, "FOLD_BYTES", 1000)
    yield


@on_every_fabric
@pytest.mark.parametrize("size", SIZES)
def test_the_same_bits_on_every_fabric(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        for name in DTYPES:
            dtype = dtype_of(name)
            for op in ops_for(dtype):
                for count in (1, 203):
                    await check_all(group, op, [vector(rank, count, dtype, op) for rank in range(size)])

    run_on(fabric, size, main)


@on_every_fabric
@pytest.mark.parametrize("size", SIZES)
def test_ops_of_users_are_folded_from_rank_0_on(fabric: str, size: int) -> None:
    """Whole arrays and element by element, and with values that a sum of any order would not round at all."""

    async def main(group: Group) -> None:
        for dtype in (np.dtype("float32"), np.dtype("int64")):
            vectors = [vector(rank, 203, dtype) for rank in range(size)]
            await check_all(group, SPLIT, vectors)
            if dtype.kind == "f":
                await check_all(group, UNEVEN, vectors)

    run_on(fabric, size, main)


@on_every_fabric
@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("size", [2, 3, 4, 5, pytest.param(9, marks=pytest.mark.slow)])
def test_long_arrays_have_the_bits_of_short_ones(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        for dtype, op in (("float16", SUM), ("float32", SUM), ("float64", MEAN), ("complex64", PROD), ("float32", MIN)):
            await check_all(group, op, [vector(rank, LONG, dtype_of(dtype), op) for rank in range(size)])
        vectors = [vector(rank, LONG, np.dtype("float32")) for rank in range(size)]
        await check_all(group, SPLIT, vectors)
        lent = group.empty(LONG, np.float32)  # is read where it lies, on the fabric that can
        lent[...] = vectors[group.rank]
        same_bits(await group.all_reduce(lent, out=lent), from_left(SUM, vectors))
        lent[...] = vectors[group.rank]
        result = await group.reduce(lent, root=size - 1)
        if group.rank == size - 1:
            same_bits(result, from_left(SUM, vectors))

    run_on(fabric, size, main)


@pytest.mark.parametrize("size", [3, 4])
def test_real_lengths(size: int) -> None:
    """The lengths at which algorithms change, as they are."""
    counts = [(1 << 14) + 1, (1 << 16) + 1, (1 << 17) + 1, (1 << 20) + 5]

    async def main(group: Group) -> list[bytes]:
        found = []
        for count in counts:
            x = vector(group.rank, count, np.dtype("float32"))
            found += [(await group.all_reduce(x)).tobytes(), (await group.reduce_scatter(x)).tobytes()]
        return found

    vectors = [[vector(rank, count, np.dtype("float32")) for rank in range(size)] for count in counts]
    wholes = [from_left(SUM, each) for each in vectors]
    for fabric in ("inproc", "tcp", "shm"):
        for rank, found in enumerate(run_on(fabric, size, main)):
            for i, whole in enumerate(wholes):
                assert found[2 * i] == whole.tobytes(), (fabric, rank, counts[i])
                assert found[2 * i + 1] == np.array_split(whole, size)[rank].tobytes(), (fabric, rank, counts[i])


def test_numpy_gives_an_element_the_same_bits_wherever_it_stands() -> None:
    """What all this rests on: no lane of a vector unit rounds otherwise than another, in place or not."""
    for name in DTYPES:
        dtype = dtype_of(name)
        for op in ops_for(dtype):
            left, right = (vector(rank, 203, op.work_dtype(dtype), op) for rank in range(2))
            whole = np.empty_like(left)
            op.fold(left, right, whole)
            for step in (1, 7):
                for into in (left.copy(), right.copy(), np.empty_like(left)):
                    for start in range(0, 203, step):
                        part = slice(start, start + step)
                        op.fold(left[part], right[part], into[part])
                    same_bits(into, whole)
            into = left.copy()
            op.fold(into, right, into)
            same_bits(into, whole)
            into = right.copy()
            op.fold(left, into, into)
            same_bits(into, whole)
