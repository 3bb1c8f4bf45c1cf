"""What the tests of arrays in shared memory ask of a heap."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from aiocoll.transport.shm.heap import Block, Heap

MIB = 1 << 20


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("aiocoll-arrays")


def in_files(heap: Heap) -> int:
    """Memory that the kernel counts."""
    return sum(os.fstat(arena.fd).st_blocks * 512 for arena in heap.arenas)


def is_shared(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, Block)


def block_of(array: Any) -> Block:
    while not isinstance(array, Block):
        array = array.base
    return array
