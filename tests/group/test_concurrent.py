"""Many calls in flight at once: by number, by name, on one group and on overlapping ones, in any order of tasks.

The rule: the number is taken when the call is made; a named call meets the calls of its name, whenever they come.
"""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from aiocoll import MAX, Group
from tests.group.cases import for_every_size, on_every_fabric, ranks, same, values

SEEDS = range(5)


@on_every_fabric
@for_every_size
def test_f5_thirty_two_calls_at_once(fabric: str, size: int) -> None:
    lengths = [int(1.45**n) for n in range(32)]

    async def main(group: Group) -> None:
        calls = [group.all_reduce(values(group.rank + n, (length,))) for n, length in enumerate(lengths)]
        for n, total in enumerate(await asyncio.gather(*calls)):
            same(total, sum(values(r + n, (lengths[n],)) for r in range(size)))

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_are_taken_when_calls_are_made_and_awaited_in_any_order(fabric: str, size: int, seed: int) -> None:
    async def main(group: Group) -> None:
        rank = group.rank
        calls = [
            group.all_reduce(values(rank, (9,))), group.broadcast(rank, size - 1),
            group.all_gather(values(rank, (rank,))), group.barrier(), group.scan(rank + 1),
            group.all_gather_object({"r": rank}),
            group.reduce_scatter(values(rank, (2 * size, 2))), group.all_to_all([rank * 10 + t for t in range(size)]),
            group.gather_object(rank, 0), group.scatter([t * 2 for t in range(size)], 0),
        ]  # fmt: skip
        tasks = list(enumerate(calls))
        random.Random(f"{seed} {rank}").shuffle(tasks)
        results = dict(zip([n for n, _ in tasks], await asyncio.gather(*[call for _, call in tasks]), strict=True))
        same(results[0], sum(values(r, (9,)) for r in range(size)))
        assert results[1] == size - 1 and results[3] is None and results[4] == sum(range(1, rank + 2))
        for source, one in enumerate(results[2]):
            same(one, values(source, (source,)))
        assert results[5] == [{"r": r} for r in range(size)]
        same(results[6], sum(values(r, (2 * size, 2)) for r in range(size))[2 * rank : 2 * rank + 2])
        assert results[7] == [source * 10 + rank for source in range(size)]
        assert results[8] == (list(range(size)) if rank == 0 else None) and results[9] == 2 * rank

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
@pytest.mark.parametrize("seed", SEEDS)
def test_f5_named_calls_meet_whatever_order_the_tasks_run_in(fabric: str, size: int, seed: int) -> None:
    async def main(group: Group) -> None:
        order = random.Random(f"{seed} {group.rank}")
        totals: dict[str, list[float]] = {}

        async def task(number: int) -> None:
            name = f"layer {number}"
            for turn in range(3):
                for _ in range(order.randrange(5)):
                    await asyncio.sleep(0)
                total = await group.all_reduce(100.0 * number + 10 * turn + group.rank, name=name)
                totals.setdefault(name, []).append(float(total))
                await group.barrier(name=name)
                same(await group.broadcast(values(number, (2000 * number,)) if group.rank == 0 else None, name=name),
                     values(number, (2000 * number,)))  # fmt: skip

        numbers = list(range(8))
        order.shuffle(numbers)
        unnamed = [group.all_reduce(n, MAX) for n in range(4)]
        await asyncio.gather(*map(task, numbers), *unnamed)
        for number in numbers:
            wanted = [size * (100.0 * number + 10 * turn) + sum(range(size)) for turn in range(3)]
            assert totals[f"layer {number}"] == wanted

    ranks(size, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("seed", SEEDS)
def test_f5_overlapping_groups_at_once(fabric: str, seed: int) -> None:
    async def main(group: Group) -> None:
        order = random.Random(f"{seed} {group.rank}")
        low = await group.subgroup([0, 1, 2]) if group.rank < 3 else None
        high = await group.subgroup([3, 2, 1]) if group.rank > 0 else None
        twin = await group.dup()
        row = await group.split(group.rank % 2, key=-group.rank)
        groups = [each for each in (group, low, high, twin, row) if each is not None]

        async def use(each: Group) -> None:
            for turn in range(4):
                for _ in range(order.randrange(3)):
                    await asyncio.sleep(0)
                total = sum(values(world, (turn * 700 + 1,)) for world in each.ranks)
                same(await each.all_reduce(values(group.rank, (turn * 700 + 1,))), total)
                assert await each.all_gather_object(group.rank) == list(each.ranks)

        await asyncio.gather(*map(use, order.sample(groups, len(groups))))
        for each in groups[1:]:
            await each.close()

    ranks(4, main, fabric)


@on_every_fabric
def test_f2_two_hundred_calls_of_all_kinds_raise_no_false_alarm(fabric: str) -> None:
    async def main(group: Group) -> None:
        pair = await group.subgroup([2, 0]) if group.rank != 1 else None
        for turn in range(50):
            await group.barrier()
            assert await group.broadcast(turn if group.rank == turn % 3 else None, turn % 3) == turn
            await group.send(turn, (group.rank + 1) % 3, tag=turn)
            if pair is not None:
                assert await pair.all_reduce(1) == 2
            assert await group.recv(tag=turn) == turn
            assert await group.reduce(turn, root=turn % 3) == (3 * turn if group.rank == turn % 3 else None)
        if pair is not None:
            await pair.close()

    ranks(3, main, fabric)


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_frames_from_different_ranks_does_not_matter(seed: int) -> None:
    async def main(group: Group) -> None:
        x = np.arange(5000.0) * (group.rank + 1)
        for total in await asyncio.gather(*[group.all_reduce(x[: 500 * n]) for n in range(10)]):
            same(total, np.arange(5000.0)[: len(total)] * 15)

    ranks(5, main, "sim", seed=seed, latency=1e-3, bandwidth=1e8)
