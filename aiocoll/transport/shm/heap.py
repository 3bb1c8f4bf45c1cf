"""Arrays in memory that this rank shares with its peers, so that sending one passes a reference.

The rule: memory is free again when the last array, view or buffer of it is gone, whichever thread drops it and whenever
the collector runs. Freeing therefore never waits: it leaves a note, and whoever has the lock reads the notes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import operator
import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...buffers import address_of
from .arena import Arena, pages
from .headroom import available_bytes

_log = logging.getLogger("aiocoll.transport")
_GRAIN_BYTES: Final = 128
"""Arrays begin and end on pairs of cache lines: what two ranks use does not share one."""
_GROWTH_BYTES: Final = 4 << 20
"""Small arrays get memory together."""
_KEPT_BYTES: Final = 64 << 20
"""Free memory that is kept whatever comes: getting it anew costs ten times what using it costs."""
_ARENA_BYTES_MAX: Final = 64 << 30
"""Addresses that are set aside at once; they cost nothing, but a process has only 128 TiB of them."""


class Block:
    """A piece of an arena at the bottom of an array's chain of bases: its end is the end of the last view."""

    __slots__ = ("__array_interface__", "_arena", "_heap", "_nbytes", "_offset")

    def __init__(self, heap: Heap, arena: Arena, offset: int, nbytes: int) -> None:
        self._heap, self._arena, self._offset, self._nbytes = heap, arena, offset, nbytes
        self.__array_interface__: dict[str, object] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (arena.address + offset, False),
            "version": 3,
        }

    def __repr__(self) -> str:
        return f"<Block of {self._nbytes} bytes at {self._offset} of arena {self._arena.id}>"

    def __del__(self) -> None:
        self._heap.gone(self._arena, self._offset, self._nbytes)


