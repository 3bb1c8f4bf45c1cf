"""How the ranks of one host come to share memory: each connects to each, proves itself and hands over descriptors.

Before the world meets, each has opened a Door, of which the others are told. Then rank i connects to the lower ranks
of its island; both sides pass the hello of all connections, exchange [memory, bell] and a nonce, and find that nonce in
the memory that came.

The rule: nothing that a stranger does changes anything, and whatever fails here leaves no descriptor behind and ends in
a reason, since all the ranks of an island share memory or none does.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import socket
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ...config import Settings
from ...errors import AuthenticationError, WireError
from ...wire.hello import RANK, ClientHello, Identity, Reason, Refused, ServerHello, Theirs
from ..forked import not_for_children
from ..tcp_connect import TcpWorld
from .door import Door, Line, readable
from .headroom import available_bytes
from .order import fence_of
from .segment import NONCE_BYTES, Geometry, Mapped, Segment

_log = logging.getLogger("aiocoll.transport")
_STRANGER_SECONDS: Final = 5.0


@dataclass(slots=True)
class Peer:
    """One rank with which this one shares memory."""

    connection: socket.socket
    """Ends when the peer's process does; later descriptors come over it."""
    mapped: Mapped
    bell_fd: int
    """An eventfd that wakes it."""

    def close(self) -> None:
        """Lets go of it, for those who do not make links of it."""
        self.connection.close()
        if self.bell_fd >= 0:
            os.close(self.bell_fd)
            self.bell_fd = -1


@dataclass(slots=True)
class Shared:
    """What a Pairing has made: this rank's own memory and bell, and those of its peers, by world rank."""

    segment: Segment
    bell_fd: int
    peers: dict[int, Peer]
    private: bool = True
    """Whether ranks may read one another's private memory, where the kernel lets them."""

    def close(self) -> None:
        """Lets go of it all, for those who do not make links of it."""
        self.segment.close()
        if self.bell_fd >= 0:
            os.close(self.bell_fd)
            self.bell_fd = -1
        for peer in self.peers.values():
            peer.close()


