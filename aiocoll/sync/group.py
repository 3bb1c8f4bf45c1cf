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
from .about import About
from .drivers import Driver
from .leaving import leave_at_the_end
from .start import Starter
from .work import Work

if TYPE_CHECKING:
    from ..group import Group, Message
    from ..group.ownership import Lineage

T = TypeVar("T")


class SyncGroup(About):
    """Ranks that work together, for code that blocks. Arguments, results and errors are those of ``aiocoll.Group``.

    Usable from several threads: messages at any time, collectives one after the other in the order called. A context
    manager; leaving it closes the group, and for the group that ``connect()`` gave everything that grew out of it.
    """

    __slots__ = ("_parent", "_root")

    def __init__(
        self, group: Group, driver: Driver, parent: SyncGroup | None = None, *, root: bool = False
    ) -> None:
        """``parent``: the group of whose connection this one is a part, and which shall not be dropped before it;
        ``root``: it is what ``connect()`` gave."""
        super().__init__(group, driver)
        self._parent, self._root = parent, root

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

    def monitored_barrier(
        self, timeout: float | None = None, wait_all_ranks: bool = False, *, name: str | None = None
    ) -> None:
        """A barrier that names the first rank that is missing, or all of them, when it is late."""
        self._driver.run(lambda: self._group.monitored_barrier(timeout, wait_all_ranks, name=name))

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

    def recv_object_message(
        self, src: int | None = None, tag: int | None = None, *, timeout: float | None = None
    ) -> Message:
        """The next object with its source and tag; None for any."""
        return self._driver.run(lambda: self._group.recv_object_message(src, tag, timeout=timeout))

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

    def agree(self, flag: Any = True, *, timeout: float | None = None) -> bool:
        """True if every living member passed something true; the same on all survivors, whoever dies meanwhile."""
        return self._driver.run(lambda: self._group.agree(flag, timeout=timeout))

    def shrink(self, *, timeout: float | None = None, force: bool = False) -> SyncGroup:
        """The group of the living members, in their order; without a majority only by ``force``."""
        return self._successor(self._driver.run_as_task(lambda: self._group.shrink(timeout=timeout, force=force)))

    def grow(self, n: int | None = None, *, timeout: float | None = None, wait: float = 0.0) -> SyncGroup:
        """The larger group: the members, then newcomers that wait (or come within ``wait`` seconds), at most ``n``."""
        return self._successor(self._driver.run_as_task(lambda: self._group.grow(n, timeout=timeout, wait=wait)))

    def _wrapped(self, group: Group) -> SyncGroup:
        return SyncGroup(group, self._driver, self)

    def _successor(self, group: Group) -> SyncGroup:
        """The blocking group for one that takes this one's place."""
        self._driver.serve(group._endpoint, group.local_size)
        successor = SyncGroup(group, self._driver)
        leave_at_the_end(successor)
        return successor

    # ------------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """Lets pending sends leave, ends what waits; again, and in a forked child: nothing. Closing the last of the
        groups that ``connect``, ``shrink`` and ``grow`` gave disconnects."""
        if not self._closed:
            self._leave(lambda: self._group.close())

    def disconnect(self) -> None:
        """Closes everything that has grown out of the same ``connect()``."""
        self._leave(self._lineage.close, everything=True)

    def __enter__(self) -> SyncGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._root:
            if not self._closed:
                self._leave(lambda: self._group.__aexit__(kind, error, trace))
            return
        lineage = self._lineage

        async def everything() -> None:
            if error is not None:
                lineage.program_failed(error)
            await lineage.close()

        self._leave(everything, everything=True)

    @property
    def _lineage(self) -> Lineage:
        connection = self._group._connection
        assert connection is not None
        return connection.lineage

    def _leave(self, closing: Callable[[], Awaitable[None]], *, everything: bool = False) -> None:
        if self.foreign or self._driver.ended:
            return
        self._driver.refuse_if_unusable()
        self._closed = True
        if everything:
            self._driver.close(closing)
        elif self._lineage.owners() != [self._group]:
            self._driver.run_as_task(closing)
        else:
            lineage = self._lineage

            async def last() -> None:
                await closing()
                await lineage.close()

            self._driver.close(last)

    def __del__(self) -> None:
        if self._closed or self.foreign or self._driver.ended or not self._group._owner:
            return
        if any(group is not self._group for group in self._lineage.owners()):
            return  # the async group says whether it has been forgotten, and what it is part of goes on
        if not self.followed:
            text = f"{self!r} was never closed: use it in a with block"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        self._driver.abandon()
