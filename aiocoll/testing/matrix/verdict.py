"""What each rank of a case may have come to: right, or the right error, about the right rank, in time.

Rule: bounds are virtual seconds, and stated here. `L` is the longest that a message takes, `D` the calls' deadline.

    crash   PeerLostError naming the victim, at most 3 L later: what was on its way comes first, then its end, then news
    freeze  not before D: CollectiveTimeoutError that names the victim (GroupBrokenError with that as its cause in other
            calls), at most D + 1/2 s + 3 L after the call began; who goes on in time is waited for, and all ends well
    cancel  CancelledError at once at the victim, GroupBrokenError naming it at the others, at most 2 L later; messages
            lose nothing, and break nothing
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ...errors import CollectiveTimeoutError, GroupBrokenError, PeerLostError
from .case import DEADLINE, Case
from .programs import Array, Program

_ANSWER_SECONDS: Final = 0.5
_SLACK: Final = 1e-6


@dataclass(slots=True)
class Story:
    """What one rank has lived through."""

    rank: int
    begun: list[tuple[float, int]] = field(default_factory=list)
    """When each turn began, and the number of the call that it made (of messages: of the call before)."""
    error: BaseException | None = None
    ended: float = 0.0
    through: bool = False
    wrong: list[str] = field(default_factory=list)
    outs: list[Array] = field(default_factory=list)


def judge(case: Case, program: Program, stories: list[Story], struck: float | None) -> Iterator[str]:
    """The findings; `struck` is when the fault came, if it did."""
    victim = stories[case.victim]
    for story in stories:
        gone = case.fault == "crash" or (case.fault == "freeze" and case.thaws is None)
        if story is victim and struck is not None and gone:
            continue
        for wrong in story.wrong:
            yield f"rank {story.rank}: {wrong}"
        if story.through:
            continue
        if story.error is None:
            yield f"rank {story.rank} neither failed nor got through; it is in turn {len(story.begun)}"
        elif struck is None:
            yield f"rank {story.rank} raised {story.error!r}, though nothing befell anybody"
        elif program.nested:
            yield from _somehow(case, story, struck)
        elif case.fault == "crash":
            yield from _after_crash(case, program, story, struck)
        elif case.fault == "freeze":
            yield from _after_freeze(case, program, story, stories)
        else:
            yield from _after_cancel(case, story, victim, struck)


def _somehow(case: Case, story: Story, struck: float) -> Iterator[str]:
    """What a rank hears of a group to which others did not come, since their own had failed."""
    if not isinstance(story.error, PeerLostError | CollectiveTimeoutError | GroupBrokenError):
        yield f"rank {story.rank} raised {story.error!r}"
    if story.ended > struck + DEADLINE + _ANSWER_SECONDS + 3 * case.latency_max + _SLACK:
        yield f"rank {story.rank} heard {story.ended - struck:g} s after the crash"


def _after_crash(case: Case, program: Program, story: Story, struck: float) -> Iterator[str]:
    error, late = story.error, story.ended - struck
    if program.messages and type(error) is GroupBrokenError:  # its sends, which ran beside, have said it
        error = error.cause
    if type(error) is not PeerLostError or error.world_rank != case.victim:
        yield f"rank {story.rank} raised {error!r} and not PeerLostError of rank {case.victim}"
    if not -_SLACK <= late <= 3 * case.latency_max + _SLACK:
        yield f"rank {story.rank} heard {late:g} s after the crash"


def _after_freeze(case: Case, program: Program, story: Story, stories: list[Story]) -> Iterator[str]:
    error = story.error
    began, _ = story.begun[-1]
    if story.ended < DEADLINE - _SLACK:
        yield f"rank {story.rank} raised before the deadline: {error!r} at {story.ended:g} s"
    if case.thaws is not None and case.thaws < DEADLINE:
        yield f"rank {story.rank} raised {error!r} though the victim went on in time"
    if story.rank == case.victim:
        began = max(began, case.thaws or 0.0)
    bound = began + DEADLINE + _ANSWER_SECONDS + 3 * case.latency_max
    if story.ended > bound + _SLACK:
        yield f"rank {story.rank} raised {story.ended - bound:g} s too late: {error!r}"
    cause = error.cause if type(error) is GroupBrokenError else error
    if isinstance(cause, CollectiveTimeoutError):
        if cause.elapsed < DEADLINE - _SLACK:
            yield f"rank {story.rank} gave up after {cause.elapsed:g} s: {error!r}"
        if story.rank != case.victim:
            yield from _missing(case, story, cause, stories)
    elif not (program.messages and "left group" in str(error) and "CollectiveTimeoutError" in str(error)):
        yield f"rank {story.rank} raised {error!r} and not CollectiveTimeoutError"


def _missing(case: Case, story: Story, error: CollectiveTimeoutError, stories: list[Story]) -> Iterator[str]:
    """The victim is missing, and besides it only those that had not come to the call either, or ended before there
    was a link to them. A receive names the rank from which nothing came, which may wait itself."""
    if error.call is None:
        come = [rank for rank in error.missing if stories[rank].through]
    else:
        come = [rank for rank in error.missing if stories[rank].begun[-1][1] >= error.call]
        if case.victim not in error.missing:
            yield f"rank {story.rank} does not miss rank {case.victim}: {error!r}"
    for rank in come:
        if rank != case.victim and not re.search(rf"rank {rank} \([^;]*; it has ended\)", str(error)):
            yield f"rank {story.rank} misses rank {rank}, which had come: {error!r}"


def _after_cancel(case: Case, story: Story, victim: Story, struck: float) -> Iterator[str]:
    error, late = story.error, story.ended - struck
    if story is victim:
        if not isinstance(error, asyncio.CancelledError):
            yield f"rank {story.rank} was cancelled, and raised {error!r}"
        elif late > _SLACK:
            yield f"rank {story.rank} was told {late:g} s after it was cancelled"
        return
    if type(error) is not GroupBrokenError or f"rank {case.victim} " not in str(error) or "cancel" not in str(error):
        yield f"rank {story.rank} raised {error!r} and not that rank {case.victim} cancelled"
    elif error.rank != case.victim:
        yield f"rank {story.rank} raised an error that speaks of rank {error.rank}: {error!r}"
    if not -_SLACK <= late <= 2 * case.latency_max + _SLACK:
        yield f"rank {story.rank} heard {late:g} s after the cancel"


__all__ = ["Story", "judge"]
