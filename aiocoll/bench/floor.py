"""What the machine can do without us: a copy in memory, a flag through shared memory, a loopback connection.

The rule: what is measured here uses nothing of the library but the group's own small calls to set it up; every wait
ends after some seconds, and what cannot be had (another host, another container) is None and no error.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import socket
from collections.abc import Callable
from time import monotonic, perf_counter
from typing import Final, TypeVar

import numpy as np

from .callers import Caller
from .records import Floor

T = TypeVar("T")

_BYTES_MAX: Final = 64 << 20  # more is taken to cost as much per byte
_BLOCK_SECONDS: Final = 0.002
_BLOCKS: Final = 7
_PATIENCE_SECONDS: Final = 5.0
_BUDGET_SECONDS: Final = 0.05
_MANY: Final = 500
_ROUNDS: Final = 50  # of a flag that are timed at once: one takes hardly longer than a look at the clock
_OVER: Final = (1 << 64) - 1
_LAST: Final = 2
_LOOKS: Final = 16  # before another process is let run: it may be the one that is waited for
_PAGE: Final = 4096
_REPLY: Final = 256  # bytes between the two flags, so that they lie on different cache lines


class Machine:
    """The floors of a group, measured when first asked for; all ranks ask for the same in the same order."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        group = caller.group
        self._rank, self._one_host = int(group.rank), group.local_size == group.size > 1
        self._flags: Flags | None = None
        self._wire: Wire | None = None
        self._known: dict[int, Floor] = {}
        self.flag: float | None = None
        """Seconds of one flag from one process to another through shared memory."""

    def __repr__(self) -> str:
        return f"Machine(flag={self.flag}, {len(self._known)} sizes)"

    async def prepare(self) -> None:
        """Opens what two processes of one host need; does nothing where the ranks are on several."""
        if not self._one_host:
            return
        self._flags = await _shared_page(self._caller)
        self._wire = await _connection(self._caller)
        self.flag = await self._between_two(self._flags, lambda flags: flags.seconds(self._rank))

    def close(self) -> None:
        """Lets go of the page and the connection."""
        if self._flags is not None:
            self._flags.close()
        if self._wire is not None:
            self._wire.close()

    async def floor(self, nbytes: float) -> Floor:
        """What it takes to move so many bytes; the same on rank 0 only."""
        known = self._known.get(int(nbytes))
        if known is None:
            known = self._known[int(nbytes)] = await self._measured(int(nbytes))
        return known

    async def _measured(self, nbytes: int) -> Floor:
        least = min(nbytes, _BYTES_MAX)
        scale = nbytes / least if least else 1.0
        await self._caller.together()
        everybody = await self._caller.collected(np.array([_copy_seconds(least)]))
        memcpy = scale * float(max(each[0] for each in everybody)) if everybody is not None else 0.0
        wire = await self._between_two(self._wire, lambda wire: wire.seconds(self._rank, max(least, 1)))
        if wire is None and self._wire is not None:  # it has gone silent once: it is not waited for again
            self._wire.close()
            self._wire = None
        return Floor(
            memcpy=memcpy,
            memory=None if self.flag is None else self.flag + memcpy,
            socket=None if wire is None else wire * scale,
        )

    async def _between_two(self, means: T | None, measure: Callable[[T], float]) -> float | None:
        """What ranks 0 and 1 measure while the others sleep; None on all where the two lack the means."""
        await self._caller.together()
        seconds = None
        if self._rank < 2 and means is not None:
            with contextlib.suppress(OSError):  # no floor here: the table shows none
                seconds = measure(means)
        await self._caller.together()
        return await self._caller.told(seconds)


def _copy_seconds(nbytes: int) -> float:
    """Seconds to copy so many bytes within one process, at best."""
    if not nbytes:
        return 0.0
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    copy = np.copyto

    def several(times: int) -> float:
        begun = perf_counter()
        for _ in range(times):
            copy(target, source)
        return perf_counter() - begun

    return _best(several)


def _best(several: Callable[[int], float]) -> float:
    """Seconds of one of what ``several(times)`` does so many times: the best of some blocks."""
    times = 1
    while (seconds := several(times)) < _BLOCK_SECONDS and times < 1 << 20:
        times *= 2
    return min(seconds, *(several(times) for _ in range(_BLOCKS))) / times


def _best_of(once: Callable[[], float]) -> float:
    """The least of what ``once`` gives: a busy machine disturbs most rounds, and nothing makes one shorter."""
    until, found = perf_counter() + _BUDGET_SECONDS, [once() for _ in range(5)]
    while perf_counter() < until and len(found) < _MANY:
        found.append(once())
    return min(found)


