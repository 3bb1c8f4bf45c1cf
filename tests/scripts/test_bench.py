"""scripts/bench.py counts correctly, and its ranks refuse wrong results."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("bench")


@pytest.fixture
def bench_rank(bench: ModuleType) -> ModuleType:
    return importlib.import_module("bench_rank")


class Doubling:
    """Stands in for a pair of ranks: adds what the other rank would have sent, or something wrong."""

    def __init__(self, rank: int, calls: int, wrong: float = 0.0) -> None:
        self.rank, self.measured, self.wrong, self.calls = rank, calls, wrong, 0

    def tensor(self, array: np.ndarray) -> np.ndarray:
        return array

    def all_reduce(self, array: np.ndarray) -> None:
        self.calls += 1
        if self.calls <= self.measured:
            array += array + (1 - 2 * self.rank)
        else:
            array *= 1.5 if self.rank else 3
        array[-1] += self.wrong


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("nbytes", [4, 8, 4096])
def test_right_results_pass(bench_rank: ModuleType, rank: int, nbytes: int) -> None:
    contestant = Doubling(rank, calls=5)
    assert bench_rank.Block(contestant, rank, nbytes).all_reduce(5) > 0
    assert contestant.calls == 6  # five measured, one to check every element


def test_a_wrong_result_ends_the_benchmark(bench_rank: ModuleType) -> None:
    with pytest.raises(ArithmeticError, match="element 1023 is"):
        bench_rank.Block(Doubling(0, calls=3, wrong=1.0), 0, 4096).all_reduce(3)


def test_ratios_are_formed_block_by_block(bench: ModuleType) -> None:
    row = bench.Row("all_reduce", 4, {"aiocoll": [1.0, 3.0], "gloo": [4.0, 6.0]})
    assert row.ratios("gloo") == [0.25, 0.5]
    assert row.ratios("gloo", inverse=True) == [4.0, 2.0]
    assert bench.spread([0.25, 0.5, 0.3]) == "0.30 (0.25..0.50)"
    assert [bench.size_text(n) for n in (4, 16 << 10, 32 << 20)] == ["4 B", "16 KiB", "32 MiB"]


def test_a_pair_of_raw_sockets_runs_and_ends(bench: ModuleType) -> None:
    pair = bench.Pair("raw", Path(sys.executable))
    try:
        row = bench.measure([pair], "one_way", 1 << 16, rounds=2)
    finally:
        pair.close()
    assert len(row.seconds["raw"]) == 2 and min(row.seconds["raw"]) > 0


@pytest.mark.slow
def test_aiocoll_itself_runs_in_the_benchmark(bench: ModuleType) -> None:
    pair = bench.Pair("aiocoll", Path(sys.executable))
    try:
        for what, nbytes in (("all_reduce", 4), ("all_reduce", 1 << 20), ("one_way", 1 << 20)):
            row = bench.measure([pair], what, nbytes, rounds=1)
            assert row.seconds["aiocoll"][0] > 0
    finally:
        pair.close()
