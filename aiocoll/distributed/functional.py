"""The collectives out of place: ``dist.functional.all_reduce(x, "sum")`` returns a new tensor and leaves ``x`` alone.

The rule: names and order of torch's functional collectives, over a group's own calls, which give new arrays. A result
is of its input's kind, a NumPy array or a torch tensor, and is there when the call returns; outsiders get None. Ranks
are ranks of the world. ``group`` is what ``new_group()`` returned, or a mesh of one dimension; None for the world.
``tag`` is accepted and means nothing, as in torch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..buffers import as_array
from ..errors import MismatchError
from ..sync import SyncGroup
from .arguments import Output, integer, root_of, splits_of
from .constants import Backend, ReduceOp, op_of, prepared
from .on_device import OnDevice
from .refusals import RuntimeUsageError, TypeUsageError
from .request import judging, run
from .state import STATE, member_of

if TYPE_CHECKING:
    from ..group import Group


class _Call(NamedTuple):
    """One call: how it is made, and what becomes of what it gives."""

    make: Callable[[Group], Awaitable[Any]]
    finish: Callable[[Any], Any]


def all_reduce(self: Any, reduceOp: Any, group: Any = None, tag: str = "") -> Any:
    """The reduction of all ranks' tensors, on every rank.

    Arguments:
        self: Input tensor; a number is taken, too.
        reduceOp: "sum", "avg", "product", "min", "max", "band", "bor", "bxor", or a value of ``ReduceOp``. The mean of
            integers is float64 in NumPy's case.
    """
    return _one(group, "all_reduce", lambda member: _all_reduce(member, self, reduceOp))


def broadcast(self: Any, src: int, group: Any = None, tag: str = "") -> Any:
    """``src``'s tensor on every rank; the others' may have any shape, and be None. Torch's is of ``src``'s dtype."""

    def prepare(member: SyncGroup) -> _Call:
        root = root_of(member, src, None, "broadcast", "src")
        given = _array(self, "broadcast", member.rank) if root == member.rank else None

        def finish(found: Any) -> Any:
            return _sent(self, found, "broadcast", member, mine=found is given)

        return _Call(lambda g: g.broadcast(given, root), finish)

    return _one(group, "broadcast", prepare)


def all_gather_single(self: Any, gather_dim: int, group: Any = None, tag: str = "") -> Any:
    """All ranks' tensors concatenated along ``gather_dim``, in which they may differ."""
    return _one(group, "all_gather", lambda member: _all_gather(member, self, gather_dim))


def reduce_scatter_single(self: Any, reduceOp: Any, scatter_dim: int, group: Any = None, tag: str = "") -> Any:
    """My part of the reduction along ``scatter_dim``, which the number of members divides."""
    return _one(group, "reduce_scatter", lambda member: _reduce_scatter(member, self, reduceOp, scatter_dim))


all_gather_tensor = all_gather_single
reduce_scatter_tensor = reduce_scatter_single


def all_to_all_single(
    self: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    tag: str = "",
) -> Any:
    """The rows that all ranks have for me, one after the other.

    Arguments:
        self: Input tensor.
        output_split_sizes: How many rows are to come from each member; None where that does not matter.
        input_split_sizes: How many rows go to each member; None for equally many.
    """

    def prepare(member: SyncGroup) -> _Call:
        what, rank = "all_to_all_single", member.rank
        array = _array(self, what, rank)
        if not array.ndim:
            raise RuntimeUsageError(f"{what} on rank {rank}: a tensor without dimensions has no rows to split")
        sizes = splits_of(input_split_sizes, array.shape[0], member.size, what, "input_split_sizes", rank)
        expected = (
            None if output_split_sizes is None else [integer(each, what, "a size") for each in output_split_sizes]
        )
        parts = np.split(array, np.cumsum(sizes)[:-1])
        return _Call(lambda g: g.all_to_all(parts), lambda came: _like(self, _rows(came, expected, member)))

    return _one(group, "all_to_all", prepare)


