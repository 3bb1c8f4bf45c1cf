"""The part of the matrix of failures that another process plays; see `tests/sim/test_failures_matrix.py`."""

from __future__ import annotations

import pytest

from aiocoll.testing.matrix import sample
from tests.sim.instants import CASES, ELSEWHERE, check, everyday


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("shard", ELSEWHERE)
def test_whoever_fails_at_any_instant_the_others_are_right_or_told(shard: int) -> None:
    check(list(sample(everyday(), CASES, 0, shard * CASES)))
