"""Links over raw non-blocking TCP sockets, one per pair of ranks, made on first use.

The rule: one synchronous ``progress`` serves the loop's callbacks and a spinning verb alike; payloads go from the
caller's memory to the kernel and from the kernel into the caller's memory, without a copy in between.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from typing import Any, Final

from ..errors import WireError
from ..wire.frame import CREDIT, FrameReader, FrameSink, pack_header
from .base import LOOP_TURN_BYTES, Link, Owner, Queued, Sent
from .forked import not_for_children
from .item import Item
from .tcp_connect import Dial, Porch, TcpWorld, unacknowledged

_log = logging.getLogger("aiocoll.transport")
_JOINED_BYTES_MAX: Final = 1024
_PARTS_MAX: Final = 64
_RETRY_SECONDS: Final = 0.2
_WELCOME: Final = pack_header(CREDIT, 0, 0, 0, 0, 0, 0)
"""A frame that says nothing: it tells the side that dialled that its connection is the link."""


class TcpLink:
    """An ordered pipe of frames over one TCP connection."""

    __slots__ = (
        "_loop", "_port", "_queue", "_reader", "_socket", "_writing", "bytes_received", "bytes_sent", "dial", "ended",
        "peer", "ready", "retry", "transport",
    )  # fmt: skip

    def __init__(self, port: TcpTransport, peer: int, sink: FrameSink) -> None:
        self._port, self._loop, self.peer, self.transport = port, port.loop, peer, port.name
        self._reader = FrameReader(sink)
        self._queue: deque[Item] = deque()
        self._socket: socket.socket | None = None
        self._writing = False
        self.dial: Dial | None = None
        self.retry: asyncio.TimerHandle | None = None
        self.ready = False
        self.ended = False
        self.bytes_sent = self.bytes_received = 0

    def __repr__(self) -> str:
        state = "ended" if self.ended else "ready" if self.ready else "connecting"
        return f"<TcpLink to rank {self.peer}: {state}, {len(self._queue)} frames queued>"

    @property
    def begun(self) -> bool:
        """Whether there is, or was, a connection."""
        return self._socket is not None or self.ended

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
        parts = [memoryview(head)] if not nbytes else [memoryview(head), payload]
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
            self._loop.call_soon(self._read_to_the_end, f"sending failed: {error.strerror or error}")

    def _read_to_the_end(self, reason: str) -> None:
        while self._receive():
            pass
        self.end(reason)

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
            except Exception as error:  # no memory for what comes, say: a stream cannot be read on from the middle
                _log.exception("rank %d cannot take what rank %d sent", self._port.world.rank, self.peer)
                self.end(f"what it sent cannot be taken here: {type(error).__name__}: {error}")
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
            self.end(f"it sent what no correct peer sends: {error}")

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

    def end(self, reason: str) -> None:
        """The connection is over, or there will be none; tells the owner why."""
        if self.ended:
            return
        tell = self._port.owner_unreached if self._socket is None else self._port.owner_lost
        self.ended, self.ready = True, False
        tell(self.peer, reason)  # before what waits here ends: it ends with its group, and by the same error
        self.close(reason)

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


class TcpTransport:
    """Makes and keeps the TCP links of one endpoint; ``listener`` is a bound, listening, non-blocking socket."""

    name = "tcp"

    def __init__(self, loop: asyncio.AbstractEventLoop, world: TcpWorld, listener: socket.socket) -> None:
        self.loop, self.world = loop, world
        self.made: dict[int, TcpLink] = {}
        self.busy: dict[int, TcpLink] = {}
        self.tells_again = isinstance(loop, asyncio.SelectorEventLoop)
        self._owner: Owner | None = None
        self.turn_bytes = LOOP_TURN_BYTES
        self._porch = Porch(loop, world, listener, self._may_come, self._came)
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

    def _dial(self, link: TcpLink, *, again: bool = False) -> None:
        link.dial = Dial(
            self.loop,
            self.world,
            link.peer,
            connected=link.attach,
            failed=lambda reason: self._dial_failed(link, reason),
            again=again,
        )
        link.dial.start()

    def _dial_failed(self, link: TcpLink, reason: str | None) -> None:
        """``reason`` None: the attempt ended without a verdict (the peer connects to us at the same time, say)."""
        link.dial = None
        if link.begun or self.closed:
            return
        if reason is None:
            link.retry = self.loop.call_later(_RETRY_SECONDS, self._dial_again, link)
        else:
            link.end(reason)

    def _dial_again(self, link: TcpLink) -> None:
        link.retry = None
        if not (link.begun or link.dial or self.closed):
            self._dial(link, again=True)

    def _may_come(self, peer: int) -> bool:
        """Whether a connection from ``peer`` may become the link. When both sides dial at once the lower rank's
        connection stands. Asked before and after the proof, and only a proved peer changes anything: the side that
        accepts decides, and the side that dialled knows by the first frame."""
        link = self.made.get(peer)
        return link is None or not (link.begun or (link.dial is not None and self.world.rank < peer))

    def _came(self, peer: int, connection: socket.socket, leftover: bytes) -> bool:
        """A connection from ``peer`` is proved: makes it the link, or says no."""
        if self.closed or not self._may_come(peer):
            return False
        link = self.made.get(peer)
        if link is None:
            link = self._new_link(peer)
        if link.dial is not None:
            link.dial.cancel()
            link.dial = None
        link.attach(connection, leftover, accepted=True)
        return True

    def links(self) -> list[Link]:
        return list(self.made.values())

    def pending(self) -> list[Link]:
        return list(self.busy.values())

    def drained(self) -> bool:
        return all(link.ended or link.drained() for link in self.made.values())

    def owner_linked(self, peer: int) -> None:
        if self._owner is not None and not self.closed:
            self._owner.linked(peer)

    def owner_unreached(self, peer: int, reason: str) -> None:
        if self._owner is not None and not self.closed:
            self._owner.unreached(peer, reason)

    def owner_lost(self, peer: int, reason: str) -> None:
        if self._owner is not None and not self.closed:
            self._owner.lost(peer, reason)

    def close(self) -> None:
        self.closed = True
        self._porch.close()
        for link in list(self.made.values()):
            link.close()
        self._owner = None
