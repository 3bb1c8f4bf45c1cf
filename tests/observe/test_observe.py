"""Facts go out in order to every listener, cost nothing without one, and a broken listener changes nothing."""

from __future__ import annotations

import json
import logging
import pathlib
from typing import Any

import pytest

from aiocoll import observe
from aiocoll.observe import emit, listen
from aiocoll.observe.chrome import ChromeTrace
from aiocoll.observe.recorder import Recorder
from aiocoll.observe.stats import Stats


def test_facts_reach_listeners_in_order_until_they_are_removed() -> None:
    seen: list[tuple[str, str, dict[str, Any]]] = []
    emit("nobody listens", x=1)
    assert not observe.active
    remove_a = listen(lambda kind, facts: seen.append(("a", kind, facts)))
    remove_b = listen(lambda kind, facts: seen.append(("b", kind, facts)))
    assert observe.active
    emit("both", x=2)
    remove_a()
    remove_a()
    emit("one")
    remove_b()
    assert not observe.active
    emit("none")
    assert seen == [("a", "both", {"x": 2}), ("b", "both", {"x": 2}), ("b", "one", {})]


def test_one_function_may_listen_twice() -> None:
    seen: list[str] = []

    def hear(kind: str, facts: dict[str, Any]) -> None:
        seen.append(kind)

    first, second = listen(hear), listen(hear)
    first()
    first()
    emit("x")
    second()
    assert seen == ["x"] and not observe.active


def test_a_listener_that_fails_is_logged_and_removed(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def broken(kind: str, facts: dict[str, Any]) -> None:
        raise ZeroDivisionError

    listen(broken)
    remove = listen(lambda kind, facts: seen.append(kind))
    with caplog.at_level(logging.ERROR, "aiocoll.observe"):
        emit("x")
        emit("y")
    remove()
    assert seen == ["x", "y"] and not observe.active
    assert len(caplog.records) == 1 and "was removed" in caplog.text


def test_the_recorder_keeps_the_last_facts() -> None:
    now = iter(range(100))
    with Recorder(3, clock=lambda: next(now)) as recorder:
        for step in range(5):
            emit("step", n=step)
        emit("other", why="x y")
    emit("step", n=99)
    assert [(fact.at, fact.kind) for fact in recorder.facts()] == [(3, "step"), (4, "step"), (5, "other")]
    assert [fact.facts["n"] for fact in recorder.facts("step")] == [3, 4]
    assert recorder.seen == 6 and "kept 3 of 6" in repr(recorder)
    assert recorder.text().splitlines()[-1] == "5.000000 other why='x y'"


def test_counters() -> None:
    now = iter([1.0, 2.0, 4.0, 8.0])
    with Stats(clock=lambda: next(now)) as stats:
        for rank in range(2):
            emit("call", call="all_reduce (call 1)", rank=rank, group="world")
            emit("sent", transport="tcp", peer=1, nbytes=100 + rank)
            emit("received", transport="tcp", peer=1, nbytes=7)
            emit("sent", transport="shm", peer=2, nbytes=1)
        emit("called", call="all_reduce (call 1)", rank=0, group="world", error=None)
        emit("called", call="all_reduce (call 1)", rank=1, group="world", error="PeerLostError()")
        emit("called", call="never began", rank=1, group="world")
        emit("anything")
    emit("call", call="all_reduce (call 2)")
    snapshot = stats.snapshot()
    assert snapshot["calls"] == {"all_reduce": 2} and snapshot["failures"] == {"all_reduce": 1}
    assert snapshot["bytes_sent"] == {"tcp": 201, "shm": 2} and snapshot["bytes_received"] == {"tcp": 14}
    assert snapshot["seconds"] == {"all_reduce": (4 - 1) + (8 - 2)}
    assert snapshot["facts"]["anything"] == 1 and json.dumps(snapshot)


def test_the_timeline_is_valid_and_readable_before_it_ends(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "trace.json"
    now = iter(range(100))
    with ChromeTrace(path, clock=lambda: next(now)):
        emit("call", rank=1, group="world", call="barrier (call 7)")
        emit("call", rank=1, group="world", call="all_reduce (call 8)")
        emit("called", rank=1, group="world", call="barrier (call 7)", error=ValueError("x"))
        emit("called", rank=1, group="world", call="unknown")
        unfinished = path.read_text()
        emit("lost", rank=1, peer=3)
    assert len(json.loads(unfinished.rstrip().rstrip(",") + "]")) == 4
    events = json.loads(path.read_text())
    assert [(event["ph"], event["name"]) for event in events] == [
        ("b", "barrier (call 7)"),
        ("b", "all_reduce (call 8)"),
        ("e", "barrier (call 7)"),
        ("i", "called"),
        ("i", "lost"),
        ("M", "process_labels"),
    ]
    assert events[0]["id"] == events[2]["id"] == "1.world.barrier (call 7)" and events[0]["pid"] == 1
    assert events[1]["ts"] - events[0]["ts"] == 1e6
    with ChromeTrace(path):
        pass
    assert json.loads(path.read_text())[0]["ph"] == "M"
