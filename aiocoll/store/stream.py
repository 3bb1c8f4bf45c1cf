"""One authenticated connection that carries length-prefixed messages; the rule: no byte is parsed before the handshake.

It owns a raw non-blocking socket on a loop that it is told: no task, no transport object, nothing that needs a
running loop to send, nothing that a forked child could not close. Memory grows with the bytes that came, never with a
length that was announced; whoever asks without reading the answers is read no further.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgpack

from aiocoll.errors import AiocollError, WireError
from aiocoll.store.base import KEY_BYTES_MAX, KEYS_PER_CALL_MAX, VALUE_BYTES_MAX
from aiocoll.wire.hello import ClientHello, ServerHello

REQUEST_BYTES_MAX = 64 << 20
HANDSHAKE_SECONDS = 5.0
READ_BYTES = 256 << 10
UNSENT_BYTES_HIGH = 1 << 20
UNSENT_BYTES_MAX = 512 << 20

_LENGTH = struct.Struct("!I")


class Stream:
    """Callbacks, all from the loop: ``opened()`` after the handshake, ``message(payload)``, ``closed(error)`` once.

    ``closed`` gets why: an AiocollError, an OSError, or None when this side closed.
    """

    loop: asyncio.AbstractEventLoop
    sock: socket.socket
    hello: ClientHello | ServerHello

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        hello: ClientHello | ServerHello,
        *,
        opened: Callable[[Stream], None],
        message: Callable[[Stream, bytes], None],
        closed: Callable[[Stream, Exception | None], None],
        message_bytes_max: int,
    ) -> None:
        sock.setblocking(False)
        _tune(sock)
        self.loop, self.sock, self.hello = loop, sock, hello
        self.peer: str = _name_of(sock)
        self.is_open: bool = False
        self.is_closed: bool = False
        self._opened, self._message, self._closed = opened, message, closed
        self._message_bytes_max = message_bytes_max
        self._incoming = bytearray()
        self._unsent = bytearray()
        self._reading = False
        self._writing = False

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open" if self.is_open else "shaking hands"
        return f"<Stream with {self.peer}, {state}, {len(self._unsent)} bytes unsent>"

    def start(self) -> None:
        """Begin: the client speaks first."""
        self._resume_reading()
        if isinstance(self.hello, ClientHello):
            self._write(self.hello.start())

    def send(self, payload: bytes) -> None:
        """Send one message, now as far as the kernel takes it; silently nothing on a closed stream."""
        self._write(_LENGTH.pack(len(payload)) + payload)

    def close(self, error: Exception | None = None) -> None:
        """Close at once; what is unsent is lost."""
        if self.is_closed:
            return
        self.is_closed = True
        self.is_open = False
        if self._reading:
            self.loop.remove_reader(self.sock)
        if self._writing:
            self.loop.remove_writer(self.sock)
        self.sock.close()
        self._incoming.clear()
        self._unsent.clear()
        self._closed(self, error)

    def abandon(self) -> None:
        """In a forked child: let go of the descriptor and touch neither the loop nor the peer."""
        self.is_closed = True
        with contextlib.suppress(OSError):  # closed already
            os.close(self.sock.detach())

    def _write(self, data: bytes) -> None:
        if self.is_closed:
            return
        if not self._unsent:
            try:
                sent = self.sock.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                # Not from here: whoever sends is in the middle of its own work.
                self.loop.call_soon(self.close, error)
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._unsent += data
        if not self._writing:
            self._writing = True
            self.loop.add_writer(self.sock, self._on_writable)
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self.loop.call_soon(self.close, WireError(f"more than {UNSENT_BYTES_MAX} bytes of answers were not read"))
        if len(self._unsent) > UNSENT_BYTES_HIGH and self._reading and isinstance(self.hello, ServerHello):
            # Whoever asks faster than it listens gets no more questions read. Only the server may stop: if both did,
            # both could wait for ever.
            self._reading = False
            self.loop.remove_reader(self.sock)

    def _on_writable(self) -> None:
        try:
            sent = self.sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(error)
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._writing = False
            self.loop.remove_writer(self.sock)
        if len(self._unsent) <= UNSENT_BYTES_HIGH // 2:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if not self._reading and not self.is_closed:
            self._reading = True
            self.loop.add_reader(self.sock, self._on_readable)
            self._guard(self._parse)

    def _on_readable(self) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(error)
            return
        self._guard(self._take, data)

    def _guard(self, step: Callable[..., None], *args: bytes) -> None:
        """Do a step that handles what came; its errors end the connection, not the loop."""
        try:
            step(*args)
        except (AiocollError, OSError) as error:
            if not self.is_open and self.hello.last_words:
                with contextlib.suppress(OSError):  # it is gone, and hears nothing
                    self.sock.send(self.hello.last_words)
            self.close(error)

    def _take(self, data: bytes) -> None:
        if not data:
            raise self.hello.eof() if not self.is_open else ConnectionResetError("the other side closed it")
        if not self.is_open:
            answer = self.hello.feed(data)
            if answer:
                self._write(answer)
            if not self.hello.done:
                return
            data, self.hello.leftover = self.hello.leftover, b""
            self.is_open = True
            self._opened(self)
        self._incoming += data
        self._parse()

    def _parse(self) -> None:
        """Hand on the messages that are complete, as long as the answers to them are read."""
        incoming = self._incoming
        start = 0
        while self._reading and not self.is_closed and len(incoming) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(incoming, start)
            if length > self._message_bytes_max:
                raise WireError(f"a message of {length} bytes was announced, the limit is {self._message_bytes_max}")
            end = start + _LENGTH.size + length
            if len(incoming) < end:
                break
            payload = bytes(memoryview(incoming)[start + _LENGTH.size : end])
            start = end
            self._message(self, payload)
        del incoming[:start]


def pack(message: list[Any]) -> bytes:
    """A message as bytes."""
    data: bytes = msgpack.packb(message, use_bin_type=True)
    return data


def unpack(payload: bytes, *, items_max: int = 2 * KEYS_PER_CALL_MAX + 2) -> list[Any]:
    """A message from bytes, or WireError; maps, extensions and nested lists of strangers' making do not exist here."""
    try:
        message = msgpack.unpackb(
            payload,
            raw=False,
            use_list=True,
            max_str_len=max(KEY_BYTES_MAX, 4096),
            max_bin_len=VALUE_BYTES_MAX,
            max_array_len=items_max,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"a message that cannot be read: {error}") from error
    if not isinstance(message, list):
        raise WireError(f"a message must be a list, not {type(message).__name__}")
    return message


def _tune(sock: socket.socket) -> None:
    """No delay, and a dead host is noticed within a quarter of a minute instead of two hours."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with contextlib.suppress(OSError):  # a system without these: a dead host is noticed later
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000)


def _name_of(sock: socket.socket) -> str:
    try:
        return address_text(*sock.getpeername()[:2])
    except OSError:
        return "a peer that is gone"


def scoped(name: tuple[Any, ...]) -> str:
    """The host of a socket's name; a link-local one means nothing without its interface, which is then in it."""
    scope = f"%{name[3]}" if len(name) == 4 and name[3] and "%" not in name[0] else ""
    return f"{name[0]}{scope}"


def address_text(host: str, port: int) -> str:
    """``host:port``, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
