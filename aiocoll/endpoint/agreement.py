"""How the members of a group that is broken, or may be, settle something though any of them may die meanwhile.

The n-th such call of a group on one member meets the n-th of the others; `recovery` is one of them. What they came to
is remembered here for those who ask later: one that was frozen or cut off, or a member that takes over from a leader
that died while it told the others. The rule: whoever asks is answered, also by a rank that has left the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import GroupBrokenError
from .outcome import MINORITY, SHRUNK, Outcome, Wish, understood
from .recovery import Recovery
from .scope import bound

if TYPE_CHECKING:
    from .core import Endpoint
    from .scope import Scope

_REMEMBERED_MAX: Final = 1024
Place = tuple[int, int]
"""(group, number of the call)"""


class Agreement:
    """All such calls of one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.under_way: dict[Place, Recovery] = {}
        self._early: dict[Place, dict[int, dict[str, Any]]] = {}
        """Who has joined calls that this rank has not made yet."""
        self._askers: dict[Place, set[int]] = {}
        """Who leads such calls, and waits for this rank."""
        self._came_to: dict[Place, Outcome] = {}
        self._followed: dict[int, Outcome] = {}
        """What groups were followed by."""

    def __repr__(self) -> str:
        return f"<Agreement: {len(self.under_way)} under way, {len(self._came_to)} remembered>"

    def begin(self, scope: Scope, number: int, wish: Wish, refused: str = "") -> Recovery:
        """This rank makes the recovery call ``number`` of a group, or refuses it; it goes on by itself from here."""
        place = (scope.id, number)
        recovery = Recovery(self, scope, number, wish, self._early.pop(place, {}))
        self._askers.pop(place, None)
        recovery.refused = refused
        outcome = self._came_to.get(place)
        if outcome is None:
            outcome = self._left_behind(scope.id, self.endpoint.rank)
        if outcome is not None:
            recovery.outcome = outcome
        else:
            self.under_way[place] = recovery
            recovery.turn()
        return recovery

    def tell(self, peer: int, group: int, number: int, **news: Any) -> None:
        """One word to one world rank."""
        self.endpoint.failure.tell(peer, group, number, {"t": "recovery", **news})

    def heard(self, peer: int, group: int, number: int, news: dict[str, Any]) -> None:
        """A word of another member."""
        place = (group, number)
        recovery, what = self.under_way.get(place), str(news["k"])
        news = understood(what, news)
        if recovery is not None:
            recovery.heard(peer, what, news)
        elif what in ("join", "ask"):
            self._asked(peer, group, number, what, news)
        elif what == "came to":
            self._told(place, news["outcome"])
        elif what == "left" and place in self._early:
            self._early[place].pop(peer, None)

    def _asked(self, peer: int, group: int, number: int, what: str, news: dict[str, Any]) -> None:
        outcome = self._came_to.get((group, number)) or self._left_behind(group, peer)
        if outcome is not None:
            self.tell(peer, group, number, k="came to", outcome=outcome)
        elif group in self.endpoint.inbox.gone:
            self.tell(peer, group, number, k="left")
        elif what == "join":
            self._early.setdefault((group, number), {})[peer] = news
            bound(self._early, _REMEMBERED_MAX)
        else:
            self._askers.setdefault((group, number), set()).add(peer)
            bound(self._askers, _REMEMBERED_MAX)
            self.tell(peer, group, number, k="alive")

    def _told(self, place: Place, outcome: Outcome) -> None:
        """The others came to something in a call that this rank has not made, or has ended for itself."""
        if place not in self._came_to:
            if outcome["o"] != MINORITY:  # that some gave way is no outcome for the others
                self.remember(place, outcome)
        elif outcome["o"] == SHRUNK and self._came_to[place]["o"] != SHRUNK:
            self.stay_away(place, outcome)

    def _left_behind(self, group: int, world: int) -> Outcome | None:
        """What the group was followed by, if that was without this rank."""
        followed = self._followed.get(group)
        return followed if followed is not None and world not in followed["members"] else None

    def remember(self, place: Place, outcome: Outcome) -> None:
        """A call is over."""
        self.under_way.pop(place, None)
        self._early.pop(place, None)
        self._askers.pop(place, None)
        self._came_to[place] = outcome
        bound(self._came_to, _REMEMBERED_MAX)
        if outcome["o"] == SHRUNK:
            self._followed[place[0]] = outcome
            bound(self._followed, _REMEMBERED_MAX)

    def stay_away(self, place: Place, outcome: Outcome) -> None:
        """The others count on this rank in their new group, and it will not be there: its call was cancelled, or ended
        otherwise. So that nobody waits for it, that group breaks."""
        endpoint = self.endpoint
        if endpoint.rank in outcome["members"] and outcome["id"] not in endpoint.inbox.gone:
            scope = endpoint.enter(outcome["id"], tuple(outcome["members"]), str(outcome["name"]))
            text = f"{scope.me} is not in group {scope.label!r}: its shrink() was cancelled, or failed, on that rank"
            endpoint.failure.break_group(scope, GroupBrokenError(text, group=scope.label, **scope.mine()))
            endpoint.failure.close_scope(scope)
            endpoint.leave(scope)

    # -- losses and ends

    def gone(self, peer: int) -> None:
        """A world rank is lost or has left: some call may do without it now."""
        for recovery in list(self.under_way.values()):
            if peer in recovery.scope.index:
                recovery.turn()

    def close_scope(self, scope: Scope) -> None:
        """This rank leaves a group: who waits for it there need not."""
        for place in [place for place in self.under_way if place[0] == scope.id]:
            recovery = self.under_way.pop(place)
            text = f"group {scope.label!r} was closed on this rank ({scope.rank}) while this was pending"
            recovery.leave(GroupBrokenError(f"{recovery.label}: {text}", **scope.mine()))
        for place in [place for place in {*self._early, *self._askers} if place[0] == scope.id]:
            for peer in {*self._early.pop(place, ()), *self._askers.pop(place, ())}:
                self.tell(peer, *place, k="left")
