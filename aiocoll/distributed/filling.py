"""How results get into the caller's tensors, and which tensors may share memory.

The rule: a tensor is touched only when all that belongs into its list is known to fit. Tensors that a call fills share
no memory with one another, and with what it reads none, or all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from ..buffers import address_of, share_memory
from ..errors import MismatchError
from ..sync import SyncGroup
from .arguments import Array, Output
from .refusals import RuntimeUsageError


def settled(out: Output) -> Callable[[Any], None] | None:
    """What a call has left to do at its end."""
    return None if out.direct else lambda _: out.settle()


def distribute(parts: Any, outputs: Sequence[Output], what: str, member: SyncGroup) -> None:
    """Each part into its output, once all are known to fit."""
    for source, (part, output) in enumerate(zip(parts, outputs, strict=True)):
        if part.size != output.flat.size or part.dtype.newbyteorder("=") != output.flat.dtype.newbyteorder("="):
            raise MismatchError(
                f"{what} on group {member.name!r}: tensor sizes do not match: rank {source} sent {part.size} elements "
                f"of {part.dtype}, rank {member.rank} has room for {output.flat.size} of {output.flat.dtype}; "
                "none of its tensors was touched"
            )
    for part, output in zip(parts, outputs, strict=True):
        output.take(part)


def alike(tensor: Any, tensors: Sequence[Any]) -> bool:
    """Whether all are NumPy arrays of one dtype and count that are filled in place, apart from one another as far as a
    quick look tells: neighbours in the list are looked at, and ``tensor``."""
    if type(tensor) is not np.ndarray:
        return False
    dtype, size, before = tensor.dtype, tensor.size, tensor
    for each in tensors:
        if type(each) is not np.ndarray or each.dtype is not dtype or each.size != size or not each.flags.carray:
            return False
        if each is tensor or each is before:
            return False
        if each.base is not None and (np.may_share_memory(each, tensor) or np.may_share_memory(each, before)):
            return False
        before = each
    return tensor.base is None or not any(np.may_share_memory(each, tensor) for each in tensors)


def refuse_overlap(outputs: Sequence[Output], what: str, rank: int) -> None:
    """Raises where two of the tensors that a call fills share memory: one of them would have the other's result."""
    open_until: list[tuple[int, int]] = []
    spans = sorted((*byte_bounds(each.array), index) for index, each in enumerate(outputs) if each.array.nbytes)
    for low, high, index in spans:
        open_until = [(end, other) for end, other in open_until if end > low]
        for _, other in open_until:
            if share_memory(outputs[index].array, outputs[other].array):
                first, second = sorted((index, other))
                raise RuntimeUsageError(
                    f"{what} on rank {rank}: tensors number {first} and {second} of the list overlap in memory; each "
                    "result needs a place of its own"
                )
        open_until.append((high, index))


def read_in_place(target: Array, inputs: Sequence[Array], what: str, rank: int) -> bool:
    """Whether ``target`` is one of the inputs, all of them flat; raises where it shares only a part of one."""
    found = False
    for each in inputs:
        if np.may_share_memory(target, each) and target.size and each.size:
            if target.size == each.size and target.dtype == each.dtype and address_of(target) == address_of(each):
                found = True
            elif share_memory(target, each):
                raise RuntimeUsageError(
                    f"{what} on rank {rank}: output and input overlap in memory; an output is exactly one input (the "
                    "call works in place) or shares nothing with them: a copy of either will do"
                )
    return found
