"""agree, shrink, exclude, abort: what members do after a failure, though more of them may die meanwhile.

The rule: these calls have numbers of their own, so they meet whatever calls the failure left unfinished; who is left
behind is told so, and by what.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..endpoint.news import absentees, sayable
from ..endpoint.outcome import AGREED, CANCELLED, LATE, MISMATCH, REFUSED, SHRUNK, Outcome, Wish
from ..endpoint.recovery import Recovery
from ..errors import AiocollError, CollectiveTimeoutError, GroupBrokenError, MismatchError, UsageError
from .calls import Calls, identifier, true_or_false
from .ownership import successor
from .posted import Posted, when_awaited

if TYPE_CHECKING:
    from .group import Group


_EXCLUDED: Final = "\0excluded"
"""The name that no subgroup has, under which groups without somebody are counted."""


class Recoveries(Calls):
    """See API: agree, shrink."""

    _subgroups: dict[Any, int]

    @when_awaited
    def agree(self, flag: Any = True, *, timeout: float | None = None) -> Posted[bool]:
        """True if every living member passed something true: the same value on all survivors, whatever dies meanwhile.

        Collective, on a sound group and on a broken one; the n-th call of agree and shrink of one member meets the n-th
        of the others. A rank that computes is waited for: after ``timeout`` seconds CollectiveTimeoutError on all who
        take part, naming the missing (in ``recovery_seconds`` where the group broke waiting for them and they give no
        sign). MismatchError where a member called shrink. Cancelling it ends it for all, with GroupBrokenError, unless
        it was decided already.
        """
        return self._recover(
            "agree", timeout, lambda seconds: Wish("agree", seconds, value=bool(flag)), lambda it: bool(it["value"])
        )

    @when_awaited
    def shrink(self, *, timeout: float | None = None, force: bool = False) -> Posted[Group]:
        """A new group of the living members, in their order; of all of them where nobody is dead.

        Collective, on a sound group and on a broken one, again and again, down to one rank. The new group has the
        calls, subgroups and messages of a new one; of this one nothing arrives any more. Members that do not come
        within ``timeout`` seconds (``recovery_seconds`` where this group broke waiting for them and they give no sign),
        or that cannot be reached and were not seen to end, are left behind if the rest is the majority of those who may
        be alive, or half of them with the lowest. Otherwise GroupBrokenError, on all who are here; ``force=True`` (on
        all) goes on nevertheless, and is right only where the others are known to be gone. Who was left behind and
        comes later gets GroupBrokenError, which names the group that went on. MismatchError and cancelling as for
        ``agree``.
        """
        scope, number = self._scope, self._scope.recoveries + 1
        forced = partial(true_or_false, force, f"shrink on rank {scope.rank}", "force")

        def follow(members: tuple[int, ...]) -> tuple[int, str]:
            return identifier("shrink", scope.id, number, members), successor(self.name)

        return self._recover(
            "shrink", timeout, lambda seconds: Wish("shrink", seconds, force=forced(), follow=follow), self._shrunk
        )

    @when_awaited
    def exclude(self, ranks: Sequence[int]) -> Posted[Group]:
        """A new group of the members that are not among ``ranks`` (of this group), in their order, which takes this
        one's place; from a broken group, too.

        Only they call it, all with the same ranks, and nobody asks the excluded: they may be dead, stopped, or about to
        leave. Nothing is sent: whether the others are there, the first call on the new group tells.
        """
        self._present("exclude")
        gone = set(self._ranks_of(ranks, "exclude"))
        scope = self._scope
        members = tuple(world for world in scope.ranks if world not in gone)
        if self._endpoint.rank in gone:
            raise UsageError(
                f"exclude on rank {scope.rank}: ranks={list(ranks)!r} holds this rank; only the others call"
            )
        key = (scope.id, members, _EXCLUDED)
        count = self._subgroups.get(key, 0)
        self._subgroups[key] = count + 1
        group = self._opened_by_shrink(identifier("exclude", *key, count), members, successor(self.name))
        self._break_if_lost(group)

        async def made() -> Group:
            return group

        return Posted(made(), lambda _: group._abandon(), "exclude")

    @when_awaited
    def abort(self, why: str = "") -> Posted[None]:
        """Breaks this group at once, whatever the others do: what is pending here, and what the others call, raises
        GroupBrokenError, with the reason. The group can be left behind by ``exclude`` and ``shrink``."""
        self._present("abort")
        scope = self._scope
        text = f"{scope.me} aborted group {scope.label!r}" + (f": {why}" if why else "")
        self._endpoint.failure.break_group(scope, GroupBrokenError(text, group=scope.label, **scope.mine()))
        return Posted(_nothing(), lambda _: None, "abort")

    def _recover(
        self, kind: str, timeout: float | None, wish: Callable[[float], Wish], then: Callable[[Outcome], Any]
    ) -> Posted[Any]:
        """Makes the call; the coroutine waits for what it comes to."""
        self._present(kind)
        scope, agreement = self._scope, self._endpoint.failure.agreement
        scope.recoveries += 1
        self._counts[kind] = self._counts.get(kind, 0) + 1
        try:
            made = wish(self._seconds(timeout, kind))
        except Exception as error:  # this rank refuses its own arguments: so do all
            refusal = error
            if not isinstance(error, UsageError):  # a flag with a mind of its own
                refusal = UsageError(f"{kind} on rank {scope.rank}: {type(error).__name__}: {error}")
            agreement.begin(scope, scope.recoveries, Wish(kind, math.inf), refused=sayable(refusal))
            raise refusal from (None if refusal is error else error)
        recovery = agreement.begin(scope, scope.recoveries, made)

        async def settled() -> Any:
            try:
                if recovery.outcome is None:
                    await recovery.waiter
            except (asyncio.CancelledError, GeneratorExit):
                recovery.cancel("cancelled")
                raise
            outcome = recovery.outcome
            assert outcome is not None
            if outcome["o"] == SHRUNK and self._endpoint.rank not in outcome["members"]:
                raise self._broken_by(self._left_behind(recovery, outcome))
            if outcome["o"] == REFUSED:
                raise self._failure_of(recovery, outcome)
            if outcome["o"] not in (AGREED, SHRUNK):
                raise self._broken_by(self._failure_of(recovery, outcome))
            return then(outcome)

        return Posted(settled(), recovery.cancel, kind)

    def _shrunk(self, outcome: Outcome) -> Group:
        """The group of those who go on."""
        scope, endpoint = self._scope, self._endpoint
        members, name = tuple(outcome["members"]), str(outcome["name"])
        if outcome["away"]:
            endpoint.failure.stands_still(scope, outcome["away"])
            away = [scope.index[world] for world in outcome["away"]]
            self._broken_by(GroupBrokenError(f"group {name!r} went on without ranks {away}", group=scope.label))
        group = self._opened_by_shrink(outcome["id"], members, name)
        self._break_if_lost(group)
        return group

    def _break_if_lost(self, group: Group) -> None:
        """A member may have died before all of them knew that it goes on."""
        failure = self._endpoint.failure
        lost = next((world for world in group._scope.ranks if world in failure.absent), None)
        if lost is not None:
            failure.break_group(group._scope, failure.loss(lost, group._scope, ""))

    def _left_behind(self, recovery: Recovery, outcome: Outcome) -> GroupBrokenError:
        scope, name = self._scope, str(outcome["name"])
        ranks = tuple(scope.index[world] for world in outcome["members"])
        text = (
            f"{recovery.label} of group {scope.label!r}: rank {scope.rank} was left behind, since it was silent for "
            f"too long or could not be reached; group {name!r} of its ranks {ranks} went on without it. End this "
            "process, or let it join again as a newcomer"
        )
        where = {"group": scope.label, "collective": recovery.wish.kind, "cause": scope.broken, **scope.mine()}
        return GroupBrokenError(text, **where)

    def _opened_by_shrink(self, id: int, members: tuple[int, ...], name: str) -> Group:
        raise NotImplementedError

    def _broken_by(self, error: AiocollError) -> AiocollError:
        """``error``, which this group is broken by unless it is already."""
        scope = self._scope
        if scope.broken is None:
            self._endpoint.failure.break_group(scope, error)
            scope.raised = True
        return error

    def _failure_of(self, recovery: Recovery, outcome: Outcome) -> AiocollError:
        """What is raised by those who came to nothing."""
        scope = self._scope
        where: dict[str, Any] = {"group": scope.label, "collective": recovery.wish.kind}
        who = f"{recovery.label} on rank {scope.rank} of group {scope.label!r}"
        kind = outcome["o"]
        if kind == LATE:
            text = f"{who} timed out after {outcome['elapsed']:.1f} s; missing: {self._named(outcome['missing'])}"
            where |= absentees(scope, outcome["missing"])
            return CollectiveTimeoutError(text, operation=recovery.label, elapsed=outcome["elapsed"], **where)
        if kind == MISMATCH:
            made = ", ".join(f"rank {scope.index[world]} called {what}" for world, what in outcome["made"])
            return MismatchError(f"{who}: ranks made different calls: {made}; all members make the same", **where)
        world = outcome.get("by", -1)
        if kind == REFUSED:
            text = f"{who}: rank {scope.index[world]} refused this call: {outcome['how']}"
            return UsageError(text, **scope.who(world), **where)
        if kind == CANCELLED:
            text = f"{who}: {self._named([world])} {outcome['how']} it"
            return GroupBrokenError(text, **scope.who(world), **where)
        here, away = outcome["here"], outcome["away"]
        text = (
            f"{who}: only {len(here)} of {len(here) + len(away)} members that may be alive are here; unreachable: "
            f"{self._named(away)}. They may go on by themselves, so this part must not: more than half are needed, or "
            "half with the lowest rank. Wait until they can be reached and connect again, or call shrink(force=True) "
            "on all ranks here if the others are known to be gone"
        )
        return GroupBrokenError(text, cause=scope.broken, **where, **absentees(scope, away))

    def _named(self, worlds: list[int]) -> str:
        """Members as messages name them."""
        members, index, why = self._endpoint.members, self._scope.index, self._endpoint.failure.why
        return ", ".join(
            f"rank {index[world]} ({members[world].host}, pid {members[world].pid}{why(world) and '; ' + why(world)})"
            for world in worlds
        )


async def _nothing() -> None:
    pass
