"""Plays one case, and says what is wrong with what came of it.

Rule: a finding names the rank, what it got and what it should have got; no finding means that the case is right.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from ...errors import AiocollError, GroupBrokenError, UsageError
from ...group import Group
from ...sim import Simulation
from .calls import call_programs
from .case import CUTS, DEADLINE, LATENCY, Case, fault_of
from .growing import Growing
from .programs import FAULTS, Array, Part, Program, algorithm_programs
from .recovering import LINGER, LIVES, Recovery
from .verdict import Story, judge

_POISON: Final = 77
_GROWING: Final = {"grow by one": 1, "grow by two": 2}
"""How many of the ranks are newcomers."""
_RUNS_PER_COLLECTION: Final = 200
_LINGER: Final = 4 * DEADLINE
"""Until when those that do not leave at once stay, in seconds after the start."""


@lru_cache(1)
def programs() -> dict[str, Program]:
    """All programs by name."""
    return (
        algorithm_programs()
        | call_programs()
        | {
            "agree": Program("agree"),
            "compute and shrink": Program("compute and shrink", faults=(*FAULTS, *CUTS)),
            "shrink": Program("shrink"),
            "grow by one": Program("grow by one", share=1 / 3),
            "grow by two": Program("grow by two", serves=lambda size: size > 2, share=1 / 3),
        }
    )


@dataclass(frozen=True, slots=True)
class Profile:
    """How long a program takes without faults: seconds, and frames and steps by rank."""

    seconds: float
    frames: tuple[int, ...]
    steps: tuple[int, ...]


@lru_cache(65536)
def profile(program: str, size: int) -> Profile:
    """A run without faults, with every instant's range; it must be right."""
    case = Case(program, size, 0, "crash", "at", 2 * LINGER, 1)
    performance = _performance(case)
    steps = [0] * size

    def count(rank: int) -> None:
        steps[rank] += 1

    performance.on_loop = lambda loop: loop.before_step.update(
        {rank: lambda rank=rank: count(rank) for rank in range(size)}
    )
    findings = performance.play()
    if findings:
        raise AssertionError(f"{case} is wrong without any fault: {findings}")
    return Profile(performance.ended, tuple(each.frames for each in performance.simulation.sent), tuple(steps))


def play(case: Case) -> list[str]:
    """What is wrong with the case; empty: nothing. UsageError for a case that there is not."""
    program = programs().get(case.program)
    if program is None or case.fault not in program.faults:
        raise UsageError(f"{case}: there is no program {case.program!r} in which ranks meet {case.fault!r}")
    if not (0 <= case.victim < case.size and case.size > 1 and program.serves(case.size)):
        raise UsageError(f"{case}: no such world, or no such rank in it, for this program")
    return _performance(case).play()


def _performance(case: Case) -> _Performance | Recovery:
    if case.program in _GROWING:
        return Growing(case, _GROWING[case.program])
    return Recovery(case) if case.program in LIVES else _Performance(case)


