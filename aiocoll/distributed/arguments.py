"""What the documented calls take: tensors filled in place, lists of them, ranks of the world, timeouts.

The rule: an argument is judged before anything is sent, in the documented words; nothing here waits or sends.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..buffers import as_array, as_out
from ..errors import UsageError
from ..sync import SyncGroup
from .constants import Backend
from .on_device import OnDevice
from .refusals import RuntimeUsageError, TypeUsageError, documented
from .state import STATE
from .timeouts import seconds_of as seconds_of

Array = NDArray[Any]


class Output:
    """A tensor that a call fills in place, seen as a flat contiguous array: only count and dtype must agree.

    Where the tensor is not contiguous, ``flat`` is a copy in C order that ``settle()`` writes back.
    """

    __slots__ = ("_device", "array", "direct", "flat")
    array: Array
    flat: Array
    direct: bool

    def __init__(self, tensor: Any, what: str, rank: int) -> None:
        self._device: OnDevice | None = None
        if STATE.backend_name == Backend.NCCL:
            self._device = OnDevice(tensor, what, rank)
            self.array = self._device.array
            self.flat, self.direct = self.array.reshape(-1), False
            return
        if type(tensor) is np.ndarray and tensor.flags.carray and not tensor.dtype.hasobject:  # the usual case
            self.array = tensor
            self.flat = tensor.reshape(-1)
            self.direct = True
            return
        self.array = _writable(tensor, what, rank)
        self.flat = np.ascontiguousarray(self.array).reshape(-1)
        self.direct = np.may_share_memory(self.flat, self.array)

    @classmethod
    def part(cls, flat: Array) -> Output:
        """A stretch of another output's ``flat``, which lies in this host's memory wherever the tensor does."""
        made = cls.__new__(cls)
        made._device, made.array, made.flat, made.direct = None, flat, flat, True
        return made

    def detach(self) -> None:
        """From now on ``flat`` is private memory, so that the tensor is written at the end only."""
        if self.direct:
            self.flat, self.direct = self.flat.copy(), False

    def settle(self) -> None:
        """Brings the result into the tensor."""
        if not self.direct:
            self.take(self.flat)

    def take(self, source: Array) -> None:
        """Copies a result of the same count into the tensor."""
        np.copyto(self.array, source.reshape(self.array.shape))
        if self._device is not None:
            self._device.put_back()


def input_of(tensor: Any, what: str, rank: int) -> Array:
    """A tensor that is only read, as a flat contiguous array; a copy where it is not contiguous."""
    if STATE.backend_name == Backend.NCCL:
        return OnDevice(tensor, what, rank).array.reshape(-1)
    require_tensor(tensor, what, rank)
    try:
        array, _ = as_array(tensor, what=what, rank=rank)
    except UsageError as error:
        raise documented(error) from error.__cause__
    return np.ascontiguousarray(array).reshape(-1)


def require_tensor(tensor: Any, what: str, rank: int) -> None:
    """TypeError for what is no array: numbers, lists and None have no memory to fill in place."""
    if isinstance(tensor, np.ndarray):
        return
    kind = type(tensor)
    if isinstance(tensor, str | list | tuple | int | float | complex | np.generic) or not (
        hasattr(kind, "__dlpack__") or hasattr(tensor, "__array_interface__") or _has_buffer(tensor)
    ):
        raise TypeUsageError(
            f"{what} on rank {rank}: expected a tensor (a NumPy array, a torch CPU tensor or a buffer), "
            f"got {kind.__name__}"
        )


def outputs_of(tensors: Any, size: int, what: str, kind: str, rank: int) -> list[Output]:
    """A list with one tensor per member of the group."""
    return [
        Output(each, f"{what}: {kind}[{index}]", rank)
        for index, each in enumerate(_list_of(tensors, size, what, kind, rank))
    ]


def inputs_of(tensors: Any, size: int, what: str, kind: str, rank: int) -> list[Array]:
    """The same for tensors that are only read."""
    return [
        input_of(each, f"{what}: {kind}[{index}]", rank)
        for index, each in enumerate(_list_of(tensors, size, what, kind, rank))
    ]


def local_list(tensors: Any, what: str, rank: int) -> list[Output]:
    """The ``tensor_list`` of a *_multigpu call: one tensor per local device, all of one count and dtype."""
    outputs = local_outputs(tensors, what, "tensor_list", rank)
    same_kind(outputs, outputs[0].flat, what, rank)
    return outputs


def local_outputs(tensors: Any, what: str, name: str, rank: int) -> list[Output]:
    """A list of tensors to fill, of any counts and dtypes."""
    return [Output(each, f"{what}: {name}[{index}]", rank) for index, each in enumerate(_some(tensors, what, rank))]


def _some(tensors: Any, what: str, rank: int) -> Sequence[Any]:
    """A list that is not empty."""
    if isinstance(tensors, str) or not isinstance(tensors, Sequence):
        raise TypeUsageError(f"{what} on rank {rank}: expected a list of tensors, got {type(tensors).__name__}")
    if not tensors:
        raise RuntimeUsageError(f"{what} on rank {rank}: the list of tensors is empty")
    return tensors


def local_inputs(tensors: Any, what: str, name: str, rank: int) -> list[Array]:
    """A list of tensors that are only read, one per local device, all of one count and dtype."""
    inputs = [input_of(each, f"{what}: {name}[{index}]", rank) for index, each in enumerate(_some(tensors, what, rank))]
    same_kind(inputs, inputs[0], what, rank)
    return inputs


def same_kind(tensors: Sequence[Output | Array], like: Array, what: str, rank: int, *, uneven: bool = False) -> None:
    """Every tensor of the list has the dtype (and, unless ``uneven``, the count) of ``like``."""
    for index, each in enumerate(tensors):
        flat = each.flat if isinstance(each, Output) else each
        if flat.dtype.newbyteorder("=") != like.dtype.newbyteorder("="):
            raise RuntimeUsageError(
                f"{what} on rank {rank}: tensor types do not match: number {index} of the list is "
                f"{flat.dtype}, the tensor is {like.dtype}"
            )
        if not uneven and flat.size != like.size:
            raise RuntimeUsageError(
                f"{what} on rank {rank}: tensor sizes do not match: number {index} of the list has "
                f"{flat.size} elements, the tensor {like.size}"
            )


def root_of(group: SyncGroup, world_rank: Any, group_rank: Any, what: str, name: str) -> int:
    """The rank in the group that ``src=``/``dst=`` (a rank of the world) or ``group_src=``/``group_dst=`` means."""
    if group_rank is not None:
        if world_rank is not None:
            raise RuntimeUsageError(f"{what}: give either {name} or group_{name}, not both")
        rank = integer(group_rank, what, f"group_{name}")
        if not 0 <= rank < group.size:
            raise RuntimeUsageError(
                f"{what}: group rank is invalid, rank should be in range: [0, {group.size - 1}], "
                f"not group_{name}={rank}"
            )
        return rank
    if world_rank is None:
        raise TypeUsageError(f"{what} needs {name} (a rank of the world) or group_{name} (a rank of the group)")
    rank = integer(world_rank, what, name)
    ranks = group.ranks
    if 0 <= rank < len(ranks) and ranks[rank] == rank:
        return rank
    if rank not in ranks:
        raise RuntimeUsageError(
            f"{what}: rank({rank}) is not member of group: {name} is a rank of the world, and this group's are {ranks}"
        )
    return ranks.index(rank)


def root_or_first(group: SyncGroup, world_rank: Any, group_rank: Any, what: str, name: str) -> int:
    """The same; where nobody is named, rank 0 of the world, or of a group without it."""
    if world_rank is None and group_rank is None:
        return group.ranks.index(0) if 0 in group.ranks else 0
    return root_of(group, world_rank, group_rank, what, name)


def splits_of(sizes: Any, rows: int, size: int, what: str, name: str, rank: int) -> list[int]:
    """How many rows of a tensor belong to each member: as ``name`` says, or equally many."""
    if sizes is None or (isinstance(sizes, Sequence) and not sizes):
        if rows % size:
            raise RuntimeUsageError(
                f"{what} on rank {rank}: {rows} rows do not divide equally among {size} members; give {name}"
            )
        return [rows // size] * size
    if isinstance(sizes, str) or not isinstance(sizes, Sequence | np.ndarray):
        raise TypeUsageError(f"{what} on rank {rank}: {name} must be a list of ints, got {type(sizes).__name__}")
    found = [integer(each, what, f"an element of {name}") for each in sizes]
    if len(found) != size:
        raise RuntimeUsageError(f"{what} on rank {rank}: {name} has {len(found)} entries, the group {size} members")
    if min(found) < 0:
        raise RuntimeUsageError(f"{what} on rank {rank}: {name}={found} holds a negative number")
    if sum(found) != rows:
        raise RuntimeUsageError(
            f"{what} on rank {rank}: Split sizes doesn't match total dim 0 size: {name}={found} add up to "
            f"{sum(found)}, the tensor has {rows} rows"
        )
    return found


def integer(value: Any, what: str, name: str) -> int:
    """A rank or tag; NumPy's integers count, bool and float do not."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeUsageError(f"{what}: {name} must be an int, got {type(value).__name__}") from None


