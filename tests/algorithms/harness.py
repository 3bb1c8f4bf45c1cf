"""What a case of an algorithm runs on, and what came of a run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from aiocoll.ops import Op


class Ran(Protocol):
    """What came of a run; lists by rank."""

    results: list[Any]
    rounds: int
    sent: list[int]
    folded: list[int]


Main = Callable[[Any], Coroutine[Any, Any, Any]]
Harness = Callable[[int, Main, int], Ran]
"""harness(size, main, seed) runs main(channel) on all ranks."""


@dataclass(frozen=True)
class Call:
    """A finished call and how many bytes ``n`` it was about, rounded down and up to what p divides."""

    ran: Ran
    floor: int
    ceiling: int
    worst: bool = True
    """Whether the declared costs are met exactly by this call; otherwise they are bounds."""


def counting(channel: Any, op: Op) -> Op:
    return channel.counting(op) if hasattr(channel, "counting") else op


def bounds(count: int, size: int, itemsize: int = 8) -> tuple[int, int]:
    return count // size * size * itemsize, -(-count // size) * size * itemsize


def roots(size: int) -> list[int]:
    return sorted({0, size // 2, size - 1})


def uneven(rng: np.random.Generator, count: int, size: int) -> list[int]:
    cuts = np.sort(rng.integers(0, count + 1, size - 1)).tolist()
    return np.diff([0, *cuts, count]).tolist()
