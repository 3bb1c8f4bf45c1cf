"""The leader's part of a recovery call: who is here, what is proposed to them, and when that holds.

The rule: a decision needs all who are here, and that those are the majority of all who may be alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from .majority import connected, may_go_on
from .outcome import AGREED, CANCELLED, LATE, MINORITY, MISMATCH, REFUSED, SHRUNK, Outcome, Wish

if TYPE_CHECKING:
    from .scope import Scope

_TAKEN_OVER: Final = 3
"""So many times ``recovery_seconds`` a leader that came after a silent one waits for those who still wait for that."""


class Leading:
    """What one rank does for a call while it is the lowest member that is left, as far as it knows."""

    scope: Scope
    wish: Wish
    me: int
    joins: dict[int, dict[str, Any]]
    """What the others said when they joined this rank."""
    began: float
    until: float
    pause: float
    _since: float
    _silent: set[int]
    _given_up: set[int]
    _accepted: tuple[list[int], Outcome] | None

    def __init__(self) -> None:
        self._round = 0
        self._proposal: Outcome | None = None
        self._proposed_at = 0.0
        self._voters: list[int] = []
        self._votes: set[int] = set()

    def _gone(self, world: int) -> bool:
        """Whether this rank does not wait for a member any more."""
        raise NotImplementedError

    def _give_up(self, worlds: Iterable[int]) -> None:
        """Some members were silent for too long."""
        raise NotImplementedError

    def _dead(self) -> list[int]:
        """Members that cannot be alive elsewhere. A death that is seen after some member fell silent does not count:
        before it died it may have gone on together with that one."""
        raise NotImplementedError

    def _made(self) -> dict[str, Any]:
        """What this rank called."""
        raise NotImplementedError

    def _tell(self, world: int, **news: Any) -> None:
        """One word to one member."""
        raise NotImplementedError

    def _others(self) -> list[int]:
        """The other members that this rank can reach, those given up included."""
        raise NotImplementedError

    def _finish(self, outcome: Outcome) -> None:
        """It is over."""
        raise NotImplementedError

    def _lead(self, now: float) -> tuple[bool, float]:
        """Waits for those who are to come, then for what they say to the proposal."""
        here = [each for each in self.scope.ranks if each == self.me or (each in self.joins and not self._gone(each))]
        if self._comes_to_nothing(here):
            return True, now
        waiting = [each for each in self.scope.others() if each not in self.joins and not self._gone(each)]
        if waiting:
            return self._wait({each: self._patience(each) for each in waiting}, here, now)
        away = self._away(here)
        proposal = self._choice(here, away)
        if proposal is None:
            self._abort({"o": LATE, "missing": away, "elapsed": now - self.began})
            return True, now
        if away and not self._may_go_on(here, away):
            return self._give_way(here, away, now)
        if proposal != self._proposal or not set(here) <= set(self._voters):
            self._propose(proposal, here, now)
        silent = [each for each in here if each not in self._votes]
        if silent:
            return self._wait(dict.fromkeys(silent, max(self.until, self._proposed_at + self.pause)), here, now)
        for world in self._others():
            self._tell(world, k="came to", outcome=proposal)
        self._finish(proposal)
        return True, now

    def _patience(self, world: int) -> float:
        """Until when a member is waited for that has not come."""
        until = min(self.until, self.began + self.pause) if world in self._silent else self.until
        if self._since == self.began:  # whoever leads from the start has had all the time there was
            return until
        return max(until, self._since + self.pause * (_TAKEN_OVER if self._given_up else 1))

    def _wait(self, patience: dict[int, float], here: list[int], now: float) -> tuple[bool, float]:
        """For some members, each until its time; those whose time is over are given up, and with them an agreement of
        which nothing was accepted before."""
        late = [world for world, until in patience.items() if now >= until]
        if not late:
            return False, min(patience.values())
        if self.wish.kind == "agree" and not self._accepted_before(here):
            self._abort({"o": LATE, "missing": list(patience), "elapsed": now - self.began})
        else:
            self._give_up(late)
        return True, now

    def _comes_to_nothing(self, here: list[int]) -> bool:
        """Whether somebody does not want this any more, or wants something else."""
        made = {each: self._made() if each == self.me else self.joins[each] for each in here}
        for world, join in made.items():
            if join["what"] in (CANCELLED, REFUSED):
                self._abort({"o": join["what"], "by": world, "how": join["how"]})
                return True
        kinds = [(world, join["what"]) for world, join in made.items()]
        if any(kind != self.wish.kind for _, kind in kinds):
            self._abort({"o": MISMATCH, "made": kinds})
            return True
        return False

    def _away(self, here: list[int]) -> list[int]:
        """Members that are not here, and may be alive."""
        dead = {*self._dead(), *(world for each in here if each != self.me for world in self.joins[each]["dead"])}
        return [world for world in self.scope.ranks if world not in here and world not in dead]

    def _choice(self, here: list[int], away: list[int]) -> Outcome | None:
        """What is to be proposed; None: some are too late for an agreement. What was accepted before may have come to
        hold somewhere; of who goes on that matters only if whoever knows may be alive."""
        agree, accepted = self.wish.kind == "agree", self._accepted_before(here)
        if accepted and (agree or away):
            adopted: Outcome = max(accepted, key=lambda each: each[0])[1]
            return adopted
        if agree:
            if any(world in self._given_up for world in away):
                return None
            values = [self.joins[each]["value"] for each in here if each != self.me]
            return {"o": AGREED, "value": self.wish.value and all(values)}
        lost = {each: self.joins[each]["lost"] for each in here if each != self.me}
        members = tuple(connected(here, lost))
        assert self.wish.follow is not None
        group, name = self.wish.follow(members)
        return {"o": SHRUNK, "members": list(members), "id": group, "name": name, "away": away}

    def _accepted_before(self, here: list[int]) -> list[Any]:
        """What those who are here have accepted of earlier leaders: pairs of a ballot and an outcome."""
        accepted = [self._accepted, *(self.joins[each]["accepted"] for each in here if each != self.me)]
        return [each for each in accepted if each is not None]

    def _may_go_on(self, here: list[int], away: list[int]) -> bool:
        everybody = sorted([*here, *away], key=self.scope.index.__getitem__)
        forced = self.wish.force and all(self.joins[each]["force"] for each in here if each != self.me)
        return forced or may_go_on(here, everybody)

    def _give_way(self, here: list[int], away: list[int], now: float) -> tuple[bool, float]:
        """Too few are here. Somebody may still come to know that others are dead: waits a moment for that."""
        patience = self._since + self.pause
        if now < patience:
            return False, patience
        self._abort({"o": MINORITY, "here": here, "away": away})
        return True, now

    def _propose(self, proposal: Outcome, here: list[int], now: float) -> None:
        self._round += 1
        self._proposal, self._proposed_at = proposal, now
        self._voters, self._votes = here, {self.me}
        for world in here:
            if world != self.me:
                self._tell(world, k="propose", ballot=[self.scope.rank, self._round], outcome=proposal)

    def _abort(self, outcome: Outcome) -> None:
        """This part comes to nothing, and all who hear of it with it."""
        for world in self._others():
            self._tell(world, k="came to", outcome=outcome)
        self._finish(outcome)