class Heap:
    """The arrays of one rank. ``find`` belongs to the thread of the loop; the rest may be called from any."""

    __slots__ = (
        "_available", "_bytes_max", "_closed", "_getpid", "_gone", "_largest", "_lock", "_pid", "_told", "arenas",
    )  # fmt: skip

    def __init__(self, bytes_max: int | None = None, *, available: Callable[[], int] = available_bytes) -> None:
        """At most ``bytes_max`` bytes; None: every growth may take half of what ``available()`` says is there."""
        self._bytes_max, self._available = bytes_max, available
        self.arenas: tuple[Arena, ...] = ()
        """Nearly always one at most; empty as long as nobody asked for an array."""
        self._lock = threading.Lock()
        self._gone: deque[tuple[Arena, int, int]] = deque()
        self._largest = 0
        self._closed = self._told = False
        self._getpid = os.getpid  # still here when arrays outlive this module at the end of the program
        self._pid = os.getpid()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.used} of {self.committed} bytes used"
        return f"<Heap: {state} in {len(self.arenas)} arenas>"

    @property
    def committed(self) -> int:
        """Bytes of memory in it."""
        return sum(arena.committed for arena in self.arenas)

    @property
    def used(self) -> int:
        """Bytes of it that arrays hold."""
        return self.committed - sum(arena.idle.nbytes for arena in self.arenas)

    def empty(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = float) -> NDArray[Any]:
        """Like ``numpy.empty``, in shared memory; in ordinary memory where that cannot be had (the log says so once),
        and for objects. New memory takes about half a millisecond per MiB, which may be a long turn of the loop; memory
        that was used before takes none.

        A process forked from this one sees the same memory: what it writes there is written here."""
        array = self._carve(shape, np.dtype(dtype))
        return np.empty(shape, dtype) if array is None else array

    def zeros(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: DTypeLike = float) -> NDArray[Any]:
        """``empty``, filled with zeros."""
        array = self._carve(shape, np.dtype(dtype))
        if array is None:
            return np.zeros(shape, dtype)
        whole: Any = array.base  # the bytes, padding of structures included
        whole[...] = 0
        return array

    def find(self, buffer: Any) -> tuple[Arena, int] | None:
        """The arena, and the offset in it, where a contiguous array or byte view lies; None if in none. Whoever passes
        the place on keeps ``buffer`` until it was read: the memory is used again when nobody holds it."""
        arenas = self.arenas
        if not arenas:
            return None
        array = buffer if isinstance(buffer, np.ndarray) else np.asarray(buffer)
        if not array.nbytes or not array.flags.c_contiguous:
            return None
        address = address_of(array)
        for arena in arenas:
            if arena.address <= address < arena.end:
                return arena, address - arena.address
        return None

    def forget(self, peer: int) -> None:
        """The link to ``peer`` is gone, and what it had mapped with it."""
        for arena in self.arenas:
            arena.known_to.discard(peer)

    def close(self) -> None:
        """Closes the descriptors, and gives back what no array holds; arrays live on. Idempotent."""
        if self._getpid() != self._pid:  # in a forked child: the memory is the parent's, and so may the lock be
            for arena in self.arenas:
                arena.close()
            return
        with self._lock:
            self._closed = True
            self._read_notes()
            for arena in self.arenas:
                arena.give_back(0)
                arena.close()
            self.arenas = ()
        self._tidy()

    def gone(self, arena: Arena, offset: int, nbytes: int) -> None:
        """The last reference to a block died: anywhere, even while this very thread holds the lock."""
        self._gone.append((arena, offset, nbytes))
        self._tidy()

    def _carve(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        nbytes = _count(shape) * dtype.itemsize
        if nbytes <= 0 or dtype.hasobject or self._bytes_max == 0 or self._getpid() != self._pid:
            return None
        nbytes = -(-nbytes // _GRAIN_BYTES) * _GRAIN_BYTES
        try:
            with self._lock:
                if self._closed:
                    return None
                arena, offset = self._place(nbytes)
                block = Block(self, arena, offset, nbytes)
        except OSError as error:
            if not self._told:
                self._told = True
                _log.warning("arrays lie in ordinary memory where shared memory is short: %s", error.strerror or error)
            return None
        finally:
            self._tidy()
        return np.ndarray(shape, dtype, np.asarray(block))

    def _place(self, nbytes: int) -> tuple[Arena, int]:
        self._read_notes()
        for arena in self.arenas:
            offset = arena.idle.take(nbytes)
            if offset is not None:
                return arena, offset
        return self._grow(nbytes)

    def _grow(self, nbytes: int) -> tuple[Arena, int]:
        """Commits more memory, little more than is needed; what lies free elsewhere goes if it must."""
        allowed, (arena, offset, needed, possible) = self._allowed(), self._room(nbytes)
        if needed > allowed:
            for each in self.arenas:
                each.give_back(0)
            allowed, (arena, offset, needed, possible) = self._allowed(), self._room(nbytes)
            if needed > allowed:
                raise OSError(errno.ENOMEM, f"{needed} bytes more are needed, {max(allowed, 0)} may be taken")
        if arena is None:
            arena = self._reserve(nbytes)
            self.arenas += (arena,)
            possible = arena.nbytes
        generous = min(max(needed, _GROWTH_BYTES), possible)
        arena.commit(offset, generous if generous <= allowed else needed)
        self._largest = max(self._largest, nbytes)
        placed = arena.idle.take(nbytes)
        assert placed is not None
        return arena, placed

    def _room(self, nbytes: int) -> tuple[Arena | None, int, int, int]:
        for arena in self.arenas:
            room = arena.room(nbytes)
            if room is not None:
                return arena, *room
        return None, 0, pages(nbytes), 0

    def _allowed(self) -> int:
        return self._available() // 2 if self._bytes_max is None else self._bytes_max - self.committed

    def _reserve(self, nbytes: int) -> Arena:
        """A new arena with addresses for all that may come; fewer where the process may not have so many."""
        least = pages(nbytes)
        generous = min(_ARENA_BYTES_MAX, 1 << max(self._allowed() - 1, 1).bit_length())
        modest = _KEPT_BYTES
        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            generous = modest  # the program needs the others itself
        for size in (generous, modest):
            if size > least:
                with contextlib.suppress(OSError):  # then a smaller one
                    return Arena(len(self.arenas), size)
        return Arena(len(self.arenas), least)

    def _tidy(self) -> None:
        """Reads the notes if nobody else is about to; whoever holds the lock comes by here afterwards."""
        if self._getpid() == self._pid:
            while self._gone and self._lock.acquire(blocking=False):
                try:
                    self._read_notes()
                finally:
                    self._lock.release()

    def _read_notes(self) -> None:
        """Frees what is gone, and gives memory back when more lies free than is likely to be asked for again."""
        if not self._gone:
            return
        while self._gone:
            arena, offset, nbytes = self._gone.popleft()
            arena.idle.give(offset, nbytes)
            if self._closed:
                arena.give_back(0)
        keep = _KEPT_BYTES + self._largest
        if sum(arena.idle.nbytes for arena in self.arenas) >= keep + _GROWTH_BYTES:
            for arena in self.arenas:
                arena.give_back(keep)
                keep = max(0, keep - arena.idle.nbytes)


def _count(shape: Any) -> int:
    """Elements of a shape as NumPy takes it: a number, or several."""
    try:
        return operator.index(shape)
    except TypeError:
        return math.prod(map(operator.index, shape))
