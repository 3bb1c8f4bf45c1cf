"""Parameter averaging: each rank trains on its own data alone, and now and then all ranks average their parameters.

    aiocoll run -n 3 examples/parameter_averaging.py --every 20

The rule: nothing but the documented API, in place on NumPy arrays. Between two averages no rank waits for another, and
every rank averages equally often.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

import aiocoll.distributed as dist

Floats = NDArray[np.float64]
TRUTH = np.array([2.0, -1.0, 0.5, 3.0])


def own_data(rank: int, rows: int) -> tuple[Floats, Floats]:
    """What this rank alone has seen: its inputs lie elsewhere than the others', the last column is the constant."""
    random = np.random.default_rng(rank)
    x = random.normal(loc=rank, size=(rows, 4))
    x[:, 3] = 1.0
    return x, x @ TRUTH + random.normal(scale=0.3, size=rows)


def train(weights: Floats, x: Floats, y: Floats, steps: int, random: np.random.Generator) -> None:
    """So many steps of stochastic gradient descent on my own rows, in place."""
    for _ in range(steps):
        rows = random.integers(len(y), size=32)
        error = x[rows] @ weights - y[rows]
        weights -= 0.02 / (1 + np.abs(x[rows]).max()) * 2 * x[rows].T @ error / len(rows)


def average(weights: Floats) -> float:
    """Every rank's weights become the mean of all; gives how far they were apart."""
    mine = weights.copy()
    dist.all_reduce(weights, op=dist.ReduceOp.AVG)
    apart = np.array([np.abs(weights - mine).max()])
    dist.all_reduce(apart, op=dist.ReduceOp.MAX)
    return float(apart[0])


def main() -> None:
    """Trains in rounds and shows how the ranks come to agree."""
    parser = argparse.ArgumentParser(description="Averages the parameters of separately trained models.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--every", type=int, default=20, metavar="STEPS", help="steps between two averages")
    options = parser.parse_args()
    dist.init_process_group("tcp")
    rank = dist.get_rank()
    x, y = own_data(rank, rows=2000)
    weights, random = np.zeros(4), np.random.default_rng(1000 + rank)
    dist.broadcast(weights, src=0)  # all begin alike, also where they were read from a file
    for round in range(options.rounds):
        train(weights, x, y, options.every, random)
        apart = average(weights)
        if rank == 0 and round % (options.rounds // 5 or 1) == 0:
            print(f"round {round:3d}: ranks were {apart:.4f} apart")
    if rank == 0:
        print(f"a world of {dist.get_world_size()} agrees on {weights.round(2)}; true are {TRUTH}")
    dist.destroy_process_group()
    if not np.allclose(weights, TRUTH, atol=0.2):
        raise SystemExit(f"rank {rank}: the weights are {weights}, far from {TRUTH}")


if __name__ == "__main__":
    main()
