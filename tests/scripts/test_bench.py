"""scripts/bench.py counts correctly, its ranks refuse wrong results, and its verdicts follow from the numbers."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
CALLS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Scripts:
    """The benchmark's modules."""

    bench: ModuleType
    must: ModuleType
    page: ModuleType
    teams: ModuleType
    work: ModuleType
    others: ModuleType


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Scripts:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    names = ("bench", "bench_must", "bench_page", "bench_teams", "bench_work", "bench_others")
    return Scripts(*(importlib.import_module(name) for name in names))


def everybody(scripts: Scripts, what: str, size: int, nbytes: int) -> tuple[list[Any], Callable[[int], None]]:
    """One Call per rank, and what does the collective on all their arrays when the last rank asks for it."""
    cases = [scripts.work.case_of(what, rank, size, nbytes) for rank in range(size)]
    arrays = [np.zeros(case.count, np.float32) for case in cases]
    outs = [
        array if case.in_place else np.zeros(case.out, np.float32) for case, array in zip(cases, arrays, strict=True)
    ]

    def act(rank: int) -> None:
        held = [np.array(array) for array in arrays]
        share = len(held[0]) // size
        made = {
            "all_reduce": lambda: sum(held),
            "broadcast": lambda: held[0],
            "all_gather": lambda: np.concatenate(held),
            "reduce_scatter": lambda: sum(held)[rank * share : (rank + 1) * share],
            "all_to_all": lambda: np.concatenate([x[rank * share : (rank + 1) * share] for x in held]),
        }[what]()
        outs[rank][:] = made

    calls = [scripts.work.Call(case, None, array, out) for case, array, out in zip(cases, arrays, outs, strict=True)]
    return calls, act


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize(("size", "nbytes"), [(2, 8), (2, 4096), (3, 12), (4, 400)])
def test_what_a_rank_checks_is_what_the_collective_gives(scripts: Scripts, what: str, size: int, nbytes: int) -> None:
    for rank in range(size):
        calls, act = everybody(scripts, what, size, nbytes)
        for call in calls:
            call.fill_all()
        act(rank)
        calls[rank].check_all(None)
        calls[rank].out[-1] += 1
        with pytest.raises(ArithmeticError, match="wrong result"):
            calls[rank].check_all(None)


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize("size", [2, 4])
def test_each_call_of_a_block_is_checked_on_its_own_numbers(scripts: Scripts, what: str, size: int) -> None:
    rank = size - 1
    calls, act = everybody(scripts, what, size, 4096)
    done = 0

    def make() -> None:
        nonlocal done
        for other, call in enumerate(calls[:-1]):  # what the other ranks would have written before this call
            for cell in call.case.writes:
                call.array[cell] = done + other
        done += 1
        act(rank)

    calls[rank].make = make
    calls[rank].fill()
    assert calls[rank].blocking(7) > 0 and done == 7

    done = 0
    calls[rank].make = lambda: None  # nothing happens, so the second call's result is missing at the latest
    calls[rank].out[:] = 0
    with pytest.raises(ArithmeticError, match="call [01]: element"):
        calls[rank].blocking(2)


async def test_awaited_calls_are_checked_too(scripts: Scripts) -> None:
    calls, act = everybody(scripts, "all_reduce", 2, 64)
    done = 0

    async def make() -> None:
        nonlocal done
        for cell in calls[0].case.writes:
            calls[0].array[cell] = done
        done += 1
        act(1)

    async def together() -> None:
        return None

    calls[1].make = make
    calls[1].fill()
    assert await calls[1].awaiting(5) > 0 and done == 5
    calls[0].fill_all()
    with pytest.raises(ArithmeticError):
        await scripts.work.block_awaited(calls[1], together, 0)  # the other's array is no longer what it must be


def test_lists_of_parts_are_read_as_one(scripts: Scripts) -> None:
    parts = scripts.work.Parts([np.arange(3), np.arange(3) + 10])
    assert [parts[n] for n in range(6)] == [0, 1, 2, 10, 11, 12]


def test_ratios_are_formed_block_by_block(scripts: Scripts) -> None:
    teams = scripts.teams
    row = teams.Row("all_reduce", 4, {"aiocoll": [1.0, 3.0], "gloo": [4.0, 6.0], "mpich": [2.0, 2.5], "openmpi": None})
    assert row.ratios("aiocoll", "gloo") == [0.25, 0.5]
    assert row.ratios("aiocoll", "gloo", inverse=True) == [4.0, 2.0]
    assert row.ratios("openmpi", "gloo") == [math.inf]
    assert row.best(("gloo", "mpich", "openmpi")) == "mpich" and row.best(("raw",)) is None
    assert teams.spread([0.25, 0.5, 0.3]) == "0.30 (0.25..0.50)"
    assert [teams.size_text(n) for n in (4, 16 << 10, 32 << 20, 1 << 30)] == ["4 B", "16 KiB", "32 MiB", "1 GiB"]


def test_a_cell_is_missed_when_two_measurements_are_above_its_bound(scripts: Scripts) -> None:
    must, row = scripts.must, scripts.teams.Row
    cell = must.Cell("2 ranks", "all_reduce", 1 << 20)
    rule = must.Must("some calls", "Gloo", "0.1", (must.Bound(cell, "aiocoll", ("gloo",), 0.2),))
    made = scripts.bench.Plan(musts=[rule])

    def verdict(first: float, second: float | None) -> Any:
        report = scripts.page.Report(["a machine"], 1)
        report.rows[cell] = row("all_reduce", 1 << 20, {"aiocoll": [first], "gloo": [1.0]})
        if second is not None:
            report.again[cell] = row("all_reduce", 1 << 20, {"aiocoll": [second], "gloo": [1.0]})
        return scripts.bench.results(made, report)[0]

    assert verdict(0.2, None).met
    assert verdict(0.3, 0.1).met
    assert not verdict(0.3, 0.4).met
    assert verdict(0.3, 0.4).worst.ratio == 0.3


