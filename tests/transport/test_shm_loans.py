"""References to arrays: whoever gets one finds what it names, and nothing else."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from aiocoll.errors import WireError
from aiocoll.transport.shm.heap import Heap
from aiocoll.transport.shm.loans import Loans

MIB = 1 << 20
LENDER, READER = 0, 1


@dataclass
class Pair:
    """Two ranks' ends, in one process."""

    heap: Heap
    lender: Loans
    reader: Loans
    out: socket.socket
    into: socket.socket

    def lend(self, payload: object) -> int | None:
        return self.lender.place_of(payload, READER, self.out)

    def read(self, place: int, nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return self.reader.view(place, nbytes, LENDER, self.into)


@pytest.fixture
def pair() -> Iterator[Pair]:
    out, into = socket.socketpair()
    out.setblocking(False)
    into.setblocking(False)
    heap, other = Heap(64 * MIB), Heap(MIB)
    pair = Pair(heap, Loans(heap), Loans(other), out, into)
    yield pair
    for each in (pair.lender, pair.reader, heap, other, out, into):
        each.close()


def test_arrays_are_read_where_they_lie(pair: Pair) -> None:
    arrays = [pair.heap.empty(100_000 + 7 * i, np.int32) for i in range(5)]
    for i, array in enumerate(arrays):
        array[...] = np.arange(len(array)) * (i + 1)
        place = pair.lend(memoryview(array).cast("B"))
        assert place is not None
        assert (pair.read(place, array.nbytes).view(np.int32) == array).all()
        place = pair.lend(array[1000:2000])
        assert place is not None
        view = pair.read(place, 4000).view(np.int32)
        array[1000] = -i
        assert view[0] == -i and view[999] == 1999 * (i + 1)
    assert not pair.reader.view(pair.lend(arrays[0]) or 0, 5, LENDER, pair.into).flags.writeable
    with pytest.raises(BlockingIOError):  # the arena came once
        pair.reader.hear(LENDER, pair.into)


def test_arenas_may_be_heard_of_before(pair: Pair) -> None:
    array = pair.heap.zeros(100)
    place = pair.lend(array)
    assert pair.reader.hear(LENDER, pair.into) is True
    assert place is not None and not pair.read(place, 800).any()


def test_what_lies_elsewhere_is_not_lent(pair: Pair) -> None:
    assert pair.lend(np.arange(5)) is None
    pair.heap.empty(5)
    assert pair.lend(np.arange(5)) is None and pair.lend(b"bytes") is None
    with pytest.raises(BlockingIOError):
        pair.into.recv(1)


def test_a_peer_that_reconnects_is_told_again(pair: Pair) -> None:
    array = pair.heap.zeros(100)
    first = pair.lend(array)
    assert first is not None
    pair.read(first, 800)
    pair.lender.forget(READER)
    pair.reader.forget(LENDER)
    second = pair.lend(array)
    assert second == first
    assert not pair.read(first, 800).any()


def test_a_full_or_broken_connection_only_means_copies(pair: Pair) -> None:
    array = pair.heap.zeros(100)
    with pytest.raises(BlockingIOError):
        while True:
            pair.out.send(b"x" * 65536)
    assert pair.lend(array) is None
    pair.into.close()
    assert pair.lend(array) is None


@pytest.mark.parametrize("place", [0, 5 << 44, (1 << 64) - 1])
def test_a_reference_into_an_arena_that_never_came(pair: Pair, place: int) -> None:
    with pytest.raises(WireError, match="which never came"):
        pair.read(place, 1)
    pair.out.close()
    with pytest.raises(WireError, match="which never came"):
        pair.read(place, 1)


def test_a_reference_beyond_the_arena(pair: Pair) -> None:
    place = pair.lend(pair.heap.zeros(100))
    assert place is not None
    with pytest.raises(WireError, match="no such place"):
        pair.read(place + 64 * MIB, 1)


@pytest.mark.parametrize(
    ("data", "files", "said"),
    [(b"x", 0, "1 bytes and 0"), (b"x" * 16, 0, "16 bytes"), (b"x" * 7, 1, "7 bytes and 1"), (b"x" * 16, 1, "turn")],
)
def test_what_else_comes_on_the_connection(pair: Pair, data: bytes, files: int, said: str) -> None:
    pair.heap.empty(1)
    socket.send_fds(pair.out, [data], [pair.heap.arenas[0].fd] * files)
    with pytest.raises(WireError, match=said):
        pair.reader.hear(LENDER, pair.into)


def test_more_descriptors_than_promised_are_closed(pair: Pair) -> None:
    array = pair.heap.zeros(100)
    fd = pair.heap.arenas[0].fd
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(pair.out, [(0).to_bytes(8, "little") + pair.heap.arenas[0].nbytes.to_bytes(8, "little")], [fd] * 3)
    pair.reader.hear(LENDER, pair.into)
    pair.reader.close()
    assert len(os.listdir("/proc/self/fd")) == before
    del array


def test_arrays_of_a_rank_that_is_killed_stay_readable(pair: Pair) -> None:
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):  # whatever it is, the parent sees that nothing comes
            heap = Heap(64 * MIB)
            array = heap.empty(MIB, np.int32)
            array[...] = np.arange(MIB) * 3
            place = Loans(heap).place_of(array, READER, pair.out)
            os.write(told, str(place).encode())
            signal.pause()
        os._exit(1)
    os.close(told)
    try:
        place = int(os.read(ready, 20))
        view = pair.read(place, 4 * MIB)
        first = view[: 2 * MIB].copy()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
    later = view[2 * MIB :].copy()
    assert (np.concatenate([first, later]).view(np.int32) == np.arange(MIB) * 3).all()
    assert not pair.read(place + 8 * MIB, MIB).any(), "where no memory was, zeros are"


def test_the_end_of_the_connection(pair: Pair) -> None:
    pair.out.close()
    assert pair.reader.hear(LENDER, pair.into) is False


def test_without_a_descriptor_left_the_reason_is_told(pair: Pair) -> None:
    assert pair.lend(pair.heap.zeros(100)) is not None
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="too many open"):
            pair.reader.hear(LENDER, pair.into)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
