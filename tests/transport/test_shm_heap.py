"""Arrays in shared memory: ordinary to their user, never overlapping, alive until the last view is gone."""

from __future__ import annotations

import gc
import os
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aiocoll.transport.shm.heap import Heap
from aiocoll.transport.shm.peer_heap import PeerHeap

from .heaps import MIB, block_of, in_files, is_shared, mappings

# ---------------------------------------------------------------------------------------------- like NumPy's


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (7, np.float64), ((3, 5), np.float32), ([2, 3, 4], "i2"), (np.int64(9), bool), ((1,), np.complex128),
        ((4,), "M8[s]"), ((5,), [("a", "i4"), ("b", "f8")]), ((2,), np.dtype((np.int32, (3,)))), ((6,), "S5"),
        ((), "f4"),
    ],
)  # fmt: skip
def test_arrays_are_ordinary_ones_to_their_user(heap: Heap, shape: Any, dtype: Any) -> None:
    array, like = heap.zeros(shape, dtype), np.zeros(shape, dtype)
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype, array.strides) == (like.shape, like.dtype, like.strides)
    assert array.tobytes() == like.tobytes()
    assert array.flags.c_contiguous and array.flags.writeable and array.flags.aligned
    assert is_shared(array) and heap.find(array) == (heap.arenas[0], 0)
    del array
    assert heap.used == 0


def test_types_that_are_no_buffers(heap: Heap) -> None:
    array = heap.empty(100, ml_dtypes.bfloat16)
    array[...] = np.arange(100)
    assert array.dtype == ml_dtypes.bfloat16 and array[99] == 99
    assert heap.find(array) == (heap.arenas[0], 0)
    assert heap.find(array[10:]) == (heap.arenas[0], 20)


@pytest.mark.parametrize(("shape", "dtype"), [((0,), "f8"), ((3, 0, 2), "f4"), (3, object), ((2,), [("a", object)])])
def test_without_bytes_and_with_objects_memory_is_ordinary(heap: Heap, shape: Any, dtype: Any) -> None:
    for array in (heap.empty(shape, dtype), heap.zeros(shape, dtype)):
        assert array.shape == np.empty(shape, dtype).shape and not is_shared(array)
        assert heap.find(array) is None
    assert heap.arenas == ()


