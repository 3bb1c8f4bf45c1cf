"""An operation is late, or waits for long: asks the other members where they are, then says who is missing.

The rule: it takes a bounded time, and silence is an answer too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..errors import CollectiveTimeoutError, GroupBrokenError, MismatchError
from .message import MessageReceive, MessageSend
from .news import absentees, called
from .recovery import Recovery

if TYPE_CHECKING:
    from .channel import Call
    from .failure import Failure
    from .scope import Scope

Subject: TypeAlias = "Call | MessageSend | MessageReceive | Recovery"
_ANSWER_SECONDS: Final = 0.5


class Inquiry:
    """One late call (or send), and what the others answer. With ``peers`` the call is not late yet, and only those are
    asked: if they made another call, waiting for them is in vain. With ``then`` that hears the answers, and nothing
    ends."""

    failure: Failure
    number: int
    subject: Subject

    def __init__(
        self, failure: Failure, number: int, subject: Subject, peers: list[int] | None = None,
        then: Callable[[Inquiry], None] | None = None,
    ) -> None:  # fmt: skip
        self.failure, self.number, self.subject = failure, number, subject
        self.scope: Scope = subject.scope
        self.final: bool = peers is None
        self.peers: list[int] = self.scope.others() if peers is None else peers
        self._then = then
        self.answers: dict[int, dict[str, Any]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Inquiry {self.number} about {self.subject!r}: {len(self.answers)} answers>"

    def begin(self) -> None:
        """Asks."""
        subject, about = self.subject, {"t": "status?", "id": self.number}  # and of which recovery call, if it is one
        call = 0 if isinstance(subject, MessageSend | MessageReceive | Recovery) else subject.number
        if isinstance(subject, Recovery):
            about["recovery"] = subject.number
        elif isinstance(subject, MessageReceive | MessageSend):
            about["message"] = True
        self._timer = self.failure.endpoint.loop.call_later(_ANSWER_SECONDS, self.conclude)
        for peer in self.peers:
            if peer in self.failure.absent:
                self.answers[peer] = {}
            else:
                self.failure.tell(peer, self.scope.id, call, dict(about))
        self._look()

    def answered(self, peer: int, answer: dict[str, Any]) -> None:
        """One of the others says where it is (an empty answer: it is gone)."""
        if peer in self.peers:
            self.answers.setdefault(peer, answer)
            self._look()

    def _look(self) -> None:
        if len(self.answers) >= len(self.peers):
            self.conclude()

    def cancel(self) -> None:
        """Forgets the inquiry."""
        self.failure.inquiries.pop(self.number, None)
        if self._timer is not None:
            self._timer.cancel()

    def conclude(self) -> None:
        """Says who is missing, and ends what was late."""
        if self.number not in self.failure.inquiries:
            return
        self.cancel()
        if self._then is not None:
            self._then(self)
        elif isinstance(self.subject, MessageReceive | Recovery):
            return  # a late receive is withdrawn, and asks nobody; agree and shrink keep their own time
        elif isinstance(self.subject, MessageSend):
            self._conclude_send(self.subject)
        elif self.subject.error is None and self.subject.number in self.scope.calls:
            self._conclude_call(self.subject)

    def missing(self) -> list[int]:
        """The world ranks that are not in the call."""
        return [world for world in self.scope.others() if not self._here(world)]

    def _here(self, world: int) -> bool:
        """Whether a rank has come to the call, though it may have left since."""
        if self.answers.get(world, {}).get("here"):
            return True
        made = self.failure.farewells.get(world, {}).get(self.scope.id, 0)
        return not isinstance(self.subject, MessageSend | MessageReceive | Recovery) and self.subject.number < made

    def where(self, world: int) -> str:
        """Who a rank is and where it was last seen."""
        member = self.failure.endpoint.members[world]
        answer = self.answers.get(world)
        if answer is None:
            seen = f"it does not answer; last seen in {self.scope.last_seen(world)}"
        elif not answer:
            seen = self.failure.absent.get(world, "it is gone")
        else:
            seen = f"its last call: {answer.get('last')}{_stuck(answer)}"
        return f"rank {self.scope.index[world]} ({member.host}, pid {member.pid}; {seen})"

    def _conclude_call(self, call: Call) -> None:
        scope, failure = self.scope, self.failure
        elapsed = failure.endpoint.loop.time() - call.began
        for world in self.peers:
            for number, made in _calls_of(self.answers.get(world, {}), call.number):
                mine = scope.unlike(number, made)
                if mine is not None:
                    error = MismatchError(
                        f"ranks made different calls under one number ({scope.words(number)} of group "
                        f"{scope.label!r}), and waited {elapsed:.1f} s for one another: rank {scope.rank} made "
                        f"[{mine}], rank {scope.index[world]} made [{made}]",
                        group=scope.label, **scope.who(world), **called(scope, number, mine),
                    )  # fmt: skip
                    failure.break_group(scope, error, number=number)
                    return
        if not self.final:
            left = next((world for world in self.peers if self.answers.get(world, {}).get("left")), None)
            if left is not None:
                member = failure.endpoint.members[left]
                text = (
                    f"{call.label} on rank {scope.rank} waits in vain: rank {scope.index[left]} ({member.host}, pid "
                    f"{member.pid}) has closed group {scope.label!r} without this call"
                )
                in_vain = GroupBrokenError(text, **scope.who(left), **call.where())
                failure.break_group(scope, in_vain, call=call)
            return
        missing = self.missing()
        who = (
            "missing: " + ", ".join(map(self.where, missing))
            if missing
            else "every rank is in this call, so it needs more time"
        )
        text = (
            f"{call.label} on rank {scope.rank} of group {scope.label!r} timed out after {elapsed:.1f} s (timeout "
            f"{call.timeout:g} s); {who}. Look at what they do, or pass a longer timeout="
        )
        late = CollectiveTimeoutError(
            text, operation=call.label, elapsed=elapsed, **absentees(scope, missing), **call.where()
        )
        failure.break_group(scope, late, call=call)

    def _conclude_send(self, send: MessageSend) -> None:
        scope = self.scope
        if send.done:
            return
        elapsed = self.failure.endpoint.loop.time() - send.began
        if send.offered:
            why = "no receive has taken it, which this send waits for"
        else:
            why = "the receiver takes nothing and more than the bound lies unreceived"
        edges = [f"rank {scope.rank} waits for rank {scope.index[send.peer]} ({send.describe()})"]
        for world in scope.others():
            for what, peer in _waits_of(self.answers.get(world, {})):
                if peer in scope.index:
                    edges.append(f"rank {scope.index[world]} waits for rank {scope.index[peer]} ({what})")
        text = (
            f"{send.describe()} on rank {scope.rank} of group {scope.label!r} timed out after {elapsed:.1f} s: {why}. "
            f"{'; '.join(edges)}"
        )
        error = CollectiveTimeoutError(
            text, operation=send.describe(), elapsed=elapsed, **absentees(scope, [send.peer])
        )
        scope.mailbox.stop_sending(send, error)


def _calls_of(answer: dict[str, Any], number: int) -> list[tuple[int, str]]:
    """What another rank made: call ``number``, and those that it has not finished (an earlier one, perhaps)."""
    calls = [(number, answer.get("made"))]
    begun = answer.get("begun")
    for each in begun if isinstance(begun, (list, tuple)) else ():
        if isinstance(each, (list, tuple)) and len(each) == 2 and isinstance(each[0], int):
            calls.append((each[0], each[1]))
    return sorted((each, made) for each, made in calls if isinstance(made, str))


def _stuck(answer: dict[str, Any]) -> str:
    """What a rank waits in besides its last call here: a message, or a call of another group."""
    for what, _ in _waits_of(answer):
        if what and not what.startswith(str(answer.get("last"))):
            return f"; it waits in {what}"
    return ""


def _waits_of(answer: dict[str, Any]) -> list[tuple[str, int]]:
    """In what another rank waits, and for which world ranks."""
    waits = answer.get("waits")
    pairs = [each for each in waits if isinstance(each, (list, tuple))] if isinstance(waits, (list, tuple)) else []
    return [(str(each[0]), each[1]) for each in pairs if len(each) == 2 and isinstance(each[1], int)]
