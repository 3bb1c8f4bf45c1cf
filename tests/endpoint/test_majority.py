"""Who may go on: for every group and every way to part it, at most one part does."""

from __future__ import annotations

from itertools import combinations

import pytest

from aiocoll.endpoint.majority import connected, may_go_on


@pytest.mark.parametrize("size", range(1, 10))
def test_of_two_parts_one_goes_on(size: int) -> None:
    everybody = list(range(10, 10 + size))
    for count in range(size + 1):
        for part in combinations(everybody, count):
            rest = [each for each in everybody if each not in part]
            assert may_go_on(part, everybody) != may_go_on(rest, everybody)


@pytest.mark.parametrize("size", range(2, 8))
def test_of_three_parts_at_most_one_goes_on(size: int) -> None:
    everybody = list(range(size))
    for part in range(3**size):
        parts = [[each for each in everybody if part // 3**each % 3 == which] for which in range(3)]
        assert sum(may_go_on(each, everybody) for each in parts) <= 1


def test_whoever_cannot_reach_the_others_stays_out() -> None:
    assert connected([0, 1, 2, 3], {}) == [0, 1, 2, 3]
    assert connected([0, 1, 2, 3], {2: [0, 1, 3, 7]}) == [0, 1, 3]
    assert connected([0, 1, 2, 3], {0: [2], 1: [2], 3: []}) == [0, 1, 3]
    assert connected([0, 1, 2, 3], {1: [3]}) == [0, 1, 2]  # of two, the last
    assert connected([0, 1, 2, 3], {3: [1]}) == [0, 1, 2]
    assert connected([4], {4: [9]}) == [4]
    assert connected([0, 1, 2, 3], {0: [1], 2: [3]}) == [0, 2]
    assert connected([], {}) == []
