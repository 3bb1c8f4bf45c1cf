"""Arrays in shared memory: they never overlap, outlive everything but their last view, and leave nothing behind."""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiocoll.transport.shm import arena as arenas
from aiocoll.transport.shm.heap import Block, Heap
from aiocoll.transport.shm.peer_heap import PeerHeap

MIB = 1 << 20


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("aiocoll-arrays")


@pytest.fixture
def heap() -> Iterator[Heap]:
    before = mappings()
    heap = Heap(256 * MIB)
    yield heap
    heap.close()
    gc.collect()
    assert mappings() == before, "arrays are gone, so their memory should be"


def in_files(heap: Heap) -> int:
    """Memory that the kernel counts."""
    return sum(os.fstat(arena.fd).st_blocks * 512 for arena in heap.arenas)


def is_shared(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, Block)


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
    ml_dtypes = pytest.importorskip("ml_dtypes")
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


def block_of(array: Any) -> Block:
    while not isinstance(array, Block):
        array = array.base
    return array


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


# ---------------------------------------------------------------------------------------------- threads and collectors


def test_threads_that_make_and_drop_arrays(heap: Heap) -> None:
    wrong: list[str] = []

    def work(mark: int) -> None:
        chance, kept = random.Random(mark), []
        for turn in range(300):
            array = heap.empty(chance.randint(1, 50_000), np.int64)
            array.fill(mark * 1000 + turn)
            cycle: list[Any] = [array]
            cycle.append(cycle)  # somebody else's collector may find it
            kept.append((array, mark * 1000 + turn))
            if len(kept) > 20:
                old, value = kept.pop(chance.randrange(20))
                if not (old == value).all():
                    wrong.append(f"thread {mark} lost array {value}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    gc.collect()
    assert heap.used == 0


def test_the_collector_runs_while_the_heap_is_at_work() -> None:
    """What frees an array in the middle of making one waits for nothing."""
    asked: list[int] = []

    def available() -> int:
        asked.append(gc.collect())
        return 1 << 30

    heap = Heap(available=available)
    cycle: list[Any] = [heap.empty(1000)]
    cycle.append(cycle)
    gone = weakref.ref(cycle[0])
    del cycle
    array = heap.empty(2 * MIB)
    assert asked[1:] and gone() is None
    assert heap.used == array.nbytes
    del array
    heap.close()


# ---------------------------------------------------------------------------------------------- when memory is short


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "aiocoll.transport"]


def test_without_memory_arrays_are_ordinary_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    heap = Heap(available=lambda: 10 * MIB)
    small = heap.empty(4 * MIB, np.uint8)
    arrays = [heap.zeros((6 * MIB,), np.uint8), heap.empty((7 * MIB,), np.uint8)]
    assert is_shared(small) and not any(map(is_shared, arrays))
    assert [array.nbytes for array in arrays] == [6 * MIB, 7 * MIB] and not arrays[0].any()
    (line,) = warnings_of(caplog)
    assert "6291456 bytes more are needed, 5242880 may be taken" in line
    assert heap.find(arrays[0]) is None
    heap.close()


def test_the_bound_holds_and_pieces_make_room(caplog: pytest.LogCaptureFixture) -> None:
    heap = Heap(16 * MIB)
    arrays: list[Any] = [heap.empty(4 * MIB, np.uint8) for _ in range(4)]
    assert all(map(is_shared, arrays)) and not is_shared(heap.empty(1, np.uint8))
    arrays[0] = arrays[2] = None
    large = heap.empty(8 * MIB, np.uint8)  # two pieces that do not touch
    large.fill(7)
    assert is_shared(large) and heap.committed == in_files(heap) == 16 * MIB
    assert len(warnings_of(caplog)) == 1
    del arrays, large
    heap.close()


def test_a_heap_that_is_switched_off_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    heap = Heap(0)
    assert not is_shared(heap.zeros(10)) and heap.arenas == ()
    assert warnings_of(caplog) == []


def test_no_space_in_the_middle_leaves_nothing_half_done(monkeypatch: pytest.MonkeyPatch, heap: Heap) -> None:
    kept = heap.zeros(MIB, np.uint8)
    committed, real, calls = heap.committed, os.posix_fallocate, []

    def fallocate(fd: int, offset: int, nbytes: int) -> None:
        calls.append(offset)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd, offset, nbytes)

    monkeypatch.setattr(arenas.os, "posix_fallocate", fallocate)
    array = heap.empty(32 * MIB, np.uint8)
    assert not is_shared(array) and len(calls) == 3
    assert heap.committed == in_files(heap) == committed
    assert is_shared(heap.empty(20 * MIB, np.uint8)), "later there is space again"
    assert not kept.any()


def test_kernels_that_cannot_map_beforehand(monkeypatch: pytest.MonkeyPatch, heap: Heap) -> None:
    monkeypatch.setattr(arenas, "_POPULATE_WRITE", 12345)
    array = heap.zeros(5 * MIB, np.uint8)
    assert is_shared(array) and not array.any()


def test_without_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    heap = Heap(MIB)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        array = heap.empty(100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not is_shared(array)
    assert warnings_of(caplog)[0].endswith("Too many open files")
    assert is_shared(heap.empty(100))
    heap.close()


def test_few_addresses_are_enough_for_small_arenas() -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    heap = Heap(available=lambda: 1 << 40)
    resource.setrlimit(resource.RLIMIT_AS, (now + 400 * MIB, limits[1]))
    try:
        arrays = [heap.empty(40 * MIB, np.uint8) for _ in range(4)]
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    for mark, array in enumerate(arrays):
        array.fill(mark)
    assert all(map(is_shared, arrays)) and len(heap.arenas) > 1
    assert [heap.find(array)[0].id for array in arrays] == sorted(heap.find(array)[0].id for array in arrays)  # type: ignore[index]
    assert [int(array.sum(dtype=np.int64)) // (40 * MIB) for array in arrays] == [0, 1, 2, 3]
    del arrays, array
    heap.close()


# ---------------------------------------------------------------------------------------------- processes


def test_a_forked_child_leaves_the_memory_alone(heap: Heap) -> None:
    array, dropped = heap.empty(100_000), heap.empty(16 * MIB, np.uint8)
    array[...] = np.arange(100_000)
    dropped.fill(5)
    committed = heap.committed
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            own = heap.empty(10)
            fine = not is_shared(own) and array[99_999] == 99_999
            view = dropped[5:]
            del dropped, view
            heap.close()
            code = 0 if fine and not is_shared(heap.zeros(5)) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert heap.committed == committed == in_files(heap)
    assert (dropped == 5).all() and array[5] == 5 and is_shared(heap.empty(10))


def test_a_program_ends_quietly_with_arrays_in_its_hands() -> None:
    program = (
        "from aiocoll.transport.shm.heap import Heap\n"
        "heap = Heap()\n"
        "array = heap.zeros(1000)\n"
        "loop = [heap.empty(9)]; loop.append(loop)\n"
        "closed = Heap(); late = closed.zeros(5)[2:]; closed.close()\n"
        "import sys; sys.late = heap.empty(77)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_how_it_shows_itself(heap: Heap) -> None:
    array = heap.empty(100, np.uint8)
    assert repr(heap) == f"<Heap: 128 of {4 * MIB} bytes used in 1 arenas>"
    assert repr(block_of(array)) == "<Block of 128 bytes at 0 of arena 0>"
    assert repr(heap.arenas[0]).startswith(f"<Arena 0: {4 * MIB} of ")
