"""One link over a raw non-blocking TCP socket.

The rule: one synchronous ``progress`` serves the loop's callbacks and a spinning verb alike; payloads go from the
caller's memory to the kernel and from the kernel into the caller's memory, without a copy in between.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ..errors import WireError
from ..wire.codec import pack_control
from ..wire.frame import CONTROL, CREDIT, FrameReader, FrameSink, pack_header
from ..wire.rope import Rope, pieces_of
from .base import Queued, Sent
from .forked import not_for_children
from .item import Item
from .tcp_connect import Dial, unacknowledged
from .tcp_health import no_answer, says_lost

if TYPE_CHECKING:
    from .tcp import TcpTransport

_log = logging.getLogger("aiocoll.transport")
_JOINED_BYTES_MAX: Final = 1024
_PARTS_MAX: Final = 64
_WELCOME: Final = pack_header(CREDIT, 0, 0, 0, b"", 0)
"""A frame that says nothing: it tells the side that dialled that its connection is the link."""


class TcpLink:
    """An ordered pipe of frames over one TCP connection."""

    __slots__ = (
        "_loop", "_port", "_queue", "_reader", "_socket", "_writing", "bytes_received", "bytes_sent", "dial", "ended",
        "peer", "ready", "retry", "transport",
    )  # fmt: skip
    peer: int
    transport: str
    gathers: bool = True
    bytes_sent: int
    bytes_received: int

    def __init__(self, port: TcpTransport, peer: int, sink: FrameSink) -> None:
        self._port, self._loop, self.peer, self.transport = port, port.loop, peer, port.name
        self._reader = FrameReader(sink)
        self._queue: deque[Item] = deque()
        self._socket: socket.socket | None = None
        self._writing = False
        self.dial: Dial | None = None
        self.retry: asyncio.TimerHandle | None = None
        self.ready: bool = False
        self.ended: bool = False
        self.bytes_sent = self.bytes_received = 0

    def __repr__(self) -> str:
        state = "ended" if self.ended else "ready" if self.ready else "connecting"
        return f"<TcpLink to rank {self.peer}: {state}, {len(self._queue)} frames queued>"

    @property
    def connection(self) -> socket.socket | None:
        """The connection, or the one that is being made."""
        return self._socket if self.dial is None else self.dial.connection

    @property
    def begun(self) -> bool:
        """Whether there is, or was, a connection."""
        return self._socket is not None or self.ended

    def submit(self, kind: int, group: int, call: int, step: int, meta: bytes, payload: Any) -> Queued | None:
        if self.ended:
            return None
        nbytes = 0 if payload is None else len(payload)
        head = pack_header(kind, group, call, step, meta, nbytes)
        if self.ready and not self._queue:
            assert self._socket is not None
            try:
                if not nbytes:
                    done = self._socket.send(head)
                elif nbytes <= _JOINED_BYTES_MAX:
                    done = self._socket.send(head + payload)
                elif type(payload) is Rope:
                    first = islice(payload.pieces(0, self._port.turn_bytes), _PARTS_MAX - 1)
                    done = self._socket.sendmsg([head, *first])
                else:
                    # While the peer drains, the kernel goes on taking: not more than a turn's worth at once.
                    done = self._socket.sendmsg((head, payload[: self._port.turn_bytes]))
            except (BlockingIOError, InterruptedError):
                done = 0
            except OSError as error:
                self._cannot_send(error)
                done = 0
            self.bytes_sent += done
            if done == len(head) + nbytes:
                return None
        else:
            done = 0
        parts = [memoryview(head), *(pieces_of(payload) if nbytes else ())]
        item = Item(parts)
        item.skip(done)
        self._queue.append(item)
        if self.ready:
            self._port.busy[self.peer] = self
            self._watch_writable()
        return item

    def attach(self, connection: socket.socket, leftover: bytes, *, accepted: bool = False) -> None:
        """The handshake is over: ``connection`` carries this link from now on."""
        self._socket, self.ready, self.dial = connection, True, None
        not_for_children(connection)
        self._stop_retry()
        self._loop.add_reader(connection.fileno(), self._receive if self._port.tells_again else self._receive_all)
        if accepted:
            try:
                self.bytes_sent += connection.send(_WELCOME)  # the first bytes of a connection always fit
            except OSError as error:
                self._cannot_send(error)
        if leftover:
            self._take_in(leftover)
        if self.ready:
            self._port.owner_linked(self.peer)
        if self._queue and self.ready:
            self._port.busy[self.peer] = self
            self._flush()
            if self._queue and not self.ended:
                self._watch_writable()

    def progress(self) -> bool:
        if not self.ready:
            return False
        moved = self._flush() if self._queue else False
        return self._receive() or moved

    def _cannot_send(self, error: OSError) -> None:
        """The peer is gone. What it said before (a farewell, or which rank has died) is still to be read, and not in
        the middle of whatever sends now."""
        if self.ready and self._socket is not None:
            self.ready = False
            if self._writing:
                self._writing = False
                self._loop.remove_writer(self._socket.fileno())
            self._loop.call_soon(self._read_to_the_end, error)

    def _read_to_the_end(self, error: OSError) -> None:
        while self._receive():
            pass
        self._fail("sending", error)

    def _fail(self, what: str, error: OSError) -> None:
        """The connection failed. A reset by a host that had fallen silent before may come from a process that lives on
        and has given this rank up."""
        if error.errno is not None and says_lost(error):
            self.silent(no_answer(error.errno))
        else:
            self.end(f"{what} failed: {error.strerror or error}", certain=not self._port.watch.doubts(self))

    def silent(self, reason: str) -> None:
        """The host there is given up; nobody knows what has become of the process."""
        self.end(reason, certain=False)

    def _watch_writable(self) -> None:
        if not self._writing and self._socket is not None:
            self._writing = True
            self._loop.add_writer(self._socket.fileno(), self._flush)

    def _flush(self) -> bool:
        """Sends queued frames until the kernel takes no more or a turn is over."""
        budget, moved = self._port.turn_bytes, False
        while self._queue and budget > 0 and self._socket is not None:
            try:
                done = self._socket.sendmsg(self._next_parts(budget))
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._cannot_send(error)
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

    def _next_parts(self, nbytes: int) -> list[memoryview]:
        """The queue's first bytes, about ``nbytes`` at most."""
        parts: list[memoryview] = []
        for item in self._queue:
            for part in item.parts:
                parts.append(part if len(part) <= nbytes else part[:nbytes])
                nbytes -= len(part)
                if nbytes <= 0 or len(parts) >= _PARTS_MAX:
                    return parts
        return parts

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

    def _receive_all(self) -> None:
        """For a loop that tells but once of a connection that was reset (uvloop): what is not read now would be the
        last thing ever heard of it."""
        before = self.bytes_received
        if self._receive() and (self.bytes_received - before >= self._port.turn_bytes or self._receive()):
            self._loop.call_soon(self._receive_all)

    def _receive(self) -> bool:
        turn, reader = self._port.turn_bytes, self._reader
        budget = turn
        while budget > 0 and self._socket is not None:
            buffer = reader.buffer()
            wanted = min(len(buffer), budget)  # the kernel may hold many megabytes, and new memory is slow to fill
            try:
                nbytes = self._socket.recv_into(buffer, wanted)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._fail("receiving", error)
                return True
            if nbytes == 0:
                where = "" if reader.idle else f" in the middle of a frame: {reader.position}"
                self.end(f"its process ended{where}", certain=not self._port.watch.doubts(self))
                return True
            budget -= nbytes
            self.bytes_received += nbytes
            try:
                reader.received(nbytes)
            except WireError as error:
                self.end(f"it sent what no correct peer sends: {error}", certain=False)
                return True
            except Exception as error:  # no memory for what comes, say: a stream cannot be read on from the middle
                _log.exception("rank %d cannot take what rank %d sent", self._port.world.rank, self.peer)
                self.end(f"what it sent cannot be taken here: {type(error).__name__}: {error}", certain=False)
                return True
            if nbytes < wanted:
                break
        return budget < turn

    def _take_in(self, data: bytes) -> None:
        """Feeds bytes that came with the handshake."""
        view = memoryview(data)
        try:
            while view and not self.ended:
                buffer = self._reader.buffer()
                nbytes = min(len(buffer), len(view))
                buffer[:nbytes] = view[:nbytes]
                view = view[nbytes:]
                self.bytes_received += nbytes
                self._reader.received(nbytes)
        except WireError as error:
            self.end(f"it sent what no correct peer sends: {error}", certain=False)

    def withdraw(self, sent: Sent, *, keep: bool) -> bool:
        for item in self._queue:
            if item.sent is not sent:
                continue
            item.sent = None
            if not self.ended and (keep or item.begun):
                item.parts = [memoryview(bytes(part)) for part in item.parts]
                return False
            self._queue.remove(item)
            if not self._queue:
                self._port.busy.pop(self.peer, None)
            return True
        return False

    def drained(self) -> bool:
        """True once the peer's kernel has acknowledged everything."""
        return not self._queue and (self._socket is None or unacknowledged(self._socket) == 0)

    def end(self, reason: str, *, certain: bool = True) -> None:
        """The connection is over, or there will be none; tells the owner why. ``certain``: the process there has ended,
        or left; otherwise it may live on, and is told that this rank has given it up, if it can be."""
        if self.ended:
            return
        if not certain:
            self._say_cut(reason)
        self.ended, self.ready = True, False
        # Before what waits here ends: it ends with its group, and by the same error.
        if self._socket is None and certain:
            self._port.owner_unreached(self.peer, reason)
        else:
            self._port.owner_lost(self.peer, reason, certain=certain)
        self.close(reason)

    def _say_cut(self, reason: str) -> None:
        if self._socket is None or (self._queue and self._queue[0].begun):
            return  # there is no saying anything in the middle of a frame
        news = pack_control({"t": "cut", "text": reason})
        try:
            self._socket.send(pack_header(CONTROL, 0, 0, 0, b"", len(news)) + news)
        except OSError:
            pass  # it cannot be told; its own kernel, or the end of this connection, will do

    def _stop_retry(self) -> None:
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None

    def close(self, reason: str = "this rank closed the link") -> None:
        self.ended, self.ready = True, False
        self._port.busy.pop(self.peer, None)
        self._stop_retry()
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
