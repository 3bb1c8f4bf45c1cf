"""What is said at the end of a job whose ranks may die (``--on-failure shrink``): who did, when and why, and what then.

Rule: pure words and numbers. A runner sums its `Verdict` up in a `Result`; of the results of one or of several runners
`merged` makes the exit code of the job and its last words. Nothing is said when nothing happened; the last line tells
how the job ended, unless it failed, when the cause is to be the last thing on screen (`verdict.summary`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from aiocoll.runner.verdict import Ending, Verdict, names, summary

WORDS_CHARS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class Result:
    """How the ranks of one runner fared."""

    told: list[str] = field(default_factory=list)
    """A line for each failure, in the order of time."""
    well: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    struck: list[int] = field(default_factory=list)
    """Survivors that could not go on without the others."""
    code: int = 0
    """The exit code that the first failure here means."""
    when: float = math.inf
    """The time of that failure, in seconds since the epoch."""
    summary: list[str] = field(default_factory=list)
    over: bool = True
    """Whether nothing runs here any more, or only what waits to be taken in."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Result:
        return cls(**json.loads(text))


def result_of(
    verdict: Verdict, *, size: int, host: str, clocks: float = 0.0, running: Sequence[int] = (), over: bool = True
) -> Result:
    """Sums up; `clocks` is what turns the monotonic clock's seconds into those since the epoch."""
    failures = [ending for ending in verdict.failures if not ending.asked]
    told = [f"aiocoll: {_line(verdict, ending, host)}" for ending in failures]
    told += [
        f"aiocoll: {verdict.endings[rank].name} came too late: nobody was left to take it in"
        for rank in sorted(verdict.too_late)
        if rank in verdict.endings
    ]
    cause = verdict.cause
    endings = sorted(verdict.endings.items())
    return Result(
        told=_cut(told),
        well=[rank for rank, ending in endings if not ending.failed],
        lost=[rank for rank, ending in endings if ending.failed],
        struck=[ending.rank for ending in verdict.struck],
        code=0 if cause is None else cause.exit_code or 1,
        when=math.inf if cause is None else cause.when + clocks,
        summary=_cut(summary(verdict, size=size, host=host, running=running, told=len(told) > 1)),
        over=over,
    )


def merged(results: Iterable[Result]) -> tuple[int, list[str]]:
    """The exit code of the whole job and its last words."""
    found = list(results)
    told = [line for result in found for line in result.told]
    well, lost, struck = (
        sorted(rank for result in found for rank in getattr(result, field)) for field in ("well", "lost", "struck")
    )
    if well and not struck:
        text = f"aiocoll: {names(well)} finished: the job succeeded{f' without {names(lost)}' if lost else ''}"
        return 0, [*told, text] if told else []
    failed = sorted((result for result in found if result.code), key=lambda result: result.when)
    if not failed:  # nothing has run here
        return (1 if lost else 0), told
    words = told if len(told) > 1 else []
    if struck:
        words.append(
            f"aiocoll: {names(struck)} did not go on without the others: catch PeerLostError and GroupBrokenError, and "
            "continue with the group that shrink() gives"
        )
    return failed[0].code, [*words, *failed[0].summary]


def _line(verdict: Verdict, ending: Ending, host: str) -> str:
    after = max(0.0, ending.when - verdict.started)
    text = f"{after:.1f} s: {ending.name} (pid {ending.pid} on {host}) {_how(ending)}"
    key = ending.rank, ending.number
    if (number := verdict.replaced_by.get(key)) is not None:
        return f"{text}; replacement {number} (pid {verdict.pids.get(number, 0)}) was started in its place"
    if (why := verdict.not_replaced.get(key)) is not None:
        return f"{text}; not replaced: {why}"
    return text


def _how(ending: Ending) -> str:
    if ending.code < 0 or ending.start_errno or (ending.report is None and not ending.consequence):
        return ending.error()
    report = ending.report
    where = f" in {report.operation}" if report is not None and report.operation else ""
    if ending.consequence:
        return f"ended with {report.name.rpartition('.')[2] if report is not None else 'a lost peer'}{where}"
    return f"failed{where}: {ending.error()}"


def _cut(lines: list[str]) -> list[str]:
    """Of very many, the first and the last."""
    while len(lines) > 8 and sum(map(len, lines)) > WORDS_CHARS_MAX:
        third = len(lines) // 3
        lines = [*lines[:third], "[...]", *lines[third * 2 :]]
    return lines
