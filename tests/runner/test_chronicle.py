"""What is said of a job that goes on without its dead, and its exit code."""

from __future__ import annotations

import signal

from aiocoll.runner.chronicle import Result, merged, result_of
from aiocoll.runner.verdict import Ending, Report, Verdict

LOST = Report("aiocoll.errors.PeerLostError", "rank 1 is lost", "Traceback ...", "barrier (call 3)", consequence=True)


def verdict(*endings: Ending) -> Verdict:
    made = Verdict("shrink", started=100.0)
    for ending in endings:
        made.add(ending)
    return made


def told(made: Verdict) -> tuple[int, list[str]]:
    code, words = merged([result_of(made, size=4, host="h")])
    assert code == made.exit_code
    return code, words


def test_nothing_is_said_when_nothing_happened() -> None:
    assert told(verdict(Ending(0, 0), Ending(1, 0))) == (0, [])


def test_who_died_when_and_why_and_who_replaced_whom() -> None:
    made = verdict(Ending(1, -signal.SIGKILL, at=103.25, pid=11))
    made.replace(1, 1)
    made.started_as(1, 1, 12)
    made.add(Ending(1, 3, at=107.0, pid=12, number=1))
    made.not_replaced[1, 1] = "--max-restarts 1 was used up"
    made.add(Ending(0, 0))
    assert told(made) == (0, [
        "aiocoll: 3.2 s: rank 1 (pid 11 on h) was killed by signal 9 (SIGKILL); replacement 1 (pid 12) was started in "
        "its place",
        "aiocoll: 7.0 s: rank 1 (replacement 1) (pid 12 on h) exited with code 3; not replaced: --max-restarts 1 was "
        "used up",
        "aiocoll: rank 0 finished: the job succeeded without rank 1",
    ])  # fmt: skip


def test_a_replacement_that_does_well_makes_good_what_was_struck() -> None:
    made = verdict(Ending(0, 0), Ending(1, -9, at=101.0), Ending(2, 1, at=102.0, report=LOST))
    assert told(made)[0] == 137
    made.replace(2, 1)
    made.add(Ending(2, 0, number=1))
    code, words = told(made)
    assert code == 0 and "ended with PeerLostError in barrier (call 3)" in words[1]


def test_the_cause_is_last_when_survivors_do_not_go_on() -> None:
    code, words = told(verdict(Ending(0, 0), Ending(1, -9, at=101.0), Ending(2, 1, at=102.0, report=LOST)))
    assert code == 137 and "rank 2 did not go on" in words[2] and words[-1].endswith("exit code 137")


def test_newcomers_that_were_ended_count_for_nothing() -> None:
    made = verdict(Ending(0, 0), Ending(1, -15, at=105.0, asked=True, number=1))
    made.too_late.add(1)
    code, words = told(made)
    assert code == 0 and words[0].startswith("aiocoll: rank 1 (replacement 1) came too late")


def test_one_runner_whose_ranks_have_all_died_is_no_failure_of_the_job() -> None:
    dead = result_of(verdict(Ending(2, -9, at=101.0), Ending(3, 5, at=102.0)), size=4, host="a", clocks=1000.0)
    alive = result_of(verdict(Ending(0, 0), Ending(1, 0)), size=4, host="b")
    assert dead.code == 137
    code, words = merged([Result.decode(each.encode()) for each in (dead, alive)])
    assert code == 0 and words[-1] == "aiocoll: ranks 0 and 1 finished: the job succeeded without ranks 2 and 3"


def test_of_several_runners_the_first_failure_counts() -> None:
    late = result_of(verdict(Ending(0, 4, at=105.0)), size=2, host="a", clocks=1000.0)
    early = result_of(verdict(Ending(1, 3, at=9.0)), size=2, host="b", clocks=1001.0)
    code, words = merged([late, early])
    assert code == 3 and words[-1] == "aiocoll: rank 1 exited with code 3"


def test_a_job_of_which_nothing_is_known_has_failed() -> None:
    assert merged([]) == (0, []) and merged([Result(told=["lost"], lost=[3])]) == (1, ["lost"])


def test_very_many_words_are_cut_in_the_middle() -> None:
    made = verdict(*(Ending(rank, 3, at=float(rank)) for rank in range(2000)), Ending(5000, 0))
    result = result_of(made, size=4000, host="h" * 50)
    assert "[...]" in result.told and "rank 0 " in result.told[0] and "rank 1999 " in result.told[-1]
