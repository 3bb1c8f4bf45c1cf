"""What a library must be able to do for the ranks of one group, in one screen.

The rule: every call starts at once and never blocks; the arrays are flat, contiguous and in native byte order, and
belong to the library until ``test()`` has said True.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Pending(Protocol):
    """An operation of the library under way."""

    def test(self) -> bool:
        """Is it over? Never blocks; raises the library's own error where it failed."""


class Comm(Protocol):
    """The library's idea of one group."""

    def all_reduce(self, x: Array, op: str) -> Pending:
        """In place; ``op`` is SUM, PROD, MIN, MAX, BAND, BOR or BXOR."""

    def reduce(self, x: Array, op: str, root: int) -> Pending:
        """In place on ``root``; elsewhere ``x`` may be spoilt."""

    def broadcast(self, data: Array, root: int) -> Pending:
        """Bytes of one length; ``data`` is only read on ``root``."""

    def all_gather(self, buffer: Array, counts: Sequence[int], rank: int) -> Pending:
        """Bytes; mine lie in ``buffer`` at my place already."""

    def exchange(self, out: Array, out_counts: Sequence[int], into: Array, into_counts: Sequence[int]) -> Pending:
        """Bytes: ``out_counts[i]`` of them, in rank order, to rank i, and ``into_counts[i]`` from it."""

    def free(self) -> None:
        """Nobody uses it any more; again: nothing."""


class Library(Protocol):
    """A library in this process."""

    name: str
    """The backend's."""
    title: str
    """What errors call it."""

    def reduces(self, dtype: np.dtype[Any], op: str) -> bool:
        """Whether it folds arrays of ``dtype`` (after ``operands.py`` has had its say)."""

    def open(self, meeting: str, tag: int, ranks: Sequence[int], rank: int, seconds: float) -> Comm:
        """A Comm for the members, by their ranks in the world; ``rank`` is mine in the group. Called by all of them, in
        a thread of its own, and may block. ``meeting``: what ``invite()`` gave to the first; ``tag`` is theirs alone.
        """

    def invite(self, hosts: Sequence[str]) -> str:
        """On the first member of a group, before ``open``: what the others have to know."""

    def close(self) -> None:
        """The world is over."""
