"""One proxied connection: bytes go both ways, each way through whatever faults stand there at the moment.

The rule: what one side's kernel says (an end, a reset) is passed on as such, and nothing is reordered.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from ..wire.hello import HELLO_BYTES, claimed

_CHUNK_BYTES: Final = 64 << 10
_QUEUED_CHUNKS_MAX: Final = 256
_THROTTLE_SECONDS: Final = 0.01
"""How much of a throttled way's time one piece takes."""
_RESET: Final = struct.pack("ii", 1, 0)


class Faults(Protocol):
    """What stands in the way of bytes from one rank to another (None: it has not said yet who it is)."""

    def held(self, src: int | None, dst: int | None) -> bool:
        """Whether nothing passes."""

    def delayed(self, src: int | None, dst: int | None) -> float:
        """Seconds that bytes take longer."""

    def rate(self, src: int | None, dst: int | None) -> float:
        """Bytes per second that pass; infinite without a bound."""

    def until_next(self, src: int | None, dst: int | None) -> int | None:
        """How many bytes still pass before something happens."""

    def passing(self, src: int | None, dst: int | None, data: bytes) -> tuple[bytes, Callable[[Pair], None] | None]:
        """Bytes that pass now, as they are to be sent on, and what happens to the connection behind them."""

    async def changed(self) -> None:
        """Returns when other faults stand."""


class Pair:
    """A connection that came to the proxy, and the one that it made to the rank behind."""

    closed: bool

    def __init__(self, dialled: socket.socket, behind: socket.socket, faults: Faults) -> None:
        self.faults = faults
        self.src: int | None = None
        self.dst: int | None = None
        self.closed = self._resets = False
        self._ways = (_Way(self, dialled, behind, forward=True), _Way(self, behind, dialled, forward=False))
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<Pair {self.src}-{self.dst}: {'closed' if self.closed else 'open'}>"

    def touches(self, a: int | None, b: int | None) -> bool:
        """Whether it joins ranks ``a`` and ``b``; None stands for any."""
        ends = (self.src, self.dst)
        if a is None or b is None:
            return (a if b is None else b) in (*ends, None)
        return {a, b} == set(ends)

    async def run(self) -> None:
        """Until both ways have ended, or a reset ends both."""
        self._tasks = [asyncio.ensure_future(work) for way in self._ways for work in way.work()]
        try:
            await asyncio.wait(self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            ends = await asyncio.gather(*self._tasks, return_exceptions=True)
            self.closed = True
            for way in self._ways:
                way.close(reset=self._resets)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def finish(self) -> None:
        """Both sides hear an orderly end, now; what they still say is dropped."""
        for way in self._ways:
            way.finish()

    def finish_towards(self, dst: int) -> None:
        """Rank ``dst`` hears an orderly end, and can go on talking."""
        self._ways[0 if dst == self.dst else 1].finish()

    def reset(self) -> None:
        """Both sides hear a reset."""
        self._resets = True
        for task in self._tasks:  # their sockets can be closed once nothing waits for them
            task.cancel()


class _Way:
    """One direction of a pair."""

    def __init__(self, pair: Pair, source: socket.socket, target: socket.socket, *, forward: bool) -> None:
        self.pair, self.source, self.target, self.forward = pair, source, target, forward
        self.finished = False
        self._queue: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(_QUEUED_CHUNKS_MAX)
        self._opening = b""

    def __repr__(self) -> str:
        return f"<way {self.ends}, {self._queue.qsize()} chunks queued>"

    @property
    def ends(self) -> tuple[int | None, int | None]:
        """From whom to whom."""
        pair = self.pair
        return (pair.src, pair.dst) if self.forward else (pair.dst, pair.src)

    def work(self) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        """What moves the bytes: into the queue, and out of it."""
        return self._read(), self._write()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                data: bytes | None = await loop.sock_recv(self.source, _CHUNK_BYTES)
            except OSError:
                data = None  # a reset, which comes behind what came before it
            if data and self.forward and self.pair.src is None:
                self._listen(data)
            await self._queue.put((loop.time() + self.pair.faults.delayed(*self.ends), data))
            if not data:
                return

    def _listen(self, data: bytes) -> None:
        """The one who dials says who it is, and whom it wants."""
        self._opening += data[:HELLO_BYTES]
        if (theirs := claimed(self._opening)) is not None:
            self.pair.src, self.pair.dst = theirs.rank, theirs.peer

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await self._queue.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            if not data:
                await self._unheld()
                if data is None:
                    self.pair.reset()
                self.finish()
                return
            position = 0
            while position < len(data):
                await self._unheld()
                position += await self._pass_on(data, position)

    async def _unheld(self) -> None:
        while self.pair.faults.held(*self.ends):
            await self.pair.faults.changed()

    async def _pass_on(self, data: bytes, position: int) -> int:
        """One piece, as large as the faults let it be."""
        faults, ends = self.pair.faults, self.ends
        nbytes, rate = len(data) - position, faults.rate(*ends)
        if rate < float("inf"):
            nbytes = min(nbytes, max(int(rate * _THROTTLE_SECONDS), 1))
        ahead = faults.until_next(*ends)
        if ahead is not None:
            nbytes = min(nbytes, ahead)
        piece, then = faults.passing(*ends, data[position : position + nbytes])
        if piece and not self.finished:
            with contextlib.suppress(OSError):  # the other way says how it ended, behind what was still to be heard
                await asyncio.get_running_loop().sock_sendall(self.target, piece)
        if then is not None:
            then(self.pair)
        if rate < float("inf"):
            await asyncio.sleep(nbytes / rate)
        return nbytes

    def finish(self) -> None:
        """The target hears an orderly end; what else comes is dropped."""
        if not self.finished:
            self.finished = True
            with contextlib.suppress(OSError):  # it is gone already
                self.target.shutdown(socket.SHUT_WR)

    def close(self, *, reset: bool) -> None:
        """Lets the connection to the target go."""
        if reset:
            with contextlib.suppress(OSError):  # it is gone already
                self.target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.target.close()


__all__ = ["Faults", "Pair"]
