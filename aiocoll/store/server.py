"""The store's server: one table for any number of clients; the rule: strangers cost a bounded buffer and five seconds.

A connection is dropped, with one line in the log, when its handshake fails or takes too long and when it sends what no
client sends; the others do not notice. There is no task: everything happens in the loop's callbacks.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from aiocoll.errors import AiocollError, RendezvousError, UsageError, WireError
from aiocoll.observe import emit
from aiocoll.store.base import KEY_BYTES_MAX
from aiocoll.store.listen import host_of, listen
from aiocoll.store.stream import HANDSHAKE_SECONDS, REQUEST_BYTES_MAX, Stream, address_text, pack, unpack
from aiocoll.store.table import OPERATIONS, WAITING, NotYet, Table, Waiter
from aiocoll.wire.hello import STORE_SERVER, Identity, ServerHello

HALF_OPEN_MAX = 1024
LOG_LINES_MAX = 200
LOG_WINDOW_SECONDS = 10.0
PENDING_PER_CLIENT_MAX = 10_000

log: logging.Logger = logging.getLogger("aiocoll.store")

# Tells a client of this very process apart from others; a forked child has another pid.
PROCESS_TOKEN = secrets.token_hex(8)

# The types of each operation's arguments; those not named take any number of keys.
_KEY, _VALUE = str, bytes
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "set": (_KEY, _VALUE),
    "get": (_KEY,),
    "add": (_KEY, int),
    "compare_set": (_KEY, _VALUE, _VALUE),
    "delete": (_KEY,),
    "list": (_KEY,),
    "append": (_KEY, _VALUE),
    "queue_push": (_KEY, _VALUE),
    "queue_pop": (_KEY,),
    "queue_len": (_KEY,),
    "num_keys": (),
}

_AT_ONCE = frozenset(op + "?" for op in WAITING)


def process_token() -> str:
    """What this process tells every server that it is a client of."""
    return f"{PROCESS_TOKEN}-{os.getpid()}"


class _Client:
    """What the server keeps of one connection."""

    __slots__ = ("deadline", "process", "waiters")

    def __init__(self, deadline: asyncio.TimerHandle) -> None:
        self.deadline = deadline
        self.waiters: dict[int, Waiter] = {}
        self.process = ""

    @property
    def own(self) -> bool:
        """Whether it lives in this very process."""
        return self.process == process_token()


class StoreServer:
    """Serves one table on listening sockets that it owns from now on; made by `start`, or by `listen` and `open`."""

    def __init__(self, listeners: list[socket.socket], host: str, *, secret: bytes, job: str) -> None:
        self._listeners = listeners
        self.host = host
        self.port: int = listeners[0].getsockname()[1]
        self.refused: deque[str] = deque(maxlen=16)
        self.on_leave: Callable[[], None] = lambda: None
        self.on_process_gone: Callable[[str], None] = lambda process: None
        """Called with the `process_token` of a client whose connection has ended."""
        self._secret, self._job = secret, job
        self._table = Table()
        self._clients: dict[Stream, _Client] = {}
        self._half_open: dict[Stream, _Client] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._log_since, self._log_lines = -LOG_WINDOW_SECONDS, 0

    @classmethod
    async def start(
        cls, host: str, port: int, *, secret: bytes = b"", job: str = "", sock: socket.socket | None = None
    ) -> Self:
        """Listen on host:port (0: any), or on ``sock``, and serve from the running loop.

        UsageError for anything but loopback without a secret; RendezvousError when the port cannot be had.
        """
        server = cls(listen(host, port, secret=secret, sock=sock), host_of(host, sock), secret=secret, job=job)
        server.open(asyncio.get_running_loop())
        return server

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._clients)} clients, {len(self._half_open)} half open"
        return f"<StoreServer on {address_text(self.host, self.port)}, {state}, {self._table!r}>"

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: the host as given, the port as it is."""
        return self.host, self.port

    @property
    def clients(self) -> int:
        """How many clients are connected and proved."""
        return len(self._clients)

    @property
    def coming(self) -> int:
        """How many connections have not proved themselves yet; each has five seconds."""
        return len(self._half_open)

    @property
    def foreign_clients(self) -> int:
        """How many of them live in other processes."""
        return sum(not client.own for client in self._clients.values())

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to accept, on this loop."""
        self._loop = loop
        for listener in self._listeners:
            listener.setblocking(False)
            loop.add_reader(listener, self._on_connection, listener)
        emit("store.serve", host=self.host, port=self.port)

    async def close(self) -> None:
        """Close the listening sockets and all connections; nothing of the server is left when this returns."""
        self.shut()

    def shut(self) -> None:
        """`close`, for callers without a coroutine; in the loop's thread."""
        if self._closed:
            return
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        for listener in self._listeners:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(listener)
            listener.close()
        for stream in [*self._half_open, *self._clients]:
            stream.close()

    def abandon(self) -> None:
        """In a forked child: let go of every descriptor, touching neither the loop nor the clients."""
        self._closed = True
        for listener in self._listeners:
            os.close(listener.detach())
        for stream in [*self._half_open, *self._clients]:
            stream.abandon()

    # -- connections

    def _on_connection(self, listener: socket.socket) -> None:
        assert self._loop is not None
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                # The backlog keeps them; without a pause this callback would spin.
                self._note(f"cannot accept connections for a second: {error.strerror}")
                self._loop.remove_reader(listener)
                self._retry = self._loop.call_later(1.0, self._accept_again)
                return
            raise
        if len(self._half_open) >= HALF_OPEN_MAX:
            next(iter(self._half_open)).close(
                WireError("too many connections had not proved themselves: oldest dropped")
            )
        stream = Stream(
            self._loop,
            sock,
            ServerHello(self._secret, Identity(STORE_SERVER, self._job)),
            opened=self._on_open,
            message=self._on_message,
            closed=self._on_closed,
            message_bytes_max=REQUEST_BYTES_MAX,
        )
        late = WireError(f"no valid handshake within {HANDSHAKE_SECONDS:g} s")
        self._half_open[stream] = _Client(self._loop.call_later(HANDSHAKE_SECONDS, stream.close, late))
        stream.start()

    def _accept_again(self) -> None:
        if self._loop is not None and not self._closed:
            for listener in self._listeners:
                self._loop.add_reader(listener, self._on_connection, listener)

    def _on_open(self, stream: Stream) -> None:
        client = self._half_open.pop(stream)
        client.deadline.cancel()
        self._clients[stream] = client

    def _on_closed(self, stream: Stream, error: Exception | None) -> None:
        stranger = self._half_open.pop(stream, None)
        if stranger is not None:
            stranger.deadline.cancel()
            if error is not None:
                self.refused.append(f"{stream.peer}: {error}")
                emit("store.refused", peer=stream.peer, why=str(error))
                self._note(f"dropped a connection from {stream.peer}: {error}")
            return
        client = self._clients.pop(stream, None)
        if client is None:
            return
        for waiter in client.waiters.values():
            self._table.forget(waiter)
        client.waiters.clear()
        if isinstance(error, AiocollError):
            self._note(f"dropped client {stream.peer}: {error}")
        self.on_process_gone(client.process)
        self.on_leave()

    def _note(self, text: str) -> None:
        """One log line, but no flood: an attacker must not fill the disk either."""
        assert self._loop is not None
        now = self._loop.time()
        if now - self._log_since > LOG_WINDOW_SECONDS:
            if self._log_lines > LOG_LINES_MAX:
                log.warning("store %s: %d more such lines left out", self._at, self._log_lines - LOG_LINES_MAX)
            self._log_since, self._log_lines = now, 0
        self._log_lines += 1
        if self._log_lines <= LOG_LINES_MAX:
            log.warning("store %s: %s", self._at, text)

    @property
    def _at(self) -> str:
        return address_text(self.host, self.port)

    # -- requests: [id, operation, *arguments] -> [id, kind, value], where kind says what the value is:
    #    0 the result, 1 the text of a UsageError, 2 that of a RendezvousError, 3 nothing: an operation whose name ends
    #    in "?" would have had to wait.

    def _on_message(self, stream: Stream, payload: bytes) -> None:
        client = self._clients[stream]
        request, op, args = _check_request(unpack(payload))
        if op == "cancel":
            waiter = client.waiters.pop(args[0], None)
            if waiter is not None:
                self._table.forget(waiter)
                if waiter.op == "queue_pop":  # its client keeps the call until it knows that no item is on its way
                    stream.send(pack([args[0], 3, None]))
        elif op == "process":
            client.process = args[0][:64]
        elif op == "give_back":
            self._table.give_back(args[0], args[1])
        elif op == "refused":
            stream.send(pack([request, 0, list(self.refused)]))
        else:
            self._do(stream, client, request, op, args)

    def _do(self, stream: Stream, client: _Client, request: int, op: str, args: list[Any]) -> None:
        def done(value: Any) -> None:
            client.waiters.pop(request, None)
            if isinstance(value, UsageError):
                stream.send(pack([request, 1, str(value)]))
            else:
                stream.send(pack([request, 0, value]))

        if op.endswith("?"):
            try:
                done(self._table.apply(op[:-1], args))
            except NotYet:
                stream.send(pack([request, 3, None]))
            except UsageError as error:
                done(error)
            return
        if op in WAITING:
            if len(client.waiters) >= PENDING_PER_CLIENT_MAX:
                stream.send(pack([request, 2, f"this client has {PENDING_PER_CLIENT_MAX} waits pending, the limit"]))
                return
            if request in client.waiters:
                raise WireError(f"request {request} is still waiting, its number came again")
        try:
            waiter = self._table.apply_or_wait(op, args, done)
        except UsageError as error:
            stream.send(pack([request, 1, str(error)]))
        except RendezvousError as error:
            stream.send(pack([request, 2, str(error)]))
        else:
            if waiter is not None:
                client.waiters[request] = waiter


