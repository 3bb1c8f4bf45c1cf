"""Outputs that are inputs: exactly one of them works in place, a part of one is refused, in both APIs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiocoll
import aiocoll.distributed as dist
from aiocoll.errors import UsageError
from aiocoll.testing import run
from tests.distributed.ranks import ranks

COUNTS = (3, 50_000)


def part(source: int, target: int, count: int) -> Any:
    return np.arange(float(count)) + 1000.0 * source + 10.0 * target


@pytest.mark.parametrize("backend", ["tcp", "auto"])
def test_a8_an_output_that_is_an_input_works_in_place(backend: str) -> None:
    """all_gather into a list that holds the input, all_reduce, the own part of all_gather_single and
    reduce_scatter_single, reduce_scatter and all_to_all with one list for both, all_to_all_single and gather."""

    def program(rank: int) -> None:
        size = dist.get_world_size()
        everyone = range(size)
        for count in COUNTS:
            mine = [part(rank, each, count) for each in everyone]
            firsts = [part(each, 0, count) for each in everyone]
            for place in everyone:  # its own, and another's
                outputs = [np.zeros(count) for _ in everyone]
                outputs[place][:] = mine[0]
                for _ in range(2):  # the second call must not take a short cut
                    outputs[place][:] = mine[0]
                    dist.all_gather(outputs, outputs[place])
                    np.testing.assert_array_equal(outputs, firsts)
            whole = np.zeros((size, count))
            for _ in range(2):
                whole[rank] = mine[0]
                dist.all_gather_single(whole, whole[rank])
                np.testing.assert_array_equal(whole, firsts)
            for place in everyone:
                whole = np.array(mine)
                dist.reduce_scatter_single(whole[place], whole)
                np.testing.assert_array_equal(whole[place], sum(part(each, rank, count) for each in everyone))
                lists = [each.copy() for each in mine]
                dist.reduce_scatter(lists[place], lists)
                np.testing.assert_array_equal(lists[place], sum(part(each, rank, count) for each in everyone))
            both = [each.copy() for each in mine]
            dist.all_to_all(both, both)
            np.testing.assert_array_equal(both, [part(each, rank, count) for each in everyone])
            x = np.concatenate(mine)
            dist.all_to_all_single(x, x)
            np.testing.assert_array_equal(x, np.concatenate([part(each, rank, count) for each in everyone]))
            outputs = [mine[0].copy() for _ in everyone]
            dist.gather(outputs[1] if rank == 0 else mine[0], outputs if rank == 0 else None, 0)
            if rank == 0:
                np.testing.assert_array_equal(outputs, firsts)
            for place in everyone:
                parts = [part(7, each, count) for each in everyone]
                dist.scatter(parts[place], parts if rank == 1 else None, 1)
                np.testing.assert_array_equal(parts[place], part(7, rank, count))
            x = mine[0].copy()
            dist.all_reduce(x)
            np.testing.assert_array_equal(x, sum(firsts))

    ranks(3, program, backend)


def test_a8_a_part_in_common_is_refused_and_none_where_nothing_is() -> None:
    """Outputs that share a part of an input, or memory with one another, are refused before anything is sent; arrays
    without elements share nothing wherever they lie."""

    def program(rank: int) -> None:
        x = np.arange(8.0)
        y, z = np.zeros(8), np.zeros(4)
        wrong: list[Callable[[], Any]] = [
            lambda: dist.all_gather([x[:4], x[2:6]], z),
            lambda: dist.all_gather([z, z], y[:4]),
            lambda: dist.all_gather([y[:4], y[4:]], y[2:6]),
            lambda: dist.all_gather_single(y, y[2:6]),
            lambda: dist.reduce_scatter_single(x[2:6], x),
            lambda: dist.reduce_scatter(x[1:5], [x[:4], x[4:]]),
            lambda: dist.all_to_all([x[:4], x[3:7]], [y[:4], y[4:]]),
            lambda: dist.all_to_all([x[:4], x[4:]], [x[2:6], z]),
            lambda: dist.all_to_all_single(x[:4], x[2:6]),
            lambda: dist.scatter(x[1:5], [x[:4], x[4:]] if rank == 0 else None, 0),
            lambda: dist.gather(x[2:6], [x[:4], x[4:]] if rank == 0 else None, 0),
            lambda: dist.all_reduce(np.lib.stride_tricks.as_strided(x, (4, 2), (8, 8))),
        ]
        for each in wrong:
            before = x.copy()
            if rank == 0:
                with pytest.raises(RuntimeError, match="overlap") as caught:
                    each()
                assert isinstance(caught.value, UsageError)
            dist.barrier() if rank == 0 else refused_there(dist.barrier)
            np.testing.assert_array_equal(x, before)
        empty = x[3:3]
        dist.all_gather([empty, empty], empty)
        dist.all_to_all_single(empty, empty)
        dist.reduce_scatter_single(empty, empty)

    def refused_there(use: Callable[[], Any]) -> None:
        with pytest.raises(UsageError, match="rank 0"):
            use()
        dist.barrier()

    ranks(2, program)


async def reduced_into_a_part(group: aiocoll.Group) -> None:
    everyone = range(group.size)
    for count in COUNTS:
        wanted = sum(part(each, group.rank, count) for each in everyone)
        for place in everyone:
            parts = [part(group.rank, each, count) for each in everyone]
            assert await group.reduce_scatter(parts, out=parts[place]) is parts[place]
            np.testing.assert_array_equal(parts[place], wanted)
        x = np.arange(4.0) + group.rank
        rows = [0] * group.size
        rows[1] = 4
        if group.rank == 1:
            await group.reduce_scatter(x, counts=rows, out=x)
            np.testing.assert_array_equal(x, sum(np.arange(4.0) + each for each in everyone))
        else:
            assert (await group.reduce_scatter(x, counts=rows)).size == 0


@pytest.mark.parametrize("fabric", ["sim", "tcp", "shm"])
@pytest.mark.parametrize("size", [2, 3])
def test_a8_reduce_scatter_into_one_of_its_parts(fabric: str, size: int) -> None:
    """The awaited reduce_scatter with out= one of its own parts, or the whole input where that is one block."""
    run(size, reduced_into_a_part, fabric)