def test_a_share_of_a_rate_must_be_reached_from_below(scripts: Scripts) -> None:
    must = scripts.must
    bound = must.Bound(must.Cell("2 ranks, tcp", "one_way", 16 << 20), "aiocoll", ("raw",), 0.9, rate=True)
    slow, quick = (
        must.judge(bound, scripts.teams.Row("one_way", 16 << 20, {"aiocoll": [seconds], "raw": [1.0]}))
        for seconds in (1.2, 1.05)
    )
    assert not slow.met and quick.met
    assert must.judge(bound, scripts.teams.Row("one_way", 16 << 20, {"aiocoll": [1.0], "raw": None})) is None


def test_the_plan_holds_every_cell_with_those_that_it_compares(scripts: Scripts) -> None:
    made = scripts.bench.plan("", ["gloo", "mpich", "openmpi"], gate=True)
    for must in made.musts:
        for bound in must.bounds:
            assert {bound.ours, *bound.against} <= set(made.cells[bound.cell])
    assert {must.against for must in made.musts} >= {"Gloo", "best MPI", "best MPI over TCP", "our blocking"}
    assert len(made.others) == len(scripts.others.OTHERS)
    some = scripts.bench.plan("2 ranks: all_reduce 4 B", ["gloo"], gate=True)
    assert list(some.cells.values()) == [["aiocoll", "gloo", "await"]] and not some.others
    assert scripts.bench.plan("", [], gate=False).cells  # alone: our own times


def test_peers_are_named_with_commas(scripts: Scripts) -> None:
    assert scripts.bench.peers_of("gloo,mpich") == ["gloo", "mpich"]
    assert scripts.bench.peers_of("mpi4py") == ["mpich", "openmpi"]
    with pytest.raises(Exception, match="nccl: peers are"):
        scripts.bench.peers_of("gloo,nccl")


def test_the_tables_stand_between_the_marks(scripts: Scripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "performance.md"
    begin, end = scripts.page.BEGIN, scripts.page.END
    page.write_text(f"# Performance\n\nbefore\n\n{begin}\nold\n{end}\n\nafter\n")
    monkeypatch.setattr(scripts.page, "draw", lambda *_: True)
    cell = scripts.must.Cell("2 ranks", "all_reduce", 4)
    report = scripts.page.Report(["a machine"], 2)
    report.rows[cell] = scripts.teams.Row("all_reduce", 4, {"aiocoll": [2e-6, 2e-6], "gloo": [1e-4, 2e-4]})
    report.digits = {"shm": [50000.0], "gloo": [7000.0]}
    report.others = [(scripts.others.OTHERS[0], [scripts.others.Measured("barrier", 0.25, "%", 1.0)])]
    scripts.page.write_page(report, page, Path(sys.executable))
    text = page.read_text()
    assert text.startswith("# Performance\n\nbefore\n\n") and text.endswith(f"{end}\n\nafter\n") and "old" not in text
    assert "| all_reduce 4 B | 2 | 150 | 0.01 (0.01..0.02) |  |" in text
    assert "| aiocoll, shared memory | 50,000 |" in text and "barrier 0.25 %" in text
    assert json.loads(json.dumps(report.as_json()))["rows"][0]["nbytes"] == 4


def test_a_pair_of_raw_sockets_runs_and_ends(scripts: Scripts) -> None:
    with scripts.teams.Arena([scripts.teams.Contestant("raw", "raw", Path(sys.executable))]) as arena:
        row = arena.measure(["raw"], "one_way", 1 << 16, rounds=2)
        processes = arena.teams["raw"].processes[:]
    assert len(row.seconds["raw"]) == 2 and min(row.seconds["raw"]) > 0
    assert [process.returncode for process in processes] == [0, 0]


def test_a_rank_that_ends_in_the_middle_is_told_and_the_team_starts_afresh(scripts: Scripts) -> None:
    with scripts.teams.Arena([scripts.teams.Contestant("raw", "raw", Path(sys.executable))]) as arena:
        assert arena.measure(["raw"], "barrier", 4, rounds=1).seconds == {"raw": None}  # it has none
        assert "barrier of 4 B: a rank of raw" in arena.failures[0]
        assert arena.measure(["raw"], "one_way", 4, rounds=1).seconds["raw"]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["facade", "blocking", "await", "heap"])
def test_aiocoll_itself_runs_in_the_benchmark(scripts: Scripts, library: str) -> None:
    calls = ("reduce_scatter", "all_to_all") if library == "blocking" else ("all_reduce", "broadcast", "all_gather")
    with scripts.teams.Arena([scripts.teams.Contestant("ours", library, Path(sys.executable))]) as arena:
        for what in (*calls, "barrier"):
            assert arena.measure(["ours"], what, 1 << 16, rounds=1).seconds["ours"], arena.failures


@pytest.mark.slow
def test_the_programs_of_the_other_rows_run(scripts: Scripts) -> None:
    pythons = scripts.others.Pythons(Path(sys.executable), None)
    (imports,) = scripts.others.imports(pythons, True)
    assert imports.value > 0 and scripts.others.start_up(pythons, True) == []
    assert len(scripts.others.facts(scripts.others.start(pythons, "stall", 2, 0.0))) == 1
    (share,) = scripts.others.facts(scripts.others.start(pythons, "wait_await", 2, 0.3))
    assert 0 <= share["share"] < 1.5
