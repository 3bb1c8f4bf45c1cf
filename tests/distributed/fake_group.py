"""A group of which only this rank exists: it records the calls that reach it and plays the others' part.

The others give what `peers` says, by default this rank's data plus 10 per rank of distance.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import numpy as np

from aiocoll.errors import UsageError
from aiocoll.ops import Op


class Message:
    def __init__(self, data: Any, source: int, tag: int) -> None:
        self.data, self.source, self.tag = data, source, tag


class FakeConnection:
    """What keeps a fake group open: nothing, and all that grew out of it is that group."""

    def __init__(self, group: FakeGroup) -> None:
        self.lineage, self._group, self.over = self, group, False

    def owners(self) -> list[FakeGroup]:
        return [] if self._group.closed else [self._group]

    async def close(self) -> None:
        await self._group.close()


class FakeGroup:
    """What the documented API needs of aiocoll.Group."""

    def __init__(self, rank: int, size: int, ranks: tuple[int, ...] | None = None, name: str = "world") -> None:
        self.rank, self.size, self.name = rank, size, name
        self.ranks = ranks or tuple(range(size))
        self.timeout, self.broken = 60.0, None
        self.calls: list[tuple[Any, ...]] = []
        self.refusals: list[tuple[str, UsageError]] = []
        self.incoming: list[Message] = []
        self.closed = False
        self._connection, self._owner, self._followed = FakeConnection(self), True, False

    def never_before(self, *arguments: Any) -> None:
        """No call has been made before with arguments like these."""

    all_reduce_again = all_gather_again = broadcast_again = barrier_again = never_before

    def theirs(self, x: Any) -> list[Any]:
        return [np.asarray(x + 10 * (other - self.rank)) for other in range(self.size)]

    def refuse(self, what: str, error: UsageError) -> Coroutine[Any, Any, None]:
        self.refusals.append((what, error))
        return _raising(error)

    def all_reduce(self, x: Any, op: Op, out: Any = None) -> Coroutine[Any, Any, Any]:
        self.calls.append(("all_reduce", op))
        return _filling(out, self._reduced(x, op))

    def reduce(self, x: Any, op: Op, root: int, out: Any = None) -> Coroutine[Any, Any, Any]:
        self.calls.append(("reduce", op, root))
        return _filling(out, self._reduced(x, op))

    def _reduced(self, x: Any, op: Op) -> Any:
        parts = self.theirs(x.astype(op.work_dtype(x.dtype)))
        total = parts[0].copy()
        for each in parts[1:]:
            op.fold(total, each, total)
        op.finish(total, self.size)
        return total

    def broadcast(self, x: Any, root: int, out: Any = None) -> Coroutine[Any, Any, Any]:
        self.calls.append(("broadcast", root))
        sent = x if root == self.rank else np.arange(out.size) * 2
        return _filling(out, sent)

    def all_gather(self, x: Any, out: Any = None) -> Coroutine[Any, Any, Any]:
        self.calls.append(("all_gather", out is not None))
        return _filling(out, np.stack(self.theirs(x)) if out is not None else None, self.theirs(x))

    def gather(self, x: Any, root: int) -> Coroutine[Any, Any, Any]:
        self.calls.append(("gather", root))
        return _filling(None, None, self.theirs(x) if root == self.rank else None)

    def scatter(self, parts: Any, root: int, out: Any = None) -> Coroutine[Any, Any, Any]:
        self.calls.append(("scatter", root, None if parts is None else len(parts)))
        return _filling(out, np.arange(out.size) * 3 if parts is None else parts[self.rank])

    def barrier(self, timeout: float | None = None) -> Coroutine[Any, Any, Any]:
        self.calls.append(("barrier", timeout))
        return _filling(None, None)

    def send(self, x: Any, dst: int, tag: int) -> Coroutine[Any, Any, Any]:
        self.calls.append(("send", x.tolist(), dst, tag))
        return _filling(None, None)

    def recv(self, src: int, tag: int, out: Any = None) -> Coroutine[Any, Any, Any]:
        self.calls.append(("recv", src, tag))
        return _filling(out, np.arange(out.size) + 100 * src)

    def recv_message(self, src: int | None, tag: int | None) -> Coroutine[Any, Any, Any]:
        self.calls.append(("recv_message", src, tag))
        return _filling(None, None, self.incoming.pop(0))

    def all_gather_object(self, obj: Any) -> Coroutine[Any, Any, Any]:
        return _filling(None, None, [f"{obj} of {other}" for other in range(self.size)])

    def broadcast_object(self, obj: Any, root: int) -> Coroutine[Any, Any, Any]:
        self.calls.append(("broadcast_object", root))
        return _filling(None, None, ["x", {"y": 1}] if obj is None else obj)

    def subgroup(self, ranks: tuple[int, ...], name: str | None) -> Coroutine[Any, Any, Any]:
        self.calls.append(("subgroup", ranks, name))
        made = FakeGroup(ranks.index(self.rank), len(ranks), tuple(ranks), name or "sub")
        return _filling(None, None, made)

    async def close(self) -> None:
        self.closed = True

    def __repr__(self) -> str:
        return f"FakeGroup({self.rank} of {self.size})"


async def _filling(out: Any, values: Any, result: Any = None) -> Any:
    if out is not None:
        out[...] = values
        return out
    return result


async def _raising(error: UsageError) -> None:
    raise error
