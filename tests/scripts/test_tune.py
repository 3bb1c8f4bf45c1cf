"""scripts/tune.py: what it measures, and the rules and constants that follow from the numbers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aiocoll.algorithms import find
from aiocoll.ops import SUM
from aiocoll.tuning import choose
from aiocoll.tuning.model import Link, cost
from aiocoll.tuning.table import parse

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("tune")


def times_of(tune: ModuleType, by_bytes: dict[int, dict[str, float]], chosen: str, size: int = 2) -> Any:
    times = tune.Times()
    for nbytes, seconds in by_bytes.items():
        cell = tune.Cell("all_reduce", size, nbytes)
        times.seconds[cell], times.chosen[cell] = seconds, chosen
    return times


def test_who_is_clearly_faster_becomes_a_rule(tune: ModuleType) -> None:
    measured = {
        8: {"exchange": 10.0, "two_shot": 20.0},
        1024: {"exchange": 11.0, "two_shot": 10.9},  # about as fast is no reason to change
        65536: {"exchange": 30.0, "two_shot": 20.0},
        1 << 20: {"exchange": 200.0, "two_shot": 100.0},
    }
    rows = list(tune.rules(times_of(tune, measured, "exchange"), "memory", "some machine"))
    assert [(row["algorithm"], row.get("bytes_min"), row.get("bytes_max")) for row in rows] == [
        ("exchange", None, 8191),
        ("two_shot", 8192, None),
    ]
    assert all(row["size_min"] == row["size_max"] == 2 and row["link"] == "memory" and row["why"] for row in rows)


def test_numbers_of_ranks_that_were_not_measured_belong_to_the_next(tune: ModuleType) -> None:
    times = times_of(tune, {8: {"one_shot": 1.0}}, "one_shot", 2)
    times.seconds |= times_of(tune, {8: {"ring": 1.0}}, "ring", 4).seconds
    times.chosen |= times_of(tune, {8: {"ring": 1.0}}, "ring", 4).chosen
    rows = list(tune.rules(times, "host", ""))
    assert [(row["size_min"], row["size_max"], row["algorithm"]) for row in rows] == [
        (2, 2, "one_shot"),
        (3, 4, "ring"),
    ]


def test_the_fit_finds_the_constants(tune: ModuleType) -> None:
    link = Link(alpha=2e-6, overhead=3e-6, beta=0.1e-9, gamma=0.05e-9)
    times = tune.Times()
    for size in (2, 3, 4, 8):
        for nbytes in (0, 4096, 1 << 20):
            cell = tune.Cell("all_reduce", size, nbytes)
            names = ("recursive_doubling", "circulant", "one_shot", "pairwise")
            times.seconds[cell] = {name: cost(find("all_reduce", name), link, nbytes, size) for name in names}
    found = tune.fit(times, "host")
    for name in ("alpha", "overhead", "beta", "gamma"):
        assert found[name] == pytest.approx(getattr(link, name), rel=0.02), name
    assert tune.fit(times, "memory")["beta"] == pytest.approx(link.beta / 2, rel=0.02)  # copied in, and out again


def test_a_constant_that_would_be_negative_is_none(tune: ModuleType) -> None:
    times = times_of(tune, {0: {"ring": 1e-5}, 1 << 20: {"ring": 0.9e-5}}, "ring")
    assert min(tune.fit(times, "host").values()) >= 0.0


def test_what_was_not_measured_stays_in_the_table(tune: ModuleType) -> None:
    table = json.loads(tune.TABLE.read_text())
    new = [{"collective": "barrier", "algorithm": "full_mesh", "link": "memory", "why": "quick – here"}]
    merged = json.loads(tune.text_of(tune.merged(table, "memory", dict(table["links"]["memory"]), new)))
    assert merged["links"] == table["links"] and merged["rules"][0] == new[0]
    kept = [row for row in table["rules"] if (row["collective"], row.get("link")) != ("barrier", "memory")]
    assert merged["rules"][1:] == kept
    links, rules = parse(merged)
    assert rules[0].algorithm == "full_mesh" and set(links) == {"memory", "host", "network"}


def test_the_shipped_table_is_written_as_the_script_writes_it(tune: ModuleType) -> None:
    table = json.loads(tune.TABLE.read_text())
    assert json.loads(tune.text_of(table)) == table


def test_cells_and_candidates(tune: ModuleType) -> None:
    cells = tune.grid(["all_gather", "barrier"], 4, [8, 1 << 20])
    assert cells == [tune.Cell("all_gather", 4, 1 << 20), tune.Cell("barrier", 4, 0)]
    cell = tune.Cell("all_reduce", 4, 8)
    assert "two_shot" in tune.candidates(cell, "memory") and "two_shot" not in tune.candidates(cell, "host")
    assert not {"exchange", "leaders"} & set(tune.candidates(cell, "memory"))
    assert tune.present(cell, "memory") == choose("all_reduce", nbytes=8, size=4, count=4, op=SUM, shared=True).name


def test_two_ranks_measure(tune: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = tune.Ranks(2, "tcp")
    try:
        cells = tune.grid(["barrier", "reduce_scatter"], 2, [4096])
        times = tune.measure(ranks, cells, "host", 0.0, 1)
    finally:
        ranks.close()
    assert [set(each) for each in times.seconds.values()] == [set(tune.candidates(cell, "host")) for cell in cells]
    assert all(seconds > 0 for each in times.seconds.values() for seconds in each.values())
    assert "barrier 0 bytes on 2 ranks, µs:" in capsys.readouterr().out
