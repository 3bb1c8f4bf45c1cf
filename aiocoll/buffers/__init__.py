"""What is an array, how it lies in memory, and how it moves piece by piece.

Rule of this package: pure functions on memory; nothing here waits, sends or knows a group.

- `coerce`: anything array-like -> ndarray (in), anything writable -> view (out), and the checks of `out=`
- `layout`: native byte order, flat views, contiguous copies, copying in slices
- `scratch`: a bounded pool of byte buffers
"""

from aiocoll.buffers.coerce import address_of, as_array, as_out, check_out, overlaps_itself, share_memory
from aiocoll.buffers.layout import (
    PIECE_BYTES,
    as_bytes,
    copy,
    flat,
    flat_bytes,
    is_packed,
    native,
    pack,
    pieces,
    shaped,
)
from aiocoll.buffers.scratch import Scratch

__all__ = [
    "PIECE_BYTES",
    "Scratch",
    "address_of",
    "as_array",
    "as_bytes",
    "as_out",
    "check_out",
    "copy",
    "flat",
    "flat_bytes",
    "is_packed",
    "native",
    "overlaps_itself",
    "pack",
    "pieces",
    "share_memory",
    "shaped",
]
