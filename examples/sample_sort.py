"""Sorts numbers that lie scattered over the ranks: afterwards each rank holds a part, in order, of equal length or so.

    aiocoll run -n 4 examples/sample_sort.py --count 1000000

The rule: every number travels once; what decides where it goes is a small sample (Frazer, McKellar 1970).
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

import aiocoll

Ints = NDArray[np.int64]
SAMPLES = 1000  # of each part in the end: parts then differ by a few percent


async def sample_sort(group: aiocoll.Group, mine: Ints) -> Ints:
    """My part of all numbers in order: those of rank 0 come before those of rank 1, and so on."""
    mine = np.sort(mine)
    every = max(int(await group.all_reduce(len(mine))) // (SAMPLES * group.size), 1)
    everybody = np.sort(np.concatenate(await group.all_gather(mine[::every])))
    splitters = everybody[np.arange(1, group.size) * len(everybody) // group.size]
    parts = np.split(mine, np.searchsorted(mine, splitters))
    return np.sort(np.concatenate(await group.all_to_all(parts)), kind="stable")  # merges runs that are sorted


async def is_sorted(group: aiocoll.Group, part: Ints) -> bool:
    """Whether the parts are in order, and each begins where those before it have ended or later."""
    largest = part[-1] if len(part) else np.iinfo(np.int64).min
    below = await group.exscan(largest, aiocoll.MAX)  # the largest number of the ranks before me; None on rank 0
    well = bool((np.diff(part) >= 0).all()) and (below is None or len(part) == 0 or below <= part[0])
    return bool(await group.all_reduce(well, aiocoll.LAND))


async def main(group: aiocoll.Group) -> None:
    """Sorts numbers that every rank draws for itself, rank 0 twice as many as the others."""
    parser = argparse.ArgumentParser(description="Sort numbers over the ranks of a job.")
    parser.add_argument("--count", type=int, default=200_000, help="how many numbers each rank begins with")
    options = parser.parse_args()
    random = np.random.default_rng(group.rank)
    mine = random.lognormal(15 + group.rank, 2, options.count * (1 + (group.rank == 0))).astype(np.int64)
    begun_with = await group.all_reduce(np.array([len(mine), mine.sum()]))
    part = await sample_sort(group, mine)
    ended_with = await group.all_reduce(np.array([len(part), part.sum()]))
    lengths = await group.all_gather(len(part))
    if not await is_sorted(group, part) or not np.array_equal(begun_with, ended_with):
        raise SystemExit(f"rank {group.rank}: not sorted, or numbers were lost: {begun_with} became {ended_with}")
    if group.rank == 0:
        print(f"{begun_with[0]:,} numbers sorted; parts of {', '.join(f'{int(each):,}' for each in lengths)}")


if __name__ == "__main__":
    aiocoll.run(main)
