"""agree, shrink and grow in small worlds, where each rank crashes or is cancelled before each single step it takes.

The rule: nothing is drawn here; what the matrix of failures samples in large worlds is complete in small ones. A step
is what a rank's loop does at once, the newcomer's connect included, so these are all the instants there are.
"""

from __future__ import annotations

import pytest

from aiocoll.testing.matrix import Case, play
from aiocoll.testing.matrix.play import profile
from tests.sim.instants import check


@pytest.mark.parametrize(
    ("program", "fault", "size", "victim"),
    [(program, "crash", 3, victim) for program in ("agree", "shrink", "grow by one") for victim in range(3)]
    + [(program, "cancel", 3, victim) for program in ("agree", "shrink") for victim in range(3)]
    + [("grow by one", "crash", 2, victim) for victim in range(2)],
)
def test_whoever_ends_before_whichever_step_the_others_go_on(program: str, fault: str, size: int, victim: int) -> None:
    steps = profile(program, size).steps[victim]
    assert steps >= 10
    # Odd seeds have no second victim; those that are chosen differ in who shares a host, and when messages arrive.
    check([Case(program, size, victim, fault, "steps", step, 2 * step + 1) for step in range(1, steps + 1)])


@pytest.mark.parametrize(
    "line",
    [
        # The newcomer was busy with what a member of another host had begun that was dead by then.
        "grow by one size=3 victim=0 crash at=0.05855599542463408 seed=596022355",
        "grow by one size=4 victim=3 crash frames=27 seed=89331630",
        # One newcomer died while the other made sure of its links, and that one left the members alone.
        "grow by two size=5 victim=4 crash frames=37 seed=218681654",
        # A rank had spoken and died before another one opened its port, which was never told.
        "grow by two size=3 victim=2 crash at=0.021428797582656037 seed=1002877951",
        # A newcomer went away before it could be reached, and its kin waited for it until they had waited in vain.
        "grow by two size=3 victim=1 cancel at=0.029433824710263103 seed=986521581",
        # One member cancelled a grow to which another one had come already, and that waited until its deadline for a
        # plan, while the others shrank without it.
        "grow by one size=5 victim=4 cancel steps=62 seed=478357404",
        "grow by one size=9 victim=3 cancel at=0.0512596973513513 seed=259003410",
    ],
)
def test_what_once_went_wrong_goes_right(line: str) -> None:
    assert play(Case.parse(line)) == []
