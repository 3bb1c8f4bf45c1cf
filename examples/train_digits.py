"""Data-parallel training: each rank works on its share of each batch, one all_reduce per step adds the gradients up.

    aiocoll run -n 4 examples/train_digits.py --check

The rule: the order of the batches depends on the seed alone, so any number of ranks ends with the same weights.
"""

import argparse
import sys
import time

import numpy as np
from digits import Digits, Network, batches, load

import aiocoll

BATCH, SEED = 64, 1  # images per step, over all ranks together
parser = argparse.ArgumentParser(description="Train a digit classifier, data-parallel over the ranks of a job.")
parser.add_argument("--epochs", type=int, default=60, help="how often each image is seen")
parser.add_argument("--rate", type=float, default=0.1, help="learning rate at the start")
parser.add_argument("--check", action="store_true", help="train again on one rank and compare the weights")
parser.add_argument("--save", metavar="FILE.npy", help="rank 0 writes the weights there")


def show(epoch: int, epochs: int, loss: float) -> None:
    """A progress bar: redrawn in place on a terminal, a line per tenth of the way in a log."""
    if (terminal := sys.stdout.isatty()) or 10 * epoch // epochs > 10 * (epoch - 1) // epochs:
        bar, end = ("#" * (30 * epoch // epochs)).ljust(30, "."), "\r" if terminal and epoch < epochs else "\n"
        print(f"[{bar}] epoch {epoch:3d}/{epochs}  loss {loss:.4f}", end=end, flush=True)


async def train(group: aiocoll.Group, digits: Digits, options: argparse.Namespace, shown: bool) -> Network:
    """Stochastic gradient descent with momentum; every rank of the group ends with the same network."""
    network, velocity = Network(128, SEED), 0.0
    for epoch in range(options.epochs):
        rate, loss = options.rate * 0.5 * (1 + np.cos(np.pi * epoch / options.epochs)), 0.0
        for batch in batches(len(digits.train_labels), BATCH, epoch, SEED):
            mine = np.array_split(batch, group.size)[group.rank]
            network.differentiate(digits.train_images[mine], digits.train_labels[mine])
            await group.all_reduce(network.gradient, out=network.gradient)
            loss += network.gradient[-1]
            velocity = 0.9 * velocity - rate / len(batch) * network.gradient[:-1]
            network.weights += velocity
        if shown:
            show(epoch + 1, options.epochs, loss / len(digits.train_labels))
    return network


async def accuracy(group: aiocoll.Group, network: Network, digits: Digits) -> float:
    """The share of test images that are recognised; every rank looks at some of them."""
    mine = np.array_split(np.arange(len(digits.test_labels)), group.size)[group.rank]
    right = network.scores(digits.test_images[mine])[1].argmax(axis=1) == digits.test_labels[mine]
    return float(await group.all_reduce(np.count_nonzero(right))) / len(digits.test_labels)


async def main(group: aiocoll.Group) -> None:
    """Loads, trains, measures, checks."""
    options, first = parser.parse_args(), group.rank == 0
    digits, begun = await load(group, SEED), time.perf_counter()
    network = await train(group, digits, options, shown=first)
    seconds, images = time.perf_counter() - begun, options.epochs * len(digits.train_labels)
    share = await accuracy(group, network, digits)
    if first:
        print(f"world of {group.size}: {images:,} images in {seconds:.2f} s, {images / seconds:,.0f} images per second")
        print(f"test accuracy {share:.2%} on {len(digits.test_labels)} images that were not trained on")
    if first and options.save:
        np.save(options.save, network.weights)
    if share < 0.95:
        raise SystemExit(f"rank {group.rank}: test accuracy {share:.2%} is below 95 %")
    if options.check and first:
        async with await group.subgroup([0], name="alone") as alone:
            reference = await train(alone, digits, options, shown=False)
        largest = np.abs(reference.weights - network.weights).max()
        print(f"check: largest difference to the weights that one rank alone arrives at: {largest:.1e}")
        assert largest < 1e-6


if __name__ == "__main__":
    aiocoll.run(main)
