"""Slots: what a lane between two local ranks is made of, and the frames that wait to be put into them.

A frame is one slot, with its payload in the slot, in a cell, or (where it lies in the shared heap) where it is; what is
longer than a piece goes on in further slots. A slot's words, the first of which is written last:

    0 its number + 1   1 call   2 stamp   3 group   4 kind, step, length of meta   5 length of the payload
    6 length of this piece and where it is   7 cell, offset in an arena, or address
    payload at byte 64, meta behind it

The rule: both ends of a lane take the layout from here.
"""

from __future__ import annotations

import os
from typing import Final

from ...wire.frame import BODY_DATA, BYE, CONTROL, DATA
from ...wire.rope import Payload
from ..base import Sent
from .segment import META_BYTES

MORE: Final = 0
"""The kind of a slot that goes on with the payload of the frame before it."""
LONG_META: Final = 255
"""The kind of a slot that brings the meta of the frame after it, which is too long for a slot."""

ARENA: Final = 2 << 56
PRIVATE: Final = 4 << 56
"""Beside the length of a piece: it lies in memory that only its owner has mapped."""
PIECE_MASK: Final = (1 << 56) - 1
OFFSET_BITS: Final = 44
REVOKED: Final = (1 << 64) - 1
"""What a slot's last word becomes when its reference must not be followed any more."""


NEWS: Final = (CONTROL, BYE)
"""Kinds that whoever waits for nothing wants to hear of, too."""


class Lane:
    """What both ends of a lane are to do."""

    __slots__ = ("_bell",)
    _bell: int

    def ring(self) -> None:
        """Wakes the peer."""
        try:
            os.eventfd_write(self._bell, 1)
        except OSError:
            pass  # it has been rung often enough; a peer that is gone is noticed by its connection


class Frame:
    """One frame that is not in the lane yet, or whose memory its receiver reads itself."""

    __slots__ = (
        "at", "begun", "call", "group", "kind", "lent", "long", "meta", "nbytes", "payload", "private",
        "sent", "step", "void",
    )  # fmt: skip
    kind: int
    group: int
    call: int
    step: int
    meta: bytes
    payload: Payload | None
    begun: bool
    lent: bool

    def __init__(
        self, kind: int, group: int, call: int, step: int, meta: bytes, payload: Payload | None,
        private: bool = False,
    ) -> None:  # fmt: skip
        self.kind, self.group, self.call, self.step = kind, group, call, step
        self.meta, self.payload = meta, payload
        self.nbytes: int = 0 if payload is None else len(payload)
        self.at: int = 0
        self.begun = self.lent = False
        """Whether its first slot is in the lane; whether its receiver reads the sender's own memory."""
        self.long: bool = len(meta) > META_BYTES
        """Whether its meta has to come before it, and is not in the lane yet."""
        self.private: bool = private
        """Whether its receiver is to read it out of this process's private memory."""
        self.sent: Sent | None = None
        self.void: bool = False
        """Whether nobody wants what is left of it: only its length goes into the lane."""

    @property
    def lendable(self) -> bool:
        """Whether its receiver may be told where it lies: only collectives wait for their peers anyway, and a message
        is over when it is on its way."""
        return not self.begun and self.kind in (DATA, BODY_DATA)

    def __repr__(self) -> str:
        return f"<Frame kind {self.kind}, {self.at} of {self.nbytes} bytes posted>"
