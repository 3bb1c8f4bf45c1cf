"""What the training examples train: a small network in NumPy, on scikit-learn's handwritten digits.

The rule: nothing is random but by a seed, and all weights are one vector, so that one call adds up all gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import aiocoll

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
PIXELS, CLASSES = 64, 10


@dataclass(frozen=True, slots=True)
class Digits:
    """The data set, split in two: images are (n, 64) in 0..1, labels are (n,) in 0..9."""

    train_images: Floats
    train_labels: Ints
    test_images: Floats
    test_labels: Ints


class Network:
    """64 pixels -> hidden layer with ReLU -> 10 classes."""

    def __init__(self, hidden: int, seed: int) -> None:
        shapes = [(PIXELS, hidden), (hidden,), (hidden, CLASSES), (CLASSES,)]
        cuts = np.cumsum([int(np.prod(shape)) for shape in shapes])
        self.weights: Floats = np.zeros(cuts[-1])
        self.gradient: Floats = np.zeros(cuts[-1] + 1)  # the last element carries the loss along
        self.w1, self.b1, self.w2, self.b2 = map(np.reshape, np.split(self.weights, cuts[:-1]), shapes)
        self.d_w1, self.d_b1, self.d_w2, self.d_b2 = map(np.reshape, np.split(self.gradient[:-1], cuts[:-1]), shapes)
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
        chances = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        self.gradient[-1] = -np.log(chances[rows, labels]).sum()
        chances[rows, labels] -= 1
        back = (chances @ self.w2.T) * (hidden > 0)
        self.d_w2[:], self.d_b2[:] = hidden.T @ chances, chances.sum(axis=0)
        self.d_w1[:], self.d_b1[:] = images.T @ back, back.sum(axis=0)


def batches(count: int, size: int, epoch: int, seed: int) -> list[Ints]:
    """The row numbers of each batch of an epoch: the same on every rank, whatever their number."""
    return np.split(np.random.default_rng((seed, epoch)).permutation(count), range(size, count, size))


async def load(group: aiocoll.Group, seed: int) -> Digits:
    """The data set on every rank: rank 0 reads it, the others need neither the file nor scikit-learn."""
    images = labels = None
    if group.rank == 0:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(labels))
        images, labels = images[order] / 16.0, labels[order].astype(np.int64)
    images, labels = await group.broadcast(images), await group.broadcast(labels)
    cut = len(labels) // 5  # a fifth is kept for the test
    return Digits(images[cut:], labels[cut:], images[:cut], labels[:cut])
