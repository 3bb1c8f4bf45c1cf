"""Links between endpoints of one process and one loop: carries the simulator, tests and a world of one.

The rule: same interface, same order guarantees and same buffer rules as TCP; a payload is copied when it is submitted,
so that sender and receiver never share memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from ..errors import WireError
from ..wire.frame import HEADER_BYTES, FrameSink, pour
from ..wire.rope import Rope, pieces_of
from .base import Link, Owner, Queued, Sent

_Frame = tuple[int, int, int, int, bytes, bytes]


class Switch:
    """Joins the inproc transports of one process; ``delay(src, dst, nbytes, now)`` gives each frame's arrival time:
    infinity for one that waits, with those behind it, until ``pass_on`` sends it on."""

    def __init__(self, *, delay: Callable[[int, int, int, float], float] | None = None) -> None:
        self.delay = delay
        self.ports: dict[int, InprocTransport] = {}
        self.down: set[int] = set()
        self.ended: set[int] = set()
        self.early: dict[int, list[tuple[InprocTransport, int, _Frame]]] = {}
        """Frames for ranks that have not opened their port yet."""
        self._grown: WeakValueDictionary[int, Switch] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<Switch ranks={sorted(self.ports)} down={sorted(self.down)}>"

    def grown(self, world: int, members: Sequence[Mapping[str, Any]]) -> Switch:
        """The switch of a larger ``world`` into which the ranks of this one have grown, the same for each of its
        ``members`` (what they said of themselves)."""
        found = self._grown.get(world)
        if found is None:
            found = self._grown[world] = self._grow(members)
        return found

    def _grow(self, members: Sequence[Mapping[str, Any]]) -> Switch:
        return Switch(delay=self.delay)

    def memory(self, size: int) -> dict[int, str]:
        """A name for the memory that each rank shares with others."""
        return dict.fromkeys(range(size), "one process")

    def came(self, rank: int) -> None:
        """``rank`` has opened its port."""

    def missed(self, port: InprocTransport, peer: int) -> None:
        """``port`` would make a link to a ``peer`` whose power was cut."""
        port.soon(port.owner_lost, peer)

    def power_cut(self, rank: int, *, loses: Callable[[int], bool] | None = None) -> None:
        """Rank ``rank`` stops as if it were killed: nothing leaves it any more, nothing reaches it, and the others'
        links to it end as when an operating system reports a dead process: after what was on its way, which is lost
        too for those of whom ``loses`` says so."""
        self.down.add(rank)
        for other, port in list(self.ports.items()):
            if other != rank and rank in port.made:
                port.made[rank].end(drop=loses is not None and loses(other))

    def pass_on(self, src: int, dst: int, nbytes: int) -> None:
        """A frame of ``src`` for ``dst`` that has waited goes its way, also when ``src`` has ended meanwhile."""
        target = self.ports.get(dst)
        if target is not None and src in target.made:
            self.travel(src, target, target.made[src], nbytes)

    def travel(self, src: int, target: InprocTransport, far: InprocLink, nbytes: int) -> None:
        """The next frame in the queue of ``target``'s link to ``src`` is on its way."""
        if self.delay is None:
            target.soon(far._deliver)
            return
        when = self.delay(src, target.rank, nbytes, target.loop.time())
        if when < math.inf:
            target.loop.call_at(when, far._deliver, context=target.context)


class InprocLink:
    """One direction pair between two ranks of a Switch."""

    __slots__ = (
        "_closed", "_ending", "_port", "_queue", "_sink", "bytes_received", "bytes_sent", "peer", "ready", "transport",
    )  # fmt: skip
    peer: int
    transport: str
    gathers: bool = True
    bytes_sent: int
    bytes_received: int

    def __init__(self, port: InprocTransport, peer: int, sink: FrameSink) -> None:
        self._port, self.peer, self._sink, self.transport = port, peer, sink, port.name
        self._queue: deque[_Frame] = deque()
        self._closed = self._ending = False
        self.ready: bool = True
        self.bytes_sent = self.bytes_received = 0

    def __repr__(self) -> str:
        return f"<InprocLink {self._port.rank}->{self.peer}>"

    def submit(self, kind: int, group: int, call: int, step: int, meta: bytes, payload: Any) -> Queued | None:
        port = self._port
        switch = port.switch
        if self._closed or self.peer in switch.down or port.rank in switch.down:
            return None
        data = b"" if payload is None else bytes(payload)
        nbytes = HEADER_BYTES + len(meta) + len(data)
        self.bytes_sent += nbytes
        arriving = (kind, group, call, step, meta, data)
        target = switch.ports.get(self.peer)
        if target is not None:
            port.carry(target, nbytes, arriving)
        elif self.peer in switch.ended:
            self.end()
        else:
            switch.early.setdefault(self.peer, []).append((port, nbytes, arriving))
        return None

    def end(self, *, drop: bool = False) -> None:
        """The peer is gone: its last frames come first (unless they are to be dropped), then the news, as over a
        socket."""
        if drop:
            self._queue.clear()
        self._ending = bool(self._queue)
        if not self._ending:
            self._port.soon(self._port.owner_lost, self.peer)

    def _deliver(self) -> None:
        if not self._queue:
            return
        arrived = self._queue.popleft()
        if self._closed or self._port.rank in self._port.switch.down:
            return
        self.bytes_received += HEADER_BYTES + len(arrived[4]) + len(arrived[5])
        try:
            _hand_over(self._sink, arrived)
        except WireError as error:
            self.close()
            self._port.owner_lost(self.peer, f"it sent what no correct peer sends: {error}")
            return
        if self._ending:
            self.end()

    def progress(self) -> bool:
        return False

    def withdraw(self, sent: Sent, *, keep: bool) -> bool:
        return False

    def close(self) -> None:
        self._closed = True
        self._queue.clear()


