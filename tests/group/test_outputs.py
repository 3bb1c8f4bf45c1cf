"""``out=`` of every call: that very object, in any layout, nothing between its elements touched, refused when wrong.

The rule: what is refused is a UsageError on all ranks before anything is written, and the group goes on.
"""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll import MEAN, Group, MismatchError, UsageError
from tests.foreign import Foreign
from tests.group.cases import for_every_size, on_every_fabric, outcome, ranks, same, values


def holes(shape: tuple[int, ...], dtype: Any) -> dict[str, tuple[Any, Any]]:
    """Outs in every layout, each with the whole memory that it is a view of (filled with 99)."""
    rows, columns = shape
    dtype = np.dtype(dtype)

    def full(*extents: int, order: Any = "C", kind: Any = dtype) -> Any:
        return np.full(extents, 99, kind, order)

    plain, fortran, wide, tall = full(*shape), full(*shape, order="F"), full(rows, 2 * columns), full(3 * rows, columns)
    turned, swapped = full(columns, rows), full(*shape, kind=dtype.newbyteorder(">"))
    return {
        "C": (plain, plain), "Fortran": (fortran, fortran), "strided": (wide[:, ::2], wide),
        "negative": (tall[::-3, ::-1], tall), "transposed": (turned.T, turned), "big-endian": (swapped, swapped),
    }  # fmt: skip


def untouched(view: Any, whole: Any) -> None:
    """Nothing outside of ``view`` has changed."""
    view[...] = 99
    assert (whole == 99).all()