class Pairing:
    """This rank's part in settling its island: a connection and mapped memory for each of the others, or a reason.

    Used in ``async with``, at whose end whatever was not taken is closed: so not before the others know the reason."""

    world: TcpWorld

    def __init__(
        self, world: TcpWorld, door: Door, names: Mapping[int, str], settings: Settings, seconds: float
    ) -> None:
        """``names``: the doors of all ranks of the island, this one included, by world rank."""
        self.world, self._door, self._names = world, door, names
        self._seconds, self._private = seconds, settings.shm_cma
        self._geometry = Geometry.of(settings, ranks=len(names))
        self._nonce, self._fence = secrets.token_bytes(NONCE_BYTES), fence_of(settings.shm_fence)
        self._segment: Segment | None = None
        self._bell_fd = -1
        self._peers: dict[int, Peer] = {}
        self._awaited = {rank for rank in names if rank != world.rank}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lines: set[Line] = set()
        """What is not a peer's connection yet."""
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[str] = self._loop.create_future()

    def __repr__(self) -> str:
        return f"<Pairing of rank {self.world.rank} in {sorted(self._names)}, waiting for {sorted(self._awaited)}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            if self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for line in list(self._lines):  # a task that is cancelled before its first step closes nothing
                self._drop(line)
            if self._segment is not None:
                Shared(self._segment, self._bell_fd, self._peers).close()

    async def run(self) -> str:
        """Empty once this rank shares memory with all others of its island; else why it does not."""
        try:
            self._make_own()
            self._start(self._receive_guests())
            for peer in sorted(self._names):
                if peer < self.world.rank:
                    self._start(self._visit(peer))
            async with asyncio.timeout(self._seconds):
                return await self._over
        except TimeoutError:
            missing = ", ".join(map(str, sorted(self._awaited)))
            return self._why(f"nothing came of rank {missing} within {self._seconds:g} s")
        except OSError as error:
            return self._why(_words(error))

    def take(self) -> Shared:
        """What was made, which is the caller's from now on."""
        assert self._segment is not None and not self._awaited
        shared = Shared(self._segment, self._bell_fd, self._peers, self._private)
        self._segment = None
        return shared

    # -- within

    def _make_own(self) -> None:
        wanted, there = self._geometry.nbytes * len(self._names), available_bytes()
        if 0 < there < wanted:  # asked first: taking memory that is not there may end in some process being killed
            raise OSError(f"the ranks of this host need {wanted} bytes of shared memory, and {there} are free")
        self._segment = Segment.create(self._geometry, self._nonce, self._fence)
        self._bell_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._over.done():
            self._over.set_exception(error)

    def _end(self, verdict: str) -> None:
        if not self._over.done():
            self._over.set_result(verdict)

    def _why(self, text: str) -> str:
        return f"rank {self.world.rank}: {text}"

    def _line(self, connection: socket.socket) -> Line:
        line = Line(self._loop, connection)
        self._lines.add(line)
        return line

    def _drop(self, line: Line) -> None:
        """Closes it, unless it has become a peer's connection."""
        if line in self._lines:
            self._lines.remove(line)
            line.close()

    async def _visit(self, peer: int) -> None:
        """Connects to a lower rank."""
        line: Line | None = None
        try:
            line = self._line(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            await line.connect(self._names[peer])
            hello = ClientHello(self.world.secret, self._identity(peer), RANK)
            await line.prove(hello, hello.start())
            await self._pair(peer, line, hello.leftover)
        except (OSError, WireError, AuthenticationError) as error:
            self._end(self._why(f"no shared memory with rank {peer}: {_words(error)}"))
        finally:
            if line is not None:
                self._drop(line)

    async def _receive_guests(self) -> None:
        """Lets the higher ranks in, and sends strangers away."""
        while True:
            try:
                connection, _ = self._door.listener.accept()
            except BlockingIOError:
                await readable(self._loop, self._door.listener)
                continue
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._end(self._why(f"no connection can be accepted: {_words(error)}"))
                return
            if len(self._tasks) > 4 * len(self._names) + 16:
                connection.close()
                _log.warning("rank %d closed a connection from this host: too many strangers", self.world.rank)
                continue
            self._start(self._receive_guest(self._line(connection)))

    async def _receive_guest(self, line: Line) -> None:
        hello = ServerHello(self.world.secret, self._identity(0), self._admit)
        try:
            async with asyncio.timeout(_STRANGER_SECONDS):
                await line.prove(hello)
        except (OSError, WireError, AuthenticationError) as error:
            late = isinstance(error, TimeoutError)
            reason = f"it did not prove itself within {_STRANGER_SECONDS:g} s" if late else _words(error)
            _log.warning("rank %d closed a connection from this host: %s", self.world.rank, reason[:300])
            self._drop(line)
            return
        assert hello.theirs is not None
        peer = hello.theirs.rank
        try:
            await self._pair(peer, line, hello.leftover)
        except (OSError, WireError) as error:
            self._end(self._why(f"no shared memory with rank {peer}: {_words(error)}"))
        finally:
            self._drop(line)

    def _identity(self, peer: int) -> Identity:
        world = self.world
        return Identity(RANK, world.job, world.rank, peer, world.size, world.world)

    def _admit(self, theirs: Theirs) -> None:
        if theirs.rank < self.world.rank or theirs.rank not in self._names:
            raise Refused(f"rank {theirs.rank} has no business here", Reason.ADDRESSEE)
        if theirs.rank not in self._awaited:
            raise Refused(f"rank {theirs.rank} is connected already", Reason.DUPLICATE)

    async def _pair(self, peer: int, line: Line, came: bytes) -> None:
        """The other side is proved: exchanges what is to be shared, and maps and checks what came."""
        assert self._segment is not None
        nonce, (memory_fd, bell_fd) = await line.swap(self._nonce, (self._segment.fd, self._bell_fd), came)
        try:
            if peer not in self._awaited:
                raise WireError("it proved itself twice")
            _check_bell(bell_fd)
            mapped = Mapped.open(memory_fd, self._geometry, nonce)
        except BaseException:
            os.close(bell_fd)
            raise
        finally:
            os.close(memory_fd)
        self._lines.remove(line)
        not_for_children(line.connection)
        self._peers[peer] = Peer(line.connection, mapped, bell_fd)
        self._awaited.discard(peer)
        if not self._awaited:
            self._end("")


def _check_bell(fd: int) -> None:
    """WireError if ringing it could block or do anything but wake its owner."""
    if os.readlink(f"/proc/self/fd/{fd}") != "anon_inode:[eventfd]" or not (
        fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    ):
        raise WireError("the bell that came is no eventfd that never blocks")


def _words(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


__all__ = ["Pairing", "Peer", "Shared"]
