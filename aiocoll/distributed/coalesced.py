"""Several collectives at once: all_reduce_coalesced, all_gather_coalesced, and the manager that keeps handles.

The rule: a list of tensors is one call of its group, whose description holds every shape, so that lists that differ
between ranks are found, and a list that is refused is refused once, however long the others' lists are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .arguments import input_of, local_outputs, outputs_of, same_kind, switch
from .constants import ReduceOp, op_of, prepared
from .filling import distribute, read_in_place, refuse_overlap
from .refusals import RuntimeUsageError, TypeUsageError
from .request import COLLECTOR, Request, call, judging
from .state import WORLD, member_of

if TYPE_CHECKING:
    from contextvars import Token

    from ..group import Group
    from ..sync import SyncGroup
    from .request import Collector


def all_reduce_coalesced(
    tensors: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Request | None:
    """Reduces each tensor of a list across all machines, in place.

    Arguments:
        tensors: List of tensors, or one; number, sizes and dtypes are equal on all ranks.
        op: One of the values from ``ReduceOp``; or an aiocoll op.
        group: Group of the collective; None for the world.
        async_op: Return a handle at once instead of None at the end.
    """
    member = member_of(group)
    if member is None:
        return None
    what, rank = "all_reduce_coalesced", member.rank
    with judging(member, "all_reduce"):
        given = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
        reduction = op_of(op)
        outputs = local_outputs(given, what, "tensors", rank)
        refuse_overlap(outputs, what, rank)
        inputs = [prepared(op, each.flat, what, rank) for each in outputs]

    def make(g: Group) -> Awaitable[Any]:
        return g.at_once(
            "all_reduce",
            lambda g: [g.all_reduce(data, reduction, out=out.flat) for data, out in zip(inputs, outputs, strict=True)],
        )

    def after(_: Any) -> None:
        for out in outputs:
            out.settle()

    return call(member, what, make, async_op, after, given)


def all_gather_coalesced(
    output_tensor_lists: Sequence[Sequence[Any]],
    input_tensor_list: Sequence[Any],
    group: Any = None,
    async_op: bool = False,
) -> Request | None:
    """Gathers each tensor of a list from the whole group.

    Arguments:
        output_tensor_lists: One list per member, in the order of the ranks, of tensors for what stands in that rank's
            ``input_tensor_list``.
        input_tensor_list: Tensors to be gathered from the current process; as many on all ranks.
        group: Group of the collective; None for the world.
        async_op: Return a handle at once instead of None at the end.
    """
    member = member_of(group)
    if member is None:
        return None
    what, rank = "all_gather_coalesced", member.rank
    with judging(member, "all_gather"):
        inputs = [input_of(each, what, rank) for each in _sequence(input_tensor_list, "input_tensor_list", rank)]
        lists = _sequence(output_tensor_lists, "output_tensor_lists", rank)
        if len(lists) != member.size:
            raise RuntimeUsageError(
                f"{what} on rank {rank}: output_tensor_lists has {len(lists)} lists, the group {member.size} members"
            )
        table = [
            outputs_of(each, len(inputs), what, f"output_tensor_lists[{at}]", rank) for at, each in enumerate(lists)
        ]
        flat = [each for row in table for each in row]
        refuse_overlap(flat, what, rank)
        for mine, data in zip(table[rank], inputs, strict=True):
            same_kind([mine], data, what, rank)
        for each in flat:
            read_in_place(each.flat, inputs, what, rank)

    def after(found: list[Any]) -> None:
        distribute([each for row in zip(*found, strict=True) for each in row], flat, what, member)

    def make(g: Group) -> Awaitable[Any]:
        return g.at_once("all_gather", lambda g: [g.all_gather(data) for data in inputs])

    return call(member, what, make, async_op, after, [each for row in lists for each in row])


class _coalescing_manager:
    """A context for several calls, all of them on ``group``: it keeps the handles of those that are started in it.

    Calls without ``async_op`` are over when they return, here as elsewhere. On leaving, it waits for the others; with
    ``async_ops`` it leaves that to ``wait()``, or to whoever takes them out of ``works``.
    """

    def __init__(self, group: Any = None, device: Any = None, async_ops: bool = False) -> None:
        """``device``: accepted for code written for GPUs; nothing here depends on it."""
        self.works: list[Request] = []
        self.member: SyncGroup | None = None
        self._async = switch(async_ops, "_coalescing_manager", "async_ops")
        self._group = WORLD if group is None else group
        self._token: Token[Collector | None] | None = None

    def append(self, work: Request | None = None) -> None:
        """Keeps one more handle; what outsiders of a group get is none."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Waits for all of them."""
        for work in self.works:
            work.wait()

    def __enter__(self) -> _coalescing_manager:
        self.member = member_of(self._group)
        if COLLECTOR.get() is not None:
            raise RuntimeUsageError("_coalescing_manager: a manager is open in this thread already; leave it first")
        self._token = COLLECTOR.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            COLLECTOR.reset(self._token)
        if not self._async and error is None:
            self.wait()

    def __repr__(self) -> str:
        return f"_coalescing_manager({len(self.works)} calls on {self._group!r})"


def _sequence(given: Any, name: str, rank: int) -> Sequence[Any]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeUsageError(
            f"all_gather_coalesced on rank {rank}: {name} must be a list of tensors, got {type(given).__name__}"
        )
    if not given:
        raise RuntimeUsageError(f"all_gather_coalesced on rank {rank}: {name} is empty")
    return given
