"""One memory file that arrays are cut from: a range of addresses, of which only parts are there.

The rule: the file is as long as it will ever be, so peers map it once. Its pages are committed before they are handed
out (what cannot be had is an error here and not a SIGBUS later), and given back to the machine under all its mappings.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import Final

import numpy as np

from .extents import Extents

PAGE: Final = mmap.PAGESIZE
_PIECE_BYTES: Final = 4 << 20
"""Committed and given back at once: a millisecond. More would begin anew for ever under a timer's signals, and
keep other threads waiting."""
_POPULATE_WRITE: Final = 23
"""MADV_POPULATE_WRITE, since Linux 5.14; mmap does not have the name."""
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Arena:
    """``id`` and ``fd`` are what a peer needs to map it; ``known_to`` is kept by whoever tells them."""

    __slots__ = ("_map", "address", "end", "fd", "id", "idle", "known_to", "nbytes", "void")
    id: int
    nbytes: int
    idle: Extents
    void: Extents

    def __init__(self, number: int, nbytes: int) -> None:
        """Reserves ``nbytes`` (whole pages) of addresses, no memory. OSError when that cannot be had."""
        self.id, self.nbytes = number, nbytes
        self.known_to: set[int] = set()
        """Peers that have mapped this arena."""
        self.idle, self.void = Extents(), Extents()
        """Memory that is there and free; addresses behind which there is no memory."""
        self.fd: int = os.memfd_create("aiocoll-arrays", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, nbytes)
            self._map = mmap.mmap(self.fd, nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
        except BaseException:
            os.close(self.fd)
            raise
        self.void.give(0, nbytes)
        self.address: int = int(np.frombuffer(self._map, np.uint8).__array_interface__["data"][0])
        self.end: int = self.address + nbytes

    def __repr__(self) -> str:
        free = f"{self.idle.nbytes} free" if self.fd >= 0 else "closed"
        return f"<Arena {self.id}: {self.committed} of {self.nbytes} bytes committed, {free}>"

    @property
    def committed(self) -> int:
        """Bytes of memory behind it."""
        return self.nbytes - self.void.nbytes

    def room(self, nbytes: int) -> tuple[int, int, int] | None:
        """Where memory must come so that ``nbytes`` lie free together: (offset, bytes needed, bytes possible)."""
        for offset, size in self.void:
            before = self.idle.before(offset)
            if before + size >= nbytes:
                return offset, pages(nbytes - before), size
        return None

    def commit(self, offset: int, nbytes: int) -> None:
        """Gets memory for a range where there is none, every page of it mapped. OSError: there is none left."""
        done = 0
        try:
            while done < nbytes:
                piece = min(_PIECE_BYTES, nbytes - done)
                os.posix_fallocate(self.fd, offset + done, piece)
                done += piece
                self._populate(offset + done - piece, piece)
        except BaseException:
            self._remove(offset, done)
            raise
        self.void.cut(offset, nbytes, offset)
        self.idle.give(offset, nbytes)

    def give_back(self, keep: int) -> None:
        """Returns free memory to the machine until about ``keep`` bytes of it are left, the largest pieces first."""
        while (excess := self.idle.nbytes - keep) > 0:
            begin, size = self.idle.largest()
            low, high = pages(begin), (begin + size) // PAGE * PAGE
            if low >= high:
                return
            low = max(low, high - pages(excess))  # from its end: what is used stays together
            self._remove(low, high - low)
            self.idle.cut(low, high - low, begin)
            self.void.give(low, high - low)

    def close(self) -> None:
        """Closes the descriptor; the memory goes with the last array in it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _populate(self, offset: int, nbytes: int) -> None:
        try:
            self._map.madvise(_POPULATE_WRITE, offset, nbytes)
        except OSError as error:
            if error.errno != errno.EINVAL:  # an older kernel maps the pages when they are touched
                raise

    def _remove(self, offset: int, nbytes: int) -> None:
        for piece in range(offset, offset + nbytes, _PIECE_BYTES):
            self._map.madvise(mmap.MADV_REMOVE, piece, min(_PIECE_BYTES, offset + nbytes - piece))


def pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
