"""Calls that come again with arguments alike give what the first of them gave, and notice when they are not alike."""

from __future__ import annotations

import asyncio
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import aiocoll
from aiocoll import MEAN, SUM, Group, MismatchError, UsageError
from aiocoll.sim import Simulation

from .cases import POINT, for_every_size, on_every_fabric, outcome, ranks, values


@on_every_fabric
@for_every_size
def test_reduce_scatter_comes_again(size: int, fabric: str) -> None:
    async def main(group: Group) -> None:
        for turn in range(5):
            rows, columns = 7, 3
            x = values(group.rank + turn, (rows, columns))
            total = np.sum([values(rank + turn, (rows, columns)) for rank in range(size)], axis=0)
            wanted = np.array_split(total, size)[group.rank]
            out = np.full(wanted.shape, np.nan)
            before = x.copy()
            assert await group.reduce_scatter(x, SUM, out=out) is out
            np.testing.assert_array_equal(out, wanted)
            np.testing.assert_array_equal(x, before)
            if turn == 2:  # others in between
                np.testing.assert_array_equal(await group.reduce_scatter(x), wanted)
                halves = [1] * (size - 1) + [rows - size + 1]
                if size <= rows:
                    block = await group.reduce_scatter(x, SUM, halves)
                    start = sum(halves[: group.rank])
                    np.testing.assert_array_equal(block, total[start : start + halves[group.rank]])

    ranks(size, main, fabric)