class Loopback:
    """The link of a rank to itself: a frame arrives while it is submitted."""

    __slots__ = ("_sink", "bytes_received", "bytes_sent", "peer", "ready")
    peer: int
    bytes_sent: int
    bytes_received: int
    transport = "inproc"
    gathers: bool = True

    def __init__(self, peer: int, sink: FrameSink) -> None:
        self.peer, self._sink = peer, sink
        self.ready: bool = True
        self.bytes_sent = self.bytes_received = 0

    def __repr__(self) -> str:
        return f"<Loopback of rank {self.peer}>"

    def submit(self, kind: int, group: int, call: int, step: int, meta: bytes, payload: Any) -> Queued | None:
        _hand_over(self._sink, (kind, group, call, step, meta, b"" if payload is None else payload))
        return None

    def progress(self) -> bool:
        return False

    def withdraw(self, sent: Sent, *, keep: bool) -> bool:
        return False

    def close(self) -> None:
        return


def _hand_over(sink: FrameSink, arrived: tuple[int, int, int, int, bytes, Any]) -> None:
    kind, group, call, step, meta, data = arrived
    landing = sink.arriving(kind, group, call, step, meta, len(data))
    if landing is None:
        return
    for piece in pieces_of(data if isinstance(data, Rope) else memoryview(data)):
        pour(piece, landing)
    landing.complete()


class InprocTransport:
    """One rank's port of a Switch."""

    switch: Switch
    loop: asyncio.AbstractEventLoop

    name = "inproc"
    turn_bytes = 0  # frames arrive whole

    def __init__(self, switch: Switch, loop: asyncio.AbstractEventLoop) -> None:
        self.switch, self.loop = switch, loop
        self.rank: int = -1
        self.context: contextvars.Context = contextvars.copy_context()
        """Where what arrives here is looked at: as this rank's work, whoever sent it."""
        self.made: dict[int, InprocLink] = {}
        self._owner: Owner | None = None

    def __repr__(self) -> str:
        return f"<InprocTransport rank={self.rank} links={sorted(self.made)}>"

    def attach(self, owner: Owner) -> None:
        self._owner, self.rank = owner, owner.rank
        self.switch.ports[owner.rank] = self
        self.switch.ended.discard(owner.rank)
        self.switch.came(owner.rank)
        early = self.switch.early.pop(owner.rank, ())
        for port, nbytes, arriving in early:
            port.carry(self, nbytes, arriving)
        for sender in dict.fromkeys(port.rank for port, _, _ in early):
            if sender in self.switch.down or sender in self.switch.ended:
                self.made[sender].end()  # it came, spoke and went before this rank was there

    def carry(self, target: InprocTransport, nbytes: int, arriving: _Frame) -> None:
        """Brings a frame of this rank to ``target``, after the network's delay."""
        far = target._met(self.rank)
        far._queue.append(arriving)  # it arrives, also when its sender has ended meanwhile
        self.switch.travel(self.rank, target, far, nbytes)

    def soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Calls it in the loop's next round, as this rank's work."""
        self.loop.call_soon(callback, *arguments, context=self.context)

    def link(self, peer: int) -> InprocLink:
        """The link to ``peer`` (which may be this rank)."""
        link = self.made.get(peer)
        if link is None:
            link = self._met(peer)
            self._meet(peer)
        return link

    def _met(self, peer: int) -> InprocLink:
        link = self.made.get(peer)
        if link is None:
            assert self._owner is not None
            link = self.made[peer] = InprocLink(self, peer, self._owner.sink(peer))
        return link

    def _meet(self, peer: int) -> None:
        """Connecting concerns both sides: the peer has a link to me from now on, or I hear that nobody is there."""
        target = self.switch.ports.get(peer)
        if self.rank in self.switch.down:
            return  # it does not know yet that it is dead, and reaches nobody
        if peer in self.switch.down:
            self.switch.missed(self, peer)
        elif target is None and peer in self.switch.ended:
            self.soon(self.owner_unreached, peer)
        elif target is not None and target._owner is not None:
            target._met(self.rank)

    @property
    def owner(self) -> Owner | None:
        """Whose port it is, while it is open."""
        return self._owner

    def links(self) -> list[Link]:
        return list(self.made.values())

    def pending(self) -> list[Link]:
        return []

    def drained(self) -> bool:
        return True

    def owner_unreached(self, peer: int) -> None:
        """Reports a peer that had closed before any link to it was made."""
        if self._owner is not None and self.rank not in self.switch.down:
            self._owner.unreached(peer, "it has ended")

    def owner_lost(self, peer: int, reason: str = "its process ended", certain: bool = True) -> None:
        """Reports a dead or closed peer, or (not ``certain``) a silent one, to the endpoint."""
        if self._owner is not None and self.rank not in self.switch.down:
            self._owner.lost(peer, reason, certain=certain)

    def close(self) -> None:
        for link in self.made.values():
            link.close()
        if self.switch.ports.get(self.rank) is self:
            del self.switch.ports[self.rank]
            self.switch.ended.add(self.rank)
            if self.rank not in self.switch.down and not self.loop.is_closed():
                for port in list(self.switch.ports.values()):
                    if self.rank in port.made:
                        port.made[self.rank].end()
        self._owner = None
