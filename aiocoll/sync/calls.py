"""The calls of a blocking group: those of the async Group by the same names, run by the driver.

The rule: a method here does two things, it names the call and lets the driver run it; what a call does is written once,
in the async Group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from numpy.typing import NDArray

from ..ops import SUM, Mean, Op
from .about import About
from .work import Work

if TYPE_CHECKING:
    from typing import Unpack

    from ..group import Group, Message
    from ..group.typed import Blocks, Dtype, Inexact, Limits, Obj, Out, Timeout

T = TypeVar("T")


class SyncCalls(About):
    """What a blocking group calls: see SyncGroup."""

    __slots__ = ()

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

    @overload
    def broadcast(self, x: None, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Any: ...
    @overload
    def broadcast(
        self, x: NDArray[Dtype] | None, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> NDArray[Dtype]: ...
    @overload
    def broadcast(self, x: Dtype, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Dtype: ...
    @overload
    def broadcast(self, x: Any, root: int = 0, *, out: Out, **limits: Unpack[Limits]) -> Out: ...
    @overload
    def broadcast(self, x: Any, root: int = 0, out: Any = None, **limits: Unpack[Limits]) -> Any: ...

    def broadcast(
        self, x: Any, root: int = 0, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Any:
        """Root's array, on every rank; elsewhere ``x`` is ignored."""
        if timeout is None and name is None:
            result = self.broadcast_again(x, root, out)
            if result is not NotImplemented:
                return result
        return self._driver.run(lambda: self._group.broadcast(x, root, out, timeout=timeout, name=name))

    @overload
    def reduce(
        self, x: NDArray[Inexact], op: Op | str = SUM, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> NDArray[Inexact] | None: ...
    @overload
    def reduce(self, x: Any, op: Mean, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Any: ...
    @overload
    def reduce(
        self, x: NDArray[Dtype], op: Op = SUM, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> NDArray[Dtype] | None: ...
    @overload
    def reduce(
        self, x: Dtype, op: Op = SUM, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> Dtype | None: ...
    @overload
    def reduce(
        self, x: Any, op: Op | str = SUM, root: int = 0, *, out: Out, **limits: Unpack[Limits]
    ) -> Out | None: ...
    @overload
    def reduce(self, x: Any, op: Op | str = SUM, root: int = 0, out: Any = None, **limits: Unpack[Limits]) -> Any: ...

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

    @overload
    def all_reduce(
        self, x: NDArray[Inexact], op: Op | str = SUM, out: None = None, **limits: Unpack[Limits]
    ) -> NDArray[Inexact]: ...
    @overload
    def all_reduce(self, x: Any, op: Mean, out: None = None, **limits: Unpack[Limits]) -> Any: ...
    @overload
    def all_reduce(
        self, x: NDArray[Dtype], op: Op = SUM, out: None = None, **limits: Unpack[Limits]
    ) -> NDArray[Dtype]: ...
    @overload
    def all_reduce(self, x: Dtype, op: Op = SUM, out: None = None, **limits: Unpack[Limits]) -> Dtype: ...
    @overload
    def all_reduce(self, x: Any, op: Op | str = SUM, *, out: Out, **limits: Unpack[Limits]) -> Out: ...
    @overload
    def all_reduce(self, x: Any, op: Op | str = SUM, out: Any = None, **limits: Unpack[Limits]) -> Any: ...

    def all_reduce(
        self, x: Any, op: Op | str = SUM, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Any:
        """The reduction, bit-identical on all ranks."""
        if timeout is None and name is None:
            result = self.all_reduce_again(x, op, out)
            if result is not NotImplemented:
                return result
        return self._driver.run(lambda: self._group.all_reduce(x, op, out, timeout=timeout, name=name))

    @overload
    def gather(self, x: NDArray[Dtype], root: int = 0, **limits: Unpack[Limits]) -> list[NDArray[Dtype]] | None: ...
    @overload
    def gather(self, x: Dtype, root: int = 0, **limits: Unpack[Limits]) -> list[Dtype] | None: ...
    @overload
    def gather(self, x: Any, root: int = 0, **limits: Unpack[Limits]) -> list[Any] | None: ...

    def gather(self, x: Any, root: int = 0, *, timeout: float | None = None, name: str | None = None) -> Any:
        """The list of all arrays in rank order on root, None elsewhere."""
        return self._driver.run(lambda: self._group.gather(x, root, timeout=timeout, name=name))

    @overload
    def all_gather(self, x: NDArray[Dtype], out: None = None, **limits: Unpack[Limits]) -> list[NDArray[Dtype]]: ...
    @overload
    def all_gather(self, x: Dtype, out: None = None, **limits: Unpack[Limits]) -> list[Dtype]: ...
    @overload
    def all_gather(self, x: Any, out: None = None, **limits: Unpack[Limits]) -> list[Any]: ...
    @overload
    def all_gather(self, x: Any, out: Out, **limits: Unpack[Limits]) -> Out: ...

    def all_gather(self, x: Any, out: Any = None, *, timeout: float | None = None, name: str | None = None) -> Any:
        """The list of all arrays in rank order; with ``out`` (equal shapes) one array, filled in rank order."""
        if out is not None and type(out) is not list and timeout is None and name is None:
            result = self.all_gather_again(x, out)
            if result is not NotImplemented:
                return result
        return self._driver.run(lambda: self._group.all_gather(x, out, timeout=timeout, name=name))

    @overload
    def scatter(self, parts: None = None, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Any: ...
    @overload
    def scatter(
        self, parts: Sequence[NDArray[Dtype]] | None, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> NDArray[Dtype]: ...
    @overload
    def scatter(self, parts: Any = None, root: int = 0, *, out: Out, **limits: Unpack[Limits]) -> Out: ...
    @overload
    def scatter(self, parts: Any = None, root: int = 0, out: Any = None, **limits: Unpack[Limits]) -> Any: ...

    def scatter(
        self, parts: Any = None, root: int = 0, out: Any = None,
        *, timeout: float | None = None, name: str | None = None,
    ) -> Any:  # fmt: skip
        """My part of what root has."""
        return self._driver.run(lambda: self._group.scatter(parts, root, out, timeout=timeout, name=name))

    @overload
    def reduce_scatter(
        self, x: Blocks[Inexact], op: Op | str = SUM, counts: Sequence[int] | None = None, out: None = None,
        **limits: Unpack[Limits],
    ) -> NDArray[Inexact]: ...  # fmt: skip
    @overload
    def reduce_scatter(
        self, x: Any, op: Mean, counts: Sequence[int] | None = None, out: None = None, **limits: Unpack[Limits]
    ) -> Any: ...
    @overload
    def reduce_scatter(
        self, x: Blocks[Dtype], op: Op = SUM, counts: Sequence[int] | None = None, out: None = None,
        **limits: Unpack[Limits],
    ) -> NDArray[Dtype]: ...  # fmt: skip
    @overload
    def reduce_scatter(
        self, x: Any, op: Op | str = SUM, counts: Sequence[int] | None = None, *, out: Out, **limits: Unpack[Limits]
    ) -> Out: ...
    @overload
    def reduce_scatter(
        self, x: Any, op: Op | str = SUM, counts: Sequence[int] | None = None, out: Any = None, **limits: Unpack[Limits]
    ) -> Any: ...

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

    @overload
    def all_to_all(self, parts: Blocks[Dtype], **limits: Unpack[Limits]) -> list[NDArray[Dtype]]: ...
    @overload
    def all_to_all(self, parts: Any, **limits: Unpack[Limits]) -> list[Any]: ...

    def all_to_all(self, parts: Any, *, timeout: float | None = None, name: str | None = None) -> Any:
        """What every rank has for me, in rank order."""
        if timeout is None and name is None:
            result = self.all_to_all_again(parts)
            if result is not NotImplemented:
                return result
        return self._driver.run(lambda: self._group.all_to_all(parts, timeout=timeout, name=name))

    @overload
    def scan(self, x: NDArray[Inexact], op: Op | str = SUM, **limits: Unpack[Limits]) -> NDArray[Inexact]: ...
    @overload
    def scan(self, x: Any, op: Mean, **limits: Unpack[Limits]) -> Any: ...
    @overload
    def scan(self, x: NDArray[Dtype], op: Op = SUM, **limits: Unpack[Limits]) -> NDArray[Dtype]: ...
    @overload
    def scan(self, x: Dtype, op: Op = SUM, **limits: Unpack[Limits]) -> Dtype: ...
    @overload
    def scan(self, x: Any, op: Op | str = SUM, **limits: Unpack[Limits]) -> Any: ...

    def scan(self, x: Any, op: Op | str = SUM, *, timeout: float | None = None, name: str | None = None) -> Any:
        """The reduction over the ranks up to and including mine."""
        return self._driver.run(lambda: self._group.scan(x, op, timeout=timeout, name=name))

    @overload
    def exscan(self, x: NDArray[Inexact], op: Op | str = SUM, **limits: Unpack[Limits]) -> NDArray[Inexact] | None: ...
    @overload
    def exscan(self, x: Any, op: Mean, **limits: Unpack[Limits]) -> Any: ...
    @overload
    def exscan(self, x: NDArray[Dtype], op: Op = SUM, **limits: Unpack[Limits]) -> NDArray[Dtype] | None: ...
    @overload
    def exscan(self, x: Dtype, op: Op = SUM, **limits: Unpack[Limits]) -> Dtype | None: ...
    @overload
    def exscan(self, x: Any, op: Op | str = SUM, **limits: Unpack[Limits]) -> Any: ...

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

    @overload
    def broadcast_object(self, obj: None = None, root: int = 0, **limits: Unpack[Limits]) -> Any: ...
    @overload
    def broadcast_object(self, obj: Obj | None, root: int = 0, **limits: Unpack[Limits]) -> Obj: ...

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> Any:
        """Root's object, on every rank."""
        return self._driver.run(lambda: self._group.broadcast_object(obj, root, timeout=timeout, name=name))

    def gather_object(
        self, obj: Obj, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> list[Obj] | None:
        """All objects in rank order on root, None elsewhere."""
        return self._driver.run(lambda: self._group.gather_object(obj, root, timeout=timeout, name=name))

    def all_gather_object(self, obj: Obj, *, timeout: float | None = None, name: str | None = None) -> list[Obj]:
        """All objects in rank order."""
        return self._driver.run(lambda: self._group.all_gather_object(obj, timeout=timeout, name=name))

    @overload
    def scatter_object(self, objs: None = None, root: int = 0, **limits: Unpack[Limits]) -> Any: ...
    @overload
    def scatter_object(self, objs: Sequence[Obj] | None, root: int = 0, **limits: Unpack[Limits]) -> Obj: ...

    def scatter_object(
        self, objs: Sequence[Any] | None = None, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> Any:
        """My object of root's list."""
        return self._driver.run(lambda: self._group.scatter_object(objs, root, timeout=timeout, name=name))

    def all_to_all_object(
        self, objs: Sequence[Obj], *, timeout: float | None = None, name: str | None = None
    ) -> list[Obj]:
        """What every rank has for me, in rank order."""
        return self._driver.run(lambda: self._group.all_to_all_object(objs, timeout=timeout, name=name))

    # ------------------------------------------------------------------------------------------ messages

    def send(self, x: Any, dst: int, tag: int = 0, *, timeout: float | None = None, synchronous: bool = False) -> None:
        """Returns when ``x`` may be changed, or when a receive has taken it (``synchronous``)."""
        self._driver.run(lambda: self._group.send(x, dst, tag, timeout=timeout, synchronous=synchronous))

    @overload
    def recv(self, src: int | None = None, tag: int = 0, out: None = None, **limits: Unpack[Timeout]) -> Any: ...
    @overload
    def recv(self, src: int | None = None, tag: int = 0, *, out: Out, **limits: Unpack[Timeout]) -> Out: ...
    @overload
    def recv(self, src: int | None, tag: int, out: Out, **limits: Unpack[Timeout]) -> Out: ...

    def recv(self, src: int | None = None, tag: int = 0, out: Any = None, *, timeout: float | None = None) -> Any:
        """The next array from ``src`` (None: from anyone)."""
        return self._driver.run(lambda: self._group.recv(src, tag, out, timeout=timeout))

    def recv_message(self, src: int | None = None, tag: int | None = None, *, timeout: float | None = None) -> Message:
        """The next array with its source and tag; None for any."""
        return self._driver.run(lambda: self._group.recv_message(src, tag, timeout=timeout))

    def send_object(
        self, obj: Any, dst: int, tag: int = 0, *, timeout: float | None = None, synchronous: bool = False
    ) -> None:
        """Sends plain data."""
        self._driver.run(lambda: self._group.send_object(obj, dst, tag, timeout=timeout, synchronous=synchronous))

    def recv_object(self, src: int | None = None, tag: int = 0, *, timeout: float | None = None) -> Any:
        """The next object from ``src`` (None: from anyone)."""
        return self._driver.run(lambda: self._group.recv_object(src, tag, timeout=timeout))

    def recv_object_message(
        self, src: int | None = None, tag: int | None = None, *, timeout: float | None = None
    ) -> Message:
        """The next object with its source and tag; None for any."""
        return self._driver.run(lambda: self._group.recv_object_message(src, tag, timeout=timeout))