class Flags:
    """A page that two processes share: each has a number that it alone writes."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._page = mmap.mmap(fd, _PAGE)
        self._cells = memoryview(self._page).cast("Q")

    def __repr__(self) -> str:
        return f"Flags({list(self._cells[:1])})"

    def close(self) -> None:
        self._cells.release()
        self._page.close()
        os.close(self._fd)

    def seconds(self, rank: int) -> float:
        """Half a round trip; on rank 0, the other one answers."""
        cells, patience = self._cells, Patience()
        mine, theirs = (0, _REPLY // 8) if rank == 0 else (_REPLY // 8, 0)

        def wait_for(number: int) -> int:
            while (seen := cells[theirs]) != number and seen != _OVER:
                for _ in range(_LOOKS):
                    if cells[theirs] == number:
                        break
                else:
                    patience.give_way()
            return seen

        number = 0

        def several() -> float:
            nonlocal number
            begun = perf_counter()
            for _ in range(_ROUNDS):
                number += 1
                cells[mine] = number
                wait_for(number)
            return perf_counter() - begun

        if rank == 0:
            seconds = _best_of(several)
            cells[mine] = _OVER
            return seconds / _ROUNDS / 2
        while wait_for(number + 1) != _OVER:
            number += 1
            cells[mine] = number
        return 0.0


class Wire:
    """A loopback connection between two processes that look for data instead of sleeping."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection

    def __repr__(self) -> str:
        return f"Wire({self._socket!r})"

    def close(self) -> None:
        self._socket.close()

    def seconds(self, rank: int, nbytes: int) -> float:
        """Half a round trip of so many bytes; on rank 0, the other one answers."""
        array = np.ones(nbytes, np.uint8)
        data = array.data

        def there_and_back() -> float:
            begun = perf_counter()
            self._send(data)
            self._receive(data)
            return perf_counter() - begun

        if rank == 0:
            seconds = _best_of(there_and_back)
            array[0] = _LAST
            there_and_back()
            return seconds / 2
        while array[0] != _LAST:
            self._receive(data)
            self._send(data)
        return 0.0

    def _send(self, data: memoryview) -> None:
        sent, patience, send = 0, Patience(), self._socket.send
        while sent < len(data):
            try:
                sent += send(data[sent:])
            except BlockingIOError:
                patience.give_way()

    def _receive(self, data: memoryview) -> None:
        have, looks, patience, receive = 0, 0, Patience(), self._socket.recv_into
        while have < len(data):
            try:
                got = receive(data[have:])
            except BlockingIOError:
                looks += 1
                if looks % _LOOKS == 0:
                    patience.give_way()
                continue
            if not got:
                raise ConnectionError("the other process is gone")
            have += got


class Patience:
    """How long to look for the other process, which may have died or be waiting for a core."""

    __slots__ = ("_until",)

    def __init__(self) -> None:
        self._until = monotonic() + _PATIENCE_SECONDS

    def __repr__(self) -> str:
        return f"Patience({self._until - monotonic():.1f} s left)"

    def give_way(self) -> None:
        """Lets another process run; TimeoutError when the time is over."""
        os.sched_yield()
        if monotonic() > self._until:
            raise TimeoutError(f"the other process was silent for {_PATIENCE_SECONDS:g} s")


async def _shared_page(caller: Caller) -> Flags | None:
    """A page of rank 0 that rank 1 opens too; None on both where it cannot."""
    rank, fd, where = int(caller.group.rank), -1, ""
    if rank == 0:
        with contextlib.suppress(OSError, AttributeError):  # no such means here
            fd = os.memfd_create("aiocoll bench", os.MFD_CLOEXEC)
            os.posix_fallocate(fd, 0, _PAGE)
            where = f"/proc/{os.getpid()}/fd/{fd}"
    path, inode = await caller.told((where, os.fstat(fd).st_ino if where else 0))
    if rank == 1 and path:
        with contextlib.suppress(OSError):  # rank 0 is in another container
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if os.fstat(fd).st_ino != inode:  # the same numbers of a process in another container
                os.close(fd)
                fd = -1
    return Flags(fd) if await _both(caller, fd >= 0) and fd >= 0 else None


async def _connection(caller: Caller) -> Wire | None:
    """A connection between ranks 0 and 1, proved by a word that only the group has been told."""
    rank, server, connection = int(caller.group.rank), None, None
    word, port = b"", 0
    if rank == 0:
        with contextlib.suppress(OSError):  # no such means here
            server = socket.create_server(("127.0.0.1", 0), backlog=1)
            word, port = secrets.token_bytes(16), server.getsockname()[1]
    word, port = await caller.told((word, port))
    try:
        with contextlib.suppress(OSError):  # as above; rank 1 may be in another container
            if rank == 1 and port:
                connection = socket.create_connection(("127.0.0.1", port), _PATIENCE_SECONDS)
                connection.sendall(word)
            elif server is not None:
                server.settimeout(_PATIENCE_SECONDS)
                connection = server.accept()[0]
                connection.settimeout(_PATIENCE_SECONDS)
                if not secrets.compare_digest(connection.recv(len(word), socket.MSG_WAITALL), word):
                    connection.close()
                    connection = None
    finally:
        if server is not None:
            server.close()
    if await _both(caller, connection is not None) and connection is not None:
        return Wire(connection)
    if connection is not None:
        connection.close()
    return None


async def _both(caller: Caller, fine: bool) -> bool:
    """Whether ranks 0 and 1 have what they need; known on all ranks."""
    said = await caller.collected(np.array([fine]))
    return await caller.told(said is not None and bool(said[0][0]) and bool(said[1][0]))
