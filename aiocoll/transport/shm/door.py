"""Where the ranks of one host find one another: a UNIX listener with a random name, and connections in the making.

The rule: what has come over a connection that did not become anything is closed with it, descriptors above all. This
file loads everywhere, also where there can be no shared memory.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...errors import AuthenticationError, WireError
from ...wire.hello import ClientHello, ServerHello

_BACKLOG: Final = 4096
_CONNECT_AGAIN_SECONDS: Final = 0.005
_FILES: Final = 2
"""Descriptors that each side passes: its memory and its bell."""
_DATA_BYTES: Final = 4096
_ANCILLARY_BYTES: Final = _FILES * array.array("i").itemsize + 16
"""What carries so many descriptors: CMSG_LEN, for which not every system has the function."""
_NAMESPACE: Final = "/proc/self/ns/net"


class Door:
    """Where the other ranks of this host find this one until the island is settled; OSError when it cannot be had."""

    def __init__(self) -> None:
        self.name: str = f"aiocoll-{secrets.token_hex(16)}"
        self.namespace: int = os.stat(_NAMESPACE).st_ino
        self.listener: socket.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.listener.setblocking(False)
            self.listener.bind(f"\0{self.name}")
            self.listener.listen(_BACKLOG)
        except BaseException:
            self.listener.close()
            raise

    def __repr__(self) -> str:
        return f"<Door {self.name}>"

    @property
    def info(self) -> dict[str, Any]:
        """What the others are told: the name, and the network namespace within which it means anything."""
        return {"unix": self.name, "net": self.namespace}

    def close(self) -> None:
        """Idempotent."""
        self.listener.close()


def impossible() -> str:
    """Why this process can share memory with nobody; empty if it can."""
    if sys.platform != "linux":
        return f"shared memory needs Linux, this is {sys.platform}"
    missing = [name for name in ("memfd_create", "eventfd") if not hasattr(os, name)]
    return f"this Python has no os.{missing[0]}" if missing else ""


def islands(infos: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    """Who may share memory with whom: ranks of one kernel and one network namespace that have a door, in rank order.
    The same on all ranks, and only a guess: the ranks of an island find out whether it holds."""
    found: dict[tuple[str, Any], list[int]] = {}
    for rank, info in enumerate(infos):
        if info.get("boot") and info.get("unix"):
            found.setdefault((str(info["boot"]), info.get("net")), []).append(rank)
    return [tuple(ranks) for ranks in found.values() if len(ranks) > 1]


class Line:
    """One UNIX connection in the making; what has come over it is closed with it."""

    connection: socket.socket

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        self._loop, self.connection = loop, connection
        self._files: list[int] = []
        self._lost = ""
        connection.setblocking(False)

    def __repr__(self) -> str:
        return f"<Line {self.connection!r}, {len(self._files)} descriptors came>"

    async def connect(self, name: str) -> None:
        while True:
            try:
                self.connection.connect(f"\0{name}")
                return
            except BlockingIOError:  # its queue is full, and nothing says when it is not
                await asyncio.sleep(_CONNECT_AGAIN_SECONDS)

    async def prove(self, hello: ClientHello | ServerHello, first: bytes = b"") -> None:
        """Passes the handshake; WireError, AuthenticationError or OSError if it does not."""
        if first:
            self.connection.send(first)
        while not hello.done:
            data = await self._receive()
            try:
                answer = hello.feed(data)
            except (WireError, AuthenticationError):
                with contextlib.suppress(OSError):  # it is gone already, which is what was wanted
                    self.connection.send(hello.last_words)
                raise
            if answer:
                self.connection.send(answer)
            if self._lost and not hello.done:  # what comes behind the proof is a member's
                raise WireError(self._lost)

    async def swap(self, note: bytes, files: Sequence[int], came: bytes) -> tuple[bytes, list[int]]:
        """Passes a note and two descriptors, and gives the other side's, which are the caller's from now on; ``came``
        has come already."""
        socket.send_fds(self.connection, [note], files)
        while len(came) < len(note) and not self._lost:
            came += await self._receive()
        if self._lost:
            raise WireError(self._lost)
        if len(came) > len(note) or len(self._files) != _FILES:
            raise WireError(f"{len(came)} bytes and {len(self._files)} descriptors came")
        theirs, self._files = self._files, []
        return came, theirs

    async def _receive(self) -> bytes:
        while True:
            try:
                data, ancillary, flags, _ = self.connection.recvmsg(
                    _DATA_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )  # not socket.recv_fds, which forgets the flags
            except BlockingIOError:
                await readable(self._loop, self.connection)
                continue
            for level, kind, packed in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    files = array.array("i")
                    files.frombytes(packed[: len(packed) - len(packed) % files.itemsize])
                    self._files += files
            if not data:
                raise WireError("the other side closed the connection")
            if flags & socket.MSG_CTRUNC or len(self._files) > _FILES:
                self._lost = "descriptors were lost: too many came, or this process can have no more (see ulimit -n)"
            return data

    def close(self) -> None:
        self.connection.close()
        while self._files:
            os.close(self._files.pop())


async def readable(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())


__all__ = ["Door", "Line", "impossible", "islands", "readable"]
