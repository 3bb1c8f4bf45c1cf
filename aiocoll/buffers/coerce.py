"""What counts as an array: inputs of every kind become ndarrays, outputs become views of the caller's memory.

Rule of this file: an input is never written to; an output is never a copy; what is refused is a UsageError that says
which call on which rank, and what would be right.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aiocoll.errors import UsageError

Array = NDArray[Any]
DType = np.dtype[Any]

_HOST_DEVICES = (1, 3, 11, 13)  # DLPack: CPU, CUDA pinned, ROCm pinned, CUDA managed: memory that a CPU can address
_EXACT_OVERLAP_ELEMENTS = 1 << 16
_OVERLAP_WORK = 100_000
_place_of: Final = ctypes.addressof
_char_in: Final[Callable[[Any], ctypes.c_char]] = ctypes.c_char.from_buffer


def as_array(x: Any, *, what: str, rank: int) -> tuple[Array, bool]:
    """Any array-like input as a base-class ndarray, shared where possible, and whether `x` was a scalar.

    Takes ndarrays of every layout, Python and NumPy scalars, nested lists of numbers, `__array_interface__`,
    `__array__`, the buffer protocol and `__dlpack__` in host memory (torch CPU tensors). A scalar's result should go
    back as `result[()]`. `what` and `rank` are for messages: the call's name and the caller's rank.
    """
    if type(x) is np.ndarray:
        dtype = x.dtype
        if dtype.hasobject:
            raise _objects(what, rank, f"an array of dtype {dtype}")
        if not dtype.itemsize and dtype.kind in "SU":
            x = x.astype(f"{dtype.kind}1")  # fields may be of dtype S0, but NumPy makes no new array of it
        return x, False
    where = f"{what} on rank {rank}"
    if isinstance(x, np.ndarray):
        array, scalar = _base(x, where), False
    elif isinstance(x, (np.generic, bool, int, float, complex)):
        array, scalar = np.asarray(x), True
    elif isinstance(x, (list, tuple, range)):
        array, scalar = _numbers(x, what, rank), False
    else:
        array, scalar = _shared(x, what, rank, writable=False), False
    if array.dtype.hasobject:
        raise _objects(what, rank, f"an object of type {type(x).__name__}")
    return array, scalar


def as_out(x: Any, *, what: str, rank: int) -> Array:
    """A writable ndarray over the memory of `x`; UsageError if it has none, is read-only or overlaps itself."""
    where = f"{what} on rank {rank}"
    if isinstance(x, np.ndarray):
        array = x if type(x) is np.ndarray else _base(x, where)
    elif isinstance(x, (np.generic, bool, int, float, complex, list, tuple, range, str)) or x is None:
        raise UsageError(
            f"{where}: out must be a writable array, not {type(x).__name__}, which cannot be filled in place; "
            "leave out= away to get a new array"
        )
    else:
        array = _shared(x, what, rank, writable=True)
    if array.dtype.hasobject:
        raise _objects(what, rank, f"an out of dtype {array.dtype}")
    if not array.flags.writeable:
        raise UsageError(f"{where}: out is read-only; pass a writable array, or leave out= away to get a new one")
    if overlaps_itself(array):
        raise UsageError(
            f"{where}: elements of out overlap one another (shape {array.shape}, strides {array.strides}); "
            "pass an array whose elements have places of their own, such as out.copy()"
        )
    return array


def check_out(
    out: Array, shape: tuple[int, ...], dtype: DType, inputs: Sequence[Array], *, what: str, rank: int
) -> None:
    """Raise UsageError unless `out` (from `as_out`) can hold a result of `shape` and `dtype` (byte order aside).

    It must also be each of the `inputs` exactly, or share no memory with it.
    """
    if out.shape != shape:
        raise UsageError(f"{what} on rank {rank}: out has shape {out.shape}, but the result has shape {shape}")
    if out.dtype != dtype and out.dtype.newbyteorder("=") != dtype.newbyteorder("="):
        raise UsageError(f"{what} on rank {rank}: out has dtype {out.dtype}, but the result has dtype {dtype}")
    for each in inputs:
        if each is not out and _partly_shared(out, each):
            raise UsageError(
                f"{what} on rank {rank}: out and input overlap in memory; out must be the input itself "
                "or share no memory with it (a copy of either will do)"
            )


def overlaps_itself(x: Array) -> bool:
    """Whether two elements of `x` share memory, as after broadcasting or as_strided; when too hard to tell, True."""
    flags = x.flags
    if flags.c_contiguous or flags.f_contiguous or x.size <= 1 or x.itemsize == 0:
        return False
    axes = sorted((abs(stride), n) for stride, n in zip(x.strides, x.shape, strict=True) if n > 1)
    extent = x.itemsize  # bytes from the first to the last byte of what the axes so far span
    for stride, n in axes:
        if stride < extent:
            break
        extent += stride * (n - 1)
    else:
        return False
    if axes[0][0] < x.itemsize or x.size > _EXACT_OVERLAP_ELEMENTS:
        return True
    offsets = np.zeros(1, np.int64)
    for stride, n in axes:
        offsets = np.add.outer(offsets, np.arange(n, dtype=np.int64) * stride).reshape(-1)
    offsets.sort()
    return bool(np.any(np.diff(offsets) < x.itemsize))


def _partly_shared(out: Array, x: Array) -> bool:
    """Whether the two share memory without being the same elements in the same places."""
    if not np.may_share_memory(out, x):  # compares bounds only: cheap, and mostly the whole answer
        return False
    if out.shape == x.shape and out.dtype == x.dtype and address_of(out) == address_of(x):
        if all(a == b for a, b, n in zip(out.strides, x.strides, out.shape, strict=True) if n > 1):
            return False
    return share_memory(out, x)


def share_memory(left: Array, right: Array) -> bool:
    """Whether the two have an element in common; where that is too hard to find out, yes."""
    try:
        return np.shares_memory(left, right, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]  # any int, says its manual
    except np.exceptions.TooHardError:
        return True


def address_of(x: Array) -> int:
    """Where its first element lies."""
    try:
        return _place_of(_char_in(x))  # five times as quick
    except (TypeError, ValueError, BufferError):  # empty, read-only, in another order, or of a type that is no buffer
        return int(x.__array_interface__["data"][0])


def _objects(what: str, rank: int, thing: str) -> UsageError:
    return UsageError(
        f"{what} on rank {rank}: {thing} holds Python objects, which have no fixed size; the object calls carry them "
        "(send_object, broadcast_object, gather_object, all_gather_object, scatter_object, all_to_all_object)"
    )


def _base(x: Array, where: str) -> Array:
    """A subclass (matrix, memmap, recarray, masked array) as a plain ndarray on the same memory."""
    masked = sys.modules.get("numpy.ma")  # NumPy imports it on first use: then no array is a masked one
    if masked is not None and masked.is_masked(x):
        raise UsageError(f"{where}: a masked array would lose its mask; pass x.filled(…), and x.mask beside it")
    base = x.view(np.ndarray)
    if base.dtype.type is np.record:
        base = base.view(np.dtype((np.void, base.dtype)))
    return base


def _numbers(x: Any, what: str, rank: int) -> Array:
    """A list of numbers or arrays as a new ndarray; lists of anything else belong to the object calls."""
    if any(hasattr(each, "detach") for each in x):  # torch tensors, which NumPy would take apart number by number
        x = [as_array(each, what=what, rank=rank)[0] for each in x]
    try:
        array = np.asarray(x)
    except (ValueError, TypeError, OverflowError) as exc:
        raise UsageError(
            f"{what} on rank {rank}: this {type(x).__name__} makes no array ({exc}); pass an array, "
            "or use the object calls such as broadcast_object"
        ) from exc
    if array.dtype.kind not in "biufcmMV":
        raise _objects(what, rank, f"a {type(x).__name__} of {array.dtype} values")
    return array


def _shared(x: Any, what: str, rank: int, *, writable: bool) -> Array:
    """An ndarray over the memory of a foreign array or buffer; only inputs may fall back to a copy."""
    where = f"{what} on rank {rank}"
    kind = type(x)
    try:
        if hasattr(kind, "detach") and hasattr(kind, "numpy"):
            return _from_torch(x, where, writable=writable)
        if hasattr(kind, "__dlpack_device__") and hasattr(kind, "__dlpack__"):
            _check_host(x, where)
            if not hasattr(kind, "__array_interface__"):
                return _from_dlpack(x, writable=writable)
        if isinstance(x, str) or x is None:
            raise _objects(what, rank, f"an object of type {kind.__name__}")
        view = _buffer(x)
        if view is not None:
            return np.asarray(view)
        if hasattr(x, "__array_interface__") or hasattr(x, "__array_struct__"):
            return _base(np.asarray(x), where)
        if hasattr(kind, "__array__") and not writable:
            return _base(np.asarray(x), where)
        if hasattr(kind, "__await__"):
            raise UsageError(f"{where}: got {x!r}, which was never awaited: write 'await' before it")
    except UsageError:
        raise
    except Exception as exc:  # foreign code may raise anything at all
        raise UsageError(f"{where}: cannot read this {kind.__name__} as an array: {exc}") from exc
    if writable:
        raise UsageError(f"{where}: out must be a writable array, not {kind.__name__}, which shares no memory")
    raise _objects(what, rank, f"an object of type {kind.__name__}")


def _buffer(x: Any) -> memoryview | None:
    try:
        return memoryview(x)
    except TypeError:
        return None


def _check_host(x: Any, where: str) -> None:
    device = int(x.__dlpack_device__()[0])
    if device not in _HOST_DEVICES:
        name = getattr(x, "device", f"DLPack device {device}")
        raise UsageError(f"{where}: this {type(x).__name__} lies on {name}; copy it to the CPU first (x.cpu())")


def _from_dlpack(x: Any, *, writable: bool) -> Array:
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError):
        # bfloat16 and the like, or a read-only exporter: NumPy may still know the type through __array__.
        if writable or not hasattr(type(x), "__array__"):
            raise
        return np.asarray(x)


def _from_torch(x: Any, where: str, *, writable: bool) -> Array:
    """A torch CPU tensor as an ndarray on the same memory; dtypes that NumPy lacks come as those of ml_dtypes."""
    try:
        plain: Array = x.numpy()
        return plain
    except (TypeError, RuntimeError):  # another device, a gradient, a lazy conjugate, or a dtype that NumPy lacks
        _check_host(x, where)
    tensor = x.detach()
    for bit, resolve in (("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")):
        if getattr(tensor, bit, bool)():
            if writable:
                raise UsageError(f"{where}: out is a lazily conjugated or negated tensor; pass out.{resolve}()")
            tensor = getattr(tensor, resolve)()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in ("bfloat16", "complex32") or name.startswith("float8"):
        bits = getattr(sys.modules["torch"], f"int{8 * tensor.element_size()}")
        array: Array = tensor.view(bits).numpy()
        return array.view(_ml_dtype(name, where))
    result: Array = tensor.numpy()
    return result


def _ml_dtype(name: str, where: str) -> DType:
    try:
        import ml_dtypes
    except ImportError as exc:
        raise UsageError(f"{where}: dtype {name} needs the package ml_dtypes: pip install 'aiocoll[ml]'") from exc
    dtype: DType = np.dtype(getattr(ml_dtypes, name))
    return dtype
