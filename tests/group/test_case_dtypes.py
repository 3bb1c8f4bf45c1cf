"""Cases B: dtypes, what reductions make of them, and the order in which they fold.

The rule: values differ per rank and per element; what NumPy gives is right, what it lacks is refused by name.
"""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll import BAND, BOR, BXOR, LAND, LOR, LXOR, MAX, MEAN, MIN, PROD, SUM, Group, UsageError, op
from aiocoll.group import packing
from aiocoll.wire import codec, frame
from tests.distributed.ranks import ranks as documented
from tests.group.cases import MOVABLE, on_every_fabric, outcome, ranks, same, values


@on_every_fabric
def test_b1_bool_moves_and_is_reduced(fabric: str) -> None:
    """bool moves like bytes; its sum is `or`, its product `and`, its mean a float64, its bit ops are logical."""
    given = [np.array([True, False, rank == 1]) for rank in range(3)]

    async def main(group: Group) -> None:
        x = given[group.rank]
        same(await group.broadcast(x, 2), given[2])
        gathered = await group.gather(x)
        assert (gathered is None) == (group.rank != 0)
        for one, wanted in zip(gathered, given, strict=True) if gathered is not None else ():
            same(one, wanted)
        for one, wanted in zip(await group.all_gather(x), given, strict=True):
            same(one, wanted)
        same(await group.scatter(given if group.rank == 0 else None), x)
        for one, wanted in zip(await group.all_to_all([x] * 3), given, strict=True):
            same(one, wanted)
        await group.send(x, (group.rank + 1) % 3)
        same(await group.recv((group.rank - 1) % 3), given[group.rank - 1])
        for reduction, function in (
            (SUM, np.logical_or), (MAX, np.logical_or), (LOR, np.logical_or), (BOR, np.logical_or),
            (PROD, np.logical_and), (MIN, np.logical_and), (LAND, np.logical_and), (BAND, np.logical_and),
            (BXOR, np.logical_xor), (LXOR, np.logical_xor),
        ):  # fmt: skip
            same(await group.all_reduce(x, reduction), functools.reduce(function, given))
        same(await group.all_reduce(x, MEAN), np.sum(given, 0) / 3)

    ranks(3, main, fabric)


def test_b1_bool_tensors_in_the_documented_calls() -> None:
    """The same in place."""

    def program(rank: int) -> None:
        given = [np.array([True, False, each == 1]) for each in range(2)]
        x = given[rank].copy()
        outs = [np.zeros(3, bool) for _ in range(2)]
        dist.all_gather(outs, x)
        same(np.stack(outs), np.stack(given))
        for reduction, function in ((dist.ReduceOp.SUM, np.logical_or), (dist.ReduceOp.MIN, np.logical_and)):
            x = given[rank].copy()
            dist.all_reduce(x, reduction)
            same(x, function(*given))
        dist.broadcast(x := given[rank].copy(), 1)
        same(x, given[1])

    documented(2, program)


@on_every_fabric
def test_b3_half_precision_is_reduced_in_single_with_the_same_bits_everywhere(fabric: str) -> None:
    """float16 and bfloat16 sums are rounded once, at the end, and equal on all ranks; unknown pairs name what works."""

    async def main(group: Group) -> list[bytes]:
        bits = []
        for dtype in (np.float16, ml_dtypes.bfloat16):
            x = np.full(1000, 0.1, dtype) + np.arange(1000).astype(dtype) * group.rank
            each = [np.full(1000, 0.1, dtype) + np.arange(1000).astype(dtype) * rank for rank in range(4)]
            result = await group.all_reduce(x)
            same(result, np.sum([one.astype(np.float32) for one in each], 0).astype(dtype))
            bits.append(result.tobytes())
            refused = await outcome(group.all_reduce(x, BXOR))
            assert isinstance(refused, UsageError)
            assert all(word in str(refused) for word in (np.dtype(dtype).name, "BXOR", "SUM", "MAX")), refused
        return bits

    results = ranks(4, main, fabric)
    assert results.count(results[0]) == 4


@on_every_fabric
def test_b4_every_fixed_size_dtype_moves_and_objects_are_pointed_to_their_calls(fabric: str) -> None:
    """Integers, floats, dates, text, structures, either byte order, through every call that moves."""
    size = 3

    async def main(group: Group) -> None:
        rank = group.rank
        for number, dtype in enumerate(MOVABLE):
            each = [values(r, (2, 3), dtype) for r in range(size)]
            root = number % size
            if rank == root:
                await group.broadcast(each[root], root)
            else:
                same(await group.broadcast(None, root), each[root])
            for one, wanted in zip(await group.all_gather(each[rank]), each, strict=True):
                same(one, wanted)
            gathered = await group.gather(each[rank], root)
            assert (gathered is None) == (rank != root)
            for one, wanted in zip(gathered, each, strict=True) if gathered is not None else ():
                same(one, wanted)
            same(await group.scatter(each if rank == root else None, root), each[rank])
            for source, one in enumerate(await group.all_to_all([values(rank + t, (4,), dtype) for t in range(size)])):
                same(one, values(source + rank, (4,), dtype))
            await group.send(each[rank], (rank + 1) % size)
            same(await group.recv((rank - 1) % size), each[(rank - 1) % size])
        objects = np.array([{"rank": rank}, None], object)
        for call in (
            group.broadcast(objects), group.gather(objects), group.all_gather(objects), group.scatter([objects] * size),
            group.all_to_all([objects] * size), group.all_reduce(objects), group.send(objects, 0),
        ):  # fmt: skip
            refused = await outcome(call)
            assert isinstance(refused, UsageError) and "_object" in str(refused), refused

    ranks(size, main, fabric)


