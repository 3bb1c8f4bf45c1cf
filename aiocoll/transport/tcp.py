"""Links over TCP, one per pair of ranks, made on first use and watched as long as they live.

The rule: whoever accepts decides which connection is the link, and a rank is told of every link's end once, with how
sure it is that the process there has ended.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from .base import LOOP_TURN_BYTES, Link, Owner
from .tcp_connect import Dial, Porch, TcpWorld
from .tcp_health import Watch
from .tcp_link import TcpLink

_RETRY_SECONDS: Final = 0.2


class TcpTransport:
    """Makes and keeps the TCP links of one endpoint; ``listener`` is a bound, listening, non-blocking socket."""

    loop: asyncio.AbstractEventLoop
    world: TcpWorld

    name = "tcp"

    def __init__(self, loop: asyncio.AbstractEventLoop, world: TcpWorld, listener: socket.socket) -> None:
        self.loop, self.world = loop, world
        self.made: dict[int, TcpLink] = {}
        self.busy: dict[int, TcpLink] = {}
        self.tells_again: bool = isinstance(loop, asyncio.SelectorEventLoop)
        self._owner: Owner | None = None
        self.turn_bytes = LOOP_TURN_BYTES
        self.watch: Watch = Watch(loop, world.lost_seconds, self.made.values)
        self._porch = Porch(loop, world, listener, self._may_come, self._came)
        self.closed: bool = False

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
        self.watch.begin()
        link.dial = Dial(
            self.loop,
            self.world,
            link.peer,
            connected=link.attach,
            failed=lambda reason, silent: self._dial_failed(link, reason, silent),
            again=again,
        )
        link.dial.start()

    def _dial_failed(self, link: TcpLink, reason: str | None, silent: bool) -> None:
        """``reason`` None: the attempt ended without a verdict (the peer connects to us at the same time, say);
        ``silent``: the host there does not answer."""
        link.dial = None
        if link.begun or self.closed:
            return
        if reason is None:
            link.retry = self.loop.call_later(_RETRY_SECONDS, self._dial_again, link)
        else:
            link.end(reason, certain=not silent)

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
        self.watch.begin()
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

    def owner_lost(self, peer: int, reason: str, *, certain: bool) -> None:
        if self._owner is not None and not self.closed:
            self._owner.lost(peer, reason, certain=certain)

    def close(self) -> None:
        self.closed = True
        self.watch.end()
        self._porch.close()
        for link in list(self.made.values()):
            link.close()
        self._owner = None
