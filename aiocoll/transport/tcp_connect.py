"""How TCP links begin: dialling, listening, and the handshake that both must pass; no frame is parsed before it.

The rule: callbacks only, no task; a stranger costs a bounded buffer and a few seconds, and changes nothing.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..errors import AuthenticationError, UsageError, WireError
from ..wire.hello import RANK, ClientHello, Identity, Reason, Refused, ServerHello, Theirs
from .forked import not_for_children
from .tcp_health import LOST_SECONDS, is_dialling, no_answer, says_lost, tune

_log = logging.getLogger("aiocoll.transport")
_STRANGER_SECONDS: Final = 5.0
_BACKLOG: Final = 4096
"""A rank that computes accepts nobody for a while, and a full backlog would look like a host that does not answer."""
_PAUSE_SECONDS: Final = 0.2
_SHORT_OF: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)
"""What this process or host lacks says nothing about the peer, and may be there a moment later."""


def listen(host: str, port: int = 0) -> socket.socket:
    """A listening non-blocking socket on exactly ``host`` (a numeric address)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4])
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host}: {error.strerror or error}; AIOCOLL_HOST must be a numeric address of this host"
        ) from error
    return listener


def _from(mine: str, theirs: str) -> str:
    """A peer's address as it is reached from here: each host has its own name for the interface in a link-local one."""
    return f"{theirs.partition('%')[0]}%{mine.partition('%')[2]}" if "%" in mine and "%" in theirs else theirs


def unacknowledged(connection: socket.socket) -> int:
    """Bytes in the kernel's send queue that the other side has not acknowledged (0 where that cannot be asked)."""
    try:
        import array
        import fcntl
        import termios

        count = array.array("i", [0])
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, count)
        return count[0]
    except (ImportError, OSError):
        return 0


@dataclass(frozen=True, slots=True)
class TcpWorld:
    """What the ranks of one world agreed on when they met: who listens where, and how they prove themselves."""

    rank: int
    size: int
    addresses: tuple[tuple[str, int], ...]
    secret: bytes
    job: str
    world: int
    lost_seconds: float = LOST_SECONDS
    """For how long a host may be silent though it is asked."""

    def __repr__(self) -> str:
        return f"<TcpWorld rank {self.rank} of {self.size}, job {self.job!r}>"


