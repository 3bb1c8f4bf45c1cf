"""The pool reuses memory, never more than its limit, and never hands one buffer out twice."""

from __future__ import annotations

import numpy as np
import pytest

from aiocoll.buffers import Scratch


@pytest.mark.parametrize("nbytes", [0, 1, 100, 4096, 4097, 1 << 20, (1 << 20) + 1])
def test_buffers_have_the_size_asked_for_and_serve_every_dtype(nbytes):
    buffer = Scratch().get(nbytes)
    assert buffer.dtype == np.uint8 and buffer.shape == (nbytes,)
    assert buffer.flags.c_contiguous and buffer.flags.writeable
    assert buffer[: nbytes // 32 * 32].view("G").flags.aligned


def test_memory_comes_back():
    pool = Scratch()
    first = pool.get(5000)
    address = first.ctypes.data
    pool.give(first)
    assert pool.held_bytes == 8192
    again = pool.get(8000)
    assert again.ctypes.data == address and again.shape == (8000,) and pool.held_bytes == 0
    assert not np.shares_memory(again, pool.get(8000))


def test_the_limit_holds():
    pool = Scratch(limit_bytes=20_000)
    buffers = [pool.get(8192) for _ in range(5)]
    for buffer in buffers:
        pool.give(buffer)
    assert pool.held_bytes == 16_384
    pool.give(pool.get(1 << 20))
    assert pool.held_bytes == 16_384
    assert repr(pool) == "<Scratch 16384 of at most 20000 bytes held>"


def test_what_did_not_come_from_the_pool_or_came_back_already_is_refused():
    pool = Scratch()
    buffer = pool.get(100)
    pool.give(buffer)
    with pytest.raises(ValueError, match="given back before"):
        pool.give(buffer)
    for foreign in (np.zeros(4096), np.zeros(5000, np.uint8), np.frombuffer(bytes(4096), np.uint8)):
        with pytest.raises(ValueError, match="only a buffer that get"):
            pool.give(foreign)
