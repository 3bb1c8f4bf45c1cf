"""*_multigpu: the same collectives over several local tensors per rank, one per "device", on every backend.

The rule: first the local tensors among themselves, then one collective between the ranks, then back to the local ones.
Element i of a rank's list is its device i; all ranks give lists of the same length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ops import Op, fold_all
from .arguments import Array, Output, integer, local_inputs, local_list, root_of, same_kind
from .constants import ReduceOp, op_of, prepared
from .filling import refuse_overlap
from .refusals import RuntimeUsageError, TypeUsageError
from .request import Request, call, judging
from .state import WORLD, member_of


def broadcast_multigpu(
    tensor_list: Sequence[Any], src: int, group: Any = WORLD, async_op: bool = False, src_tensor: int = 0
) -> Request | None:
    """Broadcasts ``tensor_list[0]`` of rank ``src`` to every tensor of every rank.

    Arguments:
        tensor_list: Tensors that participate in the collective, one per local device.
        src: Source rank, a rank of the world.
        group: Group of the collective.
        async_op: Return a handle at once instead of None at the end.
        src_tensor: Which tensor of the source rank to take.
    """
    member = member_of(group)
    if member is None:
        return None
    with judging(member, "broadcast"):
        root = root_of(member, src, None, "broadcast_multigpu", "src")
        outputs = local_list(tensor_list, "broadcast_multigpu", member.rank)
        first = _chosen(outputs, src_tensor, "broadcast_multigpu", "src_tensor", member.rank).flat
    return call(
        member,
        "broadcast_multigpu",
        lambda g: g.broadcast(first, root, out=first),
        async_op,
        lambda _: _to_all(first, outputs),
        tensor_list,
    )


def all_reduce_multigpu(
    tensor_list: Sequence[Any], op: Any = ReduceOp.SUM, group: Any = WORLD, async_op: bool = False
) -> Request | None:
    """Reduces over all tensors of all ranks; every one of them gets the result, bitwise identical.

    Arguments:
        tensor_list: Input and output tensors, one per local device. The function operates in-place.
        op: One of the values from ``reduce_op`` (or ``ReduceOp``).
        group: Group of the collective.
        async_op: Return a handle at once instead of None at the end.
    """
    member = member_of(group)
    if member is None:
        return None
    with judging(member, "all_reduce"):
        reduction = op_of(op)
        outputs = local_list(tensor_list, "all_reduce_multigpu", member.rank)
        partial = prepared(op, _folded(outputs, reduction, member.rank), "all_reduce_multigpu", member.rank)
    return call(
        member,
        "all_reduce_multigpu",
        lambda g: g.all_reduce(partial, reduction, out=partial),
        async_op,
        lambda _: _to_all(partial, outputs),
        tensor_list,
    )


def reduce_multigpu(
    tensor_list: Sequence[Any],
    dst: int,
    op: Any = ReduceOp.SUM,
    group: Any = WORLD,
    async_op: bool = False,
    dst_tensor: int = 0,
) -> Request | None:
    """Reduces over all tensors of all ranks; only ``tensor_list[0]`` on the process with rank ``dst`` gets the result.

    Arguments:
        tensor_list: Input tensors, one per local device; all others stay as they are.
        dst: Destination rank, a rank of the world.
        op: One of the values from ``reduce_op`` (or ``ReduceOp``).
        group: Group of the collective.
        async_op: Return a handle at once instead of None at the end.
        dst_tensor: Which tensor of the destination rank gets the result.
    """
    member = member_of(group)
    if member is None:
        return None
    with judging(member, "reduce"):
        root = root_of(member, dst, None, "reduce_multigpu", "dst")
        reduction = op_of(op)
        outputs = local_list(tensor_list, "reduce_multigpu", member.rank)
        chosen = _chosen(outputs, dst_tensor, "reduce_multigpu", "dst_tensor", member.rank)
        partial = prepared(op, _folded(outputs, reduction, member.rank), "reduce_multigpu", member.rank)
    return call(
        member,
        "reduce_multigpu",
        lambda g: g.reduce(partial, reduction, root, out=partial if root == member.rank else None),
        async_op,
        lambda _: _to_all(partial, [chosen] if root == member.rank else []),
        tensor_list,
    )


def all_gather_multigpu(
    output_tensor_lists: Sequence[Sequence[Any]],
    input_tensor_list: Sequence[Any],
    group: Any = WORLD,
    async_op: bool = False,
) -> Request | None:
    """Gathers all tensors of all ranks into a list per local device.

    Arguments:
        output_tensor_lists: One list per local device, each with (size of the group) x (length of
            ``input_tensor_list``) correctly-sized tensors. With n input tensors per rank, ``input_tensor_list[j]`` of
            rank k appears in ``output_tensor_lists[i][k * n + j]`` for every i.
        input_tensor_list: Tensors to be gathered from the current process.
        group: Group of the collective.
        async_op: Return a handle at once instead of None at the end.
    """
    member = member_of(group)
    if member is None:
        return None
    what, rank = "all_gather_multigpu", member.rank
    with judging(member, "all_gather"):
        inputs = local_inputs(input_tensor_list, what, "input_tensor_list", rank)
        lists = _output_lists(output_tensor_lists, member.size * len(inputs), inputs[0], rank)
    mine = np.concatenate(inputs)
    table = np.empty((member.size, mine.size), mine.dtype)
    return call(
        member,
        what,
        lambda g: g.all_gather(mine, out=table),
        async_op,
        lambda _: _fill(lists, table, inputs[0].size),
        [each for row in output_tensor_lists for each in row],
    )


# ------------------------------------------------------------------------------------------------ local halves


def _folded(outputs: Sequence[Output], op: Op, rank: int) -> Array:
    """The local tensors reduced to one array of their dtype, in the list's order; a new array."""
    if len(outputs) == 1:
        return outputs[0].flat.copy()
    dtype = outputs[0].flat.dtype.newbyteorder("=")
    op.check(dtype, rank)
    work = op.work_dtype(dtype)
    total = outputs[0].flat.astype(work)
    fold_all(op.bind(total.shape, work), [total, *(each.flat.astype(work) for each in outputs[1:])], total)
    op.finish(total, len(outputs))  # a mean of means is the mean, since all lists have the same length
    return total if op.mean else total.astype(dtype, copy=False)