@on_every_fabric
@for_every_size
def test_any_layout_of_out_is_filled_and_nothing_else(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        rank, shape = group.rank, (4, 3)
        each = [values(r, shape, np.int32) for r in range(size)]
        total = np.sum(each, 0, dtype=np.int32)
        for layout, (out, whole) in holes(shape, np.int32).items():
            x = each[rank].copy()
            assert await group.all_reduce(x, out=out) is out, layout
            np.testing.assert_array_equal(out, total)
            untouched(out, whole)
            assert await group.broadcast(x if rank == 0 else None, out=out) is out
            np.testing.assert_array_equal(out, each[0])
            untouched(out, whole)
            assert await group.scatter(each if rank == 0 else None, out=out) is out
            np.testing.assert_array_equal(out, each[rank])
            untouched(out, whole)
            reduced = await group.reduce(x, root=size - 1, out=out)
            assert reduced is (out if rank == size - 1 else None)
            if rank == size - 1:
                np.testing.assert_array_equal(out, total)
            untouched(out, whole)
            await group.send(x, (rank + 1) % size)
            assert await group.recv((rank - 1) % size, out=out) is out
            np.testing.assert_array_equal(out, each[rank - 1])
            untouched(out, whole)
        for out, whole in holes((len(np.array_split(total, size)[rank]), 3), np.int32).values():
            assert await group.reduce_scatter(each[rank], out=out) is out
            np.testing.assert_array_equal(out, np.array_split(total, size)[rank])
            untouched(out, whole)
        for out, whole in holes((size * 4, 3), np.int32).values():
            assert await group.all_gather(each[rank], out=out) is out
            np.testing.assert_array_equal(out, np.concatenate(each))
            untouched(out, whole)
        stacked = np.full((size, 4, 6), 99, np.int32)
        await group.all_gather(each[rank], out=stacked[:, :, ::2])
        np.testing.assert_array_equal(stacked[:, :, ::2], np.stack(each))
        untouched(stacked[:, :, ::2], stacked)
        for number in (rank + 1, np.array(rank + 1)):
            line = np.zeros(2 * size, np.int64)
            await group.all_gather(number, out=line[::2])
            np.testing.assert_array_equal(line, [n for r in range(size) for n in (r + 1, 0)])

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
def test_in_place_and_large(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        rank = group.rank
        for rows in (2, 4_000):
            # Some ranks give Fortran order, some big-endian, and one wants no out at all.
            each = [values(r, (rows, 3)) for r in range(size)]
            mine = [each[rank], np.asfortranarray(each[rank]), each[rank].astype(">f8")][rank % 3]
            stacked = np.zeros((size, rows, 3)) if rank % 4 != 2 else None
            came = await group.all_gather(mine, out=stacked)
            assert stacked is None or came is stacked
            for one, wanted in zip(came, each, strict=True):
                same(one, wanted)
        for count in (3, 9_000, 300_000):
            for step in (1, -1, 2):
                each = [values(r, (count,)) for r in range(size)]
                x = np.zeros(count * abs(step))[::step]
                x[...] = each[rank]
                assert await group.all_reduce(x, out=x) is x
                np.testing.assert_array_equal(x, sum(each))
                x[...] = each[rank]
                assert await group.broadcast(x, size - 1, out=x) is x
                np.testing.assert_array_equal(x, each[-1])
                same(await group.reduce(x, MEAN, out=x) if rank == 0 else x, each[-1])
                await group.reduce(x, MEAN) if rank else None
        parts = [values(rank + r, (3,)) for r in range(size)]
        mine = parts[rank]
        assert await group.reduce_scatter(parts, out=mine) is mine
        same(mine, sum(values(r + rank, (3,)) for r in range(size)))

    ranks(size, main, fabric)


class Interface:
    """Something with __array_interface__ and nothing else."""

    def __init__(self, x: Any) -> None:
        self._x = x

    @property
    def __array_interface__(self) -> Any:
        return self._x.__array_interface__


class Tensor(Foreign):
    """Like a torch CPU tensor."""

    def numpy(self) -> Any:
        return self.array

    def detach(self) -> Tensor:
        return self


MAKERS: list[Callable[[Any], Any]] = [Interface, Foreign, Tensor, memoryview, lambda x: array.array("d", x.tolist())]


@on_every_fabric
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("make", MAKERS, ids=["interface", "dlpack", "torch-like", "memoryview", "array.array"])
def test_whatever_is_like_an_array_is_one_as_input_and_as_out(fabric: str, size: int, make: Any) -> None:
    async def main(group: Group) -> None:
        rank = group.rank
        each = [values(r, (4,)) for r in range(size)]
        same(await group.all_reduce(make(each[rank].copy())), sum(each))
        same(np.asarray(await group.broadcast(make(each[0].copy()) if rank == 0 else None)), each[0])
        for one, wanted in zip(await group.all_gather(make(each[rank].copy())), each, strict=True):
            same(one, wanted)
        out = make(np.zeros(4))
        assert await group.all_reduce(each[rank], out=out) is out
        same(np.array(np.from_dlpack(out) if isinstance(out, Foreign) else out), sum(each))
        await group.send(make(each[rank].copy()), rank)
        assert await group.recv(rank, out=out) is out
        same(np.array(np.from_dlpack(out) if isinstance(out, Foreign) else out), each[rank])

    ranks(size, main, fabric)


LOCKED = np.zeros(4)
LOCKED.flags.writeable = False


@on_every_fabric
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_wrong_out_is_refused_on_all_ranks_and_the_group_goes_on(fabric: str, size: int) -> None:
    wrong: list[tuple[str, Callable[[Any], Any]]] = [
        ("read-only", lambda x: LOCKED), ("shape", lambda x: np.zeros(5)), ("shape", lambda x: np.zeros((2, 2))),
        ("dtype", lambda x: np.zeros(4, np.float32)), ("overlap", lambda x: np.broadcast_to(np.zeros(1), 4)),
        ("overlap", lambda x: np.lib.stride_tricks.as_strided(np.zeros(4), (4,), (4,))),
        ("overlap", lambda x: np.ndarray((4,), float, x.base, 8)), ("overlap", lambda x: x[::-1]),
        ("writable", lambda x: [0.0] * 4), ("writable", lambda x: 1.0),
        ("", lambda x: "text"), ("", lambda x: object()),
    ]  # fmt: skip

    async def main(group: Group) -> None:
        for culprit in sorted({0, size - 1}):
            for word, make in wrong:
                x = np.ndarray((4,), float, np.zeros(6).data)
                x[...] = group.rank
                out = make(x) if group.rank == culprit else np.full(4, 7.0)
                error = await outcome(group.all_reduce(x, out=out))
                assert type(error) is UsageError, (word, error)
                assert word in str(error) or word == "overlap" and "read-only" in str(error), (word, error)
                assert f"rank {culprit}" in str(error)
                assert (x == group.rank).all()
                left = out.copy() if group.rank != culprit else None
                same(await group.all_reduce(np.ones(2)), np.full(2, float(size)))
                if group.rank != culprit:  # what an out holds after an error is anybody's guess, but it stays so
                    np.testing.assert_array_equal(out, left)
        assert group.broken is None

    ranks(size, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_wrong_out_is_refused_where_it_would_stay_as_it_is_too(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        for out in (LOCKED, np.zeros(5), np.zeros(4, np.float32), [0.0] * 4):
            assert type(await outcome(group.reduce(np.ones(4), out=out))) is UsageError, out
        kept = np.full(4, 7.0)
        assert await group.reduce(np.ones(4), out=kept) is (kept if group.rank == 0 else None)
        np.testing.assert_array_equal(kept, np.full(4, size if group.rank == 0 else 7.0))

    ranks(size, main, fabric)


@on_every_fabric
def test_zero_size_arrays_overlap_nothing(fabric: str) -> None:
    async def main(group: Group) -> None:
        x = np.zeros(4)
        assert (await group.all_reduce(x[:0], out=x[1:1])).shape == (0,)
        out = np.zeros((3, 0))
        assert await group.all_gather(x[:0], out=out) is out
        assert await group.broadcast(x[2:2], out=x[1:1]) is not None
        same(await group.all_reduce(x + 1), np.full(4, 3.0))

    ranks(3, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("big", [False, True])
def test_roots_array_and_an_out_that_differ_are_a_mismatch_on_all_ranks(fabric: str, size: int, big: bool) -> None:
    count = 50_000 if big else 6

    def program(call: Callable[[Group, Any], Any], wrong: Callable[[], Any]) -> None:
        async def main(group: Group) -> None:
            out = wrong() if group.rank == size - 1 else np.full(count, 7.0)
            error = await outcome(call(group, out))
            assert type(error) is MismatchError, error
            assert "shape" in str(error) or "different calls" in str(error)
            assert isinstance(group.broken, MismatchError)

        ranks(size, main, fabric)

    for wrong in (
        lambda: np.zeros(count + 1), lambda: np.zeros((count // 2, 2)), lambda: np.zeros(count, np.float32),
    ):  # fmt: skip
        program(lambda group, out: group.broadcast(np.ones(count) if group.rank == 0 else None, out=out), wrong)
        program(lambda group, out: group.scatter([np.ones(count)] * size if group.rank == 0 else None, out=out), wrong)
        program(lambda group, out: group.broadcast(out, out=out), wrong)

    async def gathers(group: Group) -> None:
        x = np.zeros(count + (group.rank == 1))
        out = np.zeros(size * count) if group.rank == 0 else None
        error = await outcome(group.all_gather(x, out=out))
        assert type(error) is MismatchError and str(x.shape) in str(error) + str((count,)), error

    ranks(size, gathers, fabric)
