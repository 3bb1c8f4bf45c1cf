"""Arrays of gigabytes in little memory: one window of it, mapped again and again, and how much a program adds to that.

The rule: a window's length divides no power of two, so that what goes to a place 2**31 or 2**32 bytes off is seen; the
last window is mapped apart, so that an end that never came is seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

WINDOW = 2_345 * mmap.PAGESIZE
_FIXED, _NORESERVE, _POPULATE, _FAILED = 0x10, 0x4000, 0x8000, ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def _map(place: int | None, nbytes: int, flags: int, fd: int, offset: int = 0) -> int:
    found = _libc.mmap(place, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset)
    if found in (None, _FAILED):
        raise OSError(ctypes.get_errno(), f"mmap of {nbytes} bytes")
    return int(found)


def pattern(nbytes: int, seed: int) -> NDArray[np.uint8]:
    """Random bytes, the same for the same seed."""
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), np.uint8)


@contextlib.contextmanager
def windows(nbytes: int, seed: int | None) -> Iterator[NDArray[np.uint8]]:
    """`nbytes` bytes in the memory of two windows: a pattern that comes again and again, or zeros."""
    whole = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    with contextlib.ExitStack() as undone:
        fd = os.memfd_create("windows")
        undone.callback(os.close, fd)
        os.ftruncate(fd, 2 * WINDOW)
        base = _map(None, whole, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, -1)
        undone.callback(_libc.munmap, base, whole)
        for start in range(0, whole, WINDOW):
            length = min(WINDOW, whole - start)
            offset = WINDOW if start + length == whole else 0
            _map(base + start, length, mmap.MAP_SHARED | _FIXED | _POPULATE, fd, offset)
        array = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(base), np.uint8)
        if seed is not None:
            array[:WINDOW] = pattern(WINDOW, seed)
            end = nbytes - last(nbytes)
            array[end:] = pattern(WINDOW, seed)[: last(nbytes)]
        yield array


def last(nbytes: int) -> int:
    """How much of it lies in the last window."""
    whole = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return nbytes - (whole - 1) // WINDOW * WINDOW


def holds(array: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> bool:
    """Whether the first window and the last are those of `wanted`, a window."""
    end = last(array.nbytes)
    return bool(np.array_equal(array[:WINDOW], wanted) and np.array_equal(array[-end:], wanted[:end]))


class Added:
    """The most private memory that a block has added, looked at all the time by a thread: windows do not count."""

    def __enter__(self) -> Added:
        self.most = 0
        self._before, self._over = _private_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, _private_bytes() - self._before)

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def _private_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def require_memory(gib: float) -> None:
    """Skips a test for which there is no room now."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    free = int(found[1]) / (1 << 20) if found else 0.0
    if free < gib:
        pytest.skip(f"needs {gib} GiB of memory that is free, and {free:.1f} are")