@on_every_fabric
def test_outs_that_do_not_fit_are_refused_the_second_time_too(fabric: str) -> None:
    async def main(group: Group) -> None:
        x = values(group.rank, (6, 2))
        for _ in range(2):
            await group.reduce_scatter(x, SUM, out=np.empty((2, 2)))
        for wrong in (np.empty((3, 2)), np.empty((2, 2), np.float32), x[:2]):
            error = await outcome(group.reduce_scatter(x, SUM, out=wrong))
            assert type(error) is UsageError, error
        block = await group.reduce_scatter(x, SUM, out=np.empty((2, 2)))
        np.testing.assert_array_equal(block, sum(values(rank, (6, 2)) for rank in range(3))[2 * group.rank :][:2])
        other = x if group.rank else np.concatenate([x, x])  # another call than the others' and than those before
        error = await outcome(group.reduce_scatter(other, SUM, out=np.empty((len(other) // 3, 2))))
        assert type(error) is MismatchError, error

    ranks(3, main, fabric)


@on_every_fabric
@for_every_size
def test_all_to_all_comes_again(size: int, fabric: str) -> None:
    async def main(group: Group) -> None:
        def part(source: int, to: int, turn: int, shape: tuple[int, ...]) -> Any:
            return values(7 * source + 3 * to + turn, shape, np.float32)

        for shape in ((3,), (2, 5), (1000, 300), (0, 4)):
            for turn in range(4):
                parts = [part(group.rank, to, turn, shape) for to in range(size)]
                given = parts if turn % 2 else np.concatenate(parts)
                results = await group.all_to_all(given)
                for source, result in enumerate(results):
                    np.testing.assert_array_equal(result, part(source, group.rank, turn, shape))
                    assert result.flags.writeable and not any(np.may_share_memory(result, each) for each in parts)
                parts[0][...] = -1
                np.testing.assert_array_equal(results[group.rank], part(group.rank, group.rank, turn, shape))

    ranks(size, main, fabric)


@on_every_fabric
def test_results_that_somebody_has_are_not_used_again(fabric: str) -> None:
    async def main(group: Group) -> None:
        held: list[tuple[Any, Any]] = []
        for turn in range(8):
            parts = [values(group.rank + 2 * to + turn, (300, 200)) for to in range(2)]
            results = await group.all_to_all(parts)
            wanted = [values(source + 2 * group.rank + turn, (300, 200)) for source in range(2)]
            if turn % 4 == 0:
                held.append((results[0], wanted[0]))
            elif turn % 4 == 1:
                held.append((results[1][5:7, ::2], wanted[1][5:7, ::2]))  # a view is enough
            elif turn % 4 == 2:
                held.append((memoryview(results[0]), wanted[0]))
            del results
            for found, expected in held:
                np.testing.assert_array_equal(np.asarray(found), expected)

    ranks(2, main, fabric)


@on_every_fabric
def test_all_to_all_notices_other_parts_than_before(fabric: str) -> None:
    async def main(group: Group) -> None:
        for turn in range(6):
            # The second time round one rank has other shapes, as long; then other lengths; then longer than a block.
            shape: tuple[int, ...] = (4, 6)
            if turn >= 2 and group.rank == turn % 3:
                shape = [(6, 4), (5,), (300, 300)][turn % 3]
            parts = [values(group.rank + to, shape) for to in range(3)]
            for source, result in enumerate(await group.all_to_all(parts)):
                wanted: tuple[int, ...] = (4, 6)
                if turn >= 2 and source == turn % 3:
                    wanted = [(6, 4), (5,), (300, 300)][turn % 3]
                np.testing.assert_array_equal(result, values(source + group.rank, wanted))

    ranks(3, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "M8[ns]", POINT], ids=str)
def test_arrays_in_shared_memory_that_are_no_buffers(dtype: Any, fabric: str) -> None:
    async def main(group: Group) -> None:
        shape = (40_000,)
        for turn in range(3):
            x = group.empty(shape, dtype)
            x[...] = values(group.rank + turn, shape, dtype)
            wanted = [values(rank + turn, shape, dtype) for rank in range(2)]
            out = group.empty(shape, dtype)
            root = await group.broadcast(x) if group.rank == 0 else await group.broadcast(None, out=out)
            np.testing.assert_array_equal(root, wanted[0])
            for found, expected in zip(await group.all_to_all([x, x]), wanted, strict=True):
                np.testing.assert_array_equal(found, expected)

    ranks(2, main, fabric)


@on_every_fabric
def test_what_is_wrong_stays_wrong_after_calls_that_were_right(fabric: str) -> None:
    async def main(group: Group) -> None:
        x, out = values(group.rank, (4,)), np.empty((3, 4))
        for _ in range(2):
            await group.all_gather(x, out)
            await group.broadcast(x, 0, None if group.rank == 0 else out[0])
        for wrong in (list(out), [np.empty(4, np.float32) for _ in range(3)], [out]):
            error = await outcome(group.all_gather(x, wrong))
            assert type(error) is UsageError, error
        for root in (np.array([0, 1]), [0], True):
            error = await outcome(group.broadcast(x, root, x))
            assert type(error) is UsageError, error
        await group.all_gather(x, out)
        np.testing.assert_array_equal(out, [values(rank, (4,)) for rank in range(3)])

    ranks(3, main, fabric)


@pytest.mark.parametrize("fabric", ["tcp", "shm"])
def test_a_call_in_another_loop_takes_no_number(fabric: str) -> None:
    async def main(group: Group) -> None:
        x, out = values(group.rank, (4,)), np.empty((2, 4))
        calls = [
            lambda: group.all_reduce(x, SUM, x),
            lambda: group.reduce_scatter(x, SUM, out=out[0, :2]),
            lambda: group.broadcast(x, 0, None if group.rank == 0 else x),
            lambda: group.all_gather(x, out),
            lambda: group.all_to_all([x, x]),
            lambda: group.barrier(),
        ]
        for call in calls * 2:
            await call()

        async def elsewhere(call: Any) -> Any:
            return await outcome(call())

        if group.rank:
            for call in calls:
                error = await asyncio.to_thread(asyncio.run, elsewhere(call))
                assert type(error) is UsageError and "another event loop" in str(error), error
        for call in calls:
            await call()

    ranks(2, main, fabric)


@on_every_fabric
def test_all_calls_are_counted(fabric: str) -> None:
    async def main(group: Group) -> None:
        x = values(group.rank, (2000,))
        for turn in range(10):
            await group.all_reduce(x, SUM if turn % 5 else "sum", out=x, timeout=9.0 if turn % 4 == 3 else None)
            await group.barrier(timeout=9.0 if turn % 4 == 3 else None)
        stats = group.statistics()
        assert stats["calls"] == {"all_reduce": 10, "barrier": 10}
        sent, received = (sum(stats[key].values()) for key in ("bytes_sent", "bytes_received"))
        assert min(sent, received) >= 10 * x.nbytes, stats

    ranks(2, main, fabric)


def test_a_call_that_was_late_and_came_through_says_nothing_of_the_next() -> None:
    async def main(group: Group) -> None:
        for _ in range(3):
            await group.barrier()
        group.timeout = 1.0
        if group.rank:
            await asyncio.sleep(0.9)
        await group.barrier()  # rank 0 waits for 1.2 s, and has begun to ask after 1.0 s
        if group.rank:
            await asyncio.sleep(0.6)
        await group.barrier()  # under way when nobody has answered for half a second

    ranks(2, main, "sim", latency=0.3)


@on_every_fabric
def test_elements_without_bytes_come_again(fabric: str) -> None:
    async def main(group: Group) -> None:
        x = np.zeros(5, "V0")
        for _ in range(3):
            assert [part.shape for part in await group.all_to_all([x, x])] == [(5,), (5,)]
            out = x if group.rank == 0 else np.zeros(5, "V0")
            assert await group.broadcast(x, out=None if group.rank == 0 else out) is out

    ranks(2, main, fabric)


@on_every_fabric
def test_functions_see_whole_arrays_every_time(fabric: str) -> None:
    product = aiocoll.op(lambda left, right: left @ right)

    async def main(group: Group) -> None:
        for turn in range(3):
            factors = [values(rank + turn, (2, 2)) for rank in range(3)]
            x = factors[group.rank].copy()
            await group.all_reduce(x, product, out=x)
            np.testing.assert_array_equal(x, factors[0] @ factors[1] @ factors[2])

    ranks(3, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("op", [SUM, MEAN])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_come_again(dtype: Any, op: Any, fabric: str) -> None:
    """Whatever carries them: added up in float32, rounded once, equal bits on all ranks."""

    async def main(group: Group) -> list[bytes]:
        bits = []
        for count in (3, 3, 1000, 1000, 200_000):
            x = (values(group.rank, (count,)) / 7).astype(dtype)
            parts = [(values(rank, (count,)) / 7).astype(dtype).astype(np.float32) for rank in range(3)]
            total = parts[0] + parts[1] + parts[2]
            wanted = (total / 3 if op is MEAN else total).astype(dtype)
            out = np.empty(np.array_split(x, 3)[group.rank].shape, dtype)
            await group.reduce_scatter(x, op, out=out)
            np.testing.assert_array_equal(out, np.array_split(wanted, 3)[group.rank])
            await group.all_reduce(x, op, out=x)
            np.testing.assert_array_equal(x, wanted)
            bits.append(x.tobytes())
        return bits

    results = ranks(3, main, fabric)
    assert results[0] == results[1] == results[2]


def test_ranks_on_one_simulated_host_choose_what_is_made_for_memory() -> None:
    async def main(group: Group) -> list[str]:
        return [group._chosen("all_reduce", nbytes, count=nbytes, op=SUM).name for nbytes in (8, 1 << 24)]

    assert Simulation(4, hosts=[0] * 4).run(main) == [["recursive_doubling", "two_shot"]] * 4
