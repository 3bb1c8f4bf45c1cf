"""One call in which members of a group agree on something: a value, or who they still are.

    followers      JOIN ------------+                                 +--> ACCEPT --+
    leader         waits for all of them --> PROPOSE under a ballot --+             +--> all: CAME TO

The leader is the lowest member that this rank has not given up. A member that is dead is not waited for. If the leader
dies, its followers join the next one and say what they accepted; what all may have accepted is adopted, the ballot of
the latest leader first, so nothing else can come out. Followers take proposals only of the leader that they joined
last. One that is silent past the deadline is given up; then those who are here go on only if they are the majority of
those who may be alive, so two parts cannot both go on. (Paxos, with leaders in the order of their ranks for ballots:
L. Lamport, "Paxos made simple", 2001.) The rule: a state and `turn`, which does what is to be done now; no task.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from .leading import Leading
from .operations import Operation
from .outcome import AGREED, CANCELLED, CLOSED, MINORITY, REFUSED, SHRUNK, Outcome, Wish

if TYPE_CHECKING:
    from ..errors import AiocollError
    from .agreement import Agreement
    from .scope import Scope

_HEIRS: Final = 8
"""So many of those who would lead next hear from every follower what it came to."""
_EXCUSES_MAX: Final = 8
"""So many times the clock is put right for a rank that woke up late: one whose loop is always late comes to an end."""


class Waiter(Operation):
    """Whoever awaits what a recovery call comes to."""

    __slots__ = ("recovery",)

    def __init__(self, recovery: Recovery) -> None:
        super().__init__(recovery.scope.endpoint, -1, math.inf)  # the call keeps its own time
        self.recovery: Recovery = recovery

    def describe(self) -> str:
        return self.recovery.label


class Recovery(Leading):
    """One rank's part in one such call. ``outcome`` is None until it is over."""

    scope: Scope
    wish: Wish
    joins: dict[int, dict[str, Any]]
    me: int

    agreement: Agreement
    number: int
    cancelled: str

    def __init__(
        self, agreement: Agreement, scope: Scope, number: int, wish: Wish, joins: dict[int, dict[str, Any]]
    ) -> None:
        Leading.__init__(self)
        self.agreement, self.scope, self.number, self.wish, self.joins = agreement, scope, number, wish, joins
        self._endpoint, self.me = scope.endpoint, scope.endpoint.rank
        self.pause: float = scope.endpoint.settings.recovery_seconds
        self.began: float = scope.endpoint.loop.time()
        self.until: float = self.began + wish.seconds
        self.outcome: Outcome | None = None
        self.waiter: Waiter = Waiter(self)
        self.cancelled = self.refused = ""
        self._silent = {scope.ranks[rank] for rank in scope.broken.missing} if scope.broken is not None else set()
        """Those whom the group broke waiting for, until they give a sign of life: they get a short time only."""
        self._given_up: set[int] = set()
        self._elsewhere: set[int] = set()
        """Members that are in another part, which came to something else."""
        self._left: set[int] = set()
        self._sure: list[int] | None = None
        """Who was known to be dead when this rank first gave somebody up."""
        self.leader: int = -1
        self._since = self.began
        """When this rank turned to its present leader, be it itself."""
        self._asked_at: float | None = None
        self._answered = False
        self._accepted: tuple[list[int], Outcome] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake = math.inf
        self._excuses = _EXCUSES_MAX
        self._turning = self._again = False
        for join in joins.values():
            self._hurry(join)

    def __repr__(self) -> str:
        return f"<Recovery {self.label}: {self.outcome or f'led by world rank {self.leader}'}>"

    @property
    def label(self) -> str:
        return f"{self.wish.kind} (recovery call {self.number})"

    @property
    def timeout(self) -> float:
        """Seconds that it may take."""
        return self.wish.seconds

    def awaited(self) -> list[int]:
        """The other members, but for those without whom this rank goes on."""
        return [world for world in self.scope.others() if not self._gone(world)]

    # -- what comes

    def heard(self, peer: int, what: str, news: dict[str, Any]) -> None:
        """A word of another member about this call."""
        self._silent.discard(peer)
        if what == "join":
            self.joins[peer] = news
            self._given_up.discard(peer)  # who comes before it is over has not come too late
            self._hurry(news)
        elif what == "ask":
            self._tell(peer, k="here")
            if news["urgent"]:
                self.until = min(self.until, self._endpoint.loop.time())
        elif what == "here":
            self._answered = self._answered or peer == self.leader
        elif what == "propose":
            if peer != self.leader:
                return  # this rank has given that leader up, and has said so to another
            self._answered = True
            self._accepted = (news["ballot"], news["outcome"])
            self._tell(peer, k="accept", round=news["ballot"][1])
        elif what == "accept":
            if news["round"] == self._round:
                self._votes.add(peer)
        elif what == "came to":
            self._came_to(peer, news["outcome"])
        elif what == "left":
            self._left.add(peer)
        self.turn()

    def _hurry(self, join: dict[str, Any]) -> None:
        """The earliest deadline is everybody's."""
        if join["seconds"] is not None:
            self.until = min(self.until, self._endpoint.loop.time() + float(join["seconds"]))

    def _came_to(self, peer: int, outcome: Outcome) -> None:
        kind = outcome["o"]
        if kind in (AGREED, SHRUNK):
            self._end(outcome)
        elif self.leader not in (peer, self.me) or (kind == MINORITY and self.me not in outcome["here"]):
            self._elsewhere.add(peer)
        elif self.leader == self.me:
            self._abort(outcome)
        else:
            for world in self.joins:  # who has given up the leader and waits for this rank
                self._tell(world, k="came to", outcome=outcome)
            self._finish(outcome)

    # -- what is to be done

    def turn(self) -> None:
        """Does what can be done now, and sees to it that it is called again when time brings more."""
        if self._turning:
            self._again = True
            return
        self._turning = True
        self._wake_up()
        try:
            wake = math.inf
            changed = True
            while changed and self.outcome is None:
                self._again = False
                now = self._endpoint.loop.time()
                leader = next(world for world in self.scope.ranks if not self._gone(world))
                if leader != self.leader:
                    self._turn_to(leader, now)
                changed, wake = self._lead(now) if leader == self.me else self._follow(leader, now)
                changed = changed or self._again
        finally:
            self._turning = False
        self._wake_at(math.inf if self.outcome is not None else wake)

    def _gone(self, world: int) -> bool:
        return (
            world in self._endpoint.failure.absent
            or world in self._given_up
            or world in self._elsewhere
            or world in self._left
        )

    def _give_up(self, worlds: Iterable[int]) -> None:
        if self._sure is None:
            self._sure = self._dead()
        self._given_up.update(worlds)

    def _dead(self) -> list[int]:
        if self._sure is not None:
            return self._sure
        dead, failure = list(self._left), self._endpoint.failure
        for world in failure.absent:
            if world in self.scope.index:
                if not failure.certain(world):
                    break
                dead.append(world)
        return dead

    def _tell(self, world: int, **news: Any) -> None:
        self.agreement.tell(world, *self.place, **news)

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands among all such calls."""
        return self.scope.id, self.number

    def _others(self) -> list[int]:
        return [world for world in self.scope.others() if world not in self._endpoint.failure.absent]

    # -- following

    def _turn_to(self, leader: int, now: float) -> None:
        self._since = self.began if self.leader < 0 else now
        self.leader, self._asked_at, self._answered = leader, None, False
        if leader != self.me:
            self._join(leader, now)
            return
        for world in self.scope.others():
            if not self._gone(world) and world not in self.joins:
                self._ask(world, now)

    def _ask(self, world: int, now: float) -> None:
        self._tell(world, k="ask", urgent=now >= self.until or bool(self._given_up))

    def _made(self) -> dict[str, Any]:
        what = REFUSED if self.refused else CANCELLED if self.cancelled else self.wish.kind
        return {"what": what, "how": self.refused or self.cancelled}

    def _join(self, leader: int, now: float) -> None:
        seconds = None if self.until == math.inf else max(self.until - now, 0.0)
        lost = [world for world in self._endpoint.failure.absent if world in self.scope.index]
        self._tell(
            leader, k="join", **self._made(), value=self.wish.value, force=self.wish.force, seconds=seconds,
            accepted=self._accepted, dead=self._dead(), lost=lost,
        )  # fmt: skip

    def _follow(self, leader: int, now: float) -> tuple[bool, float]:
        """Waits for the leader; past the deadline only as long as it answers."""
        patience = self._since if leader in self._silent else self.until
        if now < patience:
            return False, patience
        if self._asked_at is None or (self._answered and now >= self._asked_at + self.pause):
            self._ask(leader, now)
            self._asked_at, self._answered = now, False
        if now < self._asked_at + self.pause:
            return False, self._asked_at + self.pause
        self._give_up([leader])
        return True, now

    # -- the end

    def _end(self, outcome: Outcome) -> None:
        """Somebody says what it came to, and may die while it says so: those who would lead next, were left behind or
        joined this rank hear it from here, too; from one who leads, all."""
        others = self._others()
        members = outcome.get("members", self.scope.ranks)
        for place, world in enumerate(others):
            if place < _HEIRS or world in self.joins or world not in members or self.leader == self.me:
                self._tell(world, k="came to", outcome=outcome)
        self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._wake_at(math.inf)
        self._endpoint.note("recovery", group=self.scope.label, rank=self.scope.rank, call=self.label, outcome=outcome)
        self.agreement.remember(self.place, outcome)
        if (self.cancelled or self.refused) and outcome["o"] == SHRUNK:
            self.agreement.stay_away(self.place, outcome)
        self.waiter.finish()

    def cancel(self, how: str) -> None:
        """Whoever called does not want it any more. Where nothing has been accepted yet, the others' calls end, too."""
        self.cancelled = how
        if self.outcome is not None:
            if self.outcome["o"] == SHRUNK:
                self.agreement.stay_away(self.place, self.outcome)
        elif self.leader == self.me:
            self.turn()
        else:
            self._join(self.leader, self._endpoint.loop.time())

    def leave(self, error: AiocollError) -> None:
        """The group is closed on this rank while this was pending."""
        self.outcome = {"o": CLOSED}
        self._wake_at(math.inf)
        for world in self._others():
            self._tell(world, k="left")
        self.waiter.finish(error)

    # -- time

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake = when
        self._timer = None if when == math.inf else self._endpoint.loop.call_at(when, self.turn)

    def _wake_up(self) -> None:
        """A rank that was frozen, or away from its loop, gives nobody up for that: the time in which it could not hear
        does not count, and it hears first what was said meanwhile."""
        away = self._endpoint.loop.time() - self._wake
        if away > self.pause / 4 and self._excuses:
            self._excuses -= 1
            away += self.pause / 4
            self.began, self.until = self.began + away, self.until + away
            self._since, self._proposed_at = self._since + away, self._proposed_at + away
            if self._asked_at is not None:
                self._asked_at += away
