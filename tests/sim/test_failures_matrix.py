"""Every algorithm and kind of call x sizes 2 to 9 x every victim x many instants x crash, freeze and cancel.

The rule: each survivor is right, or raises the right error about the right rank in time, and nothing is written after
it. What is wrong is printed with the command that replays it. `scripts/soak.py` plays as many more as one likes.
"""

from __future__ import annotations

from collections import Counter

import pytest

from aiocoll import Group
from aiocoll.algorithms import registry
from aiocoll.endpoint.channel import Call
from aiocoll.endpoint.failure import Failure
from aiocoll.endpoint.operations import Receive
from aiocoll.errors import PeerLostError, UsageError
from aiocoll.testing.matrix import Case, cells, drawn, play, programs, sample
from aiocoll.testing.matrix.recovering import LIVES, Life
from tests.sim.instants import CASES, HERE, SHARDS, check, everyday

QUICK = 500


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("shard", HERE)
def test_whoever_fails_at_any_instant_the_others_are_right_or_told(shard: int) -> None:
    check(list(sample(everyday(), CASES, 0, shard * CASES)))


def test_some_of_them_in_little_time() -> None:
    check(list(sample(everyday(), QUICK, 1)))


def test_every_algorithm_size_victim_and_fault_is_in_the_sample() -> None:
    assert {f"{name}:{each}" for name, algorithms in registry().items() for each in algorithms} <= set(programs())
    counted: Counter[tuple[str, int, int, str]] = Counter()
    counted.update((c.program, c.size, c.victim, c.fault) for c, _ in drawn(everyday(), SHARDS * CASES, 0))
    assert sum(counted.values()) == SHARDS * CASES > 100_000
    for cell in everyday():
        least = 3 * programs()[cell.program].share
        assert counted[cell.program, cell.size, cell.victim, cell.fault] >= least, cell


def test_a_case_is_a_line_and_plays_alike_each_time() -> None:
    for case in sample(cells(), 50, 4711):
        assert Case.parse(str(case)) == case
    for line in ("all_reduce:ring", "all_reduce:ring size=3 victim=1 burn at=1 seed=4", ""):
        with pytest.raises(UsageError, match="is no case"):
            Case.parse(line)


# ------------------------------------------------------------------------- what is wrong is found


def found(only: str, fault: str, *, number: int = 60) -> str:
    """What the matrix says now."""
    cases = sample(cells((3, 5), (fault,), only), number, 1)
    return "\n".join("\n".join(play(case)) for case in cases).strip()


def test_bytes_that_land_after_an_error_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def keeps_its_memory(call: Call, error: BaseException) -> None:
        if call.error is None:
            call.error = error
            for operation in [each for each in call.endpoint.parked if each.call is call]:
                operation.finish(error)

    monkeypatch.setattr(Call, "fail", keeps_its_memory)
    monkeypatch.setattr(Receive, "detach", lambda receive: None)
    monkeypatch.setattr(Failure, "tell_again", lambda *anything: None)
    monkeypatch.setattr("aiocoll.endpoint.inbox.Inbox.unwanted", lambda *anything: False)
    assert "memory was written after" in found("all_gather:full_mesh", "cancel", number=300)


def test_news_that_does_not_travel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = Failure.tell

    def silent(failure: Failure, peer: int, group: int, call: int, news: dict[str, object]) -> None:
        if news.get("t") != "broken":
            tell(failure, peer, group, call, news)

    monkeypatch.setattr(Failure, "tell", silent)
    assert "s after the cancel" in found("all_reduce:ring", "cancel")


def test_an_error_about_another_rank_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Failure.loss

    def somebody_else(*arguments: object, **more: object) -> PeerLostError:
        error = loss(*arguments, **more)
        error.rank = error.world_rank = 0
        return error

    monkeypatch.setattr(Failure, "loss", somebody_else)
    assert "and not PeerLostError of rank" in found("barrier:dissemination", "crash")


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = programs()["barrier:full_mesh"]
    wrong = program.prepare(3, 0, 0, 0)
    wrong.check = lambda result: False
    monkeypatch.setitem(programs(), "barrier:full_mesh", type(program)("wrong", lambda *anything: wrong))
    line = "barrier:full_mesh size=3 victim=1 crash at=1000.0 seed=0"
    assert "gave a wrong result" in "\n".join(play(Case.parse(line)))


def test_two_groups_that_go_on_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiocoll.endpoint.leading.may_go_on", lambda here, everybody: True)
    assert "two groups" in found("compute and shrink", "partition")


def test_members_that_come_to_different_things_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = LIVES["agree"]

    async def forgets(group: Group, life: Life) -> None:
        await program(group, life)
        life.flags[0] = life.rank > 1

    assert not found("agree", "crash")  # which needs to know how long it takes without faults
    monkeypatch.setitem(LIVES, "agree", forgets)
    assert "they agreed on different things" in found("agree", "crash")
