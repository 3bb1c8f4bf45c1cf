"""What is said at the end of a job whose ranks may die (``--on-failure shrink``): who did, when and why, and what then.

Rule: pure words over a `Verdict`. Nothing is said when nothing happened; the last line tells how the job ended, unless
it failed, when the cause is to be the last thing on screen (`verdict.summary`).
"""

from __future__ import annotations

from aiocoll.runner.verdict import Ending, Verdict, names


def chronicle(verdict: Verdict, *, host: str) -> list[str]:
    """One line for each rank that failed, in the order of time, and one for the outcome."""
    failures = [ending for ending in verdict.failures if not ending.asked]
    if not failures:
        return []
    lines = [f"aiocoll: {_line(verdict, ending, host)}" for ending in failures]
    lines += [f"aiocoll: {name}" for name in _too_late(verdict)]
    if verdict.exit_code == 0:
        return [*lines, f"aiocoll: {outcome(verdict)}"]
    if verdict.struck:
        lines.append(
            f"aiocoll: {names(ending.rank for ending in verdict.struck)} did not go on without the others: catch "
            "PeerLostError and GroupBrokenError, and continue with the group that shrink() gives"
        )
    return lines if len(failures) > 1 else []


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


def _too_late(verdict: Verdict) -> list[str]:
    return [
        f"{verdict.endings[rank].name} came too late: nobody was left to take it in"
        for rank in sorted(verdict.too_late)
        if rank in verdict.endings
    ]


def outcome(verdict: Verdict) -> str:
    """How it ended, where it ended well."""
    well = [rank for rank, ending in verdict.endings.items() if not ending.failed]
    lost = [rank for rank, ending in verdict.endings.items() if ending.failed]
    text = f"{names(well)} finished: the job succeeded"
    return f"{text} without {names(lost)}" if lost else text
