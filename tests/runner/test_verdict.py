"""Who failed first, and what is said about it."""

from __future__ import annotations

import json
import signal

import pytest

from aiocoll.errors import GroupBrokenError, PeerLostError
from aiocoll.observe.report import describe
from aiocoll.runner.verdict import Ending, Report, Verdict, decode, names, summary, whereabouts


def reported(error: BaseException) -> Report:
    """What the runner makes of an exception that was raised, and reported through the pipe."""
    try:
        raise error
    except BaseException as raised:
        parsed = Report.parse(json.dumps(describe(raised)).encode() + b"\n")
    assert parsed is not None
    return parsed


def verdict(*endings: Ending, on_failure: str = "end") -> Verdict:
    made = Verdict(on_failure)
    for ending in endings:
        made.add(ending)
    return made


LOST = reported(PeerLostError("rank 1 is lost", rank=1, operation="all_reduce (call 5)"))
BROKEN = reported(GroupBrokenError("broken"))
BOOM = reported(ValueError("boom"))
INTERRUPTED = reported(KeyboardInterrupt())


def test_the_earliest_failure_is_the_cause() -> None:
    found = verdict(Ending(2, 3, at=2.0), Ending(1, 7, at=1.0), Ending(0, 0, at=0.5))
    assert found.cause is not None and found.cause.rank == 1
    assert found.exit_code == 7


@pytest.mark.parametrize("consequence", [LOST, BROKEN])
def test_a_consequence_is_never_the_first_failure(consequence: Report) -> None:
    found = verdict(Ending(0, 1, at=1.0, report=consequence))
    assert found.only_consequences and found.cause is not None and found.cause.rank == 0
    found.add(Ending(1, -signal.SIGSEGV, at=2.0))
    assert not found.only_consequences
    assert (found.cause.rank, found.exit_code) == (1, 139)


@pytest.mark.parametrize(
    "raised",
    [
        ExceptionGroup("g", [PeerLostError("a"), ExceptionGroup("h", [GroupBrokenError("b")])]),
        pytest.param(RuntimeError("step failed"), id="chained"),
    ],
)
def test_consequences_in_disguise(raised: Exception) -> None:
    if isinstance(raised, RuntimeError):
        raised.__cause__ = PeerLostError("lost")
    assert reported(raised).consequence


def test_not_every_group_of_errors_is_a_consequence() -> None:
    assert not reported(ExceptionGroup("g", [PeerLostError("a"), ValueError("mine")])).consequence
    assert not BOOM.consequence


def test_without_a_report_the_last_line_tells() -> None:
    tail = ("Traceback (most recent call last):", "  ...", "aiocoll.errors.PeerLostError: rank 1 is lost")
    assert Ending(0, 1, tail=tail).consequence
    assert Ending(0, 1, tail=("\x1b[31mPeerLostError: rank 1\x1b[0m", "")).consequence
    assert not Ending(0, 1, tail=("ValueError: PeerLostError",)).consequence


def test_what_the_runner_ended_did_not_fail() -> None:
    found = verdict(
        Ending(0, -signal.SIGINT, at=1.0, asked=True),
        Ending(2, 1, at=1.1, asked=True, report=INTERRUPTED),
        Ending(3, 3, at=1.2, asked=True),
        Ending(1, 1, at=5.0, asked=True, report=BOOM),
    )
    assert found.cause is not None and found.cause.rank == 1, "its exception has nothing to do with the signals"


def test_a_report_dates_the_failure() -> None:
    early = Report("ValueError", "m", "", time=1.0)
    found = verdict(Ending(0, 9, at=2.0), Ending(1, 1, at=3.0, report=early))
    assert found.cause is not None and found.cause.rank == 1


def test_shrinking_succeeds_when_every_survivor_does() -> None:
    dead = Ending(1, -signal.SIGKILL, at=1.0)
    assert verdict(Ending(0, 0), dead, on_failure="shrink").exit_code == 0
    assert verdict(Ending(0, 1, at=2.0, report=LOST), Ending(2, 0), dead, on_failure="shrink").exit_code == 137
    assert verdict(dead, on_failure="shrink").exit_code == 137


@pytest.mark.parametrize("data", [b"", b"junk", b"[1]", b'{"class": 1}', b"\xff\xfe", b'{"class":"a"}\nnull\n', b"7"])
def test_a_mangled_report_is_none(data: bytes) -> None:
    assert Report.parse(data) is None


def test_summary_puts_the_cause_last() -> None:
    found = verdict(
        Ending(1, 1, at=1.0, pid=77, report=BOOM),
        Ending(0, 1, at=2.0, report=LOST),
        Ending(3, 0, at=0.1),
        Ending(2, -signal.SIGINT, at=2.0, asked=True),
    )
    lines = summary(found, size=4, host="h")
    assert lines[0] == "aiocoll: rank 1 (pid 77 on h) failed first: ValueError: boom"
    assert "aiocoll: rank 0 ended with PeerLostError in all_reduce (call 5)" in lines
    assert "aiocoll: rank 3 had finished" in lines and "aiocoll: rank 2 ended by the runner" in lines
    assert "[r1] Traceback (most recent call last):" in lines
    assert lines[-1] == "[r1] ValueError: boom"


def test_summary_of_a_signal_is_decoded() -> None:
    lines = summary(verdict(Ending(1, -signal.SIGSEGV, tail=("last words",))), size=2, host="h")
    assert "[r1] last words" in lines
    assert lines[-1] == "aiocoll: rank 1 was killed by signal 11 (SIGSEGV: segmentation fault); exit code 139"


def test_a_lone_rank_has_said_it_itself() -> None:
    assert summary(verdict(Ending(0, 1, report=BOOM)), size=1, host="h") == []
    assert "SIGKILL" in summary(verdict(Ending(0, -9)), size=1, host="h")[-1]


def test_of_several_tracebacks_on_stderr_the_last_with_its_chain_is_shown() -> None:
    logged = ("Traceback (most recent call last):", "LoggedError")
    first = ("Traceback (most recent call last):", "KeyError: 1", "")
    chain = "The above exception was the direct cause of the following exception:"
    last = ("", "Traceback (most recent call last):", "ValueError: 2")
    lines = summary(verdict(Ending(0, 1, tail=(*logged, *first, chain, *last))), size=2, host="h")
    assert lines[0].endswith("failed first: ValueError: 2") and lines[1] == "[r0] Traceback (most recent call last):"
    assert len(lines) == 1 + len(first) + 1 + len(last) and "LoggedError" not in str(lines)


def test_whereabouts_and_words() -> None:
    assert whereabouts(verdict(Ending(0, 1, report=LOST), Ending(2, 1, report=LOST), Ending(1, 0))) == [
        "ranks 0 and 2 were in all_reduce (call 5)"
    ]
    assert names([3, 1, 2]) == "ranks 1, 2 and 3"
    assert decode(0) == "exited with code 0" and "SIGTERM" in decode(-15) and "unnamed" in decode(-63)
