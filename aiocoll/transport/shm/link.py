"""The link to one rank of this host: a lane each way, and a connection that ends when the peer's process does.

The rule: what a peer has posted before it ended is still taken, its farewell included, before anybody hears of the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import WireError
from ...wire.frame import FrameSink
from ..base import Queued, Sent
from .inlane import Inlane
from .outlane import Outlane
from .private import Ended, Unreadable

if TYPE_CHECKING:
    from .meeting import Peer
    from .transport import ShmTransport

_log = logging.getLogger("aiocoll.transport")


class ShmLink:
    """An ordered pipe of frames to one local peer."""

    __slots__ = ("_connection", "_port", "ended", "inlane", "outlane", "peer", "ready", "transport")
    peer: int
    transport: str
    gathers: bool = True
    ended: bool
    ready: bool

    def __init__(self, port: ShmTransport, peer: int, end: Peer, sink: FrameSink, mine: int, theirs: int) -> None:
        self._port, self.peer, self.transport = port, peer, port.name
        self._connection = end.connection
        self.outlane: Outlane = Outlane(port, peer, end, mine, theirs)
        self.inlane: Inlane = Inlane(port, peer, end, sink, mine, theirs)
        self.ready, self.ended = True, False
        port.loop.add_reader(end.connection.fileno(), self._hear)

    def __repr__(self) -> str:
        return f"<ShmLink to rank {self.peer}: {'ended' if self.ended else 'ready'}, {self.outlane}>"

    @property
    def bytes_sent(self) -> int:
        return self.outlane.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self.inlane.bytes_received

    def submit(self, kind: int, group: int, call: int, step: int, meta: bytes, payload: Any) -> Queued | None:
        if self.ended:
            return None
        return self.outlane.send(kind, group, call, step, meta, payload)

    def consumed(self, nbytes: int) -> None:
        """So many bytes of the peer's data, as the bound counts them, need no memory here any more."""
        if not self.ended:
            self.inlane.consumed(nbytes)

    def credit(self) -> int:
        """How many bytes of this rank's data the peer has consumed since this was asked last."""
        return 0 if self.ended else self.inlane.credit()

    @property
    def port(self) -> ShmTransport:
        """The transport that it belongs to."""
        return self._port

    def glance(self) -> bool:
        """Whether ``progress`` would move anything; looks several times."""
        return self.inlane.glance() or self.outlane.news()

    def news(self) -> bool:
        """Whether ``progress`` would move anything."""
        return self.ready and (self.inlane.news() or self.outlane.news())

    def progress(self, enough: Callable[[], bool] | None = None) -> bool:
        """Moves what can be moved; what comes only until that is ``enough``: a call that comes finds the rest where it
        is quickest to have."""
        if not self.ready:
            return False
        outlane, port = self.outlane, self._port
        moved = outlane.flush(port.turn_bytes) if outlane.waits else False
        if moved and port.hungry:
            port.feed()
        if moved and enough is not None and enough():
            return True
        return self._take(enough) or moved

    def _take(self, enough: Callable[[], bool] | None = None) -> bool:
        try:
            return self.inlane.take(self._port.turn_bytes, enough)
        except WireError as error:
            self.end(f"it sent what no correct peer sends: {error}", certain=False)
        except Unreadable as error:
            self.end(str(error), certain=isinstance(error, Ended))
        except Exception as error:  # no memory for what comes, say: a lane cannot be read on from the middle
            _log.exception("rank %d cannot take what rank %d sent", self._port.rank, self.peer)
            self.end(f"what it sent cannot be taken here: {type(error).__name__}: {error}", certain=False)
        return True

    def lent(self, place: int, nbytes: int) -> NDArray[np.uint8] | None:
        """What lies at a place in the peer's arrays; None, and the link ends if it was sound, where that is nothing."""
        if not self.ready:
            return None
        try:
            return self._port.loans.view(place, nbytes, self.peer, self._connection)
        except WireError as error:
            self.end(f"it sent what no correct peer sends: {error}", certain=False)
        except OSError as error:
            self.end(str(error), certain=False)
        return None

    def _hear(self) -> None:
        """The connection has something to say: arenas, or its end."""
        try:
            if self._port.loans.hear(self.peer, self._connection):
                return
            reason, certain = "its process ended", True
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            reason, certain = f"its connection failed: {error}", isinstance(error, OSError)
        while self.ready and self.inlane.news() and self._take():
            pass
        self.end(reason, certain=certain)

    def withdraw(self, sent: Sent, *, keep: bool) -> bool:
        return self.outlane.withdraw(sent, keep=keep)

    def recall(self, group: int) -> None:
        """The peer gives no sign, and ``group`` is broken: it keeps no memory from others any more."""
        if not self.ended:
            self.outlane.recall(group)

    def drained(self) -> bool:
        """True once everything submitted lies where the peer finds it, whether or not this process lives on."""
        return self.ended or self.outlane.drained

    def end(self, reason: str, *, certain: bool = True) -> None:
        """The peer is gone; tells the owner why. ``certain``: its process has ended."""
        if self.ended:
            return
        self.ended, self.ready = True, False
        # First: what waits here ends with its group, by the same error.
        self._port.owner_lost(self.peer, reason, certain=certain)
        self.close(reason)

    def close(self, reason: str = "this rank closed the link") -> None:
        self.ended, self.ready = True, False
        if self._connection.fileno() >= 0:
            self._port.loop.remove_reader(self._connection.fileno())
            self._connection.close()
            self._port.loans.forget(self.peer)
            self.outlane.abandon(ConnectionError(reason))
