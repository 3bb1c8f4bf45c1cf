"""Frames into the lane of slots that leads to one local peer.

A frame is one slot, or several where it is longer than a piece: see ``slot``.

The rule: nothing here waits. What does not fit now stays queued by reference, and moves as the peer takes slots out.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...buffers import address_of, flat_bytes
from ...wire.frame import DATA
from ...wire.rope import Rope
from ..base import Sent
from .recalling import Recalling
from .segment import ASLEEP, INLINE_AT, INLINE_BYTES, META_AT, META_BYTES, NO_BYTES, NO_WORDS, Segment
from .slot import ARENA, LONG_META, MORE, NEWS, PIECE_MASK, PRIVATE, REVOKED, Frame
from .stamp import CELL, HEAD, Stamp, kind_word

if TYPE_CHECKING:
    from .meeting import Peer
    from .transport import ShmTransport


class Outlane(Recalling):
    """My lane to one peer."""

    __slots__ = (
        "_connection", "_doubted", "_news_word", "_peer", "_reads_word", "_taken_word", "_theirs", "_waits_word",
        "bytes", "bytes_sent", "limit", "memory", "posted",
    )  # fmt: skip
    waits: bool
    posted: int
    bytes_sent: int
    limit: int

    def __init__(self, port: ShmTransport, rank: int, peer: Peer, mine: int, theirs: int) -> None:
        self._port, self._peer, self._connection = port, rank, peer.connection
        self.segment: Segment = port.segment
        geometry = self.segment.geometry
        self._slots = [geometry.slot(theirs, i) for i in range(geometry.slots)]
        self._mask = geometry.slots - 1
        self._laid: list[Stamp | None] = [None] * geometry.slots
        self._words = self.segment.words
        self.bytes: memoryview = self.segment.bytes
        self.memory: NDArray[np.uint8] = self.segment.array
        self._theirs, self._bell = peer.mapped.words, peer.bell_fd
        self._taken_word, self._news_word = geometry.taken(mine), geometry.news(theirs)
        self._waits_word, self._reads_word = geometry.waits(theirs), geometry.reads(mine)
        self.posted, self.limit, self.bytes_sent = 0, geometry.slots, 0
        self.queue: deque[Frame] = deque()
        self._flying: deque[tuple[int, int, Frame | None]] = deque()
        """(number of the slot + 1, cell or -1, frame whose memory is read) of what the peer has not taken yet."""
        self._lent = 0
        """Frames under way whose memory the peer reads in place."""
        self.waits = self._doubted = False

    def __repr__(self) -> str:
        return f"<Outlane: {self.posted} slots posted, {len(self.queue)} frames queued, {len(self._flying)} under way>"

    # -- one frame in one slot: the quick way

    def post(self, stamp: Stamp, call: int, x: Any) -> bool:
        """Sends the payload ``x`` (an array like the stamp says) at once: it may be reused. False: there is no room."""
        posted = self.posted
        if self.queue or (posted >= self.limit and not self._room() and not self._wait_for_room()):
            return False
        index = posted & self._mask
        at = self._slots[index]
        word = at >> 3
        words = self._words
        nbytes = stamp.nbytes
        if stamp.inline:
            if self._laid[index] is not stamp:
                self._lay(index, at, stamp)
            if nbytes:
                start = at + INLINE_AT
                self.bytes[start : start + nbytes] = x.tobytes()
        else:
            cell = self._cell()
            if cell < 0:
                return False
            if self._laid[index] is not stamp:
                self._lay(index, at, stamp)
            stamp.views.cells(self.memory, self.segment.geometry)[cell][...] = x
            words[word + 7] = cell
            self.segment.readers[cell] = 1
            self._flying.append((posted + 1, cell, None))
            if self._port.hungry:
                self.ask()
        words[word + 1] = call
        self.posted = words[word] = posted + 1
        self.bytes_sent += nbytes
        self._port.acquire()  # a fence, written out
        self._port.release()
        if self._theirs[ASLEEP]:
            self.ring()
        return True

    def post_cell(self, stamp: Stamp, call: int, cell: int) -> bool:
        """Sends what lies in ``cell`` already, for several readers; False: there is no room."""
        posted = self.posted
        if self.queue or (posted >= self.limit and not self._room()):
            return False
        index = posted & self._mask
        at = self._slots[index]
        word = at >> 3
        if self._laid[index] is not stamp:
            self._lay(index, at, stamp)
        words = self._words
        words[word + 7] = cell
        self.segment.readers[cell] += 1
        self._flying.append((posted + 1, cell, None))
        if self._port.hungry:
            self.ask()
        self._show(word, call, stamp.nbytes)
        return True

    def _show(self, word: int, call: int, nbytes: int) -> None:
        """Makes the next slot visible."""
        words = self._words
        words[word + 1] = call
        self.posted = words[word] = self.posted + 1
        self.bytes_sent += nbytes
        self._port.fence()
        if self._theirs[ASLEEP]:
            self.ring()

    @property
    def private(self) -> bool:
        """Whether the peer can read private memory of this rank."""
        return self._port.private and self._theirs[self._reads_word] == 1

    def place_of(self, data: Any) -> int | None:
        """Where the peer finds ``data`` itself; None if it must be copied."""
        loans, heap = self._port.loans, self._port.heap
        return loans.place_of(data, self._peer, self._connection) if heap.arenas else None

    def lend(self, stamp: Stamp, call: int, data: Any, place: int, sent: Sent, where: int = ARENA) -> bool:
        """Sends a reference to ``data``, which the peer reads where it is; ``sent`` hears when it has. False: there is
        no room."""
        if self.queue or (self.posted >= self.limit and not self._room()):
            return False
        index = self.posted & self._mask
        at = self._slots[index]
        word = at >> 3
        self._lay(index, at, stamp)
        self._laid[index] = None  # but for one word
        self._words[word + 6], self._words[word + 7] = stamp.nbytes | where, place
        frame = Frame(DATA, 0, call, 0, b"", flat_bytes(data))  # dates and bfloat16 are no buffers
        frame.lent, frame.sent = True, sent
        self._lent += 1
        self._flying.append((self.posted + 1, -1, frame))
        self.ask()
        self._show(word, call, stamp.nbytes)
        return True

    def _lay(self, index: int, at: int, stamp: Stamp) -> None:
        """Writes into a slot what all frames of a stamp have in common; it stays there until another comes."""
        self.bytes[at + 16 : at + 56] = stamp.head
        self._words[(at >> 3) + 7] = 0  # a reference that was here may have been taken back
        if stamp.meta:
            self.bytes[at + META_AT : at + META_AT + len(stamp.meta)] = stamp.meta
        self._laid[index] = stamp

    # -- any frame

    def send(
        self, kind: int, group: int, call: int, step: int, meta: bytes, payload: Any, private: bool = False
    ) -> Frame | None:
        """Sends a frame as far as there is room; what is left, or read in place, is the Frame that comes back."""
        frame = Frame(kind, group, call, step, meta, payload, private)
        if not self.queue and self._advance(frame):
            if not frame.lent:
                return None
        else:
            self.queue.append(frame)
        self._ask_to_be_woken()
        return frame

    def flush(self, budget: int) -> bool:
        """Posts queued frames as far as there is room; whether anything moved."""
        moved = self.settle()
        while self.queue and budget > 0:
            frame = self.queue[0]
            before, begun = frame.at, frame.begun
            done = self._advance(frame)
            budget -= frame.at - before
            if not done:
                moved = moved or frame.at > before or frame.begun != begun
                break
            moved = True
            self.queue.popleft()
            if frame.sent is not None and not frame.lent:
                frame.sent.finish()
        if moved:
            self._ask_to_be_woken()
        return moved

    def _advance(self, frame: Frame) -> bool:
        """Posts pieces of ``frame`` while there is room; True once all of it is in the lane."""
        if frame.long:
            if self.posted >= self.limit and not self._room():
                return False
            cell = self._cell()
            if cell < 0:
                return False
            at = self.segment.geometry.cell(cell)
            self.bytes[at : at + len(frame.meta)] = frame.meta
            self._put(LONG_META, frame, len(frame.meta) | CELL, cell, cell, None)
            frame.long = False
        while not frame.begun or frame.at < frame.nbytes:
            if self.posted >= self.limit and not self._room():
                return False
            if not self._piece(frame):
                return False
        return True

    def _piece(self, frame: Frame) -> bool:
        """Posts one slot; False where no cell is free."""
        left = frame.nbytes - frame.at
        kind = MORE if frame.begun else frame.kind
        payload = frame.payload
        if payload is None or left <= INLINE_BYTES:
            if payload is not None:
                start = self._slots[self.posted & self._mask] + INLINE_AT
                self.bytes[start : start + left] = payload[frame.at :]
            self._put(kind, frame, left, 0, -1, None)
            frame.at = frame.nbytes
            return True
        if frame.void:
            self._put(kind, frame, left | CELL, REVOKED, -1, None)
            frame.at = frame.nbytes
            return True
        place, where = None, ARENA
        if frame.private and not isinstance(payload, Rope):
            place, where = address_of(np.frombuffer(payload, np.uint8)), PRIVATE
        elif frame.lendable:
            place = self.place_of(payload)
        if place is not None:
            self._put(kind, frame, left | where, place, -1, frame)
            frame.at = frame.nbytes
            return True
        cell = self._cell()
        if cell < 0:
            return False
        geometry = self.segment.geometry
        nbytes = min(left, geometry.cell_bytes)
        at = geometry.cell(cell)
        if isinstance(payload, Rope):
            for part in payload.pieces(frame.at, frame.at + nbytes):
                self.bytes[at : at + len(part)] = part
                at += len(part)
        else:
            self.memory[at : at + nbytes] = np.frombuffer(payload, np.uint8, nbytes, frame.at)
        self._put(kind, frame, nbytes | CELL, cell, cell, None)
        frame.at += nbytes
        return True

    def _put(self, kind: int, frame: Frame, piece: int, place: int, cell: int, kept: Frame | None) -> None:
        """Fills the next slot and makes it visible."""
        index = self.posted & self._mask
        at = self._slots[index]
        word = at >> 3
        meta = b"" if kind in (MORE, LONG_META) or len(frame.meta) > META_BYTES else frame.meta
        self._laid[index] = None
        group = 0 if kind == MORE and frame.kind in NEWS else frame.group  # what is said of a group outlasts it
        self.bytes[at + 16 : at + 56] = HEAD.pack(0, group, kind_word(kind, frame.step, len(meta)), frame.nbytes, piece)
        if meta:
            self.bytes[at + META_AT : at + META_AT + len(meta)] = meta
        self._words[word + 7] = place
        if cell >= 0:
            self.segment.readers[cell] = 1
        if cell >= 0 or kept is not None:
            self._flying.append((self.posted + 1, cell, kept))
            if self._port.hungry:
                self.ask()
            if kept is not None:
                frame.lent = True
                self._lent += 1
        if kind != MORE and kind != LONG_META:
            frame.begun = True
        if kind in NEWS:
            self._words[self._news_word] += 1
        self._show(word, frame.call, piece & PIECE_MASK)

    # -- what the peer has taken

    def _room(self) -> bool:
        """Looks again how many slots the peer has taken."""
        self.settle()
        return self.posted < self.limit

    def _wait_for_room(self) -> bool:
        """Looks, for as long as one may, whether the peer takes something: it is busy taking, or late."""
        theirs, word, before = self._theirs, self._taken_word, self._theirs[self._taken_word]
        for _ in self._port.looks():
            if theirs[word] != before:
                return self._room()
        return False

    def settle(self) -> bool:
        """Frees what the peer has taken since."""
        taken = self._theirs[self._taken_word]
        if not self.limit - self._mask - 1 <= taken <= self.posted:
            self._doubt(taken)
            return False
        self.limit = taken + self._mask + 1
        flying, moved = self._flying, False
        while flying and flying[0][0] <= taken:
            moved = True
            _, cell, frame = flying.popleft()
            if cell >= 0:
                self.segment.release(cell)
            elif frame is not None:
                self._lent -= 1
                frame.payload = None
                if frame.sent is not None:
                    frame.sent.finish()
        if moved and self._port.hungry:
            self._port.feed_soon()
        return moved

    def _doubt(self, taken: int) -> None:
        """The peer counts what it has taken as no correct peer does: the link ends, but not under whoever sends."""
        if not self._doubted:
            self._doubted = True
            before = self.limit - self._mask - 1
            text = f"it says that it took {taken} of {self.posted} slots, and said {before} before"
            self._port.loop.call_soon(self._port.doubt, self._peer, text)

    def _cell(self) -> int:
        """A free cell, or -1. Those that are read are freed together, when there is no other left."""
        free = self.segment.free
        if not free:
            self._port.settle_lanes()
        return free.popleft() if free else -1

    def news(self) -> bool:
        """Whether the peer has taken something that this rank waits for."""
        return self.waits and self._theirs[self._taken_word] + self._mask + 1 > self.limit

    def _ask_to_be_woken(self) -> None:
        """Says whether this rank waits until the peer takes something: for the sake of what is queued here, of memory
        that is read in place, or of cells that another lane needs."""
        hungry = self._port.hungry
        if self.queue:
            if self not in hungry:
                hungry.add(self)
                self._port.ask_all()
        else:
            hungry.discard(self)
        self.ask()

    def ask(self) -> None:
        """Writes down whether this rank waits for the peer to take something."""
        waits = bool(self.queue) or bool(self._flying) and (self._lent > 0 or bool(self._port.hungry))
        if waits != self.waits:
            self.waits = waits
            self._words[self._waits_word] = int(waits)
            if waits:
                self._port.fence()
                if self._port.hungry or self.news():  # it may be taking the last of it just now, and not know yet
                    self._port.serve_soon()

    @property
    def drained(self) -> bool:
        """Whether all that was sent lies where the peer finds it."""
        return not self.queue and not self._lent

    def close(self) -> None:
        """Lets go of both memories."""
        self._words, self.bytes, self.memory, self._theirs = NO_WORDS, NO_WORDS, NO_BYTES, NO_WORDS