def _check_request(message: list[Any]) -> tuple[int, str, list[Any]]:
    """The parts of a request with arguments of the right types and sizes, or WireError."""
    if len(message) < 2 or type(message[0]) is not int or type(message[1]) is not str:
        raise WireError("a request must be [id, operation, arguments...]")
    request, op, args = message[0], message[1], message[2:]
    wanted: tuple[type, ...]
    if op == "cancel":
        wanted = (int,)
    elif op == "process":
        wanted = (str,)
    elif op == "give_back":
        wanted = (_KEY, _VALUE)
    elif op == "refused":
        wanted = ()
    elif op not in OPERATIONS and op not in _AT_ONCE:
        raise WireError(f"operation {op[:40]!r} does not exist")
    elif op == "multi_set":
        wanted = (_KEY, _VALUE) * (len(args) // 2)
    else:
        wanted = _SIGNATURES.get(op.rstrip("?"), (_KEY,) * len(args))
    if tuple(map(type, args)) != wanted:
        raise WireError(f"operation {op!r} came with arguments of the wrong types")
    if any(type(arg) is str and len(arg) > KEY_BYTES_MAX for arg in args):
        raise WireError(f"operation {op!r} came with a key of more than {KEY_BYTES_MAX} bytes")
    if op == "add" and not -(1 << 63) <= args[1] < 1 << 63:
        raise WireError("operation 'add' came with a number beyond 64 bits")
    return request, op, args
