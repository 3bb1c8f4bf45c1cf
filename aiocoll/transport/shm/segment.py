"""The memory through which the ranks of one host talk: every rank owns one segment, which only it writes.

    head       magic, geometry, nonce; where the nonce lies in private memory of the owner's, too
    line 1     asleep: whether I have to be woken by my bell
    lines      one per local rank: how many slots of its lane I have taken; whether I wait until it takes more of mine;
               how many news I posted; whether I can read its private memory; what I have consumed of its data
    lanes      one per local rank: slots for frames from me to it; short payloads lie in the slot
    cells      pieces of longer payloads, on their way to one or several ranks

The rule: peers map a segment read-only and sealed, so a word has one writer by the MMU, and no peer can cut the memory
off under its readers. Everything read from a peer's segment is untrusted input.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...config import Settings
from ...errors import WireError
from .order import OrderedWords

WORD: Final = 8
LINE_WORDS: Final = 16
"""Two cache lines of 64 bytes: neighbouring lines are fetched in pairs."""
MAGIC: Final = 0x02_6D68_7363_6F69_61
"""Begins every segment; its first byte is the version of the layout."""
NONCE_BYTES: Final = 16

SLOT_BYTES: Final = 2048
INLINE_AT: Final = 64
"""Where the payload lies within a slot."""
INLINE_BYTES: Final = 1024
META_AT: Final = INLINE_AT + INLINE_BYTES
META_BYTES: Final = SLOT_BYTES - META_AT

ASLEEP: Final = LINE_WORDS
"""The word that says that this rank sleeps."""

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_SEAL_FUTURE_WRITE: Final = 0x10
"""Nobody may map it for writing any more: only the mapping that its owner has already writes (Linux 5.1)."""
_PAGE: Final = 4096


NO_BYTES: Final[NDArray[np.uint8]] = np.empty(0, np.uint8)
NO_WORDS: Final = memoryview(b"")
"""What is left of memory that was let go."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the segments of one host are laid out; equal on all its ranks."""

    ranks: int
    slots: int
    cells: int
    cell_bytes: int

    @classmethod
    def of(cls, settings: Settings, *, ranks: int) -> Geometry:
        """That of ``ranks`` on one host: the more there are, the fewer cells has each. Slots are a power of two."""
        cells = max(4, min(settings.shm_cells, 4 * settings.shm_cells // max(ranks, 1)))
        return cls(ranks, 1 << (settings.shm_slots.bit_length() - 1), cells, settings.shm_cell_bytes)

    @property
    def lanes_at(self) -> int:
        """Byte offset of the first lane."""
        return _pages((2 + self.ranks) * LINE_WORDS * WORD)

    @property
    def cells_at(self) -> int:
        """Byte offset of the first cell."""
        return _pages(self.lanes_at + self.ranks * self.slots * SLOT_BYTES)

    @property
    def nbytes(self) -> int:
        """The whole segment's size."""
        return self.cells_at + self.cells * self.cell_bytes

    def taken(self, local: int) -> int:
        """The word that counts the slots taken out of the lane from local rank ``local``."""
        return (2 + local) * LINE_WORDS

    def waits(self, local: int) -> int:
        """The word that says that this rank waits for room in its lane to ``local``."""
        return (2 + local) * LINE_WORDS + 1

    def news(self, local: int) -> int:
        """The word that counts the news (frames that are no data) posted to ``local``."""
        return (2 + local) * LINE_WORDS + 2

    def reads(self, local: int) -> int:
        """The word that says that this rank can read private memory of ``local``."""
        return (2 + local) * LINE_WORDS + 3

    def credit(self, local: int) -> int:
        """The word that counts what this rank has consumed of the data of ``local``, as the bound on them counts."""
        return (2 + local) * LINE_WORDS + 4

    def slot(self, local: int, index: int) -> int:
        """Byte offset of a slot of the lane to ``local``."""
        return self.lanes_at + (local * self.slots + index) * SLOT_BYTES

    def cell(self, index: int) -> int:
        """Byte offset of a cell."""
        return self.cells_at + index * self.cell_bytes


class Segment:
    """This rank's own segment; ``fd`` is what its peers are given."""

    geometry: Geometry
    fence: Callable[[], None] | None
    fd: int

    def __init__(self, geometry: Geometry, fd: int, memory: mmap.mmap, fence: Callable[[], None] | None = None) -> None:
        self.geometry, self.fd, self.fence = geometry, fd, fence
        self.array: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self.bytes: memoryview = memoryview(memory)
        words = self.bytes.cast("Q")
        self.words: memoryview | OrderedWords = words if fence is None else OrderedWords(words, geometry, fence)
        self.free: deque[int] = deque(range(geometry.cells))
        """Cells without content, the one that was used longest ago first: what a peer has read lately lies in its
        cache, and taking it from there costs a writer three times as much as writing what has left it."""
        self.readers: list[int] = [0] * geometry.cells
        """For how many peers a cell's content is meant that have not taken it yet."""
        self.proof: NDArray[np.uint8] = np.zeros(NONCE_BYTES, np.uint8)
        """The nonce once more, in memory that is nobody else's."""

    def __repr__(self) -> str:
        return f"<Segment of {self.geometry.nbytes} bytes, {len(self.free)} of {self.geometry.cells} cells free>"

    @classmethod
    def create(cls, geometry: Geometry, nonce: bytes, fence: Callable[[], None] | None = None) -> Segment:
        """A new segment, every page of it there. OSError with what is short when that cannot be had. ``fence``: what
        keeps order, where the processor does not."""
        fd = os.memfd_create("aiocoll", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            try:
                os.posix_fallocate(fd, 0, geometry.nbytes)
                memory = mmap.mmap(fd, geometry.nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            except OSError as error:
                text = f"no {geometry.nbytes} bytes of shared memory: {error.strerror}"
                raise OSError(error.errno or errno.ENOMEM, text) from error
            segment = cls(geometry, fd, memory, fence)
            segment.bytes[NONCE_AT : NONCE_AT + NONCE_BYTES] = nonce
            segment.proof[...] = np.frombuffer(nonce, np.uint8)
            segment.words[PROOF_AT], segment.words[PROOF_AT + 1] = os.getpid(), segment.proof.ctypes.data
            for word, value in enumerate(_head(geometry)):
                segment.words[word] = value
            segment.words[ASLEEP] = 1
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | _SEAL_FUTURE_WRITE)
        except BaseException:
            os.close(fd)
            raise
        return segment

    def release(self, cell: int) -> None:
        """One reader less of a cell."""
        self.readers[cell] -= 1
        if not self.readers[cell]:
            self.free.append(cell)

    def close(self) -> None:
        """Closes the descriptor and lets the memory go, which ends with its last view."""
        self.array, self.bytes, self.words = NO_BYTES, NO_WORDS, NO_WORDS
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Mapped:
    """A peer's segment, read-only."""

    def __init__(self, geometry: Geometry, memory: mmap.mmap) -> None:
        self.geometry = geometry
        self.array: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self.bytes: memoryview = memoryview(memory)
        self.words: memoryview = self.bytes.cast("Q")

    def __repr__(self) -> str:
        return f"<Mapped {self.geometry.nbytes} bytes of a peer>"

    def close(self) -> None:
        """Lets the memory go, which ends with its last view."""
        self.array, self.bytes, self.words = NO_BYTES, NO_WORDS, NO_WORDS

    @classmethod
    def open(cls, fd: int, geometry: Geometry, nonce: bytes) -> Mapped:
        """Maps what a peer's descriptor names; ``fd`` stays the caller's. WireError if it is no segment of this
        ``geometry`` that holds ``nonce``; OSError if it cannot be mapped."""
        try:
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        except OSError as error:
            raise WireError("the descriptor that came is no memory file") from error
        if seals & _SEALS != _SEALS:
            raise WireError("the memory that came is not sealed: its owner could cut it off")
        if os.fstat(fd).st_size != geometry.nbytes:
            raise WireError(f"the memory that came has {os.fstat(fd).st_size} bytes instead of {geometry.nbytes}")
        memory = mmap.mmap(fd, geometry.nbytes, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
        mapped = cls(geometry, memory)
        if [mapped.words[word] for word in range(len(_head(geometry)))] != _head(geometry):
            raise WireError("the memory that came is laid out otherwise: is another version of aiocoll there?")
        if bytes(mapped.bytes[NONCE_AT : NONCE_AT + NONCE_BYTES]) != nonce:
            raise WireError("the memory that came is not the one that was promised")
        return mapped


NONCE_AT: Final = 6 * WORD
PROOF_AT: Final = 8
"""The words that hold the owner's process and the address of its ``proof``."""


def _head(geometry: Geometry) -> list[int]:
    return [MAGIC, geometry.ranks, geometry.slots, geometry.cells, geometry.cell_bytes, SLOT_BYTES]


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE
