"""Reductions against NumPy: every op, dtype and size; MEAN, logical ops, prefixes, identities, half precision.

The rule: results are those of NumPy's binary function in the input's dtype, and bit-identical on all ranks.
"""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aiocoll import BAND, BOR, BXOR, LAND, LOR, LXOR, MAX, MEAN, MIN, PROD, SUM, Group, UsageError
from tests.group.cases import for_every_size, on_every_fabric, outcome, ranks, same, values

UFUNCS = {
    SUM: np.add, PROD: np.multiply, MIN: np.minimum, MAX: np.maximum, BAND: np.bitwise_and, BOR: np.bitwise_or,
    BXOR: np.bitwise_xor, LAND: np.logical_and, LOR: np.logical_or, LXOR: np.logical_xor,
}  # fmt: skip
DTYPES = [np.dtype(char) for char in "?bBhHiIqQefdgFDG"] + [np.dtype("m8[s]"), np.dtype(">i4")]


def fold(op: Any, arrays: list[Any]) -> Any:
    """The oracle; LAND, LOR and LXOR give 0 and 1 in the input's dtype, for one rank too."""
    with np.errstate(all="ignore"):
        total = functools.reduce(UFUNCS[op], arrays)
    if op in (LAND, LOR, LXOR):
        total = total.astype(bool).astype(arrays[0].dtype)
    return np.asarray(total).astype(arrays[0].dtype)


def able(op: Any, dtype: np.dtype[Any]) -> bool:
    try:
        UFUNCS[op].resolve_dtypes((dtype.newbyteorder("="), dtype.newbyteorder("="), None))
    except TypeError:
        return False
    return not (dtype.kind == "c" and op in (MIN, MAX)) and not (dtype.kind == "m" and op not in (SUM, MIN, MAX))