class _Performance:
    """One run of a case."""

    def __init__(self, case: Case) -> None:
        self.case, self.program = case, programs()[case.program]
        self.stories = [Story(rank) for rank in range(case.size)]
        self.simulation = Simulation(
            case.size, seed=case.seed, faults=fault_of(case), settings=case.settings, timeout=DEADLINE, goodbye=False,
            latency=LATENCY, jitter=case.jitter, hosts=case.hosts,
        )  # fmt: skip
        self.on_loop: Any = None

    def play(self) -> list[str]:
        try:
            self.simulation.run(self._main)
        except Exception as error:  # an assertion, a deadlock, or what no rank should have raised
            return [f"the run ended with {type(error).__name__}: {error}"]
        struck = self.simulation.struck.get(self.case.victim)
        findings = [*judge(self.case, self.program, self.stories, struck), *self._late_bytes()]
        for story in self.stories:
            _forget_where(story.error)
        self.simulation.dissolve()
        return findings

    @property
    def ended(self) -> float:
        """When the last rank was through."""
        return max(story.ended for story in self.stories)

    async def _main(self, group: Group) -> None:
        story = self.stories[group.rank]
        loop = asyncio.get_running_loop()
        if self.on_loop is not None and group.rank == 0:
            self.on_loop(loop)
        try:
            if self.case.leaves:
                async with group:
                    await self._turns(group, story, loop)
            else:
                await self._turns(group, story, loop)
        except (AiocollError, asyncio.CancelledError) as error:
            if error is not story.error:
                raise
        if not self.case.leaves:
            await self._stay(group, story, loop)

    async def _turns(self, group: Group, story: Story, loop: asyncio.AbstractEventLoop) -> None:
        size, variant = self.case.size, self.case.variant
        for turn in range(self.program.turns):
            part = self.program.prepare(size, group.rank, turn, variant)
            await self._turn(group, story, part, loop)
        await self._turn(group, story, Part(lambda group: group.barrier(), lambda _: True), loop)
        story.through = True
        story.ended = loop.time()

    async def _turn(self, group: Group, story: Story, part: Part, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            story.begun.append((loop.time(), group._scope.next_call - (part.stop is not None)))
            try:
                result = await part.call(group)
            except (AiocollError, asyncio.CancelledError) as error:
                if part.stop is not None:
                    if isinstance(error, asyncio.CancelledError) and self.case.fault == "cancel":
                        continue  # nothing is broken, and what came meanwhile is still there
                    await part.stop()
                story.error, story.ended = error, loop.time()
                story.outs = part.outs
                for out in part.outs:
                    out.fill(_POISON)
                raise
            if not part.check(result):
                story.wrong.append(f"turn {len(story.begun) - 1} gave a wrong result")
            return

    async def _stay(self, group: Group, story: Story, loop: asyncio.AbstractEventLoop) -> None:
        """Keeps the world open until all is over, so that what comes late comes somewhere."""
        try:
            if group.broken is not None and self.case.seed % 3 == 0 and not self.program.nested:
                await self._later(group, story)
            await asyncio.sleep(max(0.0, _LINGER - loop.time()))
        except asyncio.CancelledError:
            if self.case.fault != "cancel":  # a cancel that came when all was over
                raise
        endpoint = group._endpoint
        left = [name for name, what in (
            ("operations that wait", endpoint.parked), ("calls", group._scope.calls),
            ("receives", endpoint.inbox.expected), ("offers", endpoint.inbox.offers),
        ) if what]  # fmt: skip
        if left:
            story.wrong.append(f"it was left with {', '.join(left)}")

    async def _later(self, group: Group, story: Story) -> None:
        """One more call after the failure."""
        broken = group.broken
        try:
            await group.barrier()
        except AiocollError as error:
            if broken is None or not isinstance(error, GroupBrokenError) or error.cause is not broken:
                story.wrong.append(f"a later call raised {error!r}, with the group broken by {broken!r}")
        else:
            story.wrong.append("a later call went through")

    def _late_bytes(self) -> list[str]:
        return [
            f"rank {story.rank}: memory was written after {story.error!r}"
            for story in self.stories
            for out in story.outs
            if not _still_poisoned(out)
        ]


def _forget_where(error: BaseException | None) -> None:
    """Drops the tracebacks, whose frames hold everything."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error.__context__ = None
        error = error.__cause__


def _still_poisoned(out: Array) -> bool:
    return bool((out == out.dtype.type(_POISON)).all())


@contextmanager
def collecting_now_and_then() -> Iterator[Callable[[], None]]:
    """Within it nothing looks for garbage but the function that it gives, to be called after each of many short runs:
    to look all the time, and at all that stays, takes longer than the runs."""
    was, frozen, count = gc.isenabled(), gc.get_freeze_count() > 0, 0

    def tidy() -> None:
        nonlocal count
        count += 1
        if count % _RUNS_PER_COLLECTION == 0:
            gc.collect()
            gc.freeze()  # what is left is there to stay, as data that the next runs take, too

    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield tidy
    finally:
        gc.unfreeze()
        if was:
            gc.enable()
        gc.collect()
        if frozen:  # what the caller does not want looked at
            gc.freeze()


__all__ = ["Profile", "collecting_now_and_then", "play", "profile", "programs"]
