"""The replay of a log: what decides, what comes too late, and that no bytes break it."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiocoll.errors import RendezvousError
from aiocoll.rendezvous.roster import Claim, Roster, claim_entry, fail_entry, left_entry, why_not, withdraw_entry
from aiocoll.store.users import me


def claim(nonce: bytes, rank: int | None, size: int = 2) -> Claim:
    return Claim(nonce, rank, size, me())


A, B, C = claim(b"a", 0), claim(b"b", 1), claim(b"c", None)


def replay(*entries: bytes) -> Roster:
    return Roster.replay(b"".join(entries))


def test_the_entry_that_completes_decides() -> None:
    waiting = replay(claim_entry(B))
    assert not waiting.decided and waiting.missing(2) == [0] and waiting.size == 2
    complete = replay(claim_entry(B), claim_entry(A))
    assert complete.members == (A, B) and complete.decided
    later = replay(
        claim_entry(B), claim_entry(A), withdraw_entry(b"a", "late"), fail_entry("late", 1.0), claim_entry(C)
    )
    assert later.members == (A, B) and later.failure is None and not later.withdrawn
    assert C in later.claims.values() and not later.is_deserted()
    assert replay(claim_entry(B), claim_entry(A), left_entry(b"a"), left_entry(b"b")).is_deserted()


def test_the_first_failure_decides() -> None:
    failed = replay(claim_entry(B), fail_entry("why", 5.0), fail_entry("other", 6.0), claim_entry(A))
    assert (failed.failure, failed.failed_at, failed.members) == ("why", 5.0, None)


def test_who_withdraws_makes_room() -> None:
    roster = replay(claim_entry(A), withdraw_entry(b"a", "gave up"), claim_entry(C), claim_entry(B))
    assert roster.members == (C, B) and roster.withdrawn == {b"a": "gave up"}
    assert replay(claim_entry(A), withdraw_entry(b"a", "x"), withdraw_entry(b"?", "x")).size is None


def test_conflicts_keep_a_world_open() -> None:
    for other, words in (
        (claim(b"x", 0), "duplicate rank 0: claimed by"),
        (claim(b"x", 1, 3), "world size 2 versus 3"),
    ):
        roster = replay(claim_entry(A), claim_entry(other))
        assert not roster.decided and roster.conflicts() == [(A, other)]
        assert words in why_not(A, other)
        # Once the other is gone, the world can be completed.
        assert replay(claim_entry(A), claim_entry(other), withdraw_entry(b"x", "died"), claim_entry(B)).members == (
            A,
            B,
        )


def test_one_too_many() -> None:
    first, second = claim(b"1", None, 1), claim(b"2", None, 1)
    assert replay(claim_entry(first), claim_entry(second)).members == (first,)
    clashing = [claim(b"1", 0, 2), claim(b"2", 0, 2), claim(b"3", None, 2)]
    roster = replay(*map(claim_entry, clashing))
    assert len(roster.conflicts()) == 2
    assert "more processes than the world size 2" in why_not(clashing[0], clashing[2])


@given(st.permutations([None, None, 2, 0, None]))
def test_given_ranks_stand_and_the_others_fill_up_in_order(ranks: list[int | None]) -> None:
    claims = [claim(bytes([number]), rank, 5) for number, rank in enumerate(ranks)]
    members = replay(*map(claim_entry, claims)).members
    assert members is not None
    assert all(one.rank in (None, seat) for seat, one in enumerate(members))
    fillers = [one for one in members if one.rank is None]
    assert fillers == [one for one in claims if one.rank is None]


@given(st.binary())
def test_any_bytes(log: bytes) -> None:
    try:
        Roster.replay(log)
    except RendezvousError as error:
        assert "damaged" in str(error)


_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.binary(max_size=4) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.sampled_from(["claim", "withdraw", "fail", "left", "?"]), st.lists(_plain, max_size=4))))
def test_any_entries(entries: list[tuple[str, list[object]]]) -> None:
    log = b"".join(msgpack.packb([kind, *fields]) for kind, fields in entries)
    try:
        roster = Roster.replay(log)
    except RendezvousError as error:
        assert "damaged" in str(error)
    else:
        roster.conflicts()
        roster.is_deserted()
        roster.missing(3)
        assert all(str(one) for one in roster.claims.values())


def test_damage_is_said() -> None:
    with pytest.raises(RendezvousError, match="damaged"):
        Roster.replay(b"\xc1")
