"""Arrays in shared memory under strain: threads, the collector, memory that is short, forks and a program's end."""

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
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiocoll.transport.shm import arena as arenas
from aiocoll.transport.shm.heap import Heap

from .heaps import MIB, block_of, in_files, is_shared

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
    assert [heap.find(array)[0].id for array in arrays] == sorted(heap.find(array)[0].id for array in arrays)
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
