"""What the checks of the documented API share: the data of every rank, what comes of them, and the list of checks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import aiocoll.distributed as dist

DTYPES = ("f4", "f8", "f2", "u1", "i1", "i2", "i4", "i8")
SHAPE = (3, 4, 5)
OPS: dict[Any, Callable[[Any, Any], Any]] = {
    dist.reduce_op.SUM: np.add,
    dist.reduce_op.PRODUCT: np.multiply,
    dist.reduce_op.MAX: np.maximum,
    dist.reduce_op.MIN: np.minimum,
}
CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def data(rank: int, dtype: str = "f8", shape: Sequence[int] = SHAPE, salt: int = 0) -> Any:
    """What `rank` puts in: small integers in every dtype, so that sums are exact and products too."""
    random = np.random.default_rng([rank, salt, *shape])
    return random.integers(1, 4, shape).astype(dtype)


def expect(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(got, wanted, strict=True)


def reduced(ranks: Sequence[int], op: Any, dtype: str = "f8", **more: Any) -> Any:
    return functools.reduce(OPS[op], [data(rank, dtype, **more) for rank in ranks]).astype(dtype)


def me() -> int:
    return dist.get_rank()


def everyone() -> range:
    return range(dist.get_world_size())


def groups() -> list[tuple[Any, list[int]]]:
    """The world, all but one (given in disorder), a pair, a single rank; with the members in order."""
    size = dist.get_world_size()
    wanted = [list(range(size)), list(range(size))[::-1][:-1] or [0], [size - 1, 0], [size // 2]]
    return [(dist.group.WORLD, wanted[0])] + [(dist.new_group(ranks), sorted(set(ranks))) for ranks in wanted]


def raises(kind: type[BaseException] | tuple[type[BaseException], ...], words: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error!r}"
        return
    raise AssertionError(f"{kind} with {words!r} was not raised")
