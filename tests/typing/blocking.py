"""What type checkers know of the blocking API and of its handles: checked by mypy and pyright, and run.

The rule: beside each `assert_type` stands what the value really is.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import aiocoll
from aiocoll.sync import SyncGroup, Work
from tests.typing.awaited import F32, I64, each, one


def blocking(group: SyncGroup) -> None:
    x: F32 = np.arange(4, dtype=np.float32)
    n: I64 = np.arange(4, dtype=np.int64)
    for _ in range(2):  # the second time they come again, by the short way
        one(assert_type(group.all_reduce(x), F32), np.float32)
        mean = group.all_reduce(n, aiocoll.MEAN)
        one(assert_type(mean, Any), np.float64)
        one(assert_type(group.all_reduce(n, out=n), I64), np.int64)
        one(assert_type(group.reduce_scatter(x), F32), np.float32)
        one(assert_type(group.broadcast(x), F32), np.float32)
        each(assert_type(group.all_gather(n), list[I64]), np.int64)
        each(assert_type(group.all_to_all([n]), list[I64]), np.int64)
        assert_type(group.barrier(), None)
    assert_type(group.gather(x), list[F32] | None)
    assert_type(group.reduce(n), I64 | None)
    assert_type(group.exscan(x), F32 | None)
    one(assert_type(group.scan(x), F32), np.float32)
    one(assert_type(group.scatter([n]), I64), np.int64)
    assert_type(group.send(x, 0), None)
    one(assert_type(group.recv(0, out=x), F32), np.float32)
    assert assert_type(group.all_gather_object("a"), list[str]) == ["a"]
    pair = {"a": 1}
    assert assert_type(group.broadcast_object(pair), dict[str, int]) == pair
    one(assert_type(group.zeros(3, np.int64), I64), np.int64)
    with assert_type(group.dup(), SyncGroup) as twin:
        assert type(assert_type(twin.size, int)) is int


def started(group: SyncGroup) -> None:
    x: F32 = np.arange(4, dtype=np.float32)
    work = assert_type(group.start.all_reduce(x), Work[F32])
    one(assert_type(work.result(), F32), np.float32)
    assert assert_type(work.done(), bool) and assert_type(work.exception(), BaseException | None) is None
    each(assert_type(group.start.all_gather(x).result(), list[F32]), np.float32)
    received = assert_type(group.start.recv(0, out=x), Work[F32])
    assert_type(group.start.send(x, 0), Work[None]).result()
    one(received.result(), np.float32)
    assert assert_type(group.start.all_gather_object(1.5).result(), list[float]) == [1.5]
    one(assert_type(group.start.broadcast(x).result(), NDArray[np.float32]), np.float32)
