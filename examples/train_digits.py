"""Data-parallel training of a small network on scikit-learn's handwritten digits, in NumPy.

    aiocoll run -n 4 examples/train_digits.py --check

Every rank works on its share of each batch, and one all_reduce per step adds the gradients up. The rule: the order of
the batches depends on the seed alone and sums are in float64, so any number of ranks ends with the same weights.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import aiocoll

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PIXELS, CLASSES = 64, 10
TEST_SHARE = 0.2
SAME_WEIGHTS = 1e-6


@dataclass(frozen=True, slots=True)
class Digits:
    """The data set, split in two: images are (n, 64) in 0..1, labels are (n,) in 0..9."""

    train_images: Floats
    train_labels: Ints
    test_images: Floats
    test_labels: Ints


class Network:
    """64 pixels -> hidden layer with ReLU -> 10 classes; all weights in one vector, so that one call suffices."""

    def __init__(self, hidden: int, seed: int) -> None:
        shapes = [(PIXELS, hidden), (hidden,), (hidden, CLASSES), (CLASSES,)]
        sizes = [int(np.prod(shape)) for shape in shapes]
        self.weights: Floats = np.zeros(sum(sizes))
        self.gradient: Floats = np.zeros(sum(sizes) + 1)  # the last element carries the loss along
        cuts = np.cumsum(sizes)[:-1]
        self.w1, self.b1, self.w2, self.b2 = map(np.reshape, np.split(self.weights, cuts), shapes)
        self.d_w1, self.d_b1, self.d_w2, self.d_b2 = map(np.reshape, np.split(self.gradient[:-1], cuts), shapes)
        random = np.random.default_rng(seed)
        self.w1[:] = random.normal(scale=np.sqrt(2 / PIXELS), size=self.w1.shape)
        self.w2[:] = random.normal(scale=np.sqrt(2 / hidden), size=self.w2.shape)

    def scores(self, images: Floats) -> tuple[Floats, Floats]:
        """The hidden layer and the scores of each class, for (n, 64) images."""
        hidden = np.maximum(images @ self.w1 + self.b1, 0)
        return hidden, hidden @ self.w2 + self.b2

    def differentiate(self, images: Floats, labels: Ints) -> None:
        """Fills ``gradient`` with the sum over these images (not the mean: shares of a batch may differ in size)."""
        hidden, scores = self.scores(images)
        scores -= scores.max(axis=1, keepdims=True, initial=-np.inf)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        self.gradient[-1] = -np.log(chances[rows, labels]).sum()
        chances[rows, labels] -= 1
        back = (chances @ self.w2.T) * (hidden > 0)
        self.d_w2[:], self.d_b2[:] = hidden.T @ chances, chances.sum(axis=0)
        self.d_w1[:], self.d_b1[:] = images.T @ back, back.sum(axis=0)


class Progress:
    """A progress bar for one rank: redrawn in place on a terminal, a line per tenth of the way in a log."""

    def __init__(self, total: int, shown: bool) -> None:
        self.total, self.shown, self.tenth = total, shown, 0

    def __call__(self, epoch: int, loss: float) -> None:
        """Shows that ``epoch`` epochs are over."""
        if not self.shown:
            return
        filled = 30 * epoch // self.total
        text = f"[{'#' * filled}{'.' * (30 - filled)}] epoch {epoch:3d}/{self.total}  loss {loss:.4f}"
        if sys.stdout.isatty():
            print(f"\r{text}", end="\n" if epoch == self.total else "", flush=True)
        elif 10 * epoch // self.total > self.tenth:
            self.tenth = 10 * epoch // self.total
            print(text, flush=True)


def batches(count: int, size: int, epoch: int, seed: int) -> Iterator[Ints]:
    """The row numbers of each batch of an epoch: the same on every rank, whatever their number."""
    order = np.random.default_rng((seed, epoch)).permutation(count)
    for start in range(0, count, size):
        yield order[start : start + size]


async def load(group: aiocoll.Group, seed: int) -> Digits:
    """The data set on every rank: rank 0 reads it, the others need neither the file nor scikit-learn."""
    images: Floats | None = None
    labels: Ints | None = None
    if group.rank == 0:
        from sklearn.datasets import load_digits

        raw_images, raw_labels = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(raw_labels))
        images, labels = raw_images[order] / 16.0, raw_labels[order].astype(np.int64)
    images, labels = await group.broadcast(images), await group.broadcast(labels)
    cut = int(len(labels) * TEST_SHARE)
    return Digits(images[cut:], labels[cut:], images[:cut], labels[:cut])


async def train(group: aiocoll.Group, digits: Digits, options: argparse.Namespace, shown: bool) -> Network:
    """Stochastic gradient descent with momentum; every rank of the group ends with the same network."""
    network = Network(options.hidden, options.seed)
    velocity = np.zeros_like(network.weights)
    progress = Progress(options.epochs, shown)
    for epoch in range(options.epochs):
        rate = options.rate * 0.5 * (1 + np.cos(np.pi * epoch / options.epochs))
        loss = 0.0
        for batch in batches(len(digits.train_labels), options.batch, epoch, options.seed):
            mine = np.array_split(batch, group.size)[group.rank]
            network.differentiate(digits.train_images[mine], digits.train_labels[mine])
            await group.all_reduce(network.gradient, out=network.gradient)
            loss += network.gradient[-1]
            velocity *= 0.9
            velocity -= rate / len(batch) * network.gradient[:-1]
            network.weights += velocity
        progress(epoch + 1, loss / len(digits.train_labels))
    return network


async def accuracy(group: aiocoll.Group, network: Network, digits: Digits) -> float:
    """The share of test images that are recognised; every rank looks at some of them."""
    images = np.array_split(digits.test_images, group.size)[group.rank]
    labels = np.array_split(digits.test_labels, group.size)[group.rank]
    right = np.count_nonzero(network.scores(images)[1].argmax(axis=1) == labels)
    return float(await group.all_reduce(right)) / len(digits.test_labels)


async def differs_from_one_rank(
    group: aiocoll.Group, network: Network, digits: Digits, options: argparse.Namespace
) -> float:
    """Trains once more on rank 0 alone; gives every rank the largest difference between the two sets of weights."""
    largest = None
    if group.rank == 0:
        async with await group.subgroup([0], name="alone") as alone:
            reference = await train(alone, digits, options, shown=False)
        largest = np.abs(reference.weights - network.weights).max()
    return float(await group.broadcast(largest))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a digit classifier, data-parallel over the ranks of a job.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64, help="images per step, over all ranks together")
    parser.add_argument("--hidden", type=int, default=128, help="width of the hidden layer")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate at the start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="train again on one rank and compare the weights")
    parser.add_argument("--save", metavar="FILE.npy", help="rank 0 writes the weights there")
    return parser.parse_args()


async def main(group: aiocoll.Group) -> None:
    """Loads, trains, measures, checks."""
    options = arguments()
    first = group.rank == 0
    digits = await load(group, options.seed)
    await group.barrier()
    begun = time.perf_counter()
    network = await train(group, digits, options, shown=first)
    seconds = time.perf_counter() - begun
    share = await accuracy(group, network, digits)
    if first:
        images = options.epochs * len(digits.train_labels)
        ranks = f"{group.size} rank{'s' if group.size > 1 else ''}"
        print(f"{ranks}: {images:,} images in {seconds:.2f} s, {images / seconds:,.0f} images per second")
        print(f"test accuracy {share:.2%} on {len(digits.test_labels)} images that were not trained on")
        if options.save:
            np.save(options.save, network.weights)
    if share < 0.95:
        raise SystemExit(f"rank {group.rank}: test accuracy {share:.2%} is below 95 %")
    if options.check:
        largest = await differs_from_one_rank(group, network, digits, options)
        if first:
            print(f"check: largest difference to the weights that one rank alone arrives at: {largest:.1e}")
        if not largest < SAME_WEIGHTS:
            raise SystemExit(f"rank {group.rank}: weights differ from those of one rank by {largest:.1e}")


if __name__ == "__main__":
    aiocoll.run(main)
