"""What a peer's heap may be, and what a reference into it may say."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aiocoll.errors import WireError
from aiocoll.transport.shm import peer_heap
from aiocoll.transport.shm.heap import Heap
from aiocoll.transport.shm.peer_heap import PeerHeap

MIB = 1 << 20
END = 64 * MIB


@pytest.fixture
def heap() -> Iterator[Heap]:
    heap = Heap(64 * MIB)
    yield heap
    heap.close()


def mapped(heap: Heap) -> PeerHeap:
    peer = PeerHeap()
    for arena in heap.arenas:
        peer.add(arena.id, os.dup(arena.fd), arena.nbytes)
    return peer


def memory_file(nbytes: int, seals: int) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def test_a_peer_reads_what_is_written_and_cannot_write(heap: Heap) -> None:
    array = heap.empty((10, 30), np.int16)
    array[...] = np.arange(300).reshape(10, 30)
    peer = mapped(heap)
    arena, offset = heap.find(array[4:7]) or pytest.fail("not found")
    view = peer.view(arena.id, offset, 180)
    assert view.view(np.int16).tolist() == list(range(120, 210))
    array[4, 0] = -1
    assert view.view(np.int16)[0] == -1
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ValueError):
        view.setflags(write=True)


def test_memory_that_comes_later_is_seen_too(heap: Heap) -> None:
    heap.empty(1)
    peer = mapped(heap)
    late = heap.empty(20 * MIB, np.uint8)
    late.fill(9)
    (arena, offset) = heap.find(late) or pytest.fail("not found")
    assert len(heap.arenas) == 1
    assert (peer.view(arena.id, offset, late.nbytes) == 9).all()


def test_views_outlive_both_heaps(heap: Heap) -> None:
    array = heap.empty(1000, np.uint8)
    array.fill(3)
    peer = mapped(heap)
    view = peer.view(0, 0, 1000)
    peer.close()
    peer.close()
    heap.close()
    assert (view == 3).all()
    del array, view
    assert "aiocoll-arrays" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    ("number", "offset", "nbytes"),
    [(1, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 0, -1), (0, 0, 1 << 62), (0, 1 << 62, 1), (0, END, 1), (0, 1, END)],
)
def test_references_to_nowhere(heap: Heap, number: int, offset: int, nbytes: int) -> None:
    heap.empty(10)
    assert heap.arenas[0].nbytes == 64 * MIB
    with pytest.raises(WireError, match="no such place"):
        mapped(heap).view(number, offset, nbytes)


def test_the_last_byte_and_none_at_the_end(heap: Heap) -> None:
    heap.empty(10)
    peer = mapped(heap)
    assert peer.view(0, 64 * MIB, 0).nbytes == 0
    assert peer.view(0, 64 * MIB - 1, 1).tolist() == [0]


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("ordinary file", "no memory file"),
        ("not sealed", "not sealed"),
        ("sealed against growing only", "not sealed"),
        ("shorter", "4096 bytes instead of 8192"),
        ("longer", "16384 bytes instead of 8192"),
        ("empty", "0 bytes instead of 0"),
        ("twice", "out of turn"),
        ("negative", "out of turn"),
        ("far out", "out of turn"),
    ],
)
def test_what_is_no_arena_is_refused_and_closed(tmp_path: Path, case: str, said: str) -> None:
    peer, number, nbytes = PeerHeap(), 0, 8192
    if case == "ordinary file":
        fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, nbytes)
    elif case == "not sealed":
        fd = memory_file(nbytes, 0)
    elif case == "sealed against growing only":
        fd = memory_file(nbytes, fcntl.F_SEAL_GROW)
    else:
        nbytes = 0 if case == "empty" else nbytes
        size = {"shorter": 4096, "longer": 16384}.get(case, nbytes)
        fd = memory_file(size, fcntl.F_SEAL_SHRINK)
        number = {"negative": -1, "far out": 1024}.get(case, 0)
        if case == "twice":
            peer.add(0, os.dup(fd), nbytes)
    with pytest.raises(WireError, match=said):
        peer.add(number, fd, nbytes)
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_descriptor_that_is_none() -> None:
    with pytest.raises((OSError, WireError)):
        PeerHeap().add(0, 10_000, 4096)


def test_what_cannot_be_mapped_is_read(monkeypatch: pytest.MonkeyPatch, heap: Heap) -> None:
    array = heap.empty(3 * MIB, np.uint8)
    array[...] = np.arange(3 * MIB) % 251

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(peer_heap.mmap, "mmap", refuse)
    peer = mapped(heap)
    assert 0 in peer and "1 not mapped" in repr(peer)
    view = peer.view(0, 1000, 2 * MIB)
    assert (view == array[1000 : 1000 + 2 * MIB]).all() and not view.flags.writeable
    with pytest.raises(WireError, match="no such place"):
        peer.view(0, END, 1)
    with pytest.raises(WireError, match="out of turn"):
        peer.add(0, os.dup(heap.arenas[0].fd), END)
    peer.close()
    peer.close()
    assert 0 not in peer


def test_who_knows_an_arena(heap: Heap) -> None:
    heap.empty(10)
    heap.arenas[0].known_to.update((1, 2))
    heap.forget(1)
    heap.forget(5)
    assert heap.arenas[0].known_to == {2}
    assert "67108864 bytes in 1 arenas" in repr(mapped(heap))