def _to_all(result: Array, outputs: Sequence[Output]) -> None:
    for each in outputs:
        each.take(result.astype(each.array.dtype, copy=False))


def _fill(lists: Sequence[Sequence[Output]], table: Array, count: int) -> None:
    pieces = table.reshape(-1, count) if count else table.reshape(len(lists[0]), 0)
    for outputs in lists:
        for piece, output in zip(pieces, outputs, strict=True):
            output.take(piece)


def _output_lists(given: Any, length: int, like: Array, rank: int) -> list[list[Output]]:
    what = "all_gather_multigpu"
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeUsageError(f"{what} on rank {rank}: expected a list of lists of tensors, got {type(given).__name__}")
    if not given:
        raise RuntimeUsageError(f"{what} on rank {rank}: output_tensor_lists is empty")
    lists = []
    for number, each in enumerate(given):
        outputs = local_list(each, f"{what}: output_tensor_lists[{number}]", rank)
        if len(outputs) != length:
            raise RuntimeUsageError(
                f"{what} on rank {rank}: output_tensor_lists[{number}] has {len(outputs)} tensors; size of the group "
                f"times length of input_tensor_list is {length}"
            )
        same_kind(outputs, like, what, rank)
        lists.append(outputs)
    refuse_overlap([each for outputs in lists for each in outputs], what, rank)
    return lists


def _chosen(outputs: Sequence[Output], index: Any, what: str, name: str, rank: int) -> Output:
    number = integer(index, what, name)
    if not 0 <= number < len(outputs):
        raise RuntimeUsageError(
            f"{what} on rank {rank}: {name}={index!r} is no index into a list of {len(outputs)} tensors"
        )
    return outputs[number]
