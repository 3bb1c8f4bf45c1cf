"""Links over raw non-blocking TCP sockets, one per pair of ranks, made on first use.

The rule: one synchronous ``progress`` serves the loop's callbacks and a spinning verb alike; payloads go from the
caller's memory to the kernel and from the kernel into the caller's memory, without a copy in between.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from ..errors import WireError
from ..wire.frame import FrameReader, FrameSink, pack_header
from .base import Link, Owner, Queued, Sent
from .tcp_connect import Dial, Porch, Welcome

_TURN_BYTES: Final = 1 << 20
"""What one call of progress moves at most each way: less than a millisecond of a core."""
_JOINED_BYTES_MAX: Final = 1024
_ZEROS: Final = memoryview(bytes(64 * 1024))


class _Item:
    """One queued frame: the bytes still to be sent, in order."""

    __slots__ = ("begun", "parts", "sent")

    def __init__(self, parts: list[memoryview]) -> None:
        self.parts, self.begun = parts, False
        self.sent: Sent | None = None

    def skip(self, nbytes: int) -> int:
        """Drops what was sent; returns how much of ``nbytes`` belongs to later items."""
        self.begun = self.begun or nbytes > 0
        while self.parts and nbytes >= len(self.parts[0]):
            nbytes -= len(self.parts.pop(0))
        if self.parts and nbytes:
            self.parts[0] = self.parts[0][nbytes:]
            nbytes = 0
        return nbytes


class TcpLink:
    """An ordered pipe of frames over one TCP connection."""

    __slots__ = (
        "_loop", "_port", "_queue", "_reader", "_socket", "_writing", "accepting", "bytes_received", "bytes_sent",
        "dial", "ended", "peer", "ready",
    )  # fmt: skip

    def __init__(self, port: TcpTransport, peer: int, sink: FrameSink) -> None:
        self._port, self._loop, self.peer = port, port.loop, peer
        self._reader = FrameReader(sink)
        self._queue: deque[_Item] = deque()
        self._socket: socket.socket | None = None
        self._writing = False
        self.dial: Dial | None = None
        self.accepting = False
        self.ready = False
        self.ended = False
        self.bytes_sent = self.bytes_received = 0

    def __repr__(self) -> str:
        state = "ended" if self.ended else "ready" if self.ready else "connecting"
        return f"<TcpLink to rank {self.peer}: {state}, {len(self._queue)} frames queued>"

    @property
    def queued(self) -> bool:
        return bool(self._queue)

    def submit(self, kind: int, group: int, call: int, step: int, meta: bytes, payload: Any) -> Queued | None:
        if self.ended:
            return None
        nbytes = 0 if payload is None else len(payload)
        head = pack_header(kind, 0, group, call, step, len(meta), nbytes) + meta
        if self.ready and not self._queue:
            assert self._socket is not None
            try:
                if not nbytes:
                    done = self._socket.send(head)
                elif nbytes <= _JOINED_BYTES_MAX:
                    done = self._socket.send(head + payload)
                else:
                    done = self._socket.sendmsg((head, payload))
            except (BlockingIOError, InterruptedError):
                done = 0
            except OSError as error:
                self.end(f"sending failed: {error.strerror or error}")
                return None
            self.bytes_sent += done
            if done == len(head) + nbytes:
                return None
        else:
            done = 0
        parts = [memoryview(head)] if not nbytes else [memoryview(head), payload]
        item = _Item(parts)
        item.skip(done)
        self._queue.append(item)
        if self.ready:
            self._port.busy[self.peer] = self
            self._watch_writable()
        return item

    def attach(self, connection: socket.socket, leftover: bytes) -> None:
        """The handshake is over: ``connection`` carries this link from now on."""
        self._socket, self.ready, self.accepting, self.dial = connection, True, False, None
        self._loop.add_reader(connection.fileno(), self._readable)
        if leftover and not self._take_in(leftover):
            return
        if self._queue:
            self._port.busy[self.peer] = self
            self._flush()
            if self._queue and not self.ended:
                self._watch_writable()

    def progress(self) -> bool:
        if not self.ready:
            return False
        moved = self._flush() if self._queue else False
        return self._receive() or moved

    def _readable(self) -> None:
        self._receive()

    def _writable(self) -> None:
        self._flush()

    def _watch_writable(self) -> None:
        if not self._writing and self._socket is not None:
            self._writing = True
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _flush(self) -> bool:
        """Sends queued frames until the kernel takes no more or a turn is over."""
        budget, moved = _TURN_BYTES, False
        while self._queue and budget > 0 and self._socket is not None:
            parts: list[memoryview] = []
            for item in self._queue:
                parts += item.parts
                if len(parts) >= 64:
                    break
            try:
                done = self._socket.sendmsg(parts)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.end(f"sending failed: {error.strerror or error}")
                return True
            moved = True
            self.bytes_sent += done
            budget -= done
            self._account(done)
        if not self._queue:
            self._port.busy.pop(self.peer, None)
            if self._writing and self._socket is not None:
                self._writing = False
                self._loop.remove_writer(self._socket.fileno())
        return moved

    def _account(self, done: int) -> None:
        """Finishes the frames that ``done`` more sent bytes complete."""
        while self._queue:
            item = self._queue[0]
            done = item.skip(done)
            if item.parts:
                return
            self._queue.popleft()
            if item.sent is not None:
                item.sent.finish()

    def _receive(self) -> bool:
        budget, reader = _TURN_BYTES, self._reader
        while budget > 0 and self._socket is not None:
            buffer = reader.buffer()
            try:
                nbytes = self._socket.recv_into(buffer)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self.end(f"receiving failed: {error.strerror or error}")
                return True
            if nbytes == 0:
                self.end("its process ended" if reader.idle else "its process ended in the middle of a frame")
                return True
            budget -= nbytes
            self.bytes_received += nbytes
            try:
                reader.received(nbytes)
            except WireError as error:
                self.end(f"it sent what no correct peer sends: {error}")
                return True
            if nbytes < len(buffer):
                break
        return budget < _TURN_BYTES

    def _take_in(self, data: bytes) -> bool:
        """Feeds bytes that came with the handshake."""
        view = memoryview(data)
        try:
            while view:
                buffer = self._reader.buffer()
                nbytes = min(len(buffer), len(view))
                buffer[:nbytes] = view[:nbytes]
                view = view[nbytes:]
                self.bytes_received += nbytes
                self._reader.received(nbytes)
        except WireError as error:
            self.end(f"it sent what no correct peer sends: {error}")
            return False
        return True

    def withdraw(self, sent: Sent, *, keep: bool) -> None:
        for item in self._queue:
            if item.sent is not sent:
                continue
            item.sent = None
            if keep:
                item.parts = [memoryview(bytes(part)) for part in item.parts]
            elif not item.begun:
                self._queue.remove(item)
                if not self._queue:
                    self._port.busy.pop(self.peer, None)
            else:
                item.parts = _zeros(sum(map(len, item.parts)))
            return

    def drained(self) -> bool:
        """True once the peer's kernel has acknowledged everything."""
        return not self._queue and (self._socket is None or unacknowledged(self._socket) == 0)

    def end(self, reason: str) -> None:
        """The connection is over; tells the owner why, unless the end was wanted."""
        if self.ended:
            return
        self.close(reason)
        self._port.owner_lost(self.peer, reason)

    def close(self, reason: str = "this rank closed the link") -> None:
        self.ended, self.ready = True, False
        self._port.busy.pop(self.peer, None)
        if self.dial is not None:
            self.dial.cancel()
            self.dial = None
        connection, self._socket = self._socket, None
        if connection is not None:
            self._loop.remove_reader(connection.fileno())
            if self._writing:
                self._loop.remove_writer(connection.fileno())
            connection.close()
        queue, self._queue = self._queue, deque()
        for item in queue:
            if item.sent is not None:
                item.sent.finish(ConnectionError(reason))


