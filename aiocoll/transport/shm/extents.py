"""Which pieces of a range of memory are free: pure arithmetic, best fit, merged with their neighbours.

The rule: pieces never overlap and never touch, so the largest that could be had is always one piece.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator


class Extents:
    """Free pieces of ``(offset, nbytes)``; taking and giving cost a search in a sorted list."""

    __slots__ = ("_begins", "_by_size", "_ends", "nbytes")

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._begins: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self.nbytes: int = 0
        """The sum of all pieces."""

    def __repr__(self) -> str:
        return f"<Extents: {self.nbytes} bytes in {len(self._by_size)} pieces>"

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """All pieces as (offset, nbytes), the lowest first."""
        return iter(sorted(self._begins.items()))

    def give(self, offset: int, nbytes: int) -> None:
        """Adds a piece that is not free yet."""
        self.nbytes += nbytes
        before = self.before(offset)
        if before:
            self._drop(offset - before, before)
            offset, nbytes = offset - before, nbytes + before
        after = self._begins.get(offset + nbytes)
        if after is not None:
            self._drop(offset + nbytes, after)
            nbytes += after
        self._put(offset, nbytes)

    def take(self, nbytes: int) -> int | None:
        """Takes ``nbytes`` from the beginning of the smallest piece that has them; None if none has."""
        index = bisect_left(self._by_size, (nbytes, 0))
        if index == len(self._by_size):
            return None
        offset = self._by_size[index][1]
        self.cut(offset, nbytes, offset)
        return offset

    def cut(self, offset: int, nbytes: int, piece: int) -> None:
        """Takes exactly this range, which lies within the piece that begins at ``piece``."""
        size = self._begins[piece]
        self._drop(piece, size)
        self.nbytes -= nbytes
        if offset > piece:
            self._put(piece, offset - piece)
        if piece + size > offset + nbytes:
            self._put(offset + nbytes, piece + size - offset - nbytes)

    def before(self, offset: int) -> int:
        """How many free bytes end right at ``offset``."""
        begin = self._ends.get(offset)
        return 0 if begin is None else offset - begin

    def largest(self) -> tuple[int, int]:
        """The largest piece as (offset, nbytes); (0, 0) if there is none."""
        return self._by_size[-1][::-1] if self._by_size else (0, 0)

    def _put(self, offset: int, nbytes: int) -> None:
        insort(self._by_size, (nbytes, offset))
        self._begins[offset] = nbytes
        self._ends[offset + nbytes] = offset

    def _drop(self, offset: int, nbytes: int) -> None:
        del self._by_size[bisect_left(self._by_size, (nbytes, offset))]
        del self._begins[offset], self._ends[offset + nbytes]
