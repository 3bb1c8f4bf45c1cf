"""The state of one meeting, replayed from its log; the rule: equal logs give equal states, so nobody is in charge.

Every rank appends what it does to one value of the store (appending is atomic, so all see one order) and replays the
whole of it. The first entry that completes the world, or the first failure, decides; what comes later changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from aiocoll.errors import RendezvousError
from aiocoll.store.users import is_dead, me


@dataclass(frozen=True, slots=True)
class Claim:
    """One process that wants in: its rank (None: any that is free) and the world size it was told."""

    nonce: bytes
    rank: int | None
    size: int
    who: Mapping[str, Any]
    """The process, in the terms of `aiocoll.store.users`."""

    def __str__(self) -> str:
        return f"{'a rank' if self.rank is None else f'rank {self.rank}'} ({self.process})"

    @property
    def process(self) -> str:
        """Host and process id, for people."""
        return f"{self.who.get('host')}:{self.who.get('pid')}"

    def is_dead(self) -> bool:
        """True only if this process can see that the other one is gone: hosts may share a name, but no boot."""
        return self.who.get("boot") == me()["boot"] and is_dead(self.who)


def claim_entry(claim: Claim) -> bytes:
    """I am here."""
    return _pack("claim", claim.nonce, claim.rank, claim.size, dict(claim.who))


def withdraw_entry(nonce: bytes, why: str) -> bytes:
    """That one no longer waits; without effect once the meeting is decided."""
    return _pack("withdraw", nonce, why)


def fail_entry(text: str, now: float) -> bytes:
    """The meeting fails, for all; `now` is the wall clock's."""
    return _pack("fail", text, now)


def left_entry(nonce: bytes) -> bytes:
    """That one has left a meeting that was decided."""
    return _pack("left", nonce)


def parted_entry(nonce: bytes) -> bytes:
    """That one has closed its links and goes on in a world that grew out of this one."""
    return _pack("parted", nonce)


def _pack(*fields: object) -> bytes:
    packed: bytes = msgpack.packb(fields)
    return packed


@dataclass(slots=True)
class Roster:
    """Who has come and what has been decided."""

    claims: dict[bytes, Claim] = field(default_factory=dict)
    """All that were ever made, in order of arrival."""
    waiting: dict[bytes, Claim] = field(default_factory=dict)
    withdrawn: dict[bytes, str] = field(default_factory=dict)
    """Why, by nonce."""
    members: tuple[Claim, ...] | None = None
    """In rank order, once the world is complete."""
    failure: str | None = None
    failed_at: float = 0.0
    left: set[bytes] = field(default_factory=set)
    parted: set[bytes] = field(default_factory=set)
    """Not to be reached any more, but still in what grew out of this world."""

    @classmethod
    def replay(cls, log: bytes) -> Roster:
        """The state after every entry of `log`."""
        roster = cls()
        try:
            for kind, *fields in _entries(log):
                roster._apply(kind, fields)
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise RendezvousError(f"the meeting's log in the store is damaged: {error!r}; use another name=") from error
        return roster

    @property
    def decided(self) -> bool:
        return self.members is not None or self.failure is not None

    @property
    def size(self) -> int | None:
        """The world size that the first one waiting was told."""
        return next((claim.size for claim in self.waiting.values()), None)

    def _apply(self, kind: str, fields: list[Any]) -> None:
        if kind == "claim":
            nonce, rank, size, who = fields
            self.claims[nonce] = _checked(Claim(nonce, rank, size, who))
            if not self.decided:
                self.waiting[nonce] = self.claims[nonce]
        elif kind == "withdraw":
            nonce, why = fields
            if not self.decided and self.waiting.pop(nonce, None) is not None:
                self.withdrawn[nonce] = why
        elif kind == "fail":
            if not self.decided:
                self.failure, self.failed_at = fields
        elif kind == "left":
            self.left.add(fields[0])
        elif kind == "parted":
            self.parted.add(fields[0])
        if kind in ("claim", "withdraw") and not self.decided:
            self.members = self._complete()

    def _complete(self) -> tuple[Claim, ...] | None:
        """The members in rank order if those who wait are a world; who asked for no rank fills up, as they came."""
        size = self.size
        if size is None or len(self.waiting) != size or self.conflicts():
            return None
        seats: list[Claim | None] = [None] * size
        for claim in self.waiting.values():
            if claim.rank is not None:
                seats[claim.rank] = claim
        anywhere = (claim for claim in self.waiting.values() if claim.rank is None)
        return tuple(seat if seat is not None else next(anywhere) for seat in seats)

    def conflicts(self) -> list[tuple[Claim, Claim]]:
        """Pairs of those who wait that cannot be in one world, the earlier one first."""
        found: list[tuple[Claim, Claim]] = []
        seated: dict[int, Claim] = {}
        first: Claim | None = None
        for count, claim in enumerate(self.waiting.values()):
            if first is None:
                first = claim
            rival = seated.get(claim.rank) if claim.rank is not None else None
            if claim.size != first.size:
                found.append((first, claim))
            elif rival is not None:
                found.append((rival, claim))
            elif count >= first.size:
                found.append((first, claim))
            elif claim.rank is not None:
                seated[claim.rank] = claim
        return found

    def is_deserted(self, *, but: bytes = b"") -> bool:
        """Whether all who were concerned, except `but`, have left or are seen to be dead."""
        concerned = self.claims.values() if self.members is None else self.members
        gone = self.left | self.withdrawn.keys() | {but}
        return all(claim.nonce in gone or claim.is_dead() for claim in concerned)

    def missing(self, size: int) -> list[int]:
        """The ranks for which nobody has ever come; those who take any rank count for the lowest."""
        known = {claim.rank for claim in self.claims.values()}
        anywhere = sum(claim.rank is None for claim in self.claims.values())
        return [rank for rank in range(size) if rank not in known][anywhere:]


def why_not(earlier: Claim, later: Claim) -> str:
    """The words for a conflict."""
    if earlier.size != later.size:
        return (
            f"world size {earlier.size} versus {later.size}: {earlier} was started with {earlier.size}, "
            f"{later} with {later.size}; start every rank with the same size"
        )
    if earlier.rank is not None and earlier.rank == later.rank:
        both = f"claimed by {earlier.process} and {later.process}"
        return f"duplicate rank {earlier.rank}: {both}; give every process its own rank"
    return f"more processes than the world size {earlier.size}: {later.process} came last; start exactly {earlier.size}"


def _checked(claim: Claim) -> Claim:
    """The claim itself; TypeError if no correct process makes such a one."""
    rank_is_one = claim.rank is None or (type(claim.rank) is int and type(claim.size) is int)
    if not (isinstance(claim.nonce, bytes) and isinstance(claim.who, dict) and rank_is_one and claim.size >= 1):
        raise TypeError("not a claim")
    if claim.rank is not None and not 0 <= claim.rank < claim.size:
        raise TypeError("a rank outside of its world")
    return claim


def _entries(log: bytes) -> Iterator[list[Any]]:
    unpacker = msgpack.Unpacker(use_list=True, max_buffer_size=len(log) + 1)
    unpacker.feed(log)
    yield from unpacker