@pytest.mark.parametrize("shape", [-1, (2, -3), (-2, -3), 2.5, (2, 2.5), "three", None])
def test_shapes_that_numpy_refuses(heap: Heap, shape: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        heap.empty(shape)
    assert heap.used == 0


def test_used_memory_comes_back_as_zeros(heap: Heap) -> None:
    dirty = heap.empty(1000)
    dirty.fill(3)
    place = dirty.ctypes.data
    del dirty
    clean = heap.zeros(1000)
    assert clean.ctypes.data == place and not clean.any()


# ---------------------------------------------------------------------------------------------- places


@pytest.mark.parametrize("seed", range(8))
def test_random_use_against_a_model(heap: Heap, seed: int) -> None:
    """Every array keeps its content, seen by the owner and by a peer, whatever comes and goes around it."""
    chance, serial = random.Random(seed), 0
    live: list[tuple[np.ndarray[Any, Any], int]] = []
    peer = PeerHeap()
    for _ in range(400):
        if live and chance.random() < 0.48:
            array, mark = live.pop(chance.randrange(len(live)))
            assert (array == mark).all()
            if chance.random() < 0.2:  # a view holds on
                live.append((array[len(array) // 2 :], mark))
        else:
            serial += 1
            size = int(2 ** chance.uniform(0, 21 if chance.random() < 0.2 else 14))
            array = heap.empty(size, np.uint32)
            array.fill(serial)
            live.append((array, serial))
            found = heap.find(array)
            assert found is not None and found[1] % 128 == 0
            arena, offset = found
            if 0 not in arena.known_to:
                peer.add(arena.id, os.dup(arena.fd), arena.nbytes)
                arena.known_to.add(0)
            assert (peer.view(arena.id, offset, array.nbytes).view(np.uint32) == serial).all()
        del array
        assert in_files(heap) == heap.committed
    places = sorted((array.ctypes.data, array.nbytes) for array, _ in live)
    assert all(begin + size <= after for (begin, size), (after, _) in zip(places, places[1:], strict=False))
    assert all((array == mark).all() for array, mark in live)
    roots = {id(root): root for array, _ in live for root in [block_of(array)]}
    assert heap.used == sum(-(-block.__array_interface__["shape"][0] // 128) * 128 for block in roots.values())
    del roots, places
    live.clear()
    assert heap.used == 0
    assert len(list(heap.arenas[0].idle)) <= 2, "free neighbours are one piece"


def test_where_views_lie(heap: Heap) -> None:
    first, array = heap.empty(1000, np.uint8), heap.empty((10, 20), np.int32)
    arena = heap.arenas[0]
    at = array.ctypes.data - first.ctypes.data
    view = memoryview(array).cast("B")
    assert heap.find(array) == heap.find(view) == (arena, at)
    assert heap.find(array[3:]) == (arena, at + 240)
    assert heap.find(view[100:104]) == heap.find(view.toreadonly()[100:]) == (arena, at + 100)
    assert heap.find(array.reshape(-1)[7:9].view(np.uint8)) == (arena, at + 28)
    array.setflags(write=False)
    assert heap.find(array) == (arena, at)
    assert heap.find(view[5:5]) is None
    assert heap.find(array[:, ::2]) is None, "not contiguous"
    for other in (np.arange(3), bytearray(b"abc"), b"abc", memoryview(b"")):
        assert heap.find(other) is None


def test_without_arrays_nothing_is_found_and_nothing_opened(heap: Heap) -> None:
    assert heap.find(np.arange(3)) is None and heap.find(b"") is None
    assert heap.arenas == () and heap.committed == 0


# ---------------------------------------------------------------------------------------------- the last reference


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array[5:10],
        lambda array: array.reshape(2, -1).T,
        lambda array: array[3:][2:].view(np.uint8),
        lambda array: memoryview(array)[5:],
        lambda array: memoryview(array).cast("B"),
        lambda array: array.base,
        lambda array: array.base.base,
        lambda array: np.asarray(block_of(array)),
        lambda array: np.frombuffer(array, np.uint8),
        lambda array: np.lib.stride_tricks.as_strided(array, (2, 2), (8, 8)),
        lambda array: array.view(type("Mine", (np.ndarray,), {}))[1:],
        lambda array: np.from_dlpack(array),
        lambda array: iter(array),
        lambda array: array.ctypes.data_as(__import__("ctypes").c_void_p),
    ],
)
def test_whatever_looks_at_an_array_keeps_its_memory(heap: Heap, hold: Any) -> None:
    array = heap.empty(100)
    array[...] = np.arange(100)
    held = hold(array)
    del array
    gc.collect()
    assert heap.used == 896
    other = heap.empty(100)
    other.fill(-1)
    if isinstance(held, np.ndarray):
        values = np.frombuffer(np.ascontiguousarray(held).tobytes(), np.float64)
        assert (values >= 0).all()
    del held, other
    gc.collect()
    assert heap.used == 0


def test_arrays_outlive_the_heap() -> None:
    before = mappings()
    heap = Heap(64 * MIB)
    array, other = heap.empty(300_000), heap.zeros(4 * MIB)
    array[...] = np.arange(300_000)
    arena, _ = heap.find(array) or pytest.fail("not found")
    file = os.dup(arena.fd)
    heap.close()
    heap.close()
    assert arena.fd == -1 and heap.find(array) is None
    assert os.fstat(file).st_blocks * 512 == arena.committed < 40 * MIB, "what nobody uses went at once"
    del other
    assert os.fstat(file).st_blocks * 512 == arena.committed < 4 * MIB
    late = heap.empty(10)
    assert not is_shared(late)
    view = array[299_990:]
    del array, heap, arena
    os.close(file)
    assert view.tolist() == list(range(299_990, 300_000))
    assert mappings() == before + 1
    del view
    assert mappings() == before


def test_memory_goes_round_and_the_rest_goes_back(heap: Heap) -> None:
    array = heap.empty(32 * MIB, np.uint8)
    place = array.ctypes.data
    for _ in range(5):
        del array
        array = heap.empty(32 * MIB, np.uint8)
        assert array.ctypes.data == place and heap.committed == 32 * MIB
    del array
    larger = heap.empty(33 * MIB, np.uint8)
    assert larger.ctypes.data == place and heap.committed == 36 * MIB, "it grows where it lies"
    more = [heap.empty(33 * MIB, np.uint8) for _ in range(5)]
    assert heap.committed == in_files(heap) > 190 * MIB
    del more, larger
    assert heap.used == 0
    assert heap.committed == in_files(heap) <= 64 * MIB + 33 * MIB + 4 * MIB