class Dial:
    """One attempt to connect to one rank; ends in exactly one call of ``connected`` or ``failed``, or is cancelled."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        world: TcpWorld,
        peer: int,
        *,
        connected: Callable[[socket.socket, bytes], None],
        failed: Callable[[str | None, bool], None],
        again: bool = False,
    ) -> None:
        self._loop, self._world, self._peer = loop, world, peer
        self._connected, self._failed, self._again = connected, failed, again
        self._socket: socket.socket | None = None
        me = Identity(RANK, world.job, world.rank, peer, world.size, world.world)
        self._hello = ClientHello(world.secret, me, RANK)
        self._over = False
        self._late: asyncio.TimerHandle | None = None

    @property
    def connection(self) -> socket.socket | None:
        """The connection that is being made."""
        return self._socket

    def __repr__(self) -> str:
        host, port = self._world.addresses[self._peer]
        return f"<Dial rank {self._peer} at {host}:{port}>"

    def start(self) -> None:
        host, port = self._world.addresses[self._peer]
        mine = self._world.addresses[self._world.rank][0]
        try:
            found = socket.getaddrinfo(_from(mine, host), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
            self._socket = socket.socket(found[0], socket.SOCK_STREAM)
            self._socket.setblocking(False)
            tune(self._socket, self._world.lost_seconds)
            # The port that the kernel picks for us may be one that somebody wants to listen on a minute later.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            code = self._socket.connect_ex(found[4])
        except OSError as error:
            code = error.errno or errno.EINVAL
        if code in _SHORT_OF:
            if not self._again:
                _log.error(
                    "rank %d cannot connect to rank %d yet: %s (see ulimit -n)", self._world.rank, self._peer,
                    os.strerror(code),
                )  # fmt: skip
            self._loop.call_soon(self._fail, None)
            return
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._loop.call_soon(self._refused, code)
            return
        assert self._socket is not None
        self._late = self._loop.call_later(0.9 * self._world.lost_seconds, self._unanswered)
        self._loop.add_writer(self._socket.fileno(), self._on_connect)

    def _on_connect(self) -> None:
        connection = self._socket
        if self._over or connection is None:
            return
        self._loop.remove_writer(connection.fileno())
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._refused(code)
            return
        self._loop.add_reader(connection.fileno(), self._on_data)
        self._send(self._hello.start())

    def _refused(self, code: int) -> None:
        host, port = self._world.addresses[self._peer]
        if code == errno.ECONNREFUSED:
            self._fail(f"it has left, or died: nobody listens at {host}:{port} any more")
        elif says_lost(OSError(code, "")):
            self._fail(f"connecting to {host}:{port} failed: {no_answer(code)}", silent=True)
        else:
            self._fail(f"connecting to {host}:{port} failed: {os.strerror(code)}")

    def _unanswered(self) -> None:
        if self._socket is not None and is_dialling(self._socket):
            self._refused(errno.ETIMEDOUT)

    def _send(self, data: bytes) -> None:
        if data and self._socket is not None:
            try:
                self._socket.send(data)
            except OSError:
                self._fail(None)

    def _on_data(self) -> None:
        while not self._over and self._socket is not None:  # to the end: uvloop tells but once of a reset
            try:
                data = self._socket.recv(4096)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if says_lost(error):
                    self._refused(error.errno or errno.ETIMEDOUT)
                    return
                data = b""
            self._take(data)

    def _take(self, data: bytes) -> None:
        if not data:
            # A peer hangs up on a handshake that takes too long, and ours does when this rank computes meanwhile: a
            # dead peer refuses the next attempt.
            self._fail(None)
            return
        if self._hello.done:
            self._succeed(data)
            return
        try:
            answer = self._hello.feed(data)
        except Refused as refused:
            self._fail(None if refused.reason is Reason.DUPLICATE else f"the handshake failed: {refused}")
            return
        except (WireError, AuthenticationError) as error:
            self._send(self._hello.last_words)
            self._fail(f"the handshake failed: {error}")
            return
        self._send(answer)
        if early := self._hello.leftover:
            self._succeed(early)

    def _succeed(self, first: bytes) -> None:
        """The other side has proved itself and begins to talk: so it has taken this connection for the link."""
        self._in_time()
        connection, self._socket = self._socket, None
        if connection is not None:
            self._over = True
            self._loop.remove_reader(connection.fileno())
            self._connected(connection, first)

    def _fail(self, reason: str | None, silent: bool = False) -> None:
        if not self._over:
            self.cancel()
            self._failed(reason, silent)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()

    def cancel(self) -> None:
        """Ends the attempt without a call back."""
        self._over = True
        self._in_time()
        connection, self._socket = self._socket, None
        if connection is not None:
            self._loop.remove_reader(connection.fileno())
            self._loop.remove_writer(connection.fileno())
            connection.close()


class _Stranger:
    """A connection that has not proved itself yet."""

    def __init__(self, porch: Porch, connection: socket.socket, where: str) -> None:
        self._porch, self._socket, self._where = porch, connection, where
        world = porch.world
        me = Identity(RANK, world.job, world.rank, 0, world.size, world.world)
        self._hello = ServerHello(world.secret, me, self._admit)
        self._timer = porch.loop.call_later(_STRANGER_SECONDS, self._late)
        porch.loop.add_reader(connection.fileno(), self._on_data)

    def __repr__(self) -> str:
        return f"<connection from {self._where}: {self._hello!r}>"

    def _admit(self, theirs: Theirs) -> None:
        if not self._porch.may_come(theirs.rank):
            raise Refused(f"rank {theirs.rank} is connected already", Reason.DUPLICATE)

    def _on_data(self) -> None:
        while self in self._porch.strangers:  # to the end: uvloop tells but once of a reset
            try:
                data = self._socket.recv(4096)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._drop(error.strerror or str(error))
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        if not data:
            # A member that hangs up after its hello has been connected the other way round meanwhile, which is no news;
            # nor is somebody who says nothing at all.
            quiet = self._hello.theirs is not None or not self._hello.begun
            self._drop(str(self._hello.eof()), logging.INFO if quiet else logging.WARNING)
            return
        try:
            answer = self._hello.feed(data)
            if answer:
                self._socket.send(answer)
        except Refused as refused:
            self._last_words()
            self._drop(None if refused.reason is Reason.DUPLICATE else str(refused))
            return
        except (WireError, AuthenticationError, OSError) as error:
            self._last_words()
            self._drop(str(error))
            return
        if self._hello.done:
            self._forget()
            tune(self._socket, self._porch.world.lost_seconds)
            assert self._hello.theirs is not None
            if not self._porch.came(self._hello.theirs.rank, self._socket, self._hello.leftover):
                self._socket.close()  # the link was made the other way round meanwhile

    def _last_words(self) -> None:
        try:
            if self._hello.last_words:
                self._socket.send(self._hello.last_words)
        except OSError:
            pass  # it is gone already, which is what was wanted

    def _late(self) -> None:
        self._drop(f"it did not finish the handshake within {_STRANGER_SECONDS:g} s")

    def _forget(self) -> None:
        self._timer.cancel()
        self._porch.loop.remove_reader(self._socket.fileno())
        self._porch.strangers.discard(self)

    def _drop(self, reason: str | None, level: int = logging.WARNING) -> None:
        self.close()
        if reason is not None:
            _log.log(
                level, "rank %d closed a connection from %s: %s", self._porch.world.rank, self._where, reason[:300]
            )

    def close(self) -> None:
        self._forget()
        self._socket.close()


class Porch:
    """The listening socket of one rank and those who stand before the door."""

    loop: asyncio.AbstractEventLoop
    world: TcpWorld
    may_come: Callable[[int], bool]
    came: Callable[[int, socket.socket, bytes], bool]

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        world: TcpWorld,
        listener: socket.socket,
        may_come: Callable[[int], bool],
        came: Callable[[int, socket.socket, bytes], bool],
    ) -> None:
        self.loop, self.world, self._listener = loop, world, listener
        not_for_children(listener)  # or who dials when it is closed here would wait at a door that nobody opens
        self.may_come, self.came = may_come, came
        self.strangers: set[_Stranger] = set()
        self._strangers_max = 4 * world.size + 16
        self._closed = False
        self._pause: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Porch of rank {self.world.rank}: {len(self.strangers)} strangers>"

    def open(self) -> None:
        """Starts to accept."""
        if not self._closed:
            self.loop.add_reader(self._listener.fileno(), self._on_arrival)

    def _on_arrival(self) -> None:
        for _ in range(16):
            try:
                connection, where = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors: the connection stays in the backlog, and spinning on it would burn a core.
                if self._pause is None:
                    _log.error("rank %d cannot accept a connection: %s (see ulimit -n)", self.world.rank, error)
                self.loop.remove_reader(self._listener.fileno())
                self._pause = self.loop.call_later(_PAUSE_SECONDS, self.open)
                return
            self._pause = None
            connection.setblocking(False)
            address = f"{where[0]}:{where[1]}"
            if len(self.strangers) >= self._strangers_max:
                connection.close()
                _log.warning("rank %d closed a connection from %s: too many strangers", self.world.rank, address)
                continue
            self.strangers.add(_Stranger(self, connection, address))

    def close(self) -> None:
        """Closes the door; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        self.loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for stranger in list(self.strangers):
            stranger.close()
