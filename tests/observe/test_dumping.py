"""When a rank dumps: once per failure, when the loop has time or at the end, and never in the program's way."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aiocoll.observe import dumping
from aiocoll.observe.dumping import Source
from aiocoll.observe.flight import FACTS_MAX, Flight, words


@pytest.fixture
def later() -> list[Callable[[], None]]:
    return []


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    made = Source(_snapshot, Flight(), str(tmp_path / "dumps"))
    yield made
    made.close()


def _snapshot(why: str, facts: bool = True) -> dict[str, Any]:
    return {
        "format": "aiocoll trace 1", "why": why, "rank": 3, "size": 5, "host": "h", "pid": os.getpid(), "wall": 1e9,
        "clock": 5.0, "gone": {"1": "it died"}, "groups": [], "waits": [], "facts": [],
    }  # fmt: skip


def _why(source: Source) -> list[str]:
    paths = sorted(Path(source.directory).glob("*.json"), key=lambda path: int(path.name.split("-")[2].split(".")[0]))
    return [json.loads(path.read_text())["why"] for path in paths]


def test_one_failure_is_one_dump_until_something_succeeds(source: Source, later: list[Callable[[], None]]) -> None:
    source.failed("first", later.append)
    source.failed("what follows from it", later.append)
    assert not os.path.exists(source.directory)  # the failure goes on its way before anything is written
    later.pop()()
    source.failed("what follows still", later.append)
    assert _why(source) == ["first"] and not later
    flight = source._flight
    flight.record([flight.clock(), flight.clock(), None, 7, (1, "barrier", "barrier")])
    source.failed("second", later.append)
    source.close()  # which writes what is left to write
    assert _why(source) == ["first", "second"]
    later.pop()()
    assert _why(source) == ["first", "second"]


def test_what_is_pending_is_written_at_the_end_of_the_program(source: Source, later: list[Callable[[], None]]) -> None:
    source.failed("at last", later.append)
    dumping.flush_all()
    assert _why(source) == ["at last"]


def test_without_a_directory_nothing_is_kept(later: list[Callable[[], None]]) -> None:
    source = Source(_snapshot, Flight(), "")
    source.failed("nobody asked", later.append)
    source.close()
    assert not later


def test_a_directory_that_cannot_be_written_is_a_line_in_the_log(
    tmp_path: Path, later: list[Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    source = Source(_snapshot, Flight(), str(tmp_path / "file" / "dumps"))
    with caplog.at_level(logging.WARNING, "aiocoll.trace"):
        source.failed("first", later.append)
        source.close()
    assert "rank 3 cannot write its dump into" in caplog.text


def test_a_program_that_breaks_groups_for_ever_fills_no_disk(
    source: Source, later: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dumping, "_written", dumping._FAILURES_MAX - 2)
    flight = source._flight
    for each in range(10):
        source.failed(f"failure {each}", later.append)
        source.flush()
        flight.record([flight.clock(), flight.clock(), None, each, (1, "barrier", "barrier")])
    assert _why(source) == ["failure 0", "failure 1"]


def test_the_signal_is_given_back_by_the_last(tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    first, second = (Source(_snapshot, Flight(), str(tmp_path)) for _ in range(2))
    assert signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGUSR2)
    assert _why(first) == ["asked for (SIGUSR2)"] * 2  # one of each connection
    content = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert "test_dumping.py" in content["place"] and "test_dumping.py" in "".join(content["stack"])
    first.close()
    assert signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL
    second.close()
    second.close()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL


def test_a_dump_that_fails_is_not_the_programs_trouble(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    def broken(why: str, facts: bool = True) -> dict[str, Any]:
        raise RuntimeError("half done")

    source = Source(broken, Flight(), str(tmp_path))
    os.kill(os.getpid(), signal.SIGUSR2)
    source.close()
    assert "half done" in caplog.text


def test_a_flight_recorder_keeps_words_of_errors_and_not_the_errors() -> None:
    flight = Flight(limit=3)
    entry = flight.message(5, "recv", None, 2)
    flight.entered(5, "world")
    flight.over(entry, ValueError("x" * 10_000))
    flight.note("broken", {"error": KeyError("k"), "ranks": (1, 2), "more": object(), "by": None})
    first, second = flight.facts()
    assert first["error"].startswith("ValueError: xxx") and len(first["error"]) == 2000 and first["group"] == "world"
    assert second["error"] == "KeyError: 'k'" and second["ranks"] == [1, 2] and second["by"] is None
    assert json.loads(json.dumps(flight.facts())) == flight.facts()
    for each in range(10):
        flight.note("more", {"each": each})
    assert [fact["each"] for fact in flight.facts()] == [7, 8, 9] and repr(flight) == "<Flight: 3 facts>"
    assert FACTS_MAX == 1000 and words(ValueError("a")) == "ValueError: a"
