"""Both ends of links in one loop, and whom they serve: an Owner that keeps every frame and every piece of news."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Iterator
from typing import Any

from aiocoll.transport.base import Queued
from aiocoll.transport.tcp import TcpLink, TcpTransport
from aiocoll.transport.tcp_connect import TcpWorld, listen
from aiocoll.wire import frame

SECRET = b"of the tests"
JOB = "links"
WORLD = 0x1234_5678_9ABC_DEF0


class Landed:
    """One frame's payload."""

    def __init__(self, owner: Keeper, peer: int, head: tuple[int, ...], meta: bytes, length: int) -> None:
        self.owner, self.peer, self.head, self.meta = owner, peer, head, meta
        self.data, self.position = bytearray(length), 0

    def window(self) -> memoryview:
        return memoryview(self.data)[self.position :]

    def advance(self, nbytes: int) -> None:
        self.position += nbytes

    def complete(self) -> None:
        self.owner.frames.append((self.peer, *self.head, self.meta, bytes(self.data)))
        self.owner.changed()


class Sink:
    def __init__(self, owner: Keeper, peer: int) -> None:
        self.owner, self.peer = owner, peer

    def arriving(self, kind: int, group: int, call: int, step: int, meta: bytes, length: int) -> Any:
        if kind == frame.CREDIT:
            return None  # the welcome
        return Landed(self.owner, self.peer, (kind, group, call, step), meta, length)


class Keeper:
    """An Owner that keeps what it is told."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.frames: list[tuple[Any, ...]] = []
        self.news: list[tuple[Any, ...]] = []
        self._change = asyncio.Event()

    def sink(self, peer: int) -> Sink:
        return Sink(self, peer)

    def linked(self, peer: int) -> None:
        self._tell("linked", peer)

    def lost(self, peer: int, reason: str, *, certain: bool = True) -> None:
        self._tell("lost", peer, reason, certain)

    def unreached(self, peer: int, reason: str) -> None:
        self._tell("unreached", peer, reason)

    def _tell(self, *news: Any) -> None:
        self.news.append(news)
        self.changed()

    def changed(self) -> None:
        self._change.set()

    async def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Waits for ``condition``, which is looked at after every change here."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._change.clear()
                await self._change.wait()

    def payloads(self, peer: int | None = None) -> list[bytes]:
        return [each[-1] for each in self.frames if peer is None or each[0] == peer]

    def told(self, what: str) -> list[tuple[Any, ...]]:
        return [each for each in self.news if each[0] == what]


class Ticket:
    """A Sent that can be awaited."""

    def __init__(self) -> None:
        self.future: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def finish(self, error: BaseException | None = None) -> None:
        assert not self.future.done(), "a ticket was finished twice"
        self.future.set_result(error)


class Ends:
    """The transports of a world, all in this loop."""

    def __init__(
        self, size: int = 2, *, host: str = "127.0.0.1", secret: bytes = SECRET, rcvbuf: int = 0, sndbuf: int = 0
    ) -> None:
        loop = asyncio.get_running_loop()
        self.listeners = [listen(host) for _ in range(size)]
        if rcvbuf:
            for listener in self.listeners:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sndbuf = sndbuf
        self.addresses = tuple((host, each.getsockname()[1]) for each in self.listeners)
        self.owners = [Keeper(rank) for rank in range(size)]
        self.transports = [
            TcpTransport(loop, TcpWorld(rank, size, self.addresses, secret, JOB, WORLD), listener)
            for rank, listener in enumerate(self.listeners)
        ]
        for transport, owner in zip(self.transports, self.owners, strict=True):
            transport.attach(owner)

    def close(self) -> None:
        for transport in self.transports:
            transport.close()

    def send(self, src: int, dst: int, payload: bytes | bytearray | None, step: int = 0) -> Ticket | None:
        """One DATA frame; None if it is with the kernel already."""
        view = memoryview(payload) if payload else None
        queued: Queued | None = self.transports[src].link(dst).submit(frame.DATA, 1, 2, step, b"m", view)
        if queued is None:
            return None
        queued.sent = ticket = Ticket()
        return ticket

    async def linked(self, a: int = 0, b: int = 1) -> tuple[TcpLink, TcpLink]:
        """Both ends of a link that is ready."""
        self.transports[a].link(b)
        await self.owners[a].until(lambda: bool(self.owners[a].told("linked")))
        await self.owners[b].until(lambda: bool(self.owners[b].told("linked")))
        links = self.transports[a].link(b), self.transports[b].link(a)
        if self.sndbuf:
            for link in links:
                assert link._socket is not None
                link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.sndbuf)
        return links


@contextlib.contextmanager
def ends(size: int = 2, **options: Any) -> Iterator[Ends]:
    """The transports of a world of ``size``, closed at the end."""
    world = Ends(size, **options)
    try:
        yield world
    finally:
        world.close()


@functools.lru_cache
def _block(seed: int) -> bytes:
    return bytes((i * 31 + seed * 7 + (i >> 8)) % 251 for i in range(251 * 16))


def pattern(nbytes: int, seed: int = 0) -> bytes:
    """Bytes that differ from place to place and from seed to seed."""
    block = _block(seed % 251)
    return (block * (nbytes // len(block) + 1))[:nbytes]
