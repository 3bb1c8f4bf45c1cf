"""Rows: bandwidths as nccl-tests counts them, efficiency against the floor, and JSON that loses nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aiocoll.bench.cases import CASES, Case
from aiocoll.bench.measure import summary
from aiocoll.bench.records import Floor, Report, Row, link_bytes, moved_bytes
from aiocoll.bench.request import COLLECTIVES
from tests.bench.rows import cell, row


@pytest.mark.parametrize(
    ("collective", "algbw", "busbw"),
    [("all_reduce", 1.0, 1.5), ("reduce", 1.0, 1.0), ("broadcast", 1.0, 1.0), ("all_gather", 4.0, 3.0),
     ("gather", 4.0, 3.0), ("scatter", 1.0, 0.75), ("reduce_scatter", 1.0, 0.75), ("all_to_all", 1.0, 0.75),
     ("scan", 1.0, 1.0), ("exscan", 1.0, 1.0), ("ping_pong", 1.0, 1.0), ("barrier", 1.0, 0.0)],
)  # fmt: skip
def test_bandwidths_of_four_ranks(collective: str, algbw: float, busbw: float) -> None:
    line = row(collective=collective, nbytes=10**6, ranks=4, seconds=1e-3)
    assert line.algbw(line.cells["out"]) == pytest.approx(algbw)
    assert line.busbw(line.cells["out"]) == pytest.approx(busbw)


def test_every_collective_has_a_case_and_a_bandwidth() -> None:
    assert set(CASES) == set(COLLECTIVES)
    for collective in COLLECTIVES:
        assert moved_bytes(collective, 8, 2) >= 8 and link_bytes(collective, 8, 1) >= 0.0


def test_efficiency_is_that_of_the_floor_of_what_carried_the_bytes() -> None:
    floor = Floor(memcpy=1e-6, memory=2e-6, socket=5e-6)
    for transport, expected in (("shm", 0.2), ("tcp", 0.5), ("inproc", None), ("", None)):
        line = row(seconds=1e-5, floor=floor, transport=transport)
        found = line.efficiency(line.cells["out"])
        assert found == (None if expected is None else pytest.approx(expected))
    assert row(floor=Floor(), transport="tcp").efficiency(cell(1e-5)) is None


def test_a_report_survives_json() -> None:
    rows = [row(), row(nbytes=0, cells={}), row(forced="ring", transport="shm", floor=Floor(1e-6, None, 2e-6))]
    report = Report({"cpu": "fast"}, rows)
    data = json.loads(json.dumps(report.as_json()))
    assert [Row.from_json(each) for each in data["rows"]] == rows
    assert data["rows"][0]["cells"]["out"]["busbw"] == pytest.approx(rows[0].busbw(rows[0].cells["out"]))


def test_wrong_elements_and_the_mean_bandwidth_are_summed_up() -> None:
    rows = [row(nbytes=8000, seconds=1e-6), row(nbytes=4000, seconds=1e-6, wrong=3), row(nbytes=0, seconds=1e-6)]
    report = Report({}, rows)
    assert report.wrong == 3
    assert report.mean_busbw == pytest.approx(6.0)  # two ranks: all_reduce's busbw is its algbw
    assert Report({}).mean_busbw == 0.0


def test_a_call_takes_as_long_as_its_slowest_rank() -> None:
    fast, slow = np.full(40, 1.0), np.full(40, 2.0)
    slow[30] = 100.0
    made = summary(Case(lambda: None, "call()"), np.array([[1.0, *fast], [2.0, *slow]]))
    assert (made.seconds, made.calls, made.wrong) == (2.0, 40, 3)
    assert made.low == 2.0 and made.high == 2.0  # one block of twenty is late: no tenth
    assert 2.0 < made.p99 <= 100.0
    halved = Case(lambda: None, "call()")
    halved.trips = 2
    assert summary(halved, np.array([[0.0, *fast], [0.0, *slow]])).seconds == 1.0


def test_ranks_that_take_turns_at_being_slow_are_not_added_up_within_a_block() -> None:
    """A root that runs ahead and waits later is as fast as its blocks are, not as its slowest calls."""
    turns = np.tile([1.0, 3.0], 40)
    made = summary(Case(lambda: None, "call()"), np.array([[0.0, *turns], [0.0, *turns[::-1]]]))
    assert made.seconds == 2.0
