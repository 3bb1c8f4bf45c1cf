"""Movement: every dtype, shape, layout and root arrives as it was; results belong to the caller.

The rule: what arrives equals what was sent element by element, in native byte order, whatever lay where.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aiocoll import Group
from tests.group.cases import MOVABLE, POINT, for_every_size, layouts, on_every_fabric, ranks, same, values

SHAPES = [(), (1,), (5,), (3, 4), (0,), (2, 0, 3), (0, 4)]


@on_every_fabric
@for_every_size
def test_every_dtype_and_shape_through_every_collective(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        rank = group.rank
        for number, dtype in enumerate(MOVABLE):
            shape = SHAPES[number % len(SHAPES)]
            root = number % size
            each = [values(r, shape, dtype) for r in range(size)]
            moved = await group.broadcast(each[rank] if rank == root else None, root)
            if rank == root:
                assert moved is each[root]
            else:
                same(moved, each[root])
            gathered = await group.gather(each[rank], root)
            assert (gathered is None) == (rank != root)
            for one, wanted in zip(gathered, each, strict=True) if rank == root else ():
                same(one, wanted)
            for one, wanted in zip(await group.all_gather(each[rank]), each, strict=True):
                same(one, wanted)
            same(await group.scatter(each if rank == root else None, root), each[rank])
            parts = [values(rank + 7 * target, shape, dtype) for target in range(size)]
            for source, one in enumerate(await group.all_to_all(parts)):
                same(one, values(source + 7 * rank, shape, dtype))

    ranks(size, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("size", [1, 2, 3, *(pytest.param(size, marks=pytest.mark.slow) for size in (5, 9))])
def test_every_size_of_array_small_and_large_and_in_every_layout(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        rank = group.rank
        for count in (3, 300, 6000, 200_000):
            plain = values(0, (count // 3, 3))
            for root, (layout, x) in enumerate(layouts(plain).items()):
                moved = await group.broadcast(x if rank == root % size else None, root % size)
                same(np.asarray(moved) if rank != root % size else plain, plain)
                if count < 6000:
                    for one in await group.all_gather(x):
                        assert type(one) is np.ndarray, layout
                        same(one, plain)
                    for one in await group.all_to_all([x] * size):
                        same(one, plain)
                    same(await group.scatter([x] * size if rank == root % size else None, root % size), plain)
                    for one in await group.gather(x, root % size) or ():
                        same(one, plain)
        if rank % 2 == 0:
            x = values(rank, (150_000 + rank, 2))[:, ::-1]  # over a megabyte, not contiguous, uneven
        else:
            x = values(rank, (rank, 2))
        for source, one in enumerate(await group.all_gather(x)):
            wide = values(source, (150_000 + source, 2))[:, ::-1]
            same(one, wide if source % 2 == 0 else values(source, (source, 2)))

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
def test_shapes_and_dtypes_may_differ_from_rank_to_rank(fabric: str, size: int) -> None:
    kinds = [np.float64, np.int8, np.dtype("U5"), np.bool_, POINT]

    def given(source: int, target: int = 0) -> Any:
        return values(source + target, [(), (4,), (2, 3), (0, 2), (1,)][(source + target) % 5], kinds[source % 5])

    async def main(group: Group) -> None:
        rank = group.rank
        for source, one in enumerate(await group.all_gather(given(rank))):
            same(one, given(source))
        for root in range(size):
            for source, one in enumerate(await group.gather(given(rank), root) or ()):
                same(one, given(source))
            parts = [given(root, target) for target in range(size)]
            same(await group.scatter(parts if rank == root else None, root), given(root, rank))
            same(await group.scatter(tuple(parts) if rank == root else parts[::-1][:1], root), given(root, rank))
        for source, one in enumerate(await group.all_to_all([given(rank, target) for target in range(size)])):
            same(one, given(source, rank))

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
def test_all_to_all_cuts_an_array_as_array_split_does(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        for rows in (0, 1, size, 2 * size + 1):
            came = await group.all_to_all(values(group.rank, (rows, 2), np.int16)[:, ::-1])
            for source, one in enumerate(came):
                same(one, np.array_split(values(source, (rows, 2), np.int16)[:, ::-1], size)[group.rank])

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
def test_numbers_come_back_as_numpy_scalars_and_0d_arrays_as_0d_arrays(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        rank, last = group.rank, size - 1
        kinds: list[tuple[Any, type]] = [
            (3 + rank, np.int64), (2.5 * rank, np.float64), (1j * rank, np.complex128), (rank == last, np.bool_),
            (np.float32(rank), np.float32), (np.array(rank, np.int16), np.ndarray),
            (np.array(rank, ">f4"), np.ndarray), (np.datetime64(rank, "D"), np.datetime64),
        ]  # fmt: skip
        came = []
        for x, kind in kinds:
            results = [
                await group.broadcast(x if rank == last else None, last),
                *await group.all_gather(x), *(await group.gather(x, last) or ()),
                await group.scatter([x] * size if rank == last else None, last),
                *await group.all_to_all([x] * size),
            ]  # fmt: skip
            await group.send(x, last)
            if rank == last:
                results += [await group.recv(source) for source in range(size)]
            if np.asarray(x).dtype.kind in "if":
                results += [await group.all_reduce(x, "max"), await group.scan(x, "max")]
            for result in results:
                assert isinstance(result, kind) and np.ndim(result) == 0, (x, kind, result)
            came.append(results[0])
        wanted = [3 + last, 2.5 * last, 1j * last, True, last, last, last, np.datetime64(last, "D")]
        assert [np.asarray(one).item() for one in came] == [np.asarray(one).item() for one in wanted]

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
def test_results_are_writeable_and_share_no_memory_with_anything(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        x = values(group.rank, (40, 30))
        kept = x.copy()
        results = [
            *await group.all_gather(x), *(await group.gather(x) or ()), *await group.all_to_all([x] * size),
            await group.scatter([x] * size if group.rank == 0 else None), await group.all_reduce(x),
            await group.reduce_scatter(x), await group.scan(x), await group.all_reduce(x[::2, ::2]),
        ]  # fmt: skip
        big = values(group.rank, (300_000,))
        results += [*await group.all_gather(big), *await group.all_gather(big)]
        for place, one in enumerate(results):
            assert one.flags.writeable and not np.shares_memory(one, x) and not np.shares_memory(one, big)
            assert not any(np.shares_memory(one, other) for other in results[place + 1 :])
            one[...] = -1.0
        np.testing.assert_array_equal(x, kept)
        again = await group.broadcast(x if group.rank == 0 else None)
        assert again.flags.writeable and (again is x) == (group.rank == 0)

    ranks(size, main, fabric)


@on_every_fabric
def test_root_gets_its_own_array_back_or_a_copy_of_what_is_no_writeable_array(fabric: str) -> None:
    async def main(group: Group) -> None:
        mine = group.rank == 1
        for x in layouts(values(1, (3, 4))).values():
            back = await group.broadcast(x if mine else None, 1)
            assert back.flags.writeable
            if mine and x.flags.writeable:
                assert back is x
            else:
                assert not np.shares_memory(back, x)
                same(back, values(1, (3, 4)))
        wide = np.broadcast_to(np.array([1, 2], ">i4"), (3, 2))
        same(await group.broadcast(wide if mine else None, 1), np.array([[1, 2]] * 3, np.int32))
        same(await group.broadcast([1, 2, 3] if mine else None, 1), np.array([1, 2, 3]))
        same(await group.broadcast(b"abc" if mine else None, 1), np.frombuffer(b"abc", np.uint8))

    ranks(3, main, fabric)


@on_every_fabric
@for_every_size
def test_what_other_ranks_than_root_pass_is_ignored(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        for root in (0, size - 1):
            mine = group.rank == root
            x = values(root, (4,)) if mine else object()
            same(await group.broadcast(x, root), values(root, (4,)))
            parts: Any = [values(target, (2,)) for target in range(size)] if mine else "nothing of the kind"
            same(await group.scatter(parts, root), values(group.rank, (2,)))

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
def test_a_barrier_lets_nobody_through_before_all_have_come(fabric: str, size: int) -> None:
    come: list[int] = []

    async def main(group: Group) -> None:
        for turn in range(3):
            come.append(turn)
            assert await group.barrier() is None
            assert come.count(turn) == size

    ranks(size, main, fabric)
