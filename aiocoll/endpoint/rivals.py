"""Rivals: two ways of doing the same, of which now one is quicker and now the other.

Two copies through a cache that both cores share, or one out of the peer's memory: what takes less time depends on how
far apart the cores are on which two ranks happen to run, and schedulers and hypervisors move them.

The rule: what was measured last decides, and the slower way is tried again now and then.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

_KEPT: Final = 3
"""The last so many times count: one that was disturbed is outvoted."""
_TRIED_AGAIN: Final = 64
"""After so many calls the slower way has another chance."""


class Rivals:
    """How long two ways took of late, for calls of one kind and about one length.

    >>> rivals = Rivals()
    >>> for seconds in [3.0, 3.0, 3.0, 1.0, 1.0, 1.0]:
    ...     rivals.took(rivals.second(), seconds)
    >>> rivals.second()
    True
    """

    __slots__ = ("_quicker", "_since", "_times", "_tries")

    def __init__(self) -> None:
        self._times: tuple[deque[float], deque[float]] = deque(maxlen=_KEPT), deque(maxlen=_KEPT)
        self._tries = 2 * _KEPT
        """So many calls are left to try each way some times: the first ones of all are slow for other reasons."""
        self._quicker: bool = False
        """Whether that is the second way."""
        self._since = 0
        """Calls since the slower way had a chance."""

    def __repr__(self) -> str:
        return f"<Rivals: {[list(times) for times in self._times]} seconds>"

    def second(self) -> bool:
        """Whether the second way is to be taken rather than the first."""
        if self._tries:
            return self._tries <= _KEPT
        return self._quicker != (self._since >= _TRIED_AGAIN)

    def took(self, second: bool, seconds: float) -> None:
        """So long it took, whoever had chosen."""
        times = self._times[second]
        if self._tries:
            self._tries -= 1
        elif second == self._quicker:
            self._since += 1
        else:
            times.clear()
            self._since = 0
        times.append(seconds)
        first, other = self._times
        self._quicker = bool(other) and (not first or median(other) < median(first))
