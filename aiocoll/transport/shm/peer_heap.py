"""One peer's arrays, read where the peer wrote them.

The rule: mapped read-only, and only what cannot be cut off under us. Numbers that come from the peer are checked here.
Where no more can be mapped, what is referred to is read from the file into a copy: slower, but right.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...errors import WireError

_log = logging.getLogger("aiocoll.transport")
_ARENAS_MAX: Final = 1024


class PeerHeap:
    """The arenas of one peer that this rank has mapped."""

    __slots__ = ("_arenas", "_files")

    def __init__(self) -> None:
        self._arenas: dict[int, NDArray[np.uint8]] = {}
        self._files: dict[int, tuple[int, int]] = {}
        """Descriptor and size of arenas that could not be mapped."""

    def __repr__(self) -> str:
        nbytes = sum(map(len, self._arenas.values()))
        return f"<PeerHeap: {nbytes} bytes in {len(self._arenas)} arenas, {len(self._files)} not mapped>"

    def __contains__(self, number: int) -> bool:
        return number in self._arenas or number in self._files

    def add(self, number: int, fd: int, nbytes: int) -> None:
        """Maps arena ``number`` of the peer; ``fd`` is no longer the caller's. WireError if it is no such thing."""
        keep = False
        try:
            if number in self or not 0 <= number < _ARENAS_MAX:
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
            try:
                memory = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
            except OSError as error:
                self._files[number] = fd, nbytes
                keep = True
                _log.warning("a peer's arrays are copied: their memory cannot be mapped: %s", error.strerror)
            else:
                self._arenas[number] = np.frombuffer(memory, np.uint8)
        finally:
            if not keep:
                os.close(fd)

    def view(self, number: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """What a reference means: bytes of the peer, not writable. WireError if there is no such place. The view stays
        readable for as long as it lives, but only the peer's promise keeps its content."""
        arena = self._arenas.get(number)
        fd, size = (-1, len(arena)) if arena is not None else self._files.get(number, (-1, -1))
        if offset < 0 or nbytes < 0 or offset + nbytes > size:
            raise WireError(f"a reference to {nbytes} bytes at {offset} of arena {number}: there is no such place")
        return arena[offset : offset + nbytes] if arena is not None else _read(fd, offset, nbytes)

    def close(self) -> None:
        """Forgets all arenas; what is mapped goes with the last view of it. Idempotent."""
        self._arenas.clear()
        for fd, _ in self._files.values():
            os.close(fd)
        self._files.clear()


def _read(fd: int, offset: int, nbytes: int) -> NDArray[np.uint8]:
    copy = np.empty(nbytes, np.uint8)
    done = 0
    while done < nbytes:  # the kernel reads less than 2 GiB at once
        done += os.preadv(fd, [copy.data[done:]], offset + done)
    copy.setflags(write=False)
    return copy
