"""Rope: one payload that lies in several pieces of memory, so that a large object is sent from where its arrays are.

The rule: it only refers to memory; whoever gave it must leave that alone until the payload has gone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

_PIECE_BYTES_MIN: Final = 64 << 10
"""Neighbours shorter than this are joined, for a piece costs more than copying it."""


class Rope:
    """Has a length, and is bytes for those who ask for them; ``pieces`` gives views."""

    __slots__ = ("_ends", "_parts", "nbytes")
    nbytes: int

    def __init__(self, parts: Iterable[bytes | memoryview]) -> None:
        self._parts: list[memoryview] = list(_without_crumbs(parts))
        self._ends: list[int] = list(accumulate(map(len, self._parts)))
        self.nbytes = self._ends[-1] if self._ends else 0

    def __len__(self) -> int:
        return self.nbytes

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)

    def __getitem__(self, part: slice) -> bytes:
        """A copy, for what is short."""
        return b"".join(self.pieces(part.start or 0, part.stop))

    def __repr__(self) -> str:
        return f"<Rope of {self.nbytes} bytes in {len(self._parts)} pieces>"

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """The bytes from ``start`` to ``stop``, in order."""
        end = self.nbytes if stop is None else min(stop, self.nbytes)
        number = bisect_right(self._ends, start)
        while start < end:
            part = self._parts[number]
            at = start - (self._ends[number] - len(part))
            piece = part[at : at + end - start]
            yield piece
            start += len(piece)
            number += 1


Payload = memoryview | Rope


def pieces_of(payload: Payload) -> Iterable[memoryview]:
    """The views of contiguous memory that a payload is made of."""
    return payload.pieces() if isinstance(payload, Rope) else (payload,)


def _without_crumbs(parts: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    crumbs: list[bytes | memoryview] = []
    for part in parts:
        if len(part) < _PIECE_BYTES_MIN:
            crumbs.append(part)
            continue
        if crumbs:
            yield memoryview(b"".join(crumbs))
            crumbs = []
        yield memoryview(part)
    if crumbs:
        yield memoryview(b"".join(crumbs))
