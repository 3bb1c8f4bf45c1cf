"""SyncGroup: the methods of Group, blocking.

The rule: a method here does two things, it names the call and lets the driver run it; what a call does is written once,
in the async Group.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ..ops import SUM, Op
from .drivers import Driver
from .start import Starter
from .work import Work

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..group import Group, Message

T = TypeVar("T")


class SyncGroup:
    """Ranks that work together, for code that blocks. Arguments, results and errors are those of ``aiocoll.Group``.

    Usable from several threads: messages at any time, collectives one after the other in the order called. A context
    manager; leaving it closes the group, and for the group that ``connect()`` gave the connection too.
    """

    __slots__ = ("__weakref__", "_closed", "_driver", "_group", "_owner")

    def __init__(self, group: Group, driver: Driver, owner: SyncGroup | None = None) -> None:
        self._group, self._driver, self._owner = group, driver, owner
        self._closed = False

    # ------------------------------------------------------------------------------------------ what it is

    @property
    def rank(self) -> int:
        """My rank in this group."""
        return self._group.rank

    @property
    def size(self) -> int:
        """How many ranks this group has."""
        return self._group.size

    @property
    def name(self) -> str:
        """What errors call this group."""
        return self._group.name

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members as ranks of the world, in this group's order."""
        return self._group.ranks

    @property
    def local_rank(self) -> int:
        """My number among the ranks on this host."""
        return self._group.local_rank

    @property
    def local_size(self) -> int:
        """How many ranks of this group are on this host."""
        return self._group.local_size

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank."""
        return self._group.hosts

    @property
    def timeout(self) -> float:
        """Seconds that a call gets unless it says otherwise."""
        return self._group.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._group.timeout = seconds

    @property
    def broken(self) -> BaseException | None:
        """What broke this group, or None."""
        return self._group.broken

    @property
    def closed(self) -> bool:
        """Whether this group has been closed here."""
        return self._closed

    @property
    def foreign(self) -> bool:
        """Is this a forked child, which has this group only in name?"""
        return self._driver.foreign

    @property
    def asynchronous(self) -> Group:
        """The async Group behind this one; it lives on this group's own loop, see ``run``."""
        return self._group

    def statistics(self) -> dict[str, Any]:
        """Calls by collective, bytes by transport, seconds waited, unreceived bytes."""
        return self._group.statistics()

    def empty(self, shape: int | Sequence[int], dtype: Any = float) -> NDArray[Any]:
        """An array with no particular content, in memory that suits this group's transport."""
        return self._group.empty(shape, dtype)

    def zeros(self, shape: int | Sequence[int], dtype: Any = float) -> NDArray[Any]:
        """An array of zeros in such memory."""
        return self._group.zeros(shape, dtype)

    # ------------------------------------------------------------------------------------------ the driver

    @property
    def start(self) -> Starter:
        """The same calls, started instead of waited for: ``group.start.all_reduce(x)`` returns a ``Work``."""
        return Starter(self)  # made when asked for: a group that held it would be a cycle, and dropped late

    def run(self, make: Callable[[Group], Awaitable[T]]) -> T:
        """Blocks for ``make(group)``, an async call on the group behind this one; it is made in the loop's thread."""
        return self._driver.run(lambda: make(self._group))

    def all_reduce_again(self, x: Any, op: Any, out: Any) -> Any:
        """``all_reduce`` with arguments like those of a call before; NotImplemented, and nothing done, for others."""
        return self._driver.run_again(self._group.all_reduce_again, x, op, out)

    def broadcast_again(self, x: Any, root: int, out: Any) -> Any:
        """``broadcast``, likewise."""
        return self._driver.run_again(self._group.broadcast_again, x, root, out)

    def all_gather_again(self, x: Any, out: Any) -> Any:
        """``all_gather``, likewise; ``out`` may be a list of flat arrays, one per rank, that fit: nobody looks."""
        return self._driver.run_again(self._group.all_gather_again, x, out)

    def reduce_scatter_again(self, x: Any, op: Any, out: Any) -> Any:
        """``reduce_scatter``, likewise."""
        return self._driver.run_again(self._group.reduce_scatter_again, x, op, out)

    def all_to_all_again(self, parts: Any) -> Any:
        """``all_to_all``, likewise."""
        return self._driver.run_again(self._group.all_to_all_again, parts)

    def barrier_again(self) -> Any:
        """``barrier``, likewise."""
        return self._driver.run_again(self._group.barrier_again)

    def begin(self, make: Callable[[Group], Awaitable[T]], what: str) -> Work[T]:
        """Starts ``make(group)`` and returns its Work; ``what`` is what messages call it."""
        return self._driver.begin(lambda: make(self._group), f"{what} of group {self.name!r}")

    # ------------------------------------------------------------------------------------------ collectives

    def broadcast(
        self, x: Any, root: int = 0, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Any:
        """Root's array, on every rank; elsewhere ``x`` is ignored."""
        if timeout is None and name is None:
            result = self.broadcast_again(x, root, out)
            if result is not NotImplemented:
                return result
        return self._driver.run(lambda: self._group.broadcast(x, root, out, timeout=timeout, name=name))

    def reduce(
        self,
        x: Any,
        op: Op | str = SUM,
        root: int = 0,
        out: Any = None,
        *,
        timeout: float | None = None,
        name: str | None = None,
    ) -> Any:
        """The reduction on root, None elsewhere."""
        return self._driver.run(lambda: self._group.reduce(x, op, root, out, timeout=timeout, name=name))

    def all_reduce(
        self, x: Any, op: Op | str = SUM, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Any:
        """The reduction, bit-identical on all ranks."""
        if timeout is None and name is None:
            result = self.all_reduce_again(x, op, out)
            if result is not NotImplemented:
                return result
        return self._driver.run(lambda: self._group.all_reduce(x, op, out, timeout=timeout, name=name))

    def gather(self, x: Any, root: int = 0, *, timeout: float | None = None, name: str | None = None) -> Any:
        """The list of all arrays in rank order on root, None elsewhere."""
        return self._driver.run(lambda: self._group.gather(x, root, timeout=timeout, name=name))

    def all_gather(self, x: Any, out: Any = None, *, timeout: float | None = None, name: str | None = None) -> Any:
        """The list of all arrays in rank order; with ``out`` (equal shapes) one array, filled in rank order."""
        if out is not None and type(out) is not list and timeout is None and name is None:
            result = self.all_gather_again(x, out)
            if result is not NotImplemented:
                return result
        return self._driver.run(lambda: self._group.all_gather(x, out, timeout=timeout, name=name))

    def scatter(
        self, parts: Any, root: int = 0, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Any:
        """My part of what root has."""
        return self._driver.run(lambda: self._group.scatter(parts, root, out, timeout=timeout, name=name))

    def reduce_scatter(
        self,
        x: Any,
        op: Op | str = SUM,
        counts: Sequence[int] | None = None,
        out: Any = None,
        *,
        timeout: float | None = None,
        name: str | None = None,
    ) -> Any:
        """My block of the reduction along axis 0."""
        if out is not None and counts is None and timeout is None and name is None:
            result = self.reduce_scatter_again(x, op, out)
            if result is not NotImplemented:
                return result
        return self._driver.run(lambda: self._group.reduce_scatter(x, op, counts, out, timeout=timeout, name=name))

    def all_to_all(self, parts: Any, *, timeout: float | None = None, name: str | None = None) -> Any:
        """What every rank has for me, in rank order."""
        if timeout is None and name is None:
            result = self.all_to_all_again(parts)
            if result is not NotImplemented:
                return result
        return self._driver.run(lambda: self._group.all_to_all(parts, timeout=timeout, name=name))

    def scan(self, x: Any, op: Op | str = SUM, *, timeout: float | None = None, name: str | None = None) -> Any:
        """The reduction over the ranks up to and including mine."""
        return self._driver.run(lambda: self._group.scan(x, op, timeout=timeout, name=name))

    def exscan(self, x: Any, op: Op | str = SUM, *, timeout: float | None = None, name: str | None = None) -> Any:
        """The reduction over the ranks below mine; on rank 0 the op's identity, or None where it has none."""
        return self._driver.run(lambda: self._group.exscan(x, op, timeout=timeout, name=name))

    def barrier(self, *, timeout: float | None = None, name: str | None = None) -> None:
        """Returns when every rank has come here."""
        if timeout is None and name is None and self.barrier_again() is not NotImplemented:
            return
        self._driver.run(lambda: self._group.barrier(timeout=timeout, name=name))

    # ------------------------------------------------------------------------------------------ objects

    def broadcast_object(
        self, obj: Any, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> Any:
        """Root's object, on every rank."""
        return self._driver.run(lambda: self._group.broadcast_object(obj, root, timeout=timeout, name=name))

    def gather_object(self, obj: Any, root: int = 0, *, timeout: float | None = None, name: str | None = None) -> Any:
        """All objects in rank order on root, None elsewhere."""
        return self._driver.run(lambda: self._group.gather_object(obj, root, timeout=timeout, name=name))

    def all_gather_object(self, obj: Any, *, timeout: float | None = None, name: str | None = None) -> list[Any]:
        """All objects in rank order."""
        return self._driver.run(lambda: self._group.all_gather_object(obj, timeout=timeout, name=name))

    def scatter_object(
        self, objs: Sequence[Any] | None, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> Any:
        """My object of root's list."""
        return self._driver.run(lambda: self._group.scatter_object(objs, root, timeout=timeout, name=name))

    def all_to_all_object(
        self, objs: Sequence[Any], *, timeout: float | None = None, name: str | None = None
    ) -> list[Any]:
        """What every rank has for me, in rank order."""
        return self._driver.run(lambda: self._group.all_to_all_object(objs, timeout=timeout, name=name))

    # ------------------------------------------------------------------------------------------ messages

    def send(self, x: Any, dst: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Returns when ``x`` may be changed."""
        self._driver.run(lambda: self._group.send(x, dst, tag, timeout=timeout))

    def recv(self, src: int | None = None, tag: int = 0, out: Any = None, *, timeout: float | None = None) -> Any:
        """The next array from ``src`` (None: from anyone)."""
        return self._driver.run(lambda: self._group.recv(src, tag, out, timeout=timeout))

    def recv_message(self, src: int | None = None, tag: int | None = None, *, timeout: float | None = None) -> Message:
        """The next array with its source and tag; None for any."""
        return self._driver.run(lambda: self._group.recv_message(src, tag, timeout=timeout))

    def send_object(self, obj: Any, dst: int, tag: int = 0, *, timeout: float | None = None) -> None:
        """Sends plain data."""
        self._driver.run(lambda: self._group.send_object(obj, dst, tag, timeout=timeout))

    def recv_object(self, src: int | None = None, tag: int = 0, *, timeout: float | None = None) -> Any:
        """The next object from ``src`` (None: from anyone)."""
        return self._driver.run(lambda: self._group.recv_object(src, tag, timeout=timeout))

    # ------------------------------------------------------------------------------------------ groups

    def split(self, color: int | None, key: int | None = None) -> SyncGroup | None:
        """The group of those who gave the same color, ordered by key, then rank; None for color None."""
        group = self._driver.run_as_task(lambda: self._group.split(color, key))
        return None if group is None else self._wrapped(group)

    def subgroup(self, ranks: Sequence[int], name: str | None = None) -> SyncGroup:
        """The group of these ranks in this order; only they call."""
        return self._wrapped(self._driver.run_as_task(lambda: self._group.subgroup(ranks, name)))

    def dup(self) -> SyncGroup:
        """The same ranks again, with calls of their own."""
        return self._wrapped(self._driver.run_as_task(lambda: self._group.dup()))

    def _wrapped(self, group: Group) -> SyncGroup:
        return SyncGroup(group, self._driver, self._owner or self)

    # ------------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """Lets pending sends leave, ends what waits; again, and in a forked child: nothing."""
        self._leave(lambda: self._group.close())

    def __enter__(self) -> SyncGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(lambda: self._group.__aexit__(kind, error, trace))

    def _leave(self, closing: Callable[[], Awaitable[None]]) -> None:
        if self._closed or self.foreign or (self._owner is not None and self._owner._closed):
            return
        self._driver.refuse_if_unusable()
        self._closed = True
        if self._owner is None:
            self._driver.close(closing)
        else:
            self._driver.run_as_task(closing)

    def __del__(self) -> None:
        if self._owner is None and not self._closed and not self.foreign:
            text = f"{self!r} was never closed: use it in a with block"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
            self._driver.abandon()

    def __repr__(self) -> str:
        return f"SyncGroup({self._group!r}, {self._driver!r})"