@on_every_fabric
@for_every_size
def test_every_op_on_every_dtype_equals_numpy_and_refuses_what_numpy_cannot(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        for op in UFUNCS:
            for dtype in DTYPES:
                x = values(group.rank, (2, 3), dtype)
                kept = x.copy()
                result = await outcome(group.all_reduce(x, op))
                if able(op, dtype):
                    same(result, fold(op, [values(rank, (2, 3), dtype) for rank in range(size)]))
                    np.testing.assert_array_equal(x, kept)
                elif dtype.kind != "m":
                    assert isinstance(result, UsageError) and op.name in str(result), (op, dtype, result)

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
def test_all_five_reductions_agree_with_numpy(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        rank = group.rank
        for shape in [(), (1,), (7,), (size * 2 + 1, 3), (0,), (0, 4), (2, 0, 3)]:
            each = [values(r, shape, np.int64) for r in range(size)]
            x = each[rank].copy()
            same(await group.all_reduce(x), sum(each))
            for root in range(size):
                reduced = await group.reduce(x, "max", root)
                if rank == root:
                    same(reduced, functools.reduce(np.maximum, each))
                else:
                    assert reduced is None
            same(await group.scan(x, PROD), functools.reduce(np.multiply, each[: rank + 1]))
            below = await group.exscan(x, SUM)
            same(below, sum(each[:rank], np.zeros(shape, np.int64)))
            if shape:
                same(await group.reduce_scatter(x), np.array_split(sum(each), size)[rank])
            np.testing.assert_array_equal(x, each[rank])

    ranks(size, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 9])
def test_long_vectors_take_other_algorithms_to_the_same_result(fabric: str, size: int) -> None:
    async def main(group: Group) -> bytes:
        for count in (size - 1, size, 10_007, 150_001):
            each = [values(r, (count,), np.int32) for r in range(size)]
            x = each[group.rank].copy()
            same(await group.all_reduce(x), np.sum(each, 0, dtype=np.int32))
            same(await group.scan(x), np.sum(each[: group.rank + 1], 0, dtype=np.int32))
            same(await group.reduce_scatter(x), np.array_split(np.sum(each, 0, dtype=np.int32), size)[group.rank])
            reduced = await group.reduce(x, root=size - 1)
            if group.rank == size - 1:
                same(reduced, np.sum(each, 0, dtype=np.int32))
            np.testing.assert_array_equal(x, each[group.rank])
        wide = np.float32(10.0) ** ((np.arange(5000) + 7 * group.rank) % 13 - 6).astype(np.float32)
        return bytes(np.concatenate([await group.all_reduce(wide), await group.all_reduce(wide[:9])]).tobytes())

    assert len(set(ranks(size, main, fabric))) == 1, "floats differ between ranks"


@on_every_fabric
@for_every_size
def test_mean_of_floats_integers_bool_and_into_an_integer_out(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        for dtype in (np.float64, np.float32, np.int64, np.uint8, np.bool_):
            each = [values(r, (5,), dtype) for r in range(size)]
            result = await group.all_reduce(each[group.rank], MEAN)
            wanted = np.sum(each, 0, dtype=float) / size
            assert result.dtype == (dtype if dtype in (np.float64, np.float32) else np.float64)
            np.testing.assert_allclose(result, wanted, rtol=1e-6)
            block = await group.reduce_scatter(each[group.rank], "mean")
            np.testing.assert_allclose(block, np.array_split(wanted, size)[group.rank], rtol=1e-6)
            at_root = await group.reduce(each[group.rank], MEAN, size - 1)
            if group.rank == size - 1:
                np.testing.assert_allclose(at_root, wanted, rtol=1e-6)
            np.testing.assert_allclose(
                await group.scan(each[group.rank], MEAN),
                np.sum(each[: group.rank + 1], 0, dtype=float) / (group.rank + 1), rtol=1e-6,
            )  # fmt: skip
        x = values(group.rank, (4,), np.int32)
        out = np.full(4, -1, np.int32)
        assert await group.all_reduce(x, MEAN, out) is out
        same(out, (np.sum([values(r, (4,), np.int32) for r in range(size)], 0) / size).astype(np.int32))
        assert await group.all_reduce(x, MEAN, out=x) is x
        same(x, out)

    ranks(size, main, fabric)


@on_every_fabric
def test_half_precision_accumulates_in_float32(fabric: str) -> None:
    async def main(group: Group) -> list[bytes]:
        results = []
        for dtype in (np.float16, ml_dtypes.bfloat16):
            x = np.full(1000, 0.1 + group.rank, dtype)
            result = await group.all_reduce(x)
            assert result.dtype == dtype
            same(result, np.sum([np.full(1000, 0.1 + r, dtype).astype(np.float32) for r in range(4)], 0).astype(dtype))
            same(await group.all_reduce(x, MAX), np.full(1000, 3.1, dtype))
            # In float16, 2048 + 1 is 2048 again.
            big = np.array([2048 if group.rank == 0 else 1], dtype)
            same(await group.all_reduce(big), np.array([2051], dtype))
            results.append(result.tobytes())
        return results

    results = ranks(4, main, fabric)
    assert results.count(results[0]) == 4


@on_every_fabric
@for_every_size
def test_logical_ops_give_zero_and_one_in_the_inputs_dtype(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        for dtype in (np.int16, np.float32, np.bool_, np.complex64):
            x = np.array([0, 5, 7 * (group.rank != 1), 2], dtype)
            each = [np.array([0, 5, 7 * (r != 1), 2], dtype) for r in range(size)]
            for op in (LAND, LOR, LXOR):
                same(await group.all_reduce(x, op), fold(op, each))
                same(await group.scan(x, op), fold(op, each[: group.rank + 1]))
                same(await group.reduce_scatter(x, op), np.array_split(fold(op, each), size)[group.rank])
                if group.rank:
                    same(await group.exscan(x, op), fold(op, each[: group.rank]))
                else:
                    same(await group.exscan(x, op), np.full(4, op is LAND, dtype))

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
def test_exscan_gives_rank_0_the_identity_or_none(fabric: str, size: int) -> None:
    neutral = {SUM: 0, PROD: 1, BAND: -1, BOR: 0, BXOR: 0, LAND: 1, LOR: 0, LXOR: 0, MIN: None, MAX: None, MEAN: None}

    async def main(group: Group) -> None:
        for op, element in neutral.items():
            below = await group.exscan(values(group.rank, (3,), np.int16), op)
            number = await group.exscan(group.rank + 1, op)
            if group.rank:
                continue
            if element is None:
                assert below is None and number is None
            else:
                same(below, np.full(3, element, np.int16))
                assert isinstance(number, np.int64) and number == element

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
def test_integers_wrap_bool_sum_is_or_nan_wins(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        for dtype in (np.int8, np.int16, np.int32, np.uint64):
            top = np.array([np.iinfo(dtype).max - group.rank, group.rank], dtype)
            with np.errstate(over="ignore"):
                wanted = functools.reduce(np.add, [np.array([np.iinfo(dtype).max - r, r], dtype) for r in range(size)])
            same(await group.all_reduce(top), wanted)
        flag = np.array([group.rank == size - 1, False])
        same(await group.all_reduce(flag), np.array([True, False]))
        x = np.array([np.nan if group.rank == size // 2 else 1.0, 2.0])
        for op in (MIN, MAX):
            same(await group.all_reduce(x, op), np.array([np.nan, 2.0]))

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
def test_reduce_scatter_by_counts_and_by_lists(fabric: str, size: int) -> None:
    counts = [(2 * rank + 1) % 4 for rank in range(size)]

    async def main(group: Group) -> None:
        rows = sum(counts)
        each = [values(r, (rows, 2)) for r in range(size)]
        start = sum(counts[: group.rank])
        wanted = sum(each)[start : start + counts[group.rank]]
        for given in (counts, tuple(counts), np.array(counts)):
            same(await group.reduce_scatter(each[group.rank], counts=given), wanted)
        cut = np.split(each[group.rank], np.cumsum(counts)[:-1])
        same(await group.reduce_scatter(cut), wanted)
        out = np.zeros((counts[group.rank], 2))
        assert await group.reduce_scatter(cut, out=out) is out
        same(out, wanted)
        # One rank gives the whole array and another the same in parts.
        mixed = np.array_split(values(group.rank, (size, 3)), size) if group.rank else values(0, (size, 3))
        total = sum(values(r, (size, 3)) for r in range(size))
        same(await group.reduce_scatter(mixed), total[group.rank : group.rank + 1])
        parts = [values(group.rank, (target + 1, 2), np.int32)[::-1] for target in range(size)]
        same(
            await group.reduce_scatter(parts, MAX),
            functools.reduce(np.maximum, [values(r, (group.rank + 1, 2), np.int32)[::-1] for r in range(size)]),
        )
        number = await group.reduce_scatter([10 * target + group.rank for target in range(size)])
        assert isinstance(number, np.int64) and number == 10 * group.rank * size + sum(range(size))

    ranks(size, main, fabric)