def _zeros(nbytes: int) -> list[memoryview]:
    whole, rest = divmod(nbytes, len(_ZEROS))
    return [_ZEROS] * whole + ([_ZEROS[:rest]] if rest else [])


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

    def __repr__(self) -> str:
        return f"<TcpWorld rank {self.rank} of {self.size}, job {self.job!r}>"


class TcpTransport:
    """Makes and keeps the TCP links of one endpoint; ``listener`` is a bound, listening, non-blocking socket."""

    name = "tcp"

    def __init__(self, loop: asyncio.AbstractEventLoop, world: TcpWorld, listener: socket.socket) -> None:
        self.loop, self.world = loop, world
        self.made: dict[int, TcpLink] = {}
        self.busy: dict[int, TcpLink] = {}
        self._owner: Owner | None = None
        self._porch = Porch(loop, world, listener, self._welcome)
        self.closed = False

    def __repr__(self) -> str:
        return f"<TcpTransport rank {self.world.rank} of {self.world.size}: {len(self.made)} links>"

    def attach(self, owner: Owner) -> None:
        self._owner = owner
        self._porch.open()

    def link(self, peer: int) -> TcpLink:
        link = self.made.get(peer)
        if link is None:
            link = self._new_link(peer)
            self._dial(link)
        return link

    def _new_link(self, peer: int) -> TcpLink:
        assert self._owner is not None
        link = self.made[peer] = TcpLink(self, peer, self._owner.sink(peer))
        return link

    def _dial(self, link: TcpLink) -> None:
        link.dial = Dial(
            self.loop,
            self.world,
            link.peer,
            connected=link.attach,
            failed=lambda reason: self._dial_failed(link, reason),
        )
        link.dial.start()

    def _dial_failed(self, link: TcpLink, reason: str | None) -> None:
        """``reason`` None: the attempt ended without a verdict (the peer connects to us at the same time, say)."""
        link.dial = None
        if link.ready or link.accepting or link.ended or self.closed:
            return
        if reason is None:
            self.loop.call_later(0.2, self._dial_again, link)
        else:
            link.end(reason)

    def _dial_again(self, link: TcpLink) -> None:
        if not (link.ready or link.accepting or link.ended or link.dial or self.closed):
            self._dial(link)

    def _welcome(self, peer: int) -> Welcome | None:
        """Decides whether a connection from ``peer`` becomes the link; None refuses it.

        When both sides dial at once the lower rank's connection stands."""
        link = self.made.get(peer)
        if link is None:
            link = self._new_link(peer)
        elif link.ready or link.accepting or link.ended or (link.dial is not None and self.world.rank < peer):
            return None
        if link.dial is not None:
            link.dial.cancel()
            link.dial = None
        link.accepting = True
        return Welcome(admitted=link.attach, failed=lambda: self._accept_failed(link))

    def _accept_failed(self, link: TcpLink) -> None:
        link.accepting = False
        if link.queued:
            self._dial_again(link)
        elif not link.ready:
            self.made.pop(link.peer, None)

    def links(self) -> list[Link]:
        return list(self.made.values())

    def pending(self) -> list[Link]:
        return list(self.busy.values())

    def drained(self) -> bool:
        return all(link.ended or link.drained() for link in self.made.values())

    def owner_lost(self, peer: int, reason: str) -> None:
        """Reports a lost peer to the endpoint."""
        if self._owner is not None and not self.closed:
            self._owner.lost(peer, reason)

    def close(self) -> None:
        self.closed = True
        self._porch.close()
        for link in list(self.made.values()):
            link.close()
        self._owner = None