def switch(value: Any, what: str, name: str) -> bool:
    """A boolean, or what programs write for one: 0, 1 and None. Anything else is most likely another argument's."""
    if value is None or isinstance(value, bool | np.bool_) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeUsageError(f"{what}: {name}={value!r} must be True or False")


def _list_of(tensors: Any, size: int, what: str, kind: str, rank: int) -> Sequence[Any]:
    if isinstance(tensors, str) or not isinstance(tensors, Sequence):
        raise TypeUsageError(f"{what} on rank {rank}: {kind} must be a list of tensors, got {type(tensors).__name__}")
    if len(tensors) != size:
        word = "output" if what in ("all_gather", "gather") or kind.startswith("output") else "input"
        raise RuntimeUsageError(
            f"{_CAMEL.get(what, what)}: number of {word} tensors and group size does not match: rank {rank} gave "
            f"{len(tensors)} in {kind}, the group has {size} members"
        )
    return tensors


_CAMEL = {"all_gather": "allGather"}  # the engine's own spelling, which the documented message has


def _writable(tensor: Any, what: str, rank: int) -> Array:
    require_tensor(tensor, what, rank)
    try:
        return as_out(tensor, what=what, rank=rank)
    except UsageError as error:
        raise documented(error) from error.__cause__


def _has_buffer(tensor: Any) -> bool:
    try:
        memoryview(tensor).release()
    except TypeError:
        return False
    return True
