"""Collectives over one tensor that stands for a list of them, and those of today's API that take lists.

The rule: as in ``collectives``. Only count and dtype count, so a result may be the members' tensors one after the other
(concatenated) or stacked: both lie alike in memory. Where output and input are one, the call works in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..buffers import as_array
from ..patterns import offsets
from .arguments import Array, Output, input_of, inputs_of, outputs_of, root_or_first, same_kind, splits_of
from .constants import OP_OF, ReduceOp, op_of, prepared
from .filling import distribute, read_in_place, refuse_overlap, settled
from .refusals import RuntimeUsageError
from .request import Request, again, call, judging
from .state import member_of


def all_gather_single(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Request | None:
    """Gathers tensors from all ranks into a single output tensor.

    Arguments:
        output_tensor: Output tensor for all ranks' elements in the order of the ranks: the input tensors concatenated,
            or stacked, along the first dimension. ``input_tensor`` may be this rank's part of it.
        input_tensor: Tensor of the current rank; of the same count and dtype on all ranks.
        group: Group of the collective; None for the world.
        async_op: Return a handle at once instead of None at the end.
    """
    member = member_of(group)
    if member is None:
        return None
    what, rank, size = "all_gather_single", member.rank, member.size
    if async_op is False and _plain(output_tensor, input_tensor) and output_tensor.size == size * input_tensor.size:
        table = output_tensor.reshape(size, input_tensor.size)
        if again(member.all_gather_again, input_tensor.reshape(-1), table):
            return None
    with judging(member, "all_gather"):
        data = input_of(input_tensor, what, rank)
        out = Output(output_tensor, what, rank)
        table = _table(out.flat, data, size, what, rank, "output_tensor", "input_tensor")
        if any([read_in_place(row, [data], what, rank) for row in table]):  # all rows are looked at
            data = data.copy()
    return call(member, what, lambda g: g.all_gather(data, out=table), async_op, settled(out), (output_tensor,))


all_gather_into_tensor = _all_gather_base = all_gather_single


def gather_single(
    tensor: Any,
    output_tensor: Any = None,
    dst: int | None = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Request | None:
    """Gathers tensors from all ranks into a single output tensor on one of them.

    Arguments:
        tensor: Tensor of the current rank; of the same count and dtype on all ranks.
        output_tensor: On the destination the output tensor for all ranks' elements, as in ``all_gather_single``;
            elsewhere ignored.
        dst: Destination rank, a rank of the world; 0 when left out.
        group: Group of the collective; None for the world.
        async_op: Return a handle at once instead of None at the end.
        group_dst: Destination rank in the group, instead of ``dst``.
    """
    member = member_of(group)
    if member is None:
        return None
    what, rank, size = "gather_single", member.rank, member.size
    with judging(member, "gather"):
        root = root_or_first(member, dst, group_dst, what, "dst")
        data = input_of(tensor, what, rank)
        if root == rank:
            if output_tensor is None:
                raise RuntimeUsageError(f"{what}: output_tensor is a required argument on the destination, rank {rank}")
            out = Output(output_tensor, what, rank)
            table = _table(out.flat, data, size, what, rank, "output_tensor", "tensor")
            rows = [Output.part(row) for row in table]
            for row in table:
                read_in_place(row, [data], what, rank)
    if root != rank:
        return call(member, what, lambda g: g.gather(data, root), async_op)

    def after(parts: Any) -> None:
        distribute(parts, rows, what, member)
        out.settle()

    return call(member, what, lambda g: g.gather(data, root), async_op, after, (output_tensor,))


gather_into_tensor = gather_single


def reduce_scatter(
    output: Any, input_list: Sequence[Any], op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Request | None:
    """Reduces, then scatters a list of tensors to all processes in a group.

    Arguments:
        output: Output tensor: the reduction of the tensors that all ranks have in this rank's place of their lists.
        input_list: Tensors to reduce and scatter, one per member; each place may have a size of its own, equal on all
            ranks. ``output`` may be one of them.
        op: One of the values from ``ReduceOp``; or an aiocoll op.
        group: Group of the collective; None for the world.
        async_op: Return a handle at once instead of None at the end.
    """
    member = member_of(group)
    if member is None:
        return None
    what, rank = "reduce_scatter", member.rank
    with judging(member, what):
        reduction = op_of(op)
        out = Output(output, what, rank)
        given = inputs_of(input_list, member.size, what, "input_list", rank)
        same_kind([out], given[rank], what, rank)
        if read_in_place(out.flat, given, what, rank):
            out.detach()
        parts = [prepared(op, each, what, rank) for each in given]
    return call(
        member, what, lambda g: g.reduce_scatter(parts, reduction, out=out.flat), async_op, settled(out), (output,)
    )


def reduce_scatter_single(
    output: Any, input: Any, op: Any = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Request | None:
    """Reduces, then scatters a tensor to all ranks in a group.

    Arguments:
        output: Output tensor; of the same count on all ranks. It may be this rank's part of ``input``.
        input: Input tensor to be reduced and scattered: the output tensors of all ranks concatenated, or stacked, along
            the first dimension.
        op: One of the values from ``ReduceOp``; or an aiocoll op.
        group: Group of the collective; None for the world.
        async_op: Return a handle at once instead of None at the end.
    """
    member = member_of(group)
    if member is None:
        return None
    what, rank, size = "reduce_scatter_single", member.rank, member.size
    if async_op is False and _plain(output, input) and input.size == size * output.size:
        usual = OP_OF.get(op) if type(op) is ReduceOp else op
        if again(member.reduce_scatter_again, input.reshape(-1), usual, output.reshape(-1)):
            return None
    with judging(member, "reduce_scatter"):
        reduction = op_of(op)
        out = Output(output, what, rank)
        data = input_of(input, what, rank)
        if read_in_place(out.flat, list(_table(data, out.flat, size, what, rank, "input", "output")), what, rank):
            out.detach()
        data = prepared(op, data, what, rank)
    return call(
        member, what, lambda g: g.reduce_scatter(data, reduction, out=out.flat), async_op, settled(out), (output,)
    )


reduce_scatter_tensor = _reduce_scatter_base = reduce_scatter_single


def all_to_all(
    output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], group: Any = None, async_op: bool = False
) -> Request | None:
    """Scatters a list of input tensors to all processes in a group, and gathers a list of tensors in the output list.

    Arguments:
        output_tensor_list: Tensors to fill, one per member: number i with what rank i has for this one. Sizes and
            dtypes may differ. A tensor may stand in both lists.
        input_tensor_list: Tensors to scatter, one per member.
        group: Group of the collective; None for the world.
        async_op: Return a handle at once instead of None at the end.
    """
    member = member_of(group)
    if member is None:
        return None
    what, rank = "all_to_all", member.rank
    with judging(member, what):
        outputs = outputs_of(output_tensor_list, member.size, what, "output_tensor_list", rank)
        parts = inputs_of(input_tensor_list, member.size, what, "input_tensor_list", rank)
        same_kind([outputs[rank]], parts[rank], what, rank)
        refuse_overlap(outputs, what, rank)
        for output in outputs:
            read_in_place(output.flat, parts, what, rank)
    return call(
        member,
        what,
        lambda g: g.all_to_all(parts),
        async_op,
        lambda came: distribute(came, outputs, what, member),
        output_tensor_list,
    )


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Request | None:
    """Splits the input tensor along its first dimension, scatters the parts to all processes in a group, and
    concatenates what comes into the output tensor.

    Arguments:
        output: Output tensor; it may be ``input`` itself.
        input: Input tensor to scatter.
        output_split_sizes: How many rows come from each member; equally many when left out, or empty.
        input_split_sizes: How many rows go to each member; equally many when left out, or empty.
        group: Group of the collective; None for the world.
        async_op: Return a handle at once instead of None at the end.
    """
    member = member_of(group)
    if member is None:
        return None
    what, rank, size = "all_to_all_single", member.rank, member.size
    with judging(member, "all_to_all"):
        out = Output(output, what, rank)
        data = input_of(input, what, rank)
        shape = tuple(input.shape) if hasattr(input, "shape") else as_array(input, what=what, rank=rank)[0].shape
        places = _cut(out.flat, out.array.shape, output_split_sizes, size, what, "output_split_sizes", rank)
        parts = _cut(data, shape, input_split_sizes, size, what, "input_split_sizes", rank)
        outputs = [Output.part(each) for each in places]
        same_kind([outputs[rank]], parts[rank], what, rank)
        read_in_place(out.flat, [data], what, rank)

    def after(came: Any) -> None:
        distribute(came, outputs, what, member)
        out.settle()

    return call(member, what, lambda g: g.all_to_all(parts), async_op, after, (output,))


def _plain(output: Any, input: Any) -> bool:
    """Whether a quick second call may be tried with these."""
    return type(output) is np.ndarray and type(input) is np.ndarray and output.flags.carray and input.flags.c_contiguous


def _table(whole: Array, part: Array, size: int, what: str, rank: int, name: str, of: str) -> Array:
    """``whole`` as a row like ``part`` for each member; RuntimeError where it is none."""
    if whole.dtype.newbyteorder("=") != part.dtype.newbyteorder("="):
        raise RuntimeUsageError(
            f"{what} on rank {rank}: tensor types do not match: {name} is {whole.dtype}, {of} is {part.dtype}"
        )
    if whole.size != size * part.size:
        raise RuntimeUsageError(
            f"{what} on rank {rank}: tensor sizes do not match: {name} has {whole.size} elements; {of} has "
            f"{part.size}, times {size} members is {size * part.size}"
        )
    return whole.reshape(size, part.size)


def _cut(flat: Array, shape: tuple[int, ...], sizes: Any, members: int, what: str, name: str, rank: int) -> list[Array]:
    """The rows for, or from, each member."""
    if not shape:
        raise RuntimeUsageError(f"{what} on rank {rank}: a tensor without dimensions has no rows to split")
    row = flat.size // shape[0] if shape[0] else 0
    at = offsets(splits_of(sizes, shape[0], members, what, name, rank))
    return [flat[start * row : stop * row] for start, stop in pairwise(at)]
