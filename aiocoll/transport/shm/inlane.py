"""Frames out of the lane of slots that comes from one local peer.

The rule: what the peer wrote is read once and checked before it is used; a slot is taken when nobody needs it any more.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ...errors import WireError
from ...wire.frame import KIND_MAX, META_BYTES_MAX, PAYLOAD_BYTES_MAX, Drain, FrameSink, Landing, pour
from .private import STEP_BYTES, Private, Span, Unreadable
from .segment import ASLEEP, INLINE_AT, INLINE_BYTES, META_AT, META_BYTES, NO_BYTES, NO_WORDS
from .slot import ARENA, LONG_META, MORE, NEWS, PIECE_MASK, PRIVATE, REVOKED, Lane
from .stamp import CELL, Stamp

if TYPE_CHECKING:
    from .meeting import Peer
    from .transport import ShmTransport

_log = logging.getLogger("aiocoll.transport")
LOOKS: Final = 64
"""How often a waiting rank looks before it offers its core to others."""
_QUICK_BYTES: Final = 16 << 20
"""Longer payloads in private memory are read in turns; even a slow machine reads that many in some milliseconds."""
_STEP_BYTES: Final = 256 << 10
"""A reference is followed in pieces of this size."""


class Inlane(Lane):
    """A peer's lane to me."""

    __slots__ = (
        "_arena", "_connection", "_credit_word", "_credited", "_credited_word", "_geometry", "_heard", "_landing",
        "_long_meta", "_mask", "_memory", "_mine", "_missing", "_news_word", "_peer", "_port", "_private", "_sink",
        "_taken_word", "_waits_word", "_where", "_words", "bytes_received", "slots", "taken",
    )  # fmt: skip

    def __init__(self, port: ShmTransport, rank: int, peer: Peer, sink: FrameSink, mine: int, theirs: int) -> None:
        self._port, self._peer, self._sink = port, rank, sink
        self._connection = peer.connection
        geometry = self._geometry = port.segment.geometry
        self.slots: list[int] = [geometry.slot(mine, i) for i in range(geometry.slots)]
        self._where = [at >> 3 for at in self.slots]
        self._mask = geometry.slots - 1
        self._words, self._memory = peer.mapped.words, peer.mapped.array
        self._mine, self._bell = port.segment.words, peer.bell_fd
        self._taken_word, self._waits_word = geometry.taken(theirs), geometry.waits(mine)
        self._news_word, self._heard = geometry.news(mine), 0
        self.taken: int = 0
        self._landing: Landing | None = None
        self._missing = 0
        """Bytes of the present frame that have not come yet."""
        self._long_meta: bytes | None = None
        self._arena: NDArray[np.uint8] | Span | None = None
        """What is left of a piece in the peer's heap, or in its private memory."""
        self._private = Private(peer.mapped, peer.connection, port.private)
        if self._private.refusal:
            _log.debug("rank %d cannot read memory of rank %d: %s", port.rank, rank, self._private.refusal)
        else:
            self._mine[geometry.reads(theirs)] = 1
        self.bytes_received: int = 0
        self._credit_word, self._credited_word, self._credited = geometry.credit(theirs), geometry.credit(mine), 0

    def __repr__(self) -> str:
        return f"<Inlane: {self.taken} slots taken, {self._missing} bytes of a frame missing>"

    def close(self) -> None:
        """Lets go of the peer's memory."""
        self._words, self._memory, self._mine, self._arena = NO_WORDS, NO_BYTES, NO_WORDS, None

    def news(self) -> bool:
        """Whether there is anything to take."""
        taken = self.taken
        return self._words[self._where[taken & self._mask]] == taken + 1 or self._arena is not None

    def heard_all(self) -> bool:
        """Whether no news lie in the lane, behind whatever else."""
        return self._words[self._news_word] == self._heard

    def wait(self) -> bool:
        """Looks, for as long as one may, whether there is anything to take."""
        port = self._port
        seconds = port.may_look()
        if seconds <= 0.0 or port.hungry:  # what its own lanes wait for may be what the peer waits for
            return False
        port.wake()
        if self.glance():
            return True
        began = perf_counter()
        now = began
        while now - began < seconds:
            os.sched_yield()
            if self.glance():
                break
            now = perf_counter()
        port.looked(now - began)
        return self.news()

    def glance(self) -> bool:
        """Looks some times whether there is anything to take."""
        taken = self.taken
        words, word, wanted = self._words, self._where[taken & self._mask], taken + 1
        for _ in range(LOOKS):
            if words[word] == wanted:
                return True
        return False

    def consumed(self, nbytes: int) -> None:
        """See ``ShmLink.consumed``."""
        self._mine[self._credit_word] += nbytes

    def credit(self) -> int:
        """See ``ShmLink.credit``. A peer that says too much is sent more than it has a mind to keep, which is its own
        affair."""
        before, self._credited = self._credited, self._words[self._credited_word]
        return self._credited - before

    # -- one frame in one slot: the quick way

    def fetch(self, stamp: Stamp, call: int, wait: bool, into: NDArray[Any] | None = None) -> NDArray[Any] | None:
        """The payload of the next frame, where it lies, if it is the one meant and here, or comes while one may look;
        from private memory it is copied ``into`` that, if given. Whoever gets it calls ``took`` when it is through."""
        taken = self.taken
        words, word = self._words, self._where[taken & self._mask]
        if words[word] != taken + 1 and not (wait and self.wait()):
            return None
        if words[word + 2] != stamp.sign or words[word + 1] != call:
            return None
        place, piece = words[word + 7], words[word + 6]
        if piece & (ARENA | PRIVATE):
            return self._lent(place, stamp) if piece & ARENA else self._copied(place, stamp, into)
        places = stamp.views.seen(self, self._memory, self._geometry)
        if stamp.inline:
            return places[taken & self._mask]
        return places[place] if place < len(places) else None

    def _lent(self, place: int, stamp: Stamp) -> NDArray[Any] | None:
        """What a reference names; None where the usual way finds out why there is nothing."""
        if place == REVOKED or self._arena is not None:  # taken back; or on its way to somebody already
            return None
        try:
            return self._view(place, stamp.nbytes).view(stamp.dtype)
        except (WireError, OSError):
            return None

    @property
    def private(self) -> bool:
        """Whether this rank can read private memory of the peer."""
        return not self._private.refusal

    def _copied(self, place: int, stamp: Stamp, into: NDArray[Any] | None) -> NDArray[Any] | None:
        """What lies in private memory; None where the usual way copes."""
        if place == REVOKED or into is None or stamp.nbytes > _QUICK_BYTES or self._private.refusal:
            return None
        if self._arena is not None:  # it is being read
            return None
        try:
            self._private.read(place, into)
            return into
        except (WireError, OSError):
            return None

    def read(self, address: int, into: NDArray[Any]) -> bool:
        """Fills ``into`` with what lies in the peer's private memory; False if that is not to be had."""
        if self._private.refusal:
            return False
        try:
            self._private.read(address, into)
        except Unreadable:
            return False
        self.bytes_received += into.nbytes
        return True

    def took(self, nbytes: int) -> bool:
        """The slot, of so many bytes, may be used again. False, and it is not, if what it refers to should not have
        been read."""
        words, taken = self._words, self.taken
        if words[self._where[taken & self._mask] + 7] == REVOKED:
            return False
        self.taken = self._mine[self._taken_word] = taken + 1
        self.bytes_received += nbytes
        if words[self._waits_word]:
            self._port.fence()  # the peer, if it falls asleep just now, sees that this was taken, or we that it sleeps
            if words[ASLEEP]:
                self.ring()
        return True

    def _view(self, place: int, nbytes: int) -> NDArray[np.uint8]:
        """What a reference names."""
        return self._port.loans.view(place, nbytes, self._peer, self._connection)

    # -- any frame

    def take(self, budget: int, enough: Callable[[], bool] | None = None) -> bool:
        """Takes frames, up to ``budget`` bytes of payload, until that is ``enough``; whether there were any. WireError
        for what no correct peer writes."""
        words, before = self._words, self.bytes_received
        moved = False
        while self.bytes_received - before < budget:
            if self._arena is not None:
                self._follow()
            else:
                word = self._where[self.taken & self._mask]
                if words[word] != self.taken + 1:
                    break
                self._slot(self.slots[self.taken & self._mask], word)
            moved = True
            if enough is not None and enough():
                break
        if moved:
            self._port.fence()
            if words[self._waits_word] and words[ASLEEP]:
                self.ring()
        return moved

    def _slot(self, at: int, word: int) -> None:
        words = self._words
        shape, length, piece, place = words[word + 4], words[word + 5], words[word + 6], words[word + 7]
        kind, nbytes = shape & 0xFF, piece & PIECE_MASK
        where = piece & ~PIECE_MASK
        if kind == MORE:
            if not self._missing or self._landing is None:
                raise WireError("a piece that belongs to no frame")
        elif self._missing or length > PAYLOAD_BYTES_MAX:
            raise WireError(f"a frame of {length} bytes begins where {self._missing} bytes of another are missing")
        elif kind == LONG_META:
            if where != CELL or not META_BYTES < nbytes <= META_BYTES_MAX or self._long_meta is not None:
                raise WireError(f"a long meta of {nbytes} bytes")
            self._long_meta = self._cell(place, nbytes).tobytes()
            self._done()
            return
        else:
            if kind in NEWS:
                self._heard += 1
            self._begin(at, word, kind, shape >> 8 & 0xFFFFFFFF, shape >> 40, length)
        if nbytes > self._missing or (not nbytes and self._missing):
            raise WireError(f"a piece of {nbytes} bytes where {self._missing} are missing")
        if not nbytes:
            self._done()
        elif where == CELL:
            if place != REVOKED:
                self._deliver(self._cell(place, nbytes))
            if words[word + 7] == REVOKED:
                self._lose(nbytes if place == REVOKED else 0)
            self._done()
        elif (where == ARENA or where == PRIVATE) and place == REVOKED:
            self._drop()
        elif where == PRIVATE and not self._private.refusal:
            self._arena = Span(place, nbytes)
            self._follow()
        elif where == ARENA:
            self._arena = self._view(place, nbytes)
            self._follow()
        elif where or nbytes > INLINE_BYTES:
            raise WireError(f"a piece of {nbytes} bytes at {where:#x}")
        else:
            self._deliver(self._memory[at + INLINE_AT : at + INLINE_AT + nbytes])
            self._done()

    def _begin(self, at: int, word: int, kind: int, step: int, meta_bytes: int, length: int) -> None:
        if not 0 < kind <= KIND_MAX or meta_bytes > META_BYTES:
            raise WireError(f"not a frame: kind {kind}, meta of {meta_bytes} bytes")
        meta, self._long_meta = self._long_meta, None
        if meta is None:
            meta = self._memory[at + META_AT : at + META_AT + meta_bytes].tobytes()
        words = self._words
        landing = self._sink.arriving(kind, words[word + 3], words[word + 1], step, meta, length)
        if landing is None and length:
            raise WireError(f"frame kind {kind} carries a payload of {length} bytes that has no place")
        self.bytes_received += INLINE_AT + len(meta)
        self._landing, self._missing = landing, length
        if not length and landing is not None:
            self._landing = None
            landing.complete()

    def _cell(self, cell: int, nbytes: int) -> NDArray[np.uint8]:
        geometry = self._geometry
        if cell >= geometry.cells or nbytes > geometry.cell_bytes:
            raise WireError(f"{nbytes} bytes in cell {cell}, of which there are {geometry.cells}")
        start = geometry.cell(cell)
        return self._memory[start : start + nbytes]

    def _deliver(self, piece: NDArray[np.uint8]) -> None:
        """Hands one piece of the present frame to its landing."""
        landing = self._landing
        assert landing is not None
        self._missing -= len(piece)
        self.bytes_received += len(piece)
        absorb = getattr(landing, "absorb", None)
        if absorb is None or not absorb(piece):
            pour(piece.data, landing)

    def _done(self) -> None:
        """A slot needs no looking at any more."""
        self.taken = self._mine[self._taken_word] = self.taken + 1
        landing = self._landing
        if landing is not None and not self._missing:
            self._landing = None
            landing.complete()

    def _follow(self) -> None:
        """Reads on in the peer's own memory, as long as it may be read."""
        arena = self._arena
        assert arena is not None
        if isinstance(arena, Span):
            self._arena = self._read(arena)
        else:
            self._deliver(arena[:_STEP_BYTES])
            self._arena = arena[_STEP_BYTES:] if len(arena) > _STEP_BYTES else None
        if self._words[self._where[self.taken & self._mask] + 7] == REVOKED:
            self._drop()
        elif self._arena is None:
            self._done()

    def _read(self, span: Span) -> Span | None:
        """Reads on in private memory; what is left."""
        landing = self._landing
        assert landing is not None
        into = np.frombuffer(landing.window(), np.uint8)[: min(span.nbytes, STEP_BYTES)]
        try:
            self._private.read(span.address, into)
        except Unreadable:
            if self._words[self._where[self.taken & self._mask] + 7] != REVOKED:
                raise
            return None
        self._missing -= len(into)
        self.bytes_received += len(into)
        landing.advance(len(into))
        return span.after(len(into))

    def _lose(self, nbytes: int) -> None:
        """So many bytes of the present frame were taken back while this rank stood still: nobody gets it, and what is
        left of it is thrown away."""
        self._landing, self._missing = Drain(), self._missing - nbytes

    def _drop(self) -> None:
        """A reference is taken back: its call failed there, which its sender says next. What was read of it may be
        anything, and nobody gets it."""
        self._landing, self._missing, self._arena = None, 0, None
        self._done()
