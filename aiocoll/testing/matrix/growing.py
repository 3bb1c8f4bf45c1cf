"""Cases in which a group grows, twice: newcomers wait, the members let them in, and all compute together.

Rule: whatever befalls a member or a newcomer at any instant, in the newcomer's connect too: what is raised is about
that rank, those that live are through together, in one group and in bounded time, and nobody alive is left outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ...errors import AiocollError, CollectiveTimeoutError, GroupBrokenError, PeerLostError, RendezvousError
from ...group import Group
from ...ops import MAX
from ...sim import Simulation
from ...sim.fabric import PID
from ...sim.loop import rank_running
from ...world.connecting import Connecting
from .case import DEADLINE, LATENCY, Case
from .recovering import FAILURES, Life, Recovery, shrunk

_WAIT: Final = 1.0
"""How long the first grow waits for all newcomers."""
_QUICK_SECONDS: Final = 3.0
"""What two grows may take after a fault, with the wait of the first for all newcomers, the dead included."""
_GROWS: Final = 2


class Growing(Recovery):
    """One run of such a case; the last ``new`` of the ranks are newcomers."""

    steps = 200

    def __init__(self, case: Case, new: int) -> None:
        self._new = new
        super().__init__(case)

    def _simulation(self) -> Simulation:
        case = self.case
        return Simulation(
            case.size - self._new, newcomers=self._new, seed=case.seed, faults=self._faults(), settings=case.settings,
            timeout=DEADLINE, goodbye=False, latency=LATENCY, jitter=case.jitter, hosts=case.hosts,
        )  # fmt: skip

    def _run(self) -> None:
        self.simulation.run(self._main, self._join)

    async def _join(self, connecting: Connecting) -> None:
        """A newcomer; nobody but it knows when nobody lets it in."""
        life = self.lives[rank_running.get()]
        try:
            group = await connecting
        except (AiocollError, asyncio.CancelledError) as error:
            life.error, life.ended = error.with_traceback(None), asyncio.get_running_loop().time()
            return
        await self._main(group)

    async def _live(self, group: Group, life: Life) -> None:
        """Grows until that has worked twice and all have computed; without those who are lost meanwhile."""
        while True:
            grown = await self._computed(group, life)
            if grown is not None and grown >= _GROWS:
                # Its id tells it from others of its name.
                life.group = f"{group.name} ({group._scope.id:x})", _ranks(group)
                return
            if grown is not None:
                try:
                    larger = await (group.grow(n=self._new, wait=_WAIT) if grown == 0 else group.grow())
                except FAILURES as error:
                    life.errors.append((error, _named(group, error)))
                else:
                    life.grown = grown + 1
                    group = await self._next(group, larger, life)
                    continue
            group = await self._next(group, await shrunk(group), life)

    async def _next(self, group: Group, other: Group, life: Life) -> Group:
        """Goes on in the ``other`` group, and leaves the one before."""
        life.groups.append(other)
        await group.close()
        return other

    async def _computed(self, group: Group, life: Life) -> int | None:
        """How often this group has grown, which newcomers do not know; None where somebody has come to nothing."""
        grown = None
        try:
            total = await group.all_reduce(np.arange(3.0) + life.rank)
            if not np.array_equal(total, np.arange(3.0) * group.size + sum(_ranks(group))):
                life.wrong.append(f"the sum of ranks {_ranks(group)} was {total}")
            grown = int(await group.all_reduce(life.grown, MAX))
        except FAILURES as error:
            life.errors.append((error, _named(group, error)))
        try:
            return grown if await group.agree(grown is not None) else None
        except FAILURES as error:
            life.errors.append((error, _named(group, error)))
            return None

    # -- the verdict

    @property
    def _bound(self) -> float:
        """Seconds after the last fault. On another host nobody sees a newcomer die: the members ask it, and wait."""
        case, struck = self.case, self.simulation.struck
        if case.fault == "freeze":
            return 8 * DEADLINE
        if self._members <= struck.keys():
            return 3 * DEADLINE  # nobody is left who would let a newcomer in: it has its own deadline
        unseen = case.fault == "crash" and len(set(case.hosts)) > 1 and not struck.keys() <= self._members
        return _QUICK_SECONDS + (2 * DEADLINE if unseen else 0.0)

    @property
    def _members(self) -> set[int]:
        return set(range(self.case.size - self._new))

    def _judge(self) -> Iterator[str]:
        yield from super()._judge()
        struck = self.simulation.struck
        for life in self.lives:
            if life.rank not in struck:
                for error, rank in life.errors:
                    if not self._is_right(error, rank):
                        yield f"rank {life.rank} raised {error!r} about rank {rank}, and {sorted(struck)} were struck"

    def _is_right(self, error: AiocollError, rank: int | None) -> bool:
        struck = self.simulation.struck
        if self.case.fault == "freeze":
            return bool(struck)
        if rank not in struck:
            # The last member may have told one newcomer that it is in, and died before it told the other.
            return self._members <= struck.keys() and rank not in self._members and " left" in str(error)
        if self.case.fault == "crash":
            return isinstance(error.cause if isinstance(error, GroupBrokenError) else error, PeerLostError)
        return isinstance(error, GroupBrokenError) or " left" in str(error)

    def _excused(self, life: Life) -> bool:
        if super()._excused(life):
            return True
        struck, frozen = self.simulation.struck, self.case.fault == "freeze"
        if isinstance(life.error, RendezvousError):  # a newcomer, and nobody is left to let it in, or not in time
            return bool(struck) and (frozen or self._members <= struck.keys())
        if not (struck and frozen and isinstance(life.error, GroupBrokenError)):
            return False
        # One that goes on in the middle of a recovery leads again, and those who had turned to the next are too few.
        text = str(life.error)
        if "members that may be alive are here" in text:
            return "only 1 of 2" in text or any(other.group is not None for other in self.lives)
        return (self.case.thaws or 0.0) > DEADLINE and "was left behind" in text


def _ranks(group: Group) -> tuple[int, ...]:
    """Its members as ranks of the simulation."""
    members = group._endpoint.members
    return tuple(members[world].pid - PID for world in group._scope.ranks)


def _named(group: Group, error: Any) -> int | None:
    """Whom an error of this group is about, as a rank of the simulation."""
    rank = error.missing[0] if isinstance(error, CollectiveTimeoutError) and error.missing else error.rank
    return None if rank is None else _ranks(group)[rank]


__all__ = ["Growing"]
