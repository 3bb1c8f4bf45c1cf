"""Which of two ways is quicker is found out, kept up, and found out again when it changes."""

from __future__ import annotations

from collections.abc import Callable

from aiocoll.endpoint.rivals import Rivals


def taken(rivals: Rivals, calls: int, seconds: Callable[[bool], float]) -> list[bool]:
    """What is chosen in so many calls, of which each takes what ``seconds`` says."""
    ways = []
    for _ in range(calls):
        ways.append(rivals.second())
        rivals.took(ways[-1], seconds(ways[-1]))
    return ways


def test_both_are_tried_and_the_quicker_one_stays() -> None:
    for quicker in (False, True):
        ways = taken(Rivals(), 1000, lambda second, quicker=quicker: 1.0 if second == quicker else 1.1)
        assert set(ways[:6]) == {False, True}
        assert ways.count(not quicker) < 40 and len(set(ways[500:])) == 2  # the other has its chances


def test_one_disturbed_call_changes_nothing() -> None:
    rivals = Rivals()
    assert taken(rivals, 20, lambda second: 1.0 if second else 2.0)[-1] is True
    rivals.took(True, 100.0)
    assert taken(rivals, 10, lambda second: 1.0 if second else 2.0) == [True] * 10


def test_when_it_changes_it_is_noticed() -> None:
    rivals = Rivals()
    taken(rivals, 50, lambda second: 3.0 if second else 1.0)
    ways = taken(rivals, 300, lambda second: 3.0 if second else 10.0)  # what was taken has become slow
    assert ways[-1] is True and ways.count(False) < 90
    ways = taken(rivals, 300, lambda second: 3.0 if second else 1.0)  # what was not taken has become quick
    assert ways[-1] is False and ways.count(True) < 90


def test_what_others_chose_counts_too() -> None:
    rivals = Rivals()
    for _ in range(3):
        rivals.took(True, 1.0)
        rivals.took(False, 2.0)
    assert rivals.second() is True
