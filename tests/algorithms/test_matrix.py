"""Every registered algorithm, for many sizes, counts and orders of events: right, equal in bits, as cheap as
declared."""

from __future__ import annotations

from typing import Any

import pytest

from aiocoll.algorithms import MEASURES, Algorithm, registry

from .cases import CASES
from .fake import FakeWorld, Outcome, layout
from .harness import Main
from .simulated import simulate

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 24, 32]
ALGORITHMS = [each for algorithms in registry().values() for each in algorithms.values()]


def sizes(*, quick: set[int]) -> list[Any]:
    """All sizes, those that are not ``quick`` marked as slow."""
    return [size if size in quick else pytest.param(size, marks=pytest.mark.slow) for size in SIZES]


def counts(size: int) -> list[int]:
    return sorted({0, 1, size - 1, size, 17, 24 * size, 10007})


def seeds(size: int, count: int) -> range:
    """Several orders of events, messages in time and late ones; one in large worlds, each of which takes as long as
    many small ones: there every other count has late messages."""
    if size > 16:
        return range(count % 2, count % 2 + 1)
    return range(4 if size <= 5 else 2)


def fake(size: int, main: Main, seed: int) -> Outcome:
    return FakeWorld(size, seed, late=seed % 2 == 1, hosts=layout(size, seed)).run(main)


@pytest.mark.parametrize("size", sizes(quick={1, 2, 3, 4, 5}))
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: f"{each.collective}:{each.name}")
def test_right_and_as_declared(algorithm: Algorithm, size: int) -> None:
    for count in counts(size):
        if not algorithm.when(size, count * 8):
            continue
        for seed in seeds(size, count):
            for call in CASES[algorithm.collective](algorithm, size, count, 1000 * count + 2 * size + seed, fake):
                check_declared(algorithm, size, call.ran, call.floor, call.ceiling, call.worst)


@pytest.mark.parametrize("size", sizes(quick={2, 3}))
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda each: f"{each.collective}:{each.name}")
def test_right_and_as_declared_on_real_endpoints(algorithm: Algorithm, size: int) -> None:
    for count in counts(size)[:: 2 if size > 16 else 1]:  # the largest worlds take longest
        if not algorithm.when(size, count * 8):
            continue
        for call in CASES[algorithm.collective](algorithm, size, count, count + size, simulate):
            check_declared(algorithm, size, call.ran, call.floor, call.ceiling, call.worst)


def check_declared(algorithm: Algorithm, size: int, ran: Outcome, floor: int, ceiling: int, exactly: bool) -> None:
    if algorithm.parts:  # what they take depends on where the ranks are
        return
    where = f"{algorithm!r} on {size} ranks, {floor} to {ceiling} bytes"
    rounds, sent, folded = ran.rounds, max(ran.sent), max(ran.folded)
    assert rounds == algorithm.rounds(size) if exactly else rounds <= algorithm.rounds(size), where
    low, high = algorithm.sent(size, floor), algorithm.sent(size, ceiling)
    assert sent <= round(high) and (sent >= round(low) or not exactly), f"{where}: sent {sent}, not {low} to {high}"
    low, high = algorithm.folded(size, floor), algorithm.folded(size, ceiling)
    assert folded <= round(high) and (folded >= round(low) or not exactly), f"{where}: folded {folded}, {low} to {high}"


def test_every_collective_has_a_case_and_a_measure() -> None:
    assert list(registry()) == sorted(CASES) == sorted(MEASURES)
