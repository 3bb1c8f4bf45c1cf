"""Who of a group's members may go on as the group when others are silent: pure arithmetic on ranks.

The rule: whatever two parts of one group hear of each other, at most one of them may go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def may_go_on(here: Sequence[int], everybody: Sequence[int]) -> bool:
    """Whether those ``here`` are a majority of ``everybody`` who may be alive; of two halves it is the one with the
    first of them."""
    twice = 2 * len(here)
    return twice > len(everybody) or (twice == len(everybody) and everybody[0] in here)


def connected(here: Sequence[int], lost: Mapping[int, Iterable[int]]) -> list[int]:
    """Those of ``here`` who can all reach one another; ``lost`` says whom each cannot reach. Whoever cannot reach, or
    be reached by, most of the others stays out, of equals the last."""
    kept = list(here)
    while True:
        broken = {
            each: sum(other in lost.get(each, ()) or each in lost.get(other, ()) for other in kept) for each in kept
        }
        worst = max(reversed(kept), key=lambda each: broken[each], default=None)
        if worst is None or not broken[worst]:
            return kept
        kept.remove(worst)
