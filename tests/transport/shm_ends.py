"""Ends of links through shared memory in one process, and an end that writes into its segment whatever it likes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiocoll.transport.shm.link import ShmLink
from aiocoll.transport.shm.meeting import Peer, Shared
from aiocoll.transport.shm.segment import INLINE_AT, META_AT, NONCE_BYTES, Geometry, Mapped, Segment
from aiocoll.transport.shm.transport import ShmTransport

from .ends import Keeper, Landed

TINY = Geometry(ranks=2, slots=2, cells=4, cell_bytes=4096)


class AnyKind(Keeper):
    """Keeps frames of every kind."""

    waiting = False

    def sink(self, peer: int) -> Any:
        return _Sink(self, peer)


class _Sink:
    def __init__(self, owner: AnyKind, peer: int) -> None:
        self.owner, self.peer = owner, peer

    def arriving(self, kind: int, group: int, call: int, step: int, meta: bytes, length: int) -> Any:
        return Landed(self.owner, self.peer, (kind, group, call, step), meta, length)


def shared_by(geometry: Geometry) -> list[Shared]:
    """What the ranks of an island have once they are paired, without the meeting."""
    nonce = b"n" * NONCE_BYTES
    segments = [Segment.create(geometry, nonce) for _ in range(geometry.ranks)]
    bells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in segments]
    made = [Shared(segment, bell, {}) for segment, bell in zip(segments, bells, strict=True)]
    for a in range(geometry.ranks):
        for b in range(a):
            lines = socket.socketpair()
            for mine, theirs, line in ((a, b, lines[0]), (b, a, lines[1])):
                line.setblocking(False)
                mapped = Mapped.open(segments[theirs].fd, geometry, nonce)
                made[mine].peers[theirs] = Peer(line, mapped, os.dup(bells[theirs]))
    return made


class ShmEnds:
    """The transports of an island, all in this loop; those of ``forged`` are there in name only."""

    def __init__(self, geometry: Geometry = TINY, forged: tuple[int, ...] = ()) -> None:
        loop = asyncio.get_running_loop()
        self.geometry = geometry
        self.shared = shared_by(geometry)
        self.owners = [AnyKind(rank) for rank in range(geometry.ranks)]
        self.transports = {
            rank: ShmTransport(loop, rank, shared) for rank, shared in enumerate(self.shared) if rank not in forged
        }
        for rank, transport in self.transports.items():
            transport.attach(self.owners[rank])

    def __repr__(self) -> str:
        return f"<ShmEnds {list(self.transports)} of {self.geometry}>"

    def link(self, src: int, dst: int) -> ShmLink:
        """The end of a link that belongs to ``src``."""
        return self.transports[src].link(dst)

    def close(self) -> None:
        for rank, shared in enumerate(self.shared):
            if rank in self.transports:
                self.transports[rank].close()
            else:
                shared.close()


@contextlib.contextmanager
def shm_ends(geometry: Geometry = TINY, forged: tuple[int, ...] = ()) -> Iterator[ShmEnds]:
    """The ends of an island, closed at the end."""
    world = ShmEnds(geometry, forged)
    try:
        yield world
    finally:
        world.close()


class Forger:
    """Rank ``rank`` of an island as its own writer of slots to rank ``to``: it checks nothing."""

    def __init__(self, shared: Shared, rank: int, to: int) -> None:
        self.segment, self.geometry = shared.segment, shared.segment.geometry
        self.rank, self.to = rank, to
        self.connection, self.bell = shared.peers[to].connection, shared.peers[to].bell_fd
        self.theirs = shared.peers[to].mapped.words
        self.posted = 0

    def __repr__(self) -> str:
        return f"<Forger of rank {self.rank}, {self.posted} slots posted>"

    def slot(self) -> int:
        """Where the next slot begins, in bytes."""
        return self.geometry.slot(self.to, self.posted & (self.geometry.slots - 1))

    def put(
        self, kind: int, *, call: int = 0, sign: int = 0, group: int = 0, step: int = 0, meta: bytes = b"",
        meta_bytes: int | None = None, length: int = 0, piece: int = 0, place: int = 0, inline: bytes = b"",
    ) -> None:  # fmt: skip
        """One slot with these words in it."""
        at, words = self.slot(), self.segment.words
        said = len(meta) if meta_bytes is None else meta_bytes
        shape = (kind & 0xFF) | (step << 8) | (said << 40)
        for i, value in enumerate((call, sign, group, shape, length, piece, place)):
            words[(at >> 3) + 1 + i] = value & (1 << 64) - 1
        self.segment.bytes[at + META_AT : at + META_AT + len(meta)] = meta
        self.segment.bytes[at + INLINE_AT : at + INLINE_AT + len(inline)] = inline
        self.show()

    def raw(self, words: NDArray[np.uint64]) -> None:
        """One slot that holds just these words behind its number."""
        at = self.slot()
        self.segment.bytes[at + 8 : at + 8 + words.nbytes] = words.tobytes()
        self.show()

    def show(self) -> None:
        """Makes the slot visible, and rings."""
        self.posted += 1
        self.segment.words[self.geometry.slot(self.to, (self.posted - 1) & (self.geometry.slots - 1)) >> 3] = (
            self.posted
        )
        self.ring()

    def take(self, number: int) -> None:
        """Says that so many slots were taken."""
        self.segment.words[self.geometry.taken(self.to)] = number & (1 << 64) - 1
        self.ring()

    def ring(self) -> None:
        os.eventfd_write(self.bell, 1)

    @property
    def taken(self) -> int:
        """How many of its slots the other side has taken."""
        return self.theirs[self.geometry.taken(self.rank)]
