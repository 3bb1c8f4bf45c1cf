"""One peer's arrays, read where the peer wrote them.

The rule: mapped read-only, and only what cannot be cut off under us. Numbers that come from the peer are checked here.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...errors import WireError

_ARENAS_MAX: Final = 1024


class PeerHeap:
    """The arenas of one peer that this rank has mapped."""

    __slots__ = ("_arenas",)

    def __init__(self) -> None:
        self._arenas: dict[int, NDArray[np.uint8]] = {}

    def __repr__(self) -> str:
        return f"<PeerHeap: {sum(map(len, self._arenas.values()))} bytes in {len(self._arenas)} arenas>"

    def add(self, number: int, fd: int, nbytes: int) -> None:
        """Maps arena ``number`` of the peer, and closes ``fd`` whatever happens. WireError if it is not what it should
        be; OSError if this process may not map it (then the peer must send its arrays otherwise)."""
        try:
            if number in self._arenas or not 0 <= number < _ARENAS_MAX:
                raise WireError(f"arena {number} came out of turn")
            try:
                seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            except OSError as error:
                raise WireError("the descriptor that came is no memory file") from error
            if not seals & fcntl.F_SEAL_SHRINK:
                raise WireError("the memory that came is not sealed: its owner could cut it off")
            size = os.fstat(fd).st_size
            if size != nbytes or nbytes <= 0:
                raise WireError(f"the memory that came has {size} bytes instead of {nbytes}")
            memory = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
        self._arenas[number] = np.frombuffer(memory, np.uint8)

    def view(self, number: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """What a reference means: bytes of the peer, not writable. WireError if there is no such place. The view stays
        readable for as long as it lives, but only the peer's promise keeps its content."""
        arena = self._arenas.get(number)
        if arena is None or offset < 0 or nbytes < 0 or offset + nbytes > len(arena):
            raise WireError(f"a reference to {nbytes} bytes at {offset} of arena {number}: there is no such place")
        return arena[offset : offset + nbytes]

    def close(self) -> None:
        """Forgets all arenas; what is mapped goes with the last view of it. Idempotent."""
        self._arenas.clear()
