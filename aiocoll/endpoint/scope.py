"""What the endpoint keeps of one group: its members, its calls under way and those that are over.

The rule: everything here is bounded, so that a long run stays flat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from ..errors import AiocollError
from .rivals import Rivals

if TYPE_CHECKING:
    from .channel import Call
    from .core import Endpoint
    from .mailbox import Mailbox

_REMEMBERED_MAX: Final = 1024
NAMED: Final = 1 << 63
"""Calls that are matched by name have numbers from here on, in no order."""


class Labelled(Protocol):
    """What has a name for messages."""

    @property
    def label(self) -> str: ...


class Over:
    """The last calls that are over, with their descriptions: a ring for those that are numbered in order."""

    __slots__ = ("_named", "_numbers", "_texts")

    def __init__(self) -> None:
        self._numbers: list[int | None] = [None] * _REMEMBERED_MAX
        self._texts = [""] * _REMEMBERED_MAX
        self._named: dict[int, str] = {}

    def __repr__(self) -> str:
        return f"<Over: {len(self._named)} named ones beside the last numbered>"

    def put(self, number: int, description: str) -> None:
        """Call ``number`` is over."""
        if number < NAMED:
            place = number & (_REMEMBERED_MAX - 1)
            self._numbers[place], self._texts[place] = number, description
        else:
            self._named[number] = description
            bound(self._named, _REMEMBERED_MAX)

    def get(self, number: int) -> str | None:
        """What call ``number`` was; None if it is not over, or too long ago."""
        if number >= NAMED:
            return self._named.get(number)
        place = number & (_REMEMBERED_MAX - 1)
        return self._texts[place] if self._numbers[place] == number else None

    def __contains__(self, number: int) -> bool:
        return self.get(number) is not None


class Scope:
    """A group as the endpoint sees it: ``id`` on the wire, ``ranks`` (world ranks in group order), ``rank`` (mine)."""

    endpoint: Endpoint
    id: int
    ranks: tuple[int, ...]
    label: str

    def __init__(self, endpoint: Endpoint, id: int, ranks: tuple[int, ...], label: str) -> None:
        self.endpoint, self.id, self.ranks, self.label = endpoint, id, ranks, label
        self.index: dict[int, int] = {world: rank for rank, world in enumerate(ranks)}
        self.rank: int = self.index[endpoint.rank]
        self.size: int = len(ranks)
        self.calls: dict[int, Call] = {}
        self.over: Over = Over()
        """Calls that ended here, and as what: late frames of a failed call are dropped, others are a mismatch."""
        self.failed: dict[int, None] = {}
        self.refused: dict[int, BaseException] = {}
        self.refusals: dict[int, dict[str, Any]] = {}
        """News of the latest refusals by others, which goes before news that the group is broken."""
        self.named: dict[str, int] = {}
        self.next_call = 0
        self.recoveries = 0
        """How often agree and shrink have been called."""
        self.made: Labelled | None = None
        """The call that was made last."""
        self.broken: AiocollError | None = None
        self.broken_call = -1
        """The number of the call whose failure broke the group, if it was a call's: there it is raised in its class."""
        self.sound_until = 0
        """Calls below this number go on though the group is broken: all ranks made them alike, and nobody is lost."""
        self.raised = True
        """Whether the error that broke the group has been raised here in its own class."""
        self.closed = False
        self.patient = False
        """Whether calls that wait for long are as they should be, here: nobody speaks of a stall."""
        self.troubled: bool = False
        """Whether calls must look at what has happened before they begin."""
        self.left_by: set[int] = set()
        """World ranks that have closed this group."""
        self.told: set[int] = set()
        """World ranks that know that this group is broken."""
        self.seen: dict[int, int] = {}
        """The number of the last call of this group in which each other member (world rank) was heard."""
        self.rivals: dict[tuple[str, int, tuple[int, ...]], Rivals] = {}
        """Which of two ways has been quicker, by what is done, about how many bytes, and world ranks."""
        self.mailbox: Mailbox = endpoint.inbox.mailbox_of(id)
        self.mailbox.scope = self

    def __repr__(self) -> str:
        return f"<Scope {self.label!r} rank {self.rank} of {self.size}, {len(self.calls)} calls under way>"

    @property
    def me(self) -> str:
        """This rank, for others."""
        member = self.endpoint.members[self.endpoint.rank]
        return f"rank {self.rank} ({member.host}, pid {member.pid})"

    def who(self, world: int) -> dict[str, Any]:
        """A rank, as the endpoint numbers it, as the one of whom an error speaks."""
        return {"rank": self.index.get(world), "world_rank": self.endpoint.members[world].number}

    def mine(self) -> dict[str, Any]:
        """This rank as the one of whom an error speaks."""
        return self.who(self.endpoint.rank)

    @property
    def last(self) -> str:
        """The call that was made last, in words."""
        return "no call yet" if self.made is None else self.made.label

    def last_seen(self, world: int) -> str:
        """The last call in which a member was heard, in words."""
        number = self.seen.get(world)
        return "no call yet" if number is None else self.words(number)

    def words(self, number: int) -> str:
        """A call that this rank has made, in words."""
        under_way = self.calls.get(number)
        if under_way is not None:
            return under_way.label
        what = (self.over.get(number) or "").partition(" ")[0] or "a call"
        return f"{what} (call {number})" if number < NAMED else f"{what} (called by name)"

    def unlike(self, number: int, description: str) -> str | None:
        """What this rank made under a number, if that was another call than the one described."""
        if number in self.failed:  # of which only the collective may be known
            return None
        under_way = self.calls.get(number)
        mine = self.over.get(number) if under_way is None else under_way.description
        return mine if mine != description else None

    def others(self) -> list[int]:
        """World ranks of the other members, in group order."""
        return [world for world in self.ranks if world != self.endpoint.rank]

    def retire(self, number: int, description: str, *, failed: bool) -> None:
        """A call is over here."""
        self.calls.pop(number, None)
        self.over.put(number, description)
        if failed:
            self.failed[number] = None
            bound(self.failed, _REMEMBERED_MAX)

    def refuse(self, number: int, error: BaseException) -> None:
        """A peer refused a call that this rank has not made yet."""
        self.refused[number] = error
        self.troubled = True
        bound(self.refused, _REMEMBERED_MAX)


def bound(memory: dict[Any, Any], most: int) -> None:
    """What is remembered must not pile up: the oldest goes."""
    if len(memory) > most:
        del memory[next(iter(memory))]
