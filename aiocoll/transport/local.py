"""One transport made of two: shared memory for the ranks of this host that share it, TCP for all others.

The rule: it only says which of the two a peer belongs to; that never changes, and neither knows of the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from .base import Link, Owner, Transport


class Routed:
    """``near`` carries the links to the ranks ``local``, ``far`` those to the others."""

    near: Transport
    far: Transport
    local: frozenset[int]

    def __init__(self, near: Transport, far: Transport, local: Iterable[int]) -> None:
        self.near, self.far, self.local = near, far, frozenset(local)
        self.memory = near
        self.name: str = f"{near.name}+{far.name}"

    def __repr__(self) -> str:
        return f"<Routed {self.near!r} to {sorted(self.local)}, {self.far!r} to the others>"

    @property
    def turn_bytes(self) -> int:
        """What one call of a link's progress moves at most each way."""
        return self.near.turn_bytes

    @turn_bytes.setter
    def turn_bytes(self, nbytes: int) -> None:
        self.near.turn_bytes = self.far.turn_bytes = nbytes

    def attach(self, owner: Owner) -> None:
        self.near.attach(owner)
        self.far.attach(owner)

    def link(self, peer: int) -> Link:
        return self.near.link(peer) if peer in self.local else self.far.link(peer)

    def links(self) -> list[Link]:
        return self.near.links() + self.far.links()

    def pending(self) -> list[Link]:
        return self.near.pending() + self.far.pending()

    def drained(self) -> bool:
        return self.near.drained() and self.far.drained()

    def close(self) -> None:
        try:
            self.near.close()
        finally:
            self.far.close()
