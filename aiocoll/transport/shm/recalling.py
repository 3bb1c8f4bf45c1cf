"""What is taken back out of a lane, or was never put into it: of a peer that is gone, of a call that failed, of a group
that broke while the peer stood still.

The rule: memory that the peer may be reading is given up only after its slot says so, and a reader looks there again
after it has read.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..base import Sent
from .segment import META_BYTES, Segment
from .slot import LONG_META, NEWS, REVOKED, Frame, Lane

if TYPE_CHECKING:
    from .order import OrderedWords
    from .stamp import Stamp
    from .transport import ShmTransport


class Recalling(Lane):
    """The lane to one peer, as far as things are taken back."""

    __slots__ = (
        "_flying", "_laid", "_lent", "_mask", "_port", "_slots", "_words", "queue", "segment", "waits",
    )  # fmt: skip
    queue: deque[Frame]
    waits: bool
    segment: Segment
    _flying: deque[tuple[int, int, Frame | None]]
    _lent: int
    _port: ShmTransport
    _slots: list[int]
    _laid: list[Stamp | None]
    _mask: int
    _words: memoryview | OrderedWords

    def _ask_to_be_woken(self) -> None:
        """Says whether this rank waits until the peer takes something."""
        raise NotImplementedError

    def abandon(self, error: BaseException) -> None:
        """The peer is gone: nothing will be taken any more."""
        queue, self.queue = self.queue, deque()
        flying, self._flying = self._flying, deque()
        self._lent, self.waits = 0, False
        self._port.hungry.discard(self)
        for _, cell, kept in flying:
            if cell >= 0:
                self.segment.release(cell)
            elif kept is not None:
                queue.append(kept)
        if flying and self._port.hungry:
            self._port.feed_soon()
        for frame in queue:
            frame.payload = None
            if frame.sent is not None:
                frame.sent.finish(error)

    def withdraw(self, sent: Sent, *, keep: bool) -> bool:
        """See ``Link.withdraw``."""
        for frame in self.queue:
            if frame.sent is not sent:
                continue
            frame.sent = None
            if keep or frame.begun or len(frame.meta) > META_BYTES and not frame.long:
                if frame.payload is not None:
                    frame.payload = memoryview(bytes(frame.payload))
                return False
            self.queue.remove(frame)
            self._ask_to_be_woken()
            return True
        for number, _, kept in self._flying:
            if kept is not None and kept.sent is sent:
                kept.sent = None
                self._words[(self._slots[(number - 1) & self._mask] >> 3) + 7] = REVOKED
        return False

    def recall(self, group: int) -> None:
        """The peer gives no sign, and ``group`` is broken: what lies in cells for it, which others need, is taken back,
        and what waits for cells goes without. A peer that wakes up throws away what is left of it."""
        recalled: deque[tuple[int, int, Frame | None]] = deque()
        words = self._words
        for number, cell, kept in self._flying:
            index = (number - 1) & self._mask
            word = self._slots[index] >> 3
            kind = words[word + 4] & 0xFF
            if cell >= 0 and words[word + 3] == group and kind not in NEWS and kind != LONG_META:
                words[word + 7], self._laid[index] = REVOKED, None
                self._port.fence()
                self.segment.release(cell)
                cell = -1
            recalled.append((number, cell, kept))
        self._flying = recalled
        for frame in self.queue:
            frame.void = frame.void or (frame.group == group and frame.kind not in NEWS)
        if self._port.hungry:
            self._port.feed_soon()
