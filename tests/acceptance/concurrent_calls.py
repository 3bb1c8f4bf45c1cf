"""Run under ``aiocoll run -n 3``: 32 all_reduce at once, in one order and then in a different one on each rank."""

from __future__ import annotations

import asyncio
import random

import numpy as np

import aiocoll

SIZES = [int(round(10 ** (6 * step / 31))) for step in range(32)]  # 1 to 1,000,000


def given(rank: int, number: int, size: int) -> np.ndarray:
    return (np.arange(size) % 1013 + number) * (rank + 1.5)


def wanted(ranks: int, number: int, size: int) -> np.ndarray:
    return np.sum([given(rank, number, size) for rank in range(ranks)], axis=0)


def check(results: list[np.ndarray], ranks: int) -> None:
    for number, (size, result) in enumerate(zip(SIZES, results, strict=True)):
        np.testing.assert_allclose(result, wanted(ranks, number, size), rtol=1e-14)


async def main(group: aiocoll.Group) -> None:
    calls = [group.all_reduce(given(group.rank, number, size)) for number, size in enumerate(SIZES)]
    check(await asyncio.gather(*calls), group.size)

    order = list(enumerate(SIZES))
    random.Random(group.rank).shuffle(order)
    results: list[np.ndarray] = [np.empty(0)] * len(SIZES)

    async def one(number: int, size: int) -> None:
        results[number] = await group.all_reduce(given(group.rank, number, size), name=f"gradient {number}")

    async with asyncio.TaskGroup() as tasks:
        for number, size in order:
            tasks.create_task(one(number, size))
    check(results, group.size)
    print("all sums are right")


if __name__ == "__main__":
    aiocoll.run(main)