@on_every_fabric
def test_b5_the_mean_of_three_reductions_and_of_a_subgroup(fabric: str) -> None:
    """Of float64, float16, int64 and bool; 1, 2 and 4 are exact only if nothing is divided too early."""

    async def main(group: Group) -> None:
        rank = group.rank
        for dtype in (np.float64, np.float16, np.int64, np.bool_):
            x = np.array([(1, 2, 4)[rank], rank, 7]).astype(dtype)
            each = [np.array([(1, 2, 4)[r], r, 7]).astype(dtype) for r in range(3)]
            wanted = np.sum(each, 0, dtype=float) / 3
            for result, mine in (
                (await group.all_reduce(x, MEAN), wanted),
                (await group.reduce(x, "mean", 1), wanted if rank == 1 else None),
                (await group.reduce_scatter(x, MEAN), wanted[rank : rank + 1]),
            ):
                if mine is None:
                    assert result is None
                else:
                    assert result.dtype == (np.float64 if np.dtype(dtype).kind in "ib" else dtype)
                    np.testing.assert_allclose(result, mine, rtol=1e-3 if dtype is np.float16 else 1e-15)
        part = await group.split(rank == 2)
        assert part is not None
        async with part:  # of two, and of one
            assert await part.all_reduce((1, 2, 4)[rank], MEAN) == (1.5, 1.5, 4.0)[rank]

    ranks(3, main, fabric)


def test_b5_the_average_of_the_documented_calls() -> None:
    """ReduceOp.AVG, into integers as astype has it, and by the size of the group that calls."""

    def program(rank: int) -> None:
        whole, real = np.array([(1, 2, 4)[rank]]), np.array([(1.0, 2.0, 4.0)[rank]])
        dist.all_reduce(whole, dist.ReduceOp.AVG)
        dist.all_reduce(real, dist.ReduceOp.AVG)
        assert whole[0] == 2 and real[0] == 7 / 3
        pair = dist.new_group([0, 2])
        x = np.array([(1.0, 2.0, 4.0)[rank]])
        dist.all_reduce(x, dist.ReduceOp.AVG, group=pair)
        assert x[0] == (2.0 if rank == 1 else 2.5)
        out = np.zeros(1)
        parts = [np.array([(1.0, 2.0, 4.0)[rank] * (target + 1)]) for target in range(3)]
        dist.reduce_scatter(out, parts, dist.ReduceOp.AVG)
        np.testing.assert_allclose(out, 7 / 3 * (rank + 1))

    documented(3, program)


def _matrix(rank: int) -> Any:
    return np.array([[1, rank + 1], [rank % 2, 2]])


@on_every_fabric
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7])
def test_b7_products_of_matrices_are_in_rank_order_and_sums_have_one_set_of_bits(fabric: str, size: int) -> None:
    """An op that does not commute folds from rank 0 on; floating sums are the same on all ranks, in place too."""
    product = op(lambda left, right: left @ right)
    each = [_matrix(rank) for rank in range(size)]

    async def main(group: Group) -> list[bytes]:
        rank = group.rank
        whole = functools.reduce(np.matmul, each)
        same(await group.all_reduce(each[rank], product), whole)
        same(await group.scan(each[rank], product), functools.reduce(np.matmul, each[: rank + 1]))
        reduced = await group.reduce(each[rank], product, size - 1)
        if rank == size - 1:
            same(reduced, whole)
        place = each[rank].copy()
        await group.all_reduce(place, product, out=place)
        same(place, whole)
        wide = np.float32(10.0) ** ((np.arange(2000) + 7 * rank) % 13 - 6).astype(np.float32)
        bits = []
        for length in (5, 2000):
            first = (await group.all_reduce(wide[:length])).tobytes()
            again = wide[:length].copy()
            for _ in range(3):
                again[:] = wide[:length]
                await group.all_reduce(again, out=again)
                assert again.tobytes() == first
            bits.append(first)
        return bits

    results = ranks(size, main, fabric)
    assert results.count(results[0]) == size
    assert ranks(size, main, fabric) == results


@on_every_fabric
def test_b9_integers_wrap_as_numpys_do(fabric: str) -> None:
    """Sums and products of the largest of each kind."""

    async def main(group: Group) -> None:
        for char in "bBhHiIqQ":
            top = np.iinfo(char).max
            each = [np.array([top - rank, 3 + rank, np.iinfo(char).min + rank], char) for rank in range(3)]
            with np.errstate(over="ignore"):
                same(await group.all_reduce(each[group.rank]), functools.reduce(np.add, each))
                same(await group.all_reduce(each[group.rank], PROD), functools.reduce(np.multiply, each))

    ranks(3, main, fabric)


@pytest.mark.parametrize("nbytes", [2**31 - 1, 2**31, 2**32 + 5, 2**40])
def test_b9_lengths_have_64_bits(nbytes: int) -> None:
    """Headers of frames, of objects and of arrays carry sizes beyond 32 bits; it takes no such memory to see it."""
    seen: list[int] = []

    class Sink:
        def arriving(self, kind: int, group: int, call: int, step: int, meta: bytes, length: int) -> frame.Landing:
            seen.append(length)
            return frame.Drain()

    reader = frame.FrameReader(Sink())
    head = frame.pack_header(frame.DATA, 1, 2, 3, b"meta", nbytes)
    room = reader.buffer()
    room[: len(head)] = head
    reader.received(len(head))
    assert seen == [nbytes]
    described = codec.parse(codec.describe(np.dtype(np.uint8), (nbytes,)))
    assert described.nbytes == described.count == nbytes
    blob = packing.read_blob(packing._HEAD.pack(0, 0, nbytes))
    assert blob.nbytes == nbytes
