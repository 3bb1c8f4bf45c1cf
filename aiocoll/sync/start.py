"""Starter: the calls of a group, started instead of waited for.

The rule: one method per call of SyncGroup that sends something, with the same arguments, returning a Work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from numpy.typing import NDArray

from ..ops import SUM, Mean, Op
from .work import Work

if TYPE_CHECKING:
    from typing import Unpack

    from ..group import Message
    from ..group.typed import Blocks, Dtype, Inexact, Limits, Obj, Out, Timeout
    from .group import SyncGroup


class Starter:
    """``group.start``: the first use moves the group's event loop to a thread of its own, where started calls go on."""

    __slots__ = ("_group",)

    def __init__(self, group: SyncGroup) -> None:
        self._group = group

    @overload
    def broadcast(self, x: None, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Work[Any]: ...
    @overload
    def broadcast(
        self, x: NDArray[Dtype] | None, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> Work[NDArray[Dtype]]: ...
    @overload
    def broadcast(self, x: Dtype, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Work[Dtype]: ...
    @overload
    def broadcast(self, x: Any, root: int = 0, *, out: Out, **limits: Unpack[Limits]) -> Work[Out]: ...
    @overload
    def broadcast(self, x: Any, root: int = 0, out: Any = None, **limits: Unpack[Limits]) -> Work[Any]: ...

    def broadcast(
        self, x: Any, root: int = 0, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Work[Any]:
        """Starts a broadcast."""
        return self._group.begin(lambda g: g.broadcast(x, root, out, timeout=timeout, name=name), "broadcast")

    @overload
    def reduce(
        self, x: NDArray[Inexact], op: Op | str = SUM, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> Work[NDArray[Inexact] | None]: ...
    @overload
    def reduce(self, x: Any, op: Mean, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Work[Any]: ...
    @overload
    def reduce(
        self, x: NDArray[Dtype], op: Op = SUM, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> Work[NDArray[Dtype] | None]: ...
    @overload
    def reduce(
        self, x: Dtype, op: Op = SUM, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> Work[Dtype | None]: ...
    @overload
    def reduce(
        self, x: Any, op: Op | str = SUM, root: int = 0, *, out: Out, **limits: Unpack[Limits]
    ) -> Work[Out | None]: ...
    @overload
    def reduce(
        self, x: Any, op: Op | str = SUM, root: int = 0, out: Any = None, **limits: Unpack[Limits]
    ) -> Work[Any]: ...

    def reduce(
        self,
        x: Any,
        op: Op | str = SUM,
        root: int = 0,
        out: Any = None,
        *,
        timeout: float | None = None,
        name: str | None = None,
    ) -> Work[Any]:
        """Starts a reduce."""
        return self._group.begin(lambda g: g.reduce(x, op, root, out, timeout=timeout, name=name), "reduce")

    @overload
    def all_reduce(
        self, x: NDArray[Inexact], op: Op | str = SUM, out: None = None, **limits: Unpack[Limits]
    ) -> Work[NDArray[Inexact]]: ...
    @overload
    def all_reduce(self, x: Any, op: Mean, out: None = None, **limits: Unpack[Limits]) -> Work[Any]: ...
    @overload
    def all_reduce(
        self, x: NDArray[Dtype], op: Op = SUM, out: None = None, **limits: Unpack[Limits]
    ) -> Work[NDArray[Dtype]]: ...
    @overload
    def all_reduce(self, x: Dtype, op: Op = SUM, out: None = None, **limits: Unpack[Limits]) -> Work[Dtype]: ...
    @overload
    def all_reduce(self, x: Any, op: Op | str = SUM, *, out: Out, **limits: Unpack[Limits]) -> Work[Out]: ...
    @overload
    def all_reduce(self, x: Any, op: Op | str = SUM, out: Any = None, **limits: Unpack[Limits]) -> Work[Any]: ...

    def all_reduce(
        self, x: Any, op: Op | str = SUM, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Work[Any]:
        """Starts an all_reduce."""
        return self._group.begin(lambda g: g.all_reduce(x, op, out, timeout=timeout, name=name), "all_reduce")

    @overload
    def gather(
        self, x: NDArray[Dtype], root: int = 0, **limits: Unpack[Limits]
    ) -> Work[list[NDArray[Dtype]] | None]: ...
    @overload
    def gather(self, x: Dtype, root: int = 0, **limits: Unpack[Limits]) -> Work[list[Dtype] | None]: ...
    @overload
    def gather(self, x: Any, root: int = 0, **limits: Unpack[Limits]) -> Work[list[Any] | None]: ...

    def gather(self, x: Any, root: int = 0, *, timeout: float | None = None, name: str | None = None) -> Work[Any]:
        """Starts a gather."""
        return self._group.begin(lambda g: g.gather(x, root, timeout=timeout, name=name), "gather")

    @overload
    def all_gather(
        self, x: NDArray[Dtype], out: None = None, **limits: Unpack[Limits]
    ) -> Work[list[NDArray[Dtype]]]: ...
    @overload
    def all_gather(self, x: Dtype, out: None = None, **limits: Unpack[Limits]) -> Work[list[Dtype]]: ...
    @overload
    def all_gather(self, x: Any, out: None = None, **limits: Unpack[Limits]) -> Work[list[Any]]: ...
    @overload
    def all_gather(self, x: Any, out: Out, **limits: Unpack[Limits]) -> Work[Out]: ...

    def all_gather(
        self, x: Any, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Work[Any]:
        """Starts an all_gather."""
        return self._group.begin(lambda g: g.all_gather(x, out, timeout=timeout, name=name), "all_gather")

    @overload
    def scatter(self, parts: None = None, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Work[Any]: ...
    @overload
    def scatter(
        self, parts: Sequence[NDArray[Dtype]] | None, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> Work[NDArray[Dtype]]: ...
    @overload
    def scatter(self, parts: Any = None, root: int = 0, *, out: Out, **limits: Unpack[Limits]) -> Work[Out]: ...
    @overload
    def scatter(self, parts: Any = None, root: int = 0, out: Any = None, **limits: Unpack[Limits]) -> Work[Any]: ...

    def scatter(
        self, parts: Any = None, root: int = 0, out: Any = None,
        *, timeout: float | None = None, name: str | None = None,
    ) -> Work[Any]:  # fmt: skip
        """Starts a scatter."""
        return self._group.begin(lambda g: g.scatter(parts, root, out, timeout=timeout, name=name), "scatter")

    @overload
    def reduce_scatter(
        self, x: Blocks[Inexact], op: Op | str = SUM, counts: Sequence[int] | None = None, out: None = None,
        **limits: Unpack[Limits],
    ) -> Work[NDArray[Inexact]]: ...  # fmt: skip
    @overload
    def reduce_scatter(
        self, x: Any, op: Mean, counts: Sequence[int] | None = None, out: None = None, **limits: Unpack[Limits]
    ) -> Work[Any]: ...
    @overload
    def reduce_scatter(
        self, x: Blocks[Dtype], op: Op = SUM, counts: Sequence[int] | None = None, out: None = None,
        **limits: Unpack[Limits],
    ) -> Work[NDArray[Dtype]]: ...  # fmt: skip
    @overload
    def reduce_scatter(
        self, x: Any, op: Op | str = SUM, counts: Sequence[int] | None = None, *, out: Out, **limits: Unpack[Limits]
    ) -> Work[Out]: ...
    @overload
    def reduce_scatter(
        self, x: Any, op: Op | str = SUM, counts: Sequence[int] | None = None, out: Any = None, **limits: Unpack[Limits]
    ) -> Work[Any]: ...

    def reduce_scatter(
        self,
        x: Any,
        op: Op | str = SUM,
        counts: Sequence[int] | None = None,
        out: Any = None,
        *,
        timeout: float | None = None,
        name: str | None = None,
    ) -> Work[Any]:
        """Starts a reduce_scatter."""
        return self._group.begin(
            lambda g: g.reduce_scatter(x, op, counts, out, timeout=timeout, name=name), "reduce_scatter"
        )

    @overload
    def all_to_all(self, parts: Blocks[Dtype], **limits: Unpack[Limits]) -> Work[list[NDArray[Dtype]]]: ...
    @overload
    def all_to_all(self, parts: Any, **limits: Unpack[Limits]) -> Work[list[Any]]: ...

    def all_to_all(self, parts: Any, *, timeout: float | None = None, name: str | None = None) -> Work[Any]:
        """Starts an all_to_all."""
        return self._group.begin(lambda g: g.all_to_all(parts, timeout=timeout, name=name), "all_to_all")

    @overload
    def scan(self, x: NDArray[Inexact], op: Op | str = SUM, **limits: Unpack[Limits]) -> Work[NDArray[Inexact]]: ...
    @overload
    def scan(self, x: Any, op: Mean, **limits: Unpack[Limits]) -> Work[Any]: ...
    @overload
    def scan(self, x: NDArray[Dtype], op: Op = SUM, **limits: Unpack[Limits]) -> Work[NDArray[Dtype]]: ...
    @overload
    def scan(self, x: Dtype, op: Op = SUM, **limits: Unpack[Limits]) -> Work[Dtype]: ...
    @overload
    def scan(self, x: Any, op: Op | str = SUM, **limits: Unpack[Limits]) -> Work[Any]: ...

    def scan(self, x: Any, op: Op | str = SUM, *, timeout: float | None = None, name: str | None = None) -> Work[Any]:
        """Starts a scan."""
        return self._group.begin(lambda g: g.scan(x, op, timeout=timeout, name=name), "scan")

    @overload
    def exscan(
        self, x: NDArray[Inexact], op: Op | str = SUM, **limits: Unpack[Limits]
    ) -> Work[NDArray[Inexact] | None]: ...
    @overload
    def exscan(self, x: Any, op: Mean, **limits: Unpack[Limits]) -> Work[Any]: ...
    @overload
    def exscan(self, x: NDArray[Dtype], op: Op = SUM, **limits: Unpack[Limits]) -> Work[NDArray[Dtype] | None]: ...
    @overload
    def exscan(self, x: Dtype, op: Op = SUM, **limits: Unpack[Limits]) -> Work[Dtype | None]: ...
    @overload
    def exscan(self, x: Any, op: Op | str = SUM, **limits: Unpack[Limits]) -> Work[Any]: ...

    def exscan(self, x: Any, op: Op | str = SUM, *, timeout: float | None = None, name: str | None = None) -> Work[Any]:
        """Starts an exscan."""
        return self._group.begin(lambda g: g.exscan(x, op, timeout=timeout, name=name), "exscan")

    def barrier(self, *, timeout: float | None = None, name: str | None = None) -> Work[None]:
        """Starts a barrier."""
        return self._group.begin(lambda g: g.barrier(timeout=timeout, name=name), "barrier")

    def monitored_barrier(
        self, timeout: float | None = None, wait_all_ranks: bool = False, *, name: str | None = None
    ) -> Work[None]:
        """Starts a monitored_barrier."""
        return self._group.begin(lambda g: g.monitored_barrier(timeout, wait_all_ranks, name=name), "monitored_barrier")

    @overload
    def broadcast_object(self, obj: None = None, root: int = 0, **limits: Unpack[Limits]) -> Work[Any]: ...
    @overload
    def broadcast_object(self, obj: Obj | None, root: int = 0, **limits: Unpack[Limits]) -> Work[Obj]: ...

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> Work[Any]:
        """Starts a broadcast_object."""
        return self._group.begin(
            lambda g: g.broadcast_object(obj, root, timeout=timeout, name=name), "broadcast_object"
        )

    def gather_object(
        self, obj: Obj, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> Work[list[Obj] | None]:
        """Starts a gather_object."""
        return self._group.begin(lambda g: g.gather_object(obj, root, timeout=timeout, name=name), "gather_object")

    def all_gather_object(self, obj: Obj, *, timeout: float | None = None, name: str | None = None) -> Work[list[Obj]]:
        """Starts an all_gather_object."""
        return self._group.begin(lambda g: g.all_gather_object(obj, timeout=timeout, name=name), "all_gather_object")

    @overload
    def scatter_object(self, objs: None = None, root: int = 0, **limits: Unpack[Limits]) -> Work[Any]: ...
    @overload
    def scatter_object(self, objs: Sequence[Obj] | None, root: int = 0, **limits: Unpack[Limits]) -> Work[Obj]: ...

    def scatter_object(
        self, objs: Sequence[Any] | None = None, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> Work[Any]:
        """Starts a scatter_object."""
        return self._group.begin(lambda g: g.scatter_object(objs, root, timeout=timeout, name=name), "scatter_object")

    def all_to_all_object(
        self, objs: Sequence[Obj], *, timeout: float | None = None, name: str | None = None
    ) -> Work[list[Obj]]:
        """Starts an all_to_all_object."""
        return self._group.begin(lambda g: g.all_to_all_object(objs, timeout=timeout, name=name), "all_to_all_object")

    def agree(self, flag: Any = True, *, timeout: float | None = None) -> Work[bool]:
        """Starts an agree."""
        return self._group.begin(lambda g: g.agree(flag, timeout=timeout), "agree")

    def send(
        self, x: Any, dst: int, tag: int = 0, *, timeout: float | None = None, synchronous: bool = False
    ) -> Work[None]:
        """Starts a send."""
        return self._group.begin(lambda g: g.send(x, dst, tag, timeout=timeout, synchronous=synchronous), "send")

    @overload
    def recv(self, src: int | None = None, tag: int = 0, out: None = None, **limits: Unpack[Timeout]) -> Work[Any]: ...
    @overload
    def recv(self, src: int | None = None, tag: int = 0, *, out: Out, **limits: Unpack[Timeout]) -> Work[Out]: ...
    @overload
    def recv(self, src: int | None, tag: int, out: Out, **limits: Unpack[Timeout]) -> Work[Out]: ...

    def recv(self, src: int | None = None, tag: int = 0, out: Any = None, *, timeout: float | None = None) -> Work[Any]:
        """Starts a recv."""
        return self._group.begin(lambda g: g.recv(src, tag, out, timeout=timeout), "recv")

    def recv_message(
        self, src: int | None = None, tag: int | None = None, *, timeout: float | None = None
    ) -> Work[Message]:
        """Starts a recv_message."""
        return self._group.begin(lambda g: g.recv_message(src, tag, timeout=timeout), "recv_message")

    def send_object(
        self, obj: Any, dst: int, tag: int = 0, *, timeout: float | None = None, synchronous: bool = False
    ) -> Work[None]:
        """Starts a send_object."""
        return self._group.begin(
            lambda g: g.send_object(obj, dst, tag, timeout=timeout, synchronous=synchronous), "send_object"
        )

    def recv_object(self, src: int | None = None, tag: int = 0, *, timeout: float | None = None) -> Work[Any]:
        """Starts a recv_object."""
        return self._group.begin(lambda g: g.recv_object(src, tag, timeout=timeout), "recv_object")

    def recv_object_message(
        self, src: int | None = None, tag: int | None = None, *, timeout: float | None = None
    ) -> Work[Message]:
        """Starts a recv_object_message."""
        return self._group.begin(lambda g: g.recv_object_message(src, tag, timeout=timeout), "recv_object_message")

    def __repr__(self) -> str:
        return f"{self._group!r}.start"