def permute_tensor(self: Any, src_dst: Sequence[int], group: Any = None, tag: str = "") -> Any:
    """The tensor of the rank that sends to me: rank m of the group sends to rank ``src_dst[m]`` of the group."""

    def prepare(member: SyncGroup) -> _Call:
        what = "permute_tensor"
        targets = [integer(each, what, "src_dst") for each in src_dst]
        if sorted(targets) != list(range(member.size)):
            raise RuntimeUsageError(
                f"{what} on rank {member.rank}: src_dst={targets} must hold each rank of the group, "
                f"0 to {member.size - 1}, once"
            )
        array = _array(self, what, member.rank)
        nothing = np.empty(0, array.dtype)
        parts = [array if other == targets[member.rank] else nothing for other in range(member.size)]
        source = targets.index(member.rank)
        return _Call(lambda g: g.all_to_all(parts), lambda came: _sent(self, came[source], what, member))

    return _one(group, "all_to_all", prepare)


def all_reduce_coalesced(self: Sequence[Any], reduceOp: Any, group: Any = None, tag: str = "") -> Any:
    """``all_reduce`` of each tensor of a list, all at once; a list."""
    return _several(group, "all_reduce", lambda member: [_all_reduce(member, each, reduceOp) for each in self])


def all_gather_single_coalesced(self: Sequence[Any], group: Any = None, tag: str = "") -> Any:
    """``all_gather_single`` of each tensor of a list along its first dimension, all at once; a list."""
    return _several(group, "all_gather", lambda member: [_all_gather(member, each, 0) for each in self])


def reduce_scatter_single_coalesced(
    inputs: Sequence[Any], reduceOp: Any, scatter_dim: Sequence[int], group: Any = None, tag: str = ""
) -> Any:
    """``reduce_scatter_single`` of each tensor of a list along its own dimension, all at once; a list."""

    def prepare(member: SyncGroup) -> list[_Call]:
        if len(inputs) != len(scatter_dim):
            raise RuntimeUsageError(
                f"reduce_scatter_single_coalesced on rank {member.rank}: {len(inputs)} tensors and {len(scatter_dim)} "
                "dimensions; give one for each"
            )
        return [_reduce_scatter(member, each, reduceOp, dim) for each, dim in zip(inputs, scatter_dim, strict=True)]

    return _several(group, "reduce_scatter", prepare)


all_gather_into_tensor_coalesced = all_gather_single_coalesced
reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def wait_tensor(tensor: Any) -> Any:
    """``tensor``: results here are complete when they are returned."""
    return tensor


# ------------------------------------------------------------------------------------------------ the calls


def _one(group: Any, collective: str, prepare: Callable[[SyncGroup], _Call]) -> Any:
    found = _several(group, collective, lambda member: [prepare(member)])
    return None if found is None else found[0]


def _several(group: Any, collective: str, prepare: Callable[[SyncGroup], list[_Call]]) -> list[Any] | None:
    """Makes all calls at once, as one; where the arguments of one are refused, all are."""
    member = member_of(_group(group))
    if member is None:
        return None
    with judging(member, collective):
        calls = prepare(member)
        if not calls:
            raise RuntimeUsageError(f"{collective} on rank {member.rank}: the list of tensors is empty")
    if len(calls) == 1:
        return [calls[0].finish(run(member, calls[0].make))]
    results = run(member, lambda g: g.at_once(collective, lambda g: [each.make(g) for each in calls]))
    return [each.finish(result) for each, result in zip(calls, results, strict=True)]


def _all_reduce(member: SyncGroup, tensor: Any, op: Any) -> _Call:
    given, reduction = _operand(tensor, op, "all_reduce", member.rank)
    return _Call(lambda g: g.all_reduce(given, reduction), lambda found: _like(tensor, found))


def _all_gather(member: SyncGroup, tensor: Any, dim: int) -> _Call:
    array = np.atleast_1d(_array(tensor, "all_gather_single", member.rank))
    axis = _axis(array, dim, "all_gather_single", "gather_dim", member.rank)

    def finish(parts: list[Any]) -> Any:
        shapes = [(part.shape[:axis], part.shape[axis + 1 :], part.dtype) for part in parts]
        if any(shape != shapes[member.rank] for shape in shapes):
            raise MismatchError(
                f"all_gather_single on group {member.name!r}: tensors differ in more than gather_dim={dim}: "
                + ", ".join(f"rank {rank}: {part.shape} of {part.dtype}" for rank, part in enumerate(parts))
            )
        return _like(tensor, np.concatenate(parts, axis))

    return _Call(lambda g: g.all_gather(array), finish)


