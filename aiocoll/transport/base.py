"""The one-screen interface of a transport: frames to and from one peer, in order.

The rule: a transport moves frames and reports loss; it never interprets a key, and it never drops or reorders.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from ..wire.frame import FrameSink

LOOP_TURN_BYTES: Final = 256 << 10
"""What one call of progress moves at most each way while others need the loop: less than a millisecond of a core."""
BLOCKING_TURN_BYTES: Final = 4 << 20
"""The same while a blocked caller is all there is."""


class Sent(Protocol):
    """A ticket for one submitted frame: ``finish()`` is called once the payload may be reused."""

    def finish(self, error: BaseException | None = None) -> None: ...


class Queued(Protocol):
    """A frame that is not with the operating system yet; whoever cares sets ``sent`` at once."""

    sent: Sent | None


class Link(Protocol):
    """An ordered pipe of frames to one peer. Everything is synchronous and runs in the thread of the loop."""

    peer: int
    ready: bool
    """False while the connection is still being made (frames queue)."""
    transport: str
    """The name of the transport that it belongs to."""

    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...

    def submit(self, kind: int, group: int, call: int, step: int, meta: bytes, payload: Any) -> Queued | None:
        """Sends a frame, at once as far as possible. None: the payload may be reused already. Otherwise the rest is
        queued by reference, and its ``sent.finish()`` follows. ``payload`` is None or a contiguous byte view, or, for a
        link that says ``gathers = True``, a Rope. Raises nothing: a broken link is reported to ``Owner.lost``, and
        swallows what is submitted later."""

    def progress(self) -> bool:
        """Moves what can be moved without waiting, both ways, boundedly; True if anything moved."""

    def withdraw(self, sent: Sent, *, keep: bool) -> bool:
        """The payload of ``sent`` must not be read any more after this call: what is left of it is sent from a copy.
        Without ``keep`` a frame that has not begun is dropped instead, and True says so."""

    def close(self) -> None:
        """Cuts the connection at once; idempotent."""


class Owner(Protocol):
    """Whom a transport serves: the endpoint."""

    rank: int

    @property
    def waiting(self) -> bool:
        """Whether anything waits for a frame."""

    def sink(self, peer: int) -> FrameSink: ...

    def linked(self, peer: int) -> None:
        """There is a connection to ``peer`` from now on."""

    def lost(self, peer: int, reason: str, *, certain: bool = True) -> None:
        """The connection to ``peer`` ended. (It says BYE first if that is no accident.) Not ``certain``: it was only
        silent for too long."""

    def unreached(self, peer: int, reason: str) -> None:
        """No connection to ``peer`` could be made: it is gone, and nothing says how it went."""


class Transport(Protocol):
    """Makes the links of one endpoint, lazily."""

    name: str
    turn_bytes: int
    """What one call of a link's progress moves at most each way."""

    def attach(self, owner: Owner) -> None: ...

    def link(self, peer: int) -> Link:
        """The link to ``peer``; connecting starts if there is none. Never blocks."""

    def links(self) -> list[Link]:
        """Those that exist."""

    def pending(self) -> list[Link]:
        """Links with frames that are not yet handed over to the operating system."""

    def drained(self) -> bool:
        """True once everything submitted has reached the peers' hosts (or never will)."""

    def close(self) -> None:
        """Cuts everything; leaves no descriptor and no callback behind."""
