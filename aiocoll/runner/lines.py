"""Cuts a rank's output into whole lines; no files, no clock.

Rule: no byte is lost, whatever arrives and however it is split: bytes are never decoded here, and what no newline ends
is given out by `flush`.
"""

from __future__ import annotations

LINE_BYTES_MAX = 16 << 20  # a "line" without an end must not fill the memory


class LineBuffer:
    r"""Pieces that end in ``\n``, or in a ``\r`` that is not part of ``\r\n`` (a progress bar's redraw)."""

    def __init__(self, bytes_max: int = LINE_BYTES_MAX) -> None:
        self._held = bytearray()
        self._scanned = 0
        self._bytes_max = bytes_max

    def __repr__(self) -> str:
        return f"LineBuffer(held={len(self._held)})"

    def __len__(self) -> int:
        return len(self._held)

    def feed(self, data: bytes) -> list[bytes]:
        """Takes bytes as they came; returns the pieces that they completed."""
        held = self._held
        held += data
        pieces: list[bytes] = []
        start, position = 0, self._scanned
        newline, carriage = held.find(b"\n", position), held.find(b"\r", position)
        while newline >= 0 or carriage >= 0:
            if carriage >= 0 and (newline < 0 or carriage < newline):
                if carriage + 1 == len(held):
                    break  # the newline may be in the next read
                end = carriage + (2 if held[carriage + 1 : carriage + 2] == b"\n" else 1)
            else:
                end = newline + 1
            pieces.append(bytes(held[start:end]))
            start = end
            if 0 <= newline < end:
                newline = held.find(b"\n", end)
            if 0 <= carriage < end:
                carriage = held.find(b"\r", end)
        del held[:start]
        self._scanned = max(0, len(held) - 1)
        if len(held) > self._bytes_max:
            pieces.append(self.flush())
        return pieces

    def peek(self) -> bytes:
        """What is held without an end."""
        return bytes(self._held)

    def flush(self) -> bytes:
        """What is held without an end, and forgets it."""
        rest = bytes(self._held)
        self._held.clear()
        self._scanned = 0
        return rest