def _reduce_scatter(member: SyncGroup, tensor: Any, op: Any, dim: int) -> _Call:
    what, rank, size = "reduce_scatter_single", member.rank, member.size
    given, reduction = _operand(tensor, op, what, rank)
    axis = _axis(given, dim, what, "scatter_dim", rank)
    if given.shape[axis] % size:
        raise RuntimeUsageError(
            f"{what} on rank {rank}: dimension {dim} has {given.shape[axis]} entries, which must be a multiple of the "
            f"group's size, {size}"
        )
    parts = np.split(given, size, axis)
    return _Call(lambda g: g.reduce_scatter(parts, reduction), lambda found: _like(tensor, found))


# ------------------------------------------------------------------------------------------------ arguments, results


def _operand(tensor: Any, op: Any, what: str, rank: int) -> tuple[Any, Any]:
    if isinstance(op, str):
        named = ReduceOp.__members__.get(op.upper())
        if named is None:
            names = ", ".join(each.lower() for each in ReduceOp.__members__)
            raise RuntimeUsageError(f"{what} on rank {rank}: reduceOp={op!r} is none of {names}")
        op = named
    array, scalar = _array_and_kind(tensor, what, rank)
    array = prepared(op, array, what, rank)
    return (array[()] if scalar else array), op_of(op)


def _array(tensor: Any, what: str, rank: int) -> Any:
    return _array_and_kind(tensor, what, rank)[0]


def _array_and_kind(tensor: Any, what: str, rank: int) -> tuple[Any, bool]:
    """The tensor as an array, and whether it is a number."""
    if STATE.backend_name == Backend.NCCL:
        return OnDevice(tensor, what, rank).array, False
    return as_array(tensor, what=what, rank=rank)


def _axis(array: Any, dim: Any, what: str, name: str, rank: int) -> int:
    axis = integer(dim, what, name)
    if not -np.ndim(array) <= axis < np.ndim(array):
        raise RuntimeUsageError(f"{what} on rank {rank}: {name}={dim} is no dimension of shape {np.shape(array)}")
    return axis % np.ndim(array)


def _rows(came: list[Any], expected: list[int] | None, member: SyncGroup) -> Any:
    sizes = [len(part) for part in came]
    kinds = {(part.shape[1:], part.dtype) for part in came}
    if len(kinds) > 1 or (expected is not None and sizes != expected):
        parts = ", ".join(f"rank {rank}: {part.shape} of {part.dtype}" for rank, part in enumerate(came))
        wanted = "" if expected is None else f"; output_split_sizes={expected}"
        raise MismatchError(
            f"all_to_all_single on group {member.name!r}: what came to rank {member.rank} does not fit: {parts}{wanted}"
        )
    return np.concatenate(came)


def _sent(tensor: Any, found: Any, what: str, member: SyncGroup, mine: bool = False) -> Any:
    """What another rank has sent, as a tensor of the kind of mine; a copy where it is ``mine`` itself."""
    if not hasattr(type(tensor), "new_empty"):
        return found.copy() if mine else found
    have, came = Output(tensor.new_empty(0), what, member.rank).array.dtype, np.asarray(found).dtype
    if have.newbyteorder("=") != came.newbyteorder("="):
        raise MismatchError(
            f"{what} on group {member.name!r}: {came} came to rank {member.rank}, whose own tensor is of {have}: give "
            "one of the sender's dtype, whatever its shape"
        )
    return _like(tensor, found)


def _like(tensor: Any, found: Any) -> Any:
    """A result as a tensor of the input's kind."""
    if not hasattr(type(tensor), "new_empty"):
        return found
    made = tensor.new_empty(np.shape(found))
    out, array = Output(made, "a result", 0), np.asarray(found)
    out.take(array.astype(out.array.dtype, copy=False))  # the mean of whole numbers is of the tensor's own dtype
    return made


def _group(group: Any) -> Any:
    """The group of a mesh, or of one of its dimensions; others as they are."""
    if isinstance(group, tuple) and len(group) == 2 and hasattr(group[0], "get_group"):
        return group[0].get_group(group[1])
    if hasattr(group, "get_group"):
        return group.get_group()
    if isinstance(group, list):
        raise TypeUsageError("group: a list of ranks is none; make one with new_group(ranks) and pass what it returns")
    return group
