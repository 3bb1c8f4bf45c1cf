"""A library that moves arrays between ranks of this process, as the carriers are used: for what real ones cannot show.

It ends an operation only once all ranks have started it, and `Bus` says what it does wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aiocoll.distributed.carriers.base import Array

FOLD = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "BXOR": np.bitwise_xor}


class Bus:
    """What all ranks of the process share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.operations: dict[Any, list[Any]] = {}
        self.opened: list[tuple[int, ...]] = []
        self.freed = self.closed = 0
        self.hangs = self.fails = False

    def make(self, *_: Any, **__: Any) -> FakeLibrary:
        return FakeLibrary(self)


class FakeLibrary:
    """One rank's end of it."""

    name, title = "fake", "the fake library"

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def reduces(self, dtype: np.dtype[Any], op: str) -> bool:
        return dtype.char in "ldB" and op in FOLD

    def invite(self, hosts: Sequence[str]) -> str:
        return f"{len(hosts)} hosts"

    def open(self, meeting: str, tag: int, ranks: Sequence[int], rank: int, seconds: float) -> FakeComm:
        assert meeting == f"{len(ranks)} hosts"
        with self._bus.lock:
            self._bus.opened.append(tuple(ranks))
        return FakeComm(self._bus, tag, len(ranks), rank)

    def close(self) -> None:
        with self._bus.lock:
            self._bus.closed += 1


class FakeComm:
    """One rank's end of one group: the k-th operation of a rank meets the k-th of the others."""

    def __init__(self, bus: Bus, tag: int, size: int, rank: int) -> None:
        self._bus, self._tag, self._size, self._rank, self._count = bus, tag, size, rank, 0

    def all_reduce(self, x: Array, op: str) -> FakePending:
        return self._begin(("all_reduce", op), x.copy(), lambda all: self._fold(x, all, op))

    def reduce(self, x: Array, op: str, root: int) -> FakePending:
        def end(all: list[Array]) -> None:
            if self._rank == root:
                self._fold(x, all, op)
            else:
                x[...] = 77  # a library may spoil it

        return self._begin(("reduce", op, root), x.copy(), end)

    def broadcast(self, data: Array, root: int) -> FakePending:
        def end(all: list[Array]) -> None:
            if self._rank != root:
                data[...] = all[root]

        return self._begin(("broadcast", root), data.copy(), end)

    def all_gather(self, buffer: Array, counts: Sequence[int], rank: int) -> FakePending:
        at = sum(counts[:rank])

        def end(all: list[Array]) -> None:
            buffer[...] = np.concatenate(all)

        return self._begin(("all_gather", tuple(counts)), buffer[at : at + counts[rank]].copy(), end)

    def exchange(self, out: Array, out_counts: Sequence[int], into: Array, into_counts: Sequence[int]) -> FakePending:
        parts = np.split(out.copy(), np.cumsum(out_counts)[:-1])

        def end(all: list[Any]) -> None:
            mine = [each[self._rank] for each in all]
            assert [len(each) for each in mine] == list(into_counts)
            into[...] = np.concatenate(mine)

        return self._begin(("exchange",), parts, end)

    def free(self) -> None:
        with self._bus.lock:
            self._bus.freed += 1

    def _fold(self, x: Array, all: list[Array], op: str) -> None:
        total = all[0]
        for each in all[1:]:
            total = FOLD[op](total, each)
        x[...] = total

    def _begin(self, what: tuple[Any, ...], data: Any, end: Callable[[list[Any]], None]) -> FakePending:
        key = (self._tag, self._count)
        self._count += 1
        with self._bus.lock:
            met = self._bus.operations.setdefault(key, [None] * self._size)
            met[self._rank] = (what, data)
        return FakePending(self._bus, met, end)


class FakePending:
    def __init__(self, bus: Bus, met: list[Any], end: Callable[[list[Any]], None]) -> None:
        self._bus, self._met, self._end = bus, met, end

    def test(self) -> bool:
        if self._bus.fails:
            raise OSError("the wire is cut")
        with self._bus.lock:
            met = list(self._met)
        if None in met or self._bus.hangs:
            return False
        assert len({what for what, _ in met}) == 1, f"different operations have met: {met}"
        self._end([data for _, data in met])
        return True
