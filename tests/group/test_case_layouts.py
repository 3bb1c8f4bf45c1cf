"""Cases A: views of every layout, aliases, buffers that change under a call.

The rule: values differ per rank and per element, and what lies between the elements of a view is looked at, too.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll import SUM, Group, UsageError
from tests.distributed.ranks import ranks as documented
from tests.group.cases import on_every_fabric, outcome, ranks, same

two_and_three = pytest.mark.parametrize("size", [2, 3])


def table(rank: int) -> Any:
    return np.arange(6.0).reshape(3, 2) + 100 * rank


@on_every_fabric
@two_and_three
def test_a1_views_are_packed_and_written_back(fabric: str, size: int) -> None:
    """A column of a table goes in as its elements and comes back into the column, the neighbours untouched."""

    async def main(group: Group) -> None:
        rank = group.rank
        for root in (0, size - 1):
            mine = table(rank)
            column = mine[:, 1]
            assert await group.broadcast(column, root, out=column) is column
            same(mine, np.stack([table(rank)[:, 0], table(root)[:, 1]], 1))
            mine = table(rank)
            result = await group.reduce(mine[:, 1], SUM, root, out=mine[:, 1])
            total = sum(table(each)[:, 1] for each in range(size))
            assert (result is None) == (rank != root)
            same(mine[:, 1], total if rank == root else table(rank)[:, 1])
            same(mine[:, 0], table(rank)[:, 0])
            parts = [table(10 + each)[:, 1] for each in range(size)] if rank == root else None
            mine = table(rank)
            await group.scatter(parts, root, out=mine[:, 1])
            same(mine, np.stack([table(rank)[:, 0], table(10 + rank)[:, 1]], 1))

    ranks(size, main, fabric)


@two_and_three
def test_a1_the_documented_calls_write_into_views(size: int) -> None:
    """The same for tensors that are filled in place."""

    def program(rank: int) -> None:
        for root in (0, size - 1):
            for call in ("broadcast", "reduce", "scatter", "all_reduce"):
                mine = table(rank)
                column = mine[:, 1]
                total = sum(table(each)[:, 1] for each in range(size))
                if call == "broadcast":
                    dist.broadcast(column, root)
                    wanted = table(root)[:, 1]
                elif call == "reduce":
                    dist.reduce(column, root)
                    wanted = total if rank == root else table(rank)[:, 1]
                elif call == "all_reduce":
                    dist.all_reduce(column)
                    wanted = total
                else:
                    parts = [table(10 + each)[:, 1] for each in range(size)] if rank == root else None
                    dist.scatter(column, parts, root)
                    wanted = table(10 + rank)[:, 1]
                same(mine, np.stack([table(rank)[:, 0], wanted], 1))

    documented(size, program)


@on_every_fabric
def test_a2_scatter_of_steps_and_reversals(fabric: str) -> None:
    """Parts taken with a step, forwards and backwards, are their elements and not the memory around them."""
    x = np.arange(8.0)[1::3]

    async def main(group: Group) -> None:
        parts = [x, x[::-1]] if group.rank == 0 else None
        wanted = [[1.0, 4.0, 7.0], [7.0, 4.0, 1.0]]
        same(await group.scatter(parts), np.array(wanted[group.rank]))
        out = np.zeros(len(x))
        assert await group.scatter(parts, out=out) is out
        same(out, np.array(wanted[group.rank]))

    ranks(2, main, fabric)


def test_a2_scatter_list_of_steps_and_reversals() -> None:
    """The same in the documented call; the other rank gives no list."""
    x = np.arange(8.0)[1::3]

    def program(rank: int) -> None:
        out = np.zeros(len(x))
        dist.scatter(out, [x, x[::-1]] if rank == 0 else None, 0)
        same(out, x if rank == 0 else x[::-1].copy())

    documented(2, program)


@on_every_fabric
def test_a3_transposed_arrays_keep_their_elements_in_place(fabric: str) -> None:
    """Element [i, j] of a transposed array is element [i, j] on the other side, in C and in Fortran order."""

    async def main(group: Group) -> None:
        x = (np.arange(12).reshape(3, 4) + 100 * group.rank).T
        each = [(np.arange(12).reshape(3, 4) + 100 * rank).T for rank in range(2)]
        gathered = await group.gather(x, 1)
        assert (gathered is None) == (group.rank != 1)
        for one, wanted in zip(gathered, each, strict=True) if gathered is not None else ():
            same(one, wanted)
        for order in ("C", "F"):
            out = np.zeros((2, 4, 3), int, order)
            await group.all_gather(x, out=out)
            same(out, np.stack(each))
            moved = np.zeros((4, 3), int, order)
            await group.broadcast(x, 1, out=moved)
            same(moved, each[1])
            if group.rank:
                await group.send(x, 0)
            else:
                same(await group.recv(1, out=moved), each[1])

    ranks(2, main, fabric)


def test_a3_gather_list_in_any_order_of_memory() -> None:
    """The documented gather into C- and Fortran-ordered tensors."""

    def program(rank: int) -> None:
        x = (np.arange(12).reshape(3, 4) + 100 * rank).T
        for order in ("C", "F"):
            outs = [np.zeros((4, 3), int, order) for _ in range(2)] if rank == 1 else None
            dist.gather(x, outs, 1)
            for source, out in enumerate(outs or ()):
                same(out, (np.arange(12).reshape(3, 4) + 100 * source).T)

    documented(2, program)


@on_every_fabric
def test_a5_odd_strides_of_one_and_no_element(fabric: str) -> None:
    """Arrays of one or no element are as contiguous as any, whatever their strides say."""

    async def main(group: Group) -> None:
        one, none = np.array([1 + 2j + group.rank]).real, np.empty((0,), complex).real
        assert one.strides == (16,)
        same(await group.all_reduce(one), np.array([1.0 + 2.0]))
        same(await group.all_reduce(none), np.empty(0))
        same(await group.broadcast(one, 1, out=one), np.array([2.0]))
        same(await group.all_reduce(one, out=one), np.array([4.0]))
        same(await group.broadcast(none, out=none), np.empty(0))
        for part in await group.all_gather(none):
            same(part, np.empty(0))

    ranks(2, main, fabric)


def test_a5_documented_calls_take_odd_strides() -> None:
    """The same in place."""

    def program(rank: int) -> None:
        one, none = np.array([1 + 2j + rank]).real, np.empty((0,), complex).real
        dist.all_reduce(one)
        dist.broadcast(none, 0)
        dist.all_reduce(none)
        same(one, np.array([3.0]))

    documented(2, program)


@on_every_fabric
def test_a6_real_and_imaginary_views_travel_both_ways(fabric: str) -> None:
    """`.real` and `.imag` are in neither C nor Fortran order; they are sent, received into and reduced in place."""
    whole = np.arange(16).reshape(4, 4) * (1 - 2j)

    async def main(group: Group) -> None:
        if group.rank == 0:
            await group.send(whole.real, 1)
            await group.send(whole.imag, 1)
        else:
            plain, around = np.zeros((4, 4)), np.full((4, 4), 7j)
            same(await group.recv(0, out=plain), whole.real)
            await group.recv(0, out=around.real)
            same(around, whole.imag + 7j)
        both = whole + group.rank
        await group.all_reduce(both.real, out=both.real)
        same(both, 2 * whole.real + 1 + 1j * whole.imag)

    ranks(2, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a8_the_same_array_in_and_out_works_and_partial_overlap_is_refused(fabric: str, size: int) -> None:
    """Input and output are one array, or share nothing; where there are no elements nothing overlaps."""

    async def main(group: Group) -> None:
        rank = group.rank
        x = np.arange(4.0) + rank
        total = sum(np.arange(4.0) + each for each in range(size))
        assert await group.all_reduce(x, out=x) is x
        same(x, total)
        long = np.arange(5.0 * size) + rank
        n = 5
        if size == 1:  # then the whole is the block
            assert await group.reduce_scatter(long, out=long) is long
        else:
            for refused in (
                group.reduce_scatter(long, out=long[:n]), group.all_reduce(long[:-1], out=long[1:]),
                group.all_gather(long[:n], out=long), group.scatter([long[:n]] * size, out=long[2 : n + 2]),
            ):  # fmt: skip
                result = await outcome(refused)
                assert isinstance(result, UsageError) and "overlap" in str(result), result
        empty = np.zeros(3)[1:1]
        same(await group.all_reduce(empty, out=empty), np.empty(0))
        same(await group.reduce_scatter(empty, out=empty[:0]), np.empty(0))
        parts = [np.array([rank * 10.0 + target]) for target in range(size)]
        for source, one in enumerate(await group.all_to_all(parts)):
            same(one, np.array([source * 10.0 + rank]))

    ranks(size, main, fabric)


@pytest.mark.parametrize("size", [2, 3])
def test_a8_a_tensor_of_the_list_may_be_the_input(size: int) -> None:
    """`all_gather(outs, outs[rank])` and `all_to_all(xs, xs)` of the documented API."""

    def program(rank: int) -> None:
        outs = [np.full(3, 10.0 * rank + place) for place in range(size)]
        outs[rank][:] = rank
        dist.all_gather(outs, outs[rank])
        for source, out in enumerate(outs):
            same(out, np.full(3, float(source)))
        parts = [np.array([rank * 10 + target]) for target in range(size)]
        dist.all_to_all(parts, parts)
        for source, one in enumerate(parts):
            same(one, np.array([source * 10 + rank]))

    documented(size, program)


@on_every_fabric
@pytest.mark.parametrize("count", [128, 131_072, 2_097_152])
def test_a10_a_blocking_send_leaves_the_buffer_to_its_owner(fabric: str, count: int) -> None:
    """After `await send(x)` the array may be changed, before the receiver has even asked; 1 KiB, 1 MiB, 16 MiB."""

    async def main(group: Group) -> None:
        x = np.arange(float(count)) + 1
        if group.rank == 0:
            await group.send(x, 1)
            x[:] = -1
            await group.send(x[:1], 1, tag=1)  # so that the receiver asks after the change
            started = asyncio.ensure_future(group.send(np.arange(float(count)) + 2, 1))
            gc.collect()  # nobody else holds what is on its way
            await started
        else:
            await group.recv(0, tag=1)
            same(await group.recv(0), np.arange(float(count)) + 1)
            same(await group.recv(0), np.arange(float(count)) + 2)

    ranks(2, main, fabric, timeout=60.0)  # megabytes, on machines that may stand still


def test_a10_handles_keep_what_they_send_alive() -> None:
    """`w = isend(x); del x` is safe, and a buffer that is let alone until `wait()` arrives as it was."""

    def program(rank: int) -> None:
        for count in (128, 131_072, 1_048_576):
            if rank == 0:
                work = dist.isend(np.arange(float(count)), 1)
                gc.collect()
                assert work is not None
                work.wait()
            else:
                out = np.zeros(count)
                dist.recv(out, 0)
                same(out, np.arange(float(count)))

    documented(2, program)


@on_every_fabric
def test_a11_headers_are_not_overwritten_while_they_wait(fabric: str) -> None:
    """A thousand small sends to a rank that does not receive yet: none is lost, none has another's header."""

    async def main(group: Group) -> None:
        if group.rank == 0:
            for number in range(1000):
                await group.send(np.array([number, number * number]), 1, tag=number % 7)
            await group.send(np.zeros(1), 1, tag=99)
        else:
            await group.recv(0, tag=99)
            for number in range(1000):
                same(await group.recv(0, tag=number % 7), np.array([number, number * number]))

    ranks(2, main, fabric)
