"""Arrays ready to travel, and back: a description and flat bytes; what is small travels with its description.

The rule: nothing that may be large is copied in one go, and a description says everything that the receiver's result
depends on, whether the sender gave a number included.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..algorithms import pace
from ..algorithms.spread import BLOCK_BYTES
from ..buffers import as_array, as_bytes, is_packed, native, pack, shaped
from ..buffers.layout import PIECE_BYTES
from ..endpoint import Channel
from ..errors import UsageError, WireError
from ..wire.codec import ArrayMeta, describe, parse

Array = NDArray[Any]

_HEAD: Final = struct.Struct("<BHQ")  # flags, bytes of meta, bytes of payload
_META_BYTES_MAX: Final = 24 << 10
"""A frame's description holds it, and what the call says of itself beside it."""
INLINE_BYTES_MAX: Final = 4096
"""Data of up to this travel with their description."""
_INLINE: Final = 1
HAS_OUT: Final = 2
"""This rank gave ``out=``."""


class Packed:
    """One array ready to travel: its description and its bytes."""

    __slots__ = ("_bytes", "_fortran", "array", "meta", "scalar")
    array: Array
    scalar: bool

    def __init__(self, x: Any, what: str, rank: int) -> None:
        self.array, self.scalar = array, _ = as_array(x, what=what, rank=rank)
        self._bytes: Array | None = None
        flags = array.flags
        self._fortran = bool(flags.f_contiguous and not flags.c_contiguous)
        if array.nbytes <= PIECE_BYTES or is_packed(array):
            self.bytes_now()
        try:
            # An array without axes has no order: Fortran's stands for a number, which comes back as a NumPy scalar.
            self.meta: bytes = describe(native(array.dtype), array.shape, self._fortran or self.scalar)
        except UsageError as error:
            raise UsageError(f"{what} on rank {rank}: {error}") from error
        if len(self.meta) > _META_BYTES_MAX:
            raise UsageError(
                f"{what} on rank {rank}: a dtype of {len(array.dtype.names or ())} fields takes {len(self.meta)} bytes "
                f"to describe, over the limit of {_META_BYTES_MAX}; view it as bytes, or send parts of it"
            )

    def __repr__(self) -> str:
        return f"<Packed {self.array.dtype} {self.array.shape}>"

    async def data(self, ch: Channel) -> Array:
        """The bytes in native byte order; a large array of another layout is copied once, piece by piece."""
        if self._bytes is None:
            flat = np.empty(self.array.size, native(self.array.dtype))
            await pace.copy(ch, self.array, shaped(flat, self.array.shape, self._fortran))
            self._bytes = as_bytes(flat)
        return self._bytes

    def bytes_now(self) -> Array:
        """The bytes at once, for what must be on its way before the caller goes on."""
        if self._bytes is None:
            self._bytes = as_bytes(pack(self.array)[0])
        return self._bytes

    async def copied(self, ch: Channel) -> Any:
        """The array again, in memory of its own."""
        copy = np.empty_like(self.array, native(self.array.dtype), subok=False)
        await pace.copy(ch, self.array, copy)
        return copy[()] if self.scalar else copy


class Head(NamedTuple):
    """What travels first of an array."""

    flags: int
    meta: bytes
    nbytes: int
    data: Array | None
    """The bytes themselves, if they are few."""


def blob_of(meta: bytes, data: Array, flags: int = 0, *, inline_bytes_max: int = INLINE_BYTES_MAX) -> bytes:
    """What travels first: flags, the description, and the data itself if it is small."""
    inline = data.nbytes <= inline_bytes_max
    head = _HEAD.pack(flags | _INLINE if inline else flags, len(meta), data.nbytes) + meta
    return head + data.tobytes() if inline else head


def read_blob(blob: bytes) -> Head:
    """What `blob_of` made."""
    flags, meta_bytes, nbytes = _HEAD.unpack_from(blob)
    start = _HEAD.size + meta_bytes
    meta = blob[_HEAD.size : start]
    data = np.frombuffer(bytearray(blob[start : start + nbytes]), np.uint8) if flags & _INLINE else None
    return Head(flags, meta, nbytes, data)


def array_of(meta: bytes, data: Array) -> Array:
    """The array that a description and bytes make; shares the memory of ``data``."""
    what = parse(meta)
    if data.nbytes != what.nbytes:
        raise WireError(f"{data.nbytes} bytes came for shape {what.shape} of {what.dtype}")
    return what.array(data)


def value_of(meta: bytes, data: Array) -> Any:
    """What the sender gave: an array, or a NumPy scalar for a number."""
    array = array_of(meta, data)
    return array[()] if not array.ndim and parse(meta).fortran else array


def comes_again(array: Any) -> bool:
    """Whether calls with arrays like this one can take a short cut: blocks of it end where elements do."""
    return (
        type(array) is np.ndarray
        and array.flags.carray
        and array.dtype.isnative
        and array.ndim > 0
        and array.itemsize > 0
        and BLOCK_BYTES % array.itemsize == 0
    )


def direct(target: Array | None, what: ArrayMeta) -> Array | None:
    """The bytes of ``target`` if what comes can land in it as it is."""
    if target is None or target.dtype != what.dtype or not target.nbytes:
        return None
    flags = target.flags
    if flags.c_contiguous and (not what.fortran or target.ndim < 2):
        return as_bytes(target)
    if flags.f_contiguous and what.fortran:
        return as_bytes(target)
    return None
