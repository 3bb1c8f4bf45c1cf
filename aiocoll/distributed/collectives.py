"""broadcast, reduce, all_reduce, gather, all_gather, scatter: in place, on tensors and lists of them.

The rule: judge the arguments, then one async call on the flat views, outside of what judges: a peer's refusal comes out
of the call, and must not be refused once more. Roots are ranks of the world (``group_src=`` and
``group_dst=`` are ranks of the group); who is not in the group gets None and an untouched tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..sync import SyncGroup
from .arguments import Array, Output, input_of, inputs_of, outputs_of, root_of, root_or_first, same_kind
from .constants import OP_OF, ReduceOp, op_of, prepared
from .filling import alike, distribute, read_in_place, refuse_overlap, settled
from .refusals import RuntimeUsageError
from .request import Request, again, call, judging
from .state import STATE, WORLD, member_of


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: Any = WORLD,
    async_op: bool = False,
    group_src: int | None = None,
) -> Request | None:
    """Broadcasts the tensor to the whole group.

    ``tensor`` must have the same number of elements (and dtype) in all processes participating in the collective.

    Arguments:
        tensor: Data to be sent if ``src`` is the rank of current process, and tensor to be used to save received data
            otherwise.
        src: Source rank, a rank of the world.
        group: Group of the collective.
        async_op: Return a handle at once instead of None at the end.
        group_src: Source rank in the group, instead of ``src``.
    """
    member = member_of(group)
    if member is None:
        return None
    plain = type(tensor) is np.ndarray and type(src) is int and async_op is False and group_src is None
    if plain and member is STATE.world:
        flat = tensor if tensor.ndim == 1 else tensor.reshape(-1)
        given, wanted = (flat, None) if src == member.rank else (None, flat)
        if tensor.flags.carray and again(member.broadcast_again, given, src, wanted):
            return None
    with judging(member, "broadcast"):
        root = root_of(member, src, group_src, "broadcast", "src")
        if root == member.rank:
            data = input_of(tensor, "broadcast", root)
        else:
            out = Output(tensor, "broadcast", member.rank)
    if root == member.rank:
        return call(member, "broadcast", lambda g: g.broadcast(data, root), async_op, None, (tensor,))
    return call(member, "broadcast", lambda g: g.broadcast(None, root, out=out.flat), async_op, settled(out), (tensor,))


def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Any = WORLD, async_op: bool = False) -> Request | None:
    """Reduces the tensor data across all machines in such a way that all get the final result.

    After the call ``tensor`` is going to be bitwise identical in all processes.

    Arguments:
        tensor: Input and output of the collective. The function operates in-place.
        op: One of the values from ``reduce_op`` (or ``ReduceOp``), an element-wise reduction; or an aiocoll op.
        group: Group of the collective.
        async_op: Return a handle at once instead of None at the end.
    """
    member = STATE.world if group is WORLD else None  # what follows is for the usual case
    if member is None:
        member = member_of(group)
        if member is None:
            return None
    if type(tensor) is np.ndarray and async_op is False and tensor.flags.carray:
        flat = tensor if tensor.ndim == 1 else tensor.reshape(-1)
        usual = OP_OF.get(op) if type(op) is ReduceOp else op
        if again(member.all_reduce_again, flat, usual, flat):
            return None
    with judging(member, "all_reduce"):
        reduction = op_of(op)
        out = Output(tensor, "all_reduce", member.rank)
        data = prepared(op, out.flat, "all_reduce", member.rank)
    return call(
        member,
        "all_reduce",
        lambda g: g.all_reduce(data, reduction, out=out.flat),
        async_op,
        settled(out),
        (tensor,),
    )


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: Any = ReduceOp.SUM,
    group: Any = WORLD,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Request | None:
    """Reduces the tensor data across all machines.

    Only the process with rank ``dst`` is going to receive the final result; the tensors of the others stay as they are.

    Arguments:
        tensor: Input of the collective, and on ``dst`` its output.
        dst: Destination rank, a rank of the world.
        op: One of the values from ``reduce_op`` (or ``ReduceOp``), an element-wise reduction; or an aiocoll op.
        group: Group of the collective.
        async_op: Return a handle at once instead of None at the end.
        group_dst: Destination rank in the group, instead of ``dst``.
    """
    member = member_of(group)
    if member is None:
        return None
    with judging(member, "reduce"):
        root = root_of(member, dst, group_dst, "reduce", "dst")
        reduction = op_of(op)
        if root == member.rank:
            out = Output(tensor, "reduce", root)
        data = prepared(
            op, out.flat if root == member.rank else input_of(tensor, "reduce", member.rank), "reduce", member.rank
        )
    if root != member.rank:
        return call(member, "reduce", lambda g: g.reduce(data, reduction, root), async_op, None, (tensor,))
    return call(
        member,
        "reduce",
        lambda g: g.reduce(data, reduction, root, out=out.flat),
        async_op,
        settled(out),
        (tensor,),
    )


def all_gather(tensor_list: Sequence[Any], tensor: Any, group: Any = WORLD, async_op: bool = False) -> Request | None:
    """Gathers tensors from the whole group in a list.

    Arguments:
        tensor_list: Output list. It should contain correctly-sized tensors to be used for output of the collective,
            one per member in the order of their ranks; sizes may differ from rank to rank.
        tensor: Tensor to be broadcast from current process.
        group: Group of the collective.
        async_op: Return a handle at once instead of None at the end.
    """
    member = member_of(group)
    if member is None:
        return None
    listed = type(tensor_list) is list and len(tensor_list) == member.size
    if listed and async_op is False and alike(tensor, tensor_list):
        flats = [each if each.ndim == 1 else each.reshape(-1) for each in tensor_list]
        if again(member.all_gather_again, tensor.reshape(-1), flats):
            return None
    with judging(member, "all_gather"):
        data = input_of(tensor, "all_gather", member.rank)
        outputs = outputs_of(tensor_list, member.size, "all_gather", "tensor_list", member.rank)
        same_kind(outputs, data, "all_gather", member.rank, uneven=True)
        same_kind(outputs[member.rank : member.rank + 1], data, "all_gather", member.rank)
        refuse_overlap(outputs, "all_gather", member.rank)
        for output in outputs:
            read_in_place(output.flat, [data], "all_gather", member.rank)
    if all(output.flat.size == data.size for output in outputs):  # then everywhere, or the digests differ
        table = np.empty((member.size, data.size), data.dtype.newbyteorder("="))
        return call(
            member,
            "all_gather",
            lambda g: g.all_gather(data, out=table),
            async_op,
            lambda _: distribute(table, outputs, "all_gather", member),
            tensor_list,
        )
    return call(
        member,
        "all_gather",
        lambda g: g.all_gather(data),
        async_op,
        lambda parts: distribute(parts, outputs, "all_gather", member),
        tensor_list,
    )


def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: int | None = None,
    group: Any = WORLD,
    async_op: bool = False,
    group_dst: int | None = None,
    **kwargs: Any,
) -> Request | None:
    """Gathers a list of tensors in a single process.

    Arguments:
        tensor: Input tensor.
        gather_list: List of appropriately-sized tensors to use for received data. Required only in the receiving
            process.
        dst: Destination rank, a rank of the world. Left out: mine where I give a list, else 0.
        group: Group of the collective.
        async_op: Return a handle at once instead of None at the end.
        group_dst: Destination rank in the group, instead of ``dst``.
    """
    member = member_of(group)
    if kwargs:
        raise _unexpected(kwargs)
    if member is None:
        return None
    with judging(member, "gather"):
        root = _root_or_default(member, dst, group_dst, _is_given(gather_list), "gather", "dst")
        data = input_of(tensor, "gather", member.rank)
        if root != member.rank:
            if _is_given(gather_list):
                raise RuntimeUsageError(
                    f"non-empty gather_list can be given only to gather destination: this is rank {member.rank} of "
                    f"the group, dst is rank {root}"
                )
        elif gather_list is None:
            raise RuntimeUsageError(
                f"gather_list is a required argument in gather destination: rank {root} of the group needs a list of "
                f"{member.size} tensors"
            )
        else:
            outputs = outputs_of(gather_list, member.size, "gather", "gather_list", root)
            same_kind(outputs, data, "gather", root, uneven=True)
            refuse_overlap(outputs, "gather", root)
            for output in outputs:
                read_in_place(output.flat, [data], "gather", root)
    if root != member.rank:
        return call(member, "gather", lambda g: g.gather(data, root), async_op)
    return call(
        member,
        "gather",
        lambda g: g.gather(data, root),
        async_op,
        lambda parts: distribute(parts, outputs, "gather", member),
        gather_list or (),
    )


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Any = WORLD,
    async_op: bool = False,
    group_src: int | None = None,
    **kwargs: Any,
) -> Request | None:
    """Scatters a list of tensors to all processes in a group.

    Each process will receive exactly one tensor and store its data in the ``tensor`` argument.

    Arguments:
        tensor: Output tensor.
        scatter_list: List of tensors to scatter. Required only in the process that is sending the data.
        src: Source rank, a rank of the world. Left out: mine where I give a list, else 0.
        group: Group of the collective.
        async_op: Return a handle at once instead of None at the end.
        group_src: Source rank in the group, instead of ``src``.
    """
    member = member_of(group)
    if kwargs:
        raise _unexpected(kwargs)
    if member is None:
        return None
    with judging(member, "scatter"):
        root = _root_or_default(member, src, group_src, _is_given(scatter_list), "scatter", "src")
        out = Output(tensor, "scatter", member.rank)
        parts: list[Array] | None = None
        if root != member.rank:
            if _is_given(scatter_list):
                raise RuntimeUsageError(
                    f"non-empty can be given only to scatter source: scatter_list on rank {member.rank} of the group, "
                    f"src is rank {root}"
                )
        elif scatter_list is None:
            raise RuntimeUsageError(
                f"scatter_list is a required argument in scatter source: rank {root} of the group needs a list of "
                f"{member.size} tensors"
            )
        else:
            parts = inputs_of(scatter_list, member.size, "scatter", "scatter_list", root)
            if read_in_place(out.flat, parts, "scatter", root):
                out.detach()
    return call(member, "scatter", lambda g: g.scatter(parts, root, out=out.flat), async_op, settled(out), (tensor,))


def _root_or_default(member: SyncGroup, world_rank: Any, group_rank: Any, gave_list: bool, what: str, name: str) -> int:
    """Who gives the list is the root where nobody is named, as the early API had it; else the first, as today's."""
    if world_rank is None and group_rank is None and gave_list:
        return member.rank
    return root_or_first(member, world_rank, group_rank, what, name)


def _is_given(tensors: Any) -> bool:
    """An empty list is none, as documented."""
    return tensors is not None and not (hasattr(tensors, "__len__") and len(tensors) == 0)


def _unexpected(kwargs: dict[str, Any]) -> RuntimeUsageError:
    return RuntimeUsageError(f"got unexpected kwargs: {', '.join(kwargs)}")
