"""Cases in which members go on after a failure: they compute, agree whether all went well, shrink if not, and again.

Rule: whoever comes through has come to the same group as all others that did, nobody that lives on is left out, and
nobody hangs; `play` says what is wrong otherwise.

    crash   survivors are through within a second of virtual time; every other case has a second victim, at any instant
    freeze  those who are more than half (or half with the lowest) are through without the victim; the others say why
            not; the victim, when it goes on, is told, or is in the same group
    cancel  the victim leaves, the others are through
    cut     (a partition, or one direction of one link) the side that is more than half is through, or half with the
            lowest rank; whoever is not says so, and healing brings nothing back
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ...errors import AiocollError, CollectiveTimeoutError, GroupBrokenError, PeerLostError
from ...group import Group
from ...sim import Crash, Fault, Simulation
from ...sim.loop import rank_running
from .case import CUTS, DEADLINE, LATENCY, Case, fault_of

LINGER: Final = 200.0
"""Until when those that are through stay, in seconds after the start."""
FAILURES: Final = (PeerLostError, GroupBrokenError, CollectiveTimeoutError)
_FLAGS: Final = 3
_QUICK_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 4 * DEADLINE
_CUT_SECONDS: Final = 12 * DEADLINE


@dataclass(slots=True)
class Life:
    """What became of one rank."""

    rank: int
    group: tuple[str, tuple[int, ...]] | None = None
    """Name and ranks of the group in which it got through."""
    flags: list[bool] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    """What it has made, and has to close."""
    errors: list[tuple[AiocollError, int | None]] = field(default_factory=list)
    """What it went on after, and whom that was about."""
    grown: int = 0
    """How often its group has grown."""
    error: BaseException | None = None
    ended: float = 0.0
    wrong: list[str] = field(default_factory=list)


Lives = Callable[[Group, Life], Any]


async def compute_and_shrink(group: Group, life: Life) -> None:
    """Computes until all have computed; whoever is lost meanwhile is left out."""
    while True:
        agreed = await _computed(group, life)
        if agreed:
            life.group = group.name, group.ranks
            return
        group = await shrunk(group)
        life.groups.append(group)


async def _computed(group: Group, life: Life) -> bool:
    fine = True
    try:
        total = await group.all_reduce(np.arange(3.0) + life.rank)
        if not np.array_equal(total, np.arange(3.0) * group.size + sum(group.ranks)):
            life.wrong.append(f"the sum of ranks {group.ranks} was {total}")
    except FAILURES:
        fine = False
    try:
        return await group.agree(fine)
    except FAILURES:
        return False


async def shrunk(group: Group) -> Group:
    """Again after a member has cancelled it, which leaves then."""
    while True:
        try:
            return await group.shrink()
        except GroupBrokenError as error:
            if "cancelled it" not in str(error):
                raise


async def agree_thrice(group: Group, life: Life) -> None:
    """Flags that are all true, false on one rank, false on the last."""
    for turn in range(_FLAGS):
        flag = not turn or life.rank != (0 if turn == 1 else group.size - 1)
        life.flags.append(await group.agree(flag))
    life.group = group.name, group.ranks


async def shrink_and_compute(group: Group, life: Life) -> None:
    """Shrinks twice though nothing has failed yet, so that faults strike that at every instant; then as above."""
    for _ in range(2):
        group = await shrunk(group)
        life.groups.append(group)
    await compute_and_shrink(group, life)


LIVES: Final[dict[str, Lives]] = {
    "compute and shrink": compute_and_shrink, "shrink": shrink_and_compute, "agree": agree_thrice,
}  # fmt: skip


class Recovery:
    """One run of such a case."""

    steps = 60
    """Within so many steps of its loop the second victim dies."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.lives: list[Life] = [Life(rank) for rank in range(case.size)]
        self.simulation: Simulation = self._simulation()
        self.on_loop: Any = None

    def _simulation(self) -> Simulation:
        case = self.case
        return Simulation(
            case.size, seed=case.seed, faults=self._faults(), settings=case.settings, timeout=DEADLINE, goodbye=False,
            latency=LATENCY, jitter=case.jitter, hosts=case.hosts, lost_seconds=(2.0, 10.0)[case.seed // 5 % 2],
        )  # fmt: skip

    def _faults(self) -> list[Fault]:
        case = self.case
        if case.fault != "crash" or case.size < 3 or case.seed % 2:
            return [fault_of(case)]
        second = (case.victim + 1 + case.seed // 2 % (case.size - 1)) % case.size
        return [fault_of(case), Crash(second, steps=1 + case.seed // 64 % self.steps)]

    def play(self) -> list[str]:
        """Runs it; the findings."""
        try:
            self._run()
        except Exception as error:
            return [f"the run ended with {type(error).__name__}: {error}"]
        findings = list(self._judge())
        self.simulation.dissolve()
        return findings

    def _run(self) -> None:
        self.simulation.run(self._main)

    async def _live(self, group: Group, life: Life) -> None:
        await LIVES[self.case.program](group, life)

    @property
    def ended(self) -> float:
        """When the last rank was through."""
        return max(life.ended for life in self.lives)

    async def _main(self, group: Group) -> None:
        life, loop = self.lives[rank_running.get()], asyncio.get_running_loop()
        if life.rank == 0:
            loop.set_exception_handler(lambda _, found: life.wrong.append(f"nobody heard of {found}"))
            if self.on_loop is not None:
                self.on_loop(loop)
        try:
            await self._live(group, life)
        except (AiocollError, asyncio.CancelledError) as error:
            life.error = error.with_traceback(None)
        life.ended = loop.time()
        try:
            if life.error is None:  # whoever fails leaves at once
                await asyncio.sleep(max(0.0, LINGER - loop.time()))
        finally:
            for each in (*life.groups, group):
                await each.close()
            life.groups.clear()

    # -- the verdict

    def _judge(self) -> Iterator[str]:
        case, struck = self.case, self.simulation.struck
        last = max(struck.values(), default=0.0)
        survivors = [life for life in self.lives if not (life.rank in struck and self._gone(life))]
        through = [life for life in survivors if life.group is not None]
        living = [life.rank for life in survivors if life.rank not in struck]
        bound = last + self._bound
        yield from self._same(through, living)
        if case.fault in CUTS:
            yield from self._enough(through)
        for life in survivors:
            for wrong in life.wrong:
                yield f"rank {life.rank}: {wrong}"
            if life.group is None and not self._excused(life):
                yield f"rank {life.rank} is not through: {life.error!r}"
            if life.rank not in struck and life.ended > bound:
                yield f"rank {life.rank} ended {life.ended - last:g} s after the fault: {life.error!r}"

    @property
    def _bound(self) -> float:
        """How many seconds after the last fault all are through."""
        slow = {"freeze": _SLOW_SECONDS, "partition": _CUT_SECONDS, "oneway": _CUT_SECONDS}
        return slow.get(self.case.fault, _QUICK_SECONDS)

    def _gone(self, life: Life) -> bool:
        case = self.case
        return case.fault == "crash" or (case.fault == "freeze" and case.thaws is None)

    def _excused(self, life: Life) -> bool:
        """Whether this rank may have failed."""
        case, struck = self.case, self.simulation.struck
        if case.fault in CUTS:
            return isinstance(life.error, FAILURES)
        if life.rank in struck:  # cancelled, or gone on after it was given up; not if it went on in time
            return case.fault == "cancel" or (case.thaws or 0.0) > DEADLINE
        if case.program == "agree":  # which only says that somebody is missing, or has cancelled
            return bool(struck) and case.fault != "crash" and isinstance(life.error, FAILURES)
        alone = case.fault == "freeze" and case.size == 2 and life.rank == 1
        return alone and bool(struck) and isinstance(life.error, GroupBrokenError)

    def _same(self, through: list[Life], living: list[int]) -> Iterator[str]:
        groups = sorted({life.group for life in through if life.group is not None})
        if len(groups) > 1:
            yield "two groups: " + "; ".join(f"{name} of {ranks}" for name, ranks in groups)
        for name, ranks in groups:
            left_out = [life.rank for life in through if life.rank in living and life.rank not in ranks]
            if left_out or (self.case.fault in ("crash", "cancel") and not set(living) <= set(ranks)):
                yield f"group {name} of {ranks} leaves out somebody of {living}"
        quiet = not self.simulation.struck and self.case.fault not in CUTS
        if quiet and groups and sorted(groups[0][1]) != list(range(self.case.size)):
            yield f"they shrank to {groups}, though nothing befell anybody"
        if self.case.program == "agree":
            yield from self._flags(through)

    def _enough(self, through: list[Life]) -> Iterator[str]:
        """Whether those are through who can be."""
        case = self.case
        here = set(case.side) if case.fault == "partition" else set(range(case.size)) - {case.victim}
        sides = sorted((here, set(range(case.size)) - here), key=lambda side: (len(side), 0 in side))
        if not through:
            yield f"nobody is through, though {sorted(sides[-1])} can reach one another"

    def _flags(self, through: list[Life]) -> Iterator[str]:
        values = {tuple(life.flags) for life in through}
        if len(values) > 1:
            yield f"they agreed on different things: {values}"
        false = [life.rank for life in through]  # whoever came to nothing has left, and its word does not count
        for flags in values:
            wrong = not flags[0] or (0 in false and flags[1]) or (self.case.size - 1 in false and flags[2])
            if wrong or (not self.simulation.struck and any(flags[1:])):
                yield f"they agreed on {flags}"


__all__ = ["FAILURES", "LINGER", "LIVES", "Life", "Recovery", "shrunk"]
