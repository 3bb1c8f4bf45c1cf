"""Ranks on several hosts, several on each: who is near whom, and which of them speak for their host.

    islands   0 2 4 | 1 3        lanes = 2: ranks 0, 1 are lane 0 and ranks 2, 3 lane 1, side by side;
              -----   ---        rank 4 has a lane owner on its island, rank 0 (place 2 mod 2)

The rule: arithmetic on ``Channel.islands`` only, so islands may be of any sizes and any ranks. With one lane there is
one leader per host, which is quick for few bytes; with as many as the smallest island has ranks, that many links carry
their shares between the hosts at the same time (Bayatpour et al. 2017 call it DPML).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aiocoll.algorithms.channel import Array, Channel

SLICE_BYTES = 4 << 20
"""Long arrays go slice by slice, so that one is between the hosts while the next is folded within them."""


class Near:
    """One rank's neighbours: ``local`` are the ranks of its island, ``across`` those of its lane (rank -1 if none)."""

    __slots__ = ("across", "home", "islands", "lanes", "local", "place")

    def __init__(self, ch: Channel, *, one_lane: bool = False) -> None:
        self.islands: Sequence[Sequence[int]] = ch.islands
        self.home: int = next(i for i, island in enumerate(self.islands) if ch.rank in island)
        self.place: int = self.islands[self.home].index(ch.rank)
        self.lanes: int = 1 if one_lane else min(len(island) for island in self.islands)
        self.local: Channel = ch.narrow(self.islands[self.home])
        lane = self.place if self.place < self.lanes else 0
        self.across: Channel = ch.narrow([island[lane] for island in self.islands])

    def __repr__(self) -> str:
        return f"<Near place {self.place} of island {self.home} of {self.islands}, {self.lanes} lanes>"

    @property
    def speaks(self) -> bool:
        """Whether this rank has a lane."""
        return self.place < self.lanes

    def carried(self, lane: int, island: int) -> list[int]:
        """The ranks of an island that a lane speaks for."""
        return list(self.islands[island][lane :: self.lanes])

    def lane_counts(self, count: int) -> list[int]:
        """``count`` elements in shares for the ranks of my island, all with its lanes."""
        quotient, longer = divmod(count, self.lanes)
        return [quotient + (i < longer) if i < self.lanes else 0 for i in range(self.local.size)]


def room(ch: Channel, nbytes: int) -> Array:
    """So many bytes for the time of the call."""
    return ch.borrow(nbytes) if nbytes else np.empty(0, np.uint8)
