"""A bounded pool of byte buffers: memory that was touched once is much faster than memory fresh from the system.

Rule of this file: the pool never keeps more than its limit, and a buffer that is not given back is simply forgotten.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_SMALLEST_BYTES = 4096
_UINT8 = np.dtype(np.uint8)


class Scratch:
    """Reuses uint8 buffers by size class (powers of two); contents are whatever was there before."""

    __slots__ = ("_free", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int = 64 << 20) -> None:
        self.limit_bytes: int = limit_bytes
        self.held_bytes: int = 0
        self._free: dict[int, list[Bytes]] = {}

    def get(self, nbytes: int) -> Bytes:
        """A writable, contiguous buffer of exactly `nbytes`, aligned for every dtype."""
        room = _room(nbytes)
        free = self._free.get(room)
        if free:
            self.held_bytes -= room
            return free.pop()[:nbytes]
        return np.empty(room, np.uint8)[:nbytes]

    def give(self, buffer: Bytes) -> None:
        """Take back a buffer that `get` returned; nobody may look at it any more. Twice is an error of the caller."""
        block = buffer if buffer.base is None else buffer.base
        if not isinstance(block, np.ndarray) or block.dtype is not _UINT8 or block.size != _room(block.size):
            raise ValueError("only a buffer that get() returned can be given back")
        room = block.size
        free = self._free.setdefault(room, [])
        if any(each is block for each in free):
            raise ValueError("this buffer was given back before")
        if self.held_bytes + room <= self.limit_bytes:
            free.append(block)
            self.held_bytes += room

    def __repr__(self) -> str:
        return f"<Scratch {self.held_bytes} of at most {self.limit_bytes} bytes held>"


def _room(nbytes: int) -> int:
    return max(_SMALLEST_BYTES, 1 << (nbytes - 1).bit_length() if nbytes > 0 else 0)
