"""K-means on points that never leave their ranks: each step adds up the ranks' sums and counts, and nothing else.

    aiocoll run -n 4 examples/kmeans.py --points 100000

The rule: one all_reduce per step carries everything, so all ranks hold the same centres, bit by bit.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

import aiocoll

Floats = NDArray[np.float64]


def blobs(count: int, clusters: int, seed: int) -> Floats:
    """Points around `clusters` spots of a circle: (count, 2)."""
    random = np.random.default_rng(seed)
    angle = 2 * np.pi * random.integers(clusters, size=count) / clusters
    return np.stack([10 * np.cos(angle), 10 * np.sin(angle)], axis=1) + random.normal(scale=2.5, size=(count, 2))


async def first_centres(group: aiocoll.Group, points: Floats, clusters: int) -> Floats:
    """One after the other, the point that is farthest from all centres so far (Gonzalez 1985)."""
    centres = (await group.broadcast(points[:1])).copy()
    while len(centres) < clusters:
        distance = ((points[:, None] - centres) ** 2).sum(axis=2).min(axis=1)
        farthest = points[distance.argmax()]
        candidates = await group.all_gather(np.array([distance.max(), *farthest]))
        centres = np.vstack([centres, max(candidates, key=lambda each: float(each[0]))[1:]])
    return centres


async def kmeans(group: aiocoll.Group, points: Floats, clusters: int) -> tuple[Floats, float, int]:
    """The centres, the mean squared distance to them, and the number of steps it took (Lloyd 1982)."""
    centres, before, steps = await first_centres(group, points, clusters), np.zeros((clusters, 2)), 0
    while not np.allclose(before, centres):
        distance = ((points[:, None] - centres) ** 2).sum(axis=2)
        nearest = distance.argmin(axis=1)
        mine = np.zeros((clusters + 1, 3))  # per cluster: sum of x, sum of y, count; then one row for the error
        np.add.at(mine, nearest, np.column_stack([points, np.ones(len(points))]))
        mine[-1] = distance.min(axis=1).sum(), 0, len(points)
        total = await group.all_reduce(mine)
        before, centres, steps = centres, total[:-1, :2] / np.maximum(total[:-1, 2:], 1), steps + 1
    return centres, float(total[-1, 0] / total[-1, 2]), steps


async def main(group: aiocoll.Group) -> None:
    """Clusters points that every rank makes for itself."""
    parser = argparse.ArgumentParser(description="K-means over the ranks of a job.")
    parser.add_argument("--points", type=int, default=20_000, help="of each rank")
    parser.add_argument("--clusters", type=int, default=5)
    options = parser.parse_args()
    points = blobs(options.points, options.clusters, seed=group.rank)
    centres, error, steps = await kmeans(group, points, options.clusters)
    if group.rank == 0:
        spots = sorted(np.degrees(np.arctan2(centres[:, 1], centres[:, 0])).round().astype(int) % 360)
        total = f"{group.size * options.points:,} points in a world of {group.size}"
        print(f"{total}, {steps} steps, mean squared distance {error:.3f}")
        print("centres at", ", ".join(f"{spot} degrees" for spot in spots))


if __name__ == "__main__":
    aiocoll.run(main)
