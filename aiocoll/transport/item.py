"""One frame in a link's queue: what is left of it, and who wants to know when it has gone.

The rule: parts are views of the caller's memory, shortened as the kernel takes them, never copied.
"""

from __future__ import annotations

from .base import Sent


class Item:
    """One queued frame: the bytes still to be sent, in order."""

    __slots__ = ("begun", "parts", "sent")
    parts: list[memoryview]
    begun: bool

    def __init__(self, parts: list[memoryview]) -> None:
        self.parts, self.begun = parts, False
        self.sent: Sent | None = None

    def skip(self, nbytes: int) -> int:
        """Drops what was sent; returns how much of ``nbytes`` belongs to later items."""
        self.begun = self.begun or nbytes > 0
        while self.parts and nbytes >= len(self.parts[0]):
            nbytes -= len(self.parts.pop(0))
        if self.parts and nbytes:
            self.parts[0] = self.parts[0][nbytes:]
            nbytes = 0
        return nbytes
