"""What the dumps of one job's ranks say together, in words.

The rule: most telling first: who died, where calls first differed, who waits for whom, who is silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from aiocoll.observe.dump import NAMED

from .dumps import Dump, Made, latest
from .waiting import waiting

_DESCRIPTION_CHARS_MAX: Final = 200
_WORLDS_MAX: Final = 3


def verdict(dumps: Sequence[Dump], before: float = float("inf"), *, silent: bool = True) -> list[str]:
    """One line a finding, for all connections that the dumps are of, the latest first; dumps of a moment ``before``
    which the ranks were ended go before later ones. ``silent``: name ranks without a dump, too. Dumps of several jobs
    are judged job by job."""
    jobs = list(dict.fromkeys(dump.job for dump in sorted(dumps, key=lambda dump: dump.wall, reverse=True)))
    if len(jobs) > 1:
        by_job = {job: [dump for dump in dumps if dump.job == job] for job in jobs}
        return [
            f"{job_named(job)}: {line}"
            for job, some_dumps in by_job.items()
            for line in verdict(some_dumps, before, silent=silent)
        ]
    worlds = list(latest(dumps, before).values())[::-1]
    lines: list[str] = []
    for ranks in worlds[:_WORLDS_MAX]:
        lines += [line for line in judged(ranks, silent=silent) if line not in lines]
    return lines


def judged(ranks: Mapping[int, Dump], *, silent: bool = True) -> list[str]:
    """The same for one connection: its dumps by rank."""
    return [*_deaths(ranks), *_divergences(ranks), *waiting(ranks), *(_silent(ranks) if silent else ())]


def _deaths(ranks: Mapping[int, Dump]) -> list[str]:
    seen: dict[int, tuple[str, list[int]]] = {}
    for rank, dump in ranks.items():
        for gone, why in dump.gone().items():
            seen.setdefault(gone, (f"{dump.who(gone)} is lost: {why}", []))[1].append(dump.shown(rank))
    return [f"{text} (seen by {some(by)})" for _, (text, by) in sorted(seen.items())]


def _silent(ranks: Mapping[int, Dump]) -> list[str]:
    any_dump = next(iter(ranks.values()))
    dead = {gone for dump in ranks.values() for gone in dump.gone()}
    silent = [rank for rank in range(any_dump.size) if rank not in ranks and rank not in dead]
    if not silent:
        return []
    return [f"{some(any_dump.shown(rank) for rank in silent)} left no dump"]


def _divergences(ranks: Mapping[int, Dump]) -> list[str]:
    """The first call of each group that was not the same on all ranks."""
    by_group: dict[str, dict[int, dict[int, Made]]] = {}
    for rank, dump in ranks.items():
        for group, calls in dump.calls().items():
            by_group.setdefault(group, {})[rank] = calls
    lines = []
    for group, calls_of in by_group.items():
        for number in sorted({number for calls in calls_of.values() for number in calls}):
            made = {rank: calls[number] for rank, calls in calls_of.items() if number in calls}
            if len({each.description for each in made.values()}) > 1:
                some_dump = ranks[next(iter(made))]
                lines.append(_difference(some_dump, some_dump.group_name(group), number, made))
                break
    return lines


def _difference(dump: Dump, group: str, number: int, made: Mapping[int, Made]) -> str:
    sides: dict[str, list[int]] = {}
    for rank, each in made.items():
        sides.setdefault(each.description, []).append(rank)
    # Those who stand alone first: most often it is they who strayed.
    ordered = sorted(sides.items(), key=lambda side: (len(side[1]), side[1]))
    words = [
        f"{some(dump.shown(rank) for rank in members)} called {_call(made[members[0]], number)}"
        f" [{description[:_DESCRIPTION_CHARS_MAX]}]"
        for description, members in ordered
    ]
    return f"first divergence in group {group!r}: {' where '.join(words)}"


def _call(made: Made, number: int) -> str:
    return f"{made.collective} #{number}" if number < NAMED else made.label


def job_named(job: str) -> str:
    """ "job 3f2a", "a job without a name"."""
    return f"job {job}" if job else "a job without a name"


def some(ranks: Iterable[int]) -> str:
    """ "rank 1", "ranks 0, 2, 3"."""
    found = [str(rank) for rank in sorted(ranks)]
    return f"rank {found[0]}" if len(found) == 1 else f"ranks {', '.join(found)}"
