"""How bad news travels: refused calls, mismatches, broken groups, lost peers, timeouts.

One failure breaks the whole group, loudly, everywhere: whoever notices tells every other member once, and a member
that hears of it for the first time passes it on. A refused call breaks nothing. The rule: memory is detached before an
error is raised, and every message names who, what and where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import (
    AiocollError,
    GroupBrokenError,
    MismatchError,
    PeerLostError,
    SerializationError,
    UsageError,
    WireError,
)
from ..observe.flight import words
from ..wire import frame
from ..wire.codec import pack_control
from .agreement import Agreement
from .lateness import Lateness
from .losses import Losses
from .message import MessageSend
from .news import broken, consequence, received, renewed, sayable
from .refusals import Refusals
from .scope import NAMED, bound

if TYPE_CHECKING:
    from .channel import Call
    from .core import Endpoint
    from .inquiry import Inquiry
    from .message import MessageReceive
    from .scope import Scope

_ALL_TOLD_SIZE_MAX: Final = 64
_TOLD_MAX: Final = 4096  # groups that this rank never made, of which news are kept
_FIRST_CLASS: Final = (PeerLostError, MismatchError)
"""Errors that the first call after them raises in their own class, where no call was pending."""


class Failure(Losses, Refusals, Lateness):
    """The bad news of one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        Losses.__init__(self)
        Lateness.__init__(self)
        self.endpoint = endpoint
        self.agreement: Agreement = Agreement(endpoint)
        self._early: dict[int, tuple[int, int, dict[str, Any]]] = {}
        self._early_closed: dict[int, set[int]] = {}
        """Who has closed groups that this rank has not made yet."""
        self._early_refusals: dict[tuple[int, int], dict[str, Any]] = {}
        self.bad_news: bool = False
        """Whether any group has broken here."""

    def __repr__(self) -> str:
        return f"<Failure: absent {self.absent}, {len(self.inquiries)} inquiries>"

    # -- telling and hearing

    def tell(self, peer: int, group: int, call: int, news: dict[str, Any]) -> None:
        """Sends a control message to one world rank."""
        if peer not in self.absent:
            if "text" in news:
                news = {**news, "text": sayable(news["text"])}
            self.endpoint.link(peer).submit(frame.CONTROL, group, call, 0, b"", memoryview(pack_control(news)))

    def heard(self, peer: int, group: int, call: int, news: dict[str, Any]) -> None:
        """A control message of a peer; raises WireError for what no correct peer says."""
        try:
            self._heard(peer, group, call, news)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
            if isinstance(error, AiocollError):
                raise
            raise WireError(f"news of a kind that nobody tells: {str(news)[:200]} ({error})") from error

    def _heard(self, peer: int, group: int, call: int, news: dict[str, Any]) -> None:
        kind = news.get("t")
        scope = self.endpoint.scopes.get(group)
        if scope is not None and peer not in scope.index:
            raise WireError(f"news of group {scope.label!r} from world rank {peer}, which is no member")
        if kind == "broken":
            number = call if news.get("call") else -1
            if scope is not None:
                self._broken_elsewhere(scope, peer, number, news)
            elif group not in self.endpoint.inbox.gone:
                self._early[group] = (peer, number, news)
                bound(self._early, _TOLD_MAX)
        elif kind == "refused":
            if scope is not None:
                self._refused_elsewhere(scope, call, news)
            elif group not in self.endpoint.inbox.gone:
                self._early_refusals[group, call] = news
                bound(self._early_refusals, _TOLD_MAX)
        elif kind == "cut":
            text = str(news.get("text"))
            self.lost(peer, f"it has given up the connection to this rank, of which it says: {text}", certain=False)
        elif kind == "closed":
            if scope is not None:
                self.left_by(scope, peer)
            elif group not in self.endpoint.inbox.gone:
                self._early_closed.setdefault(group, set()).add(peer)
                bound(self._early_closed, _TOLD_MAX)
        elif kind == "recovery":
            self.agreement.heard(peer, group, call, news)
        elif kind == "rejected":
            self._rejected(peer, group, call, news)
        elif kind == "rescinded":
            self.endpoint.inbox.rescinded(peer, group, call, int(news.get("step") or 0))
        elif kind == "status?":
            answer = self._status(scope, group, call, int(news.get("recovery") or 0), bool(news.get("message")))
            self.tell(peer, group, call, {"t": "status", "id": news.get("id"), **answer})
        elif kind == "status":
            inquiry = self.inquiries.get(int(news.get("id") or 0))
            if inquiry is not None:
                inquiry.answered(peer, news)

    def entered(self, scope: Scope) -> None:
        """This rank has made a group: what was heard of it before holds now."""
        for group, call in [key for key in self._early_refusals if key[0] == scope.id] if self._early_refusals else ():
            self._refused_elsewhere(scope, call, self._early_refusals.pop((group, call)))
        scope.left_by |= self._early_closed.pop(scope.id, set()) if self._early_closed else set()
        early = self._early.pop(scope.id, None)
        if early is not None:
            self._broken_elsewhere(scope, *early)

    # -- breaking

    def break_group(
        self, scope: Scope, error: AiocollError, *, call: Call | None = None, number: int = -1, by: int | None = None
    ) -> None:
        """Fails everything pending on the group and tells the others; ``call`` is the one that failed, if one did, and
        ``number`` its number: members pass it on that have not made that call."""
        if scope.broken is not None or scope.closed:
            if scope.sound_until and scope.calls:
                scope.sound_until = 0
                self._fail_pending(scope, error, number)
            return
        scope.broken, scope.troubled = error, True
        self.bad_news = True
        by = scope.rank if by is None else by
        self.endpoint.note("broken", group=scope.label, rank=scope.rank, by=by, error=error)
        news = broken(scope, error, by)
        number = scope.broken_call = number if call is None else call.number
        if isinstance(error, MismatchError) and number < NAMED:
            scope.sound_until = max(number, 0)
        linked = {link.peer for link in self.endpoint.transport.links()}
        for peer in scope.others():
            # In a large group news go by the links that there are, and are passed on; a small one makes links.
            if peer in linked or scope.size <= _ALL_TOLD_SIZE_MAX:
                scope.told.add(peer)
                for refused, refusal in scope.refusals.items():  # a refusal may have ended our program
                    self.tell(peer, scope.id, refused, refusal)
                self.tell(peer, scope.id, max(number, 0), {**news, "call": number >= 0})
        if self.endpoint.trace is not None:
            self.endpoint.trace.failed(f"group {scope.label!r} broke: {words(error)}", self.endpoint.loop.call_soon)
        self._fail_pending(scope, error, number)
        if not scope.sound_until:
            self.stands_still(scope, [scope.ranks[rank] for rank in error.missing])

    def _fail_pending(self, scope: Scope, error: AiocollError, number: int) -> None:
        first_class = isinstance(error, _FIRST_CLASS)

        def ending(what: str, *, failed: bool = False) -> AiocollError:
            if first_class or failed:
                return renewed(error, what)
            return consequence(error, f"{what}: group {scope.label!r} is broken: {error}")

        pending = [each for each in scope.calls.values() if each.number >= scope.sound_until]
        for each in pending:
            each.fail(ending(each.label, failed=each.number == number))
        messages = scope.mailbox.close(lambda message: ending(message.describe()))
        scope.raised = bool(pending or messages) or not first_class

    def tell_again(self, scope: Scope, peer: int) -> None:
        """A member that has not heard yet sends us something for a broken group."""
        error = scope.broken
        if isinstance(error, AiocollError) and peer not in scope.told:
            scope.told.add(peer)
            number = scope.broken_call
            self.tell(peer, scope.id, max(number, 0), {**broken(scope, error, scope.rank), "call": number >= 0})

    def linked(self, peer: int) -> None:
        """A link to ``peer`` is made: it may wait for us in groups that are broken."""
        if self.bad_news:
            for scope in list(self.endpoint.scopes.values()):
                if scope.broken is not None and peer in scope.index:
                    self.tell_again(scope, peer)

    def _broken_elsewhere(self, scope: Scope, peer: int, number: int, news: dict[str, Any]) -> None:
        scope.told.add(peer)
        if scope.broken is not None:
            return
        error = received(scope, number, news)
        self.break_group(scope, error, number=number, by=int(news.get("by") or 0))

    def failed(self, call: Call, error: BaseException) -> None:
        """The algorithm raised on this rank: decides what becomes of the call and the group."""
        if call.error is not None:
            return
        if isinstance(error, (UsageError, SerializationError)):
            self.refuse(call, error)
            return
        call.fail(error)
        if not isinstance(error, AiocollError):
            text = f"{call.label}: rank {call.scope.rank} failed: {type(error).__name__}: {error}"
            error = GroupBrokenError(text, cause=error, **call.scope.mine(), **call.where())
        self.break_group(call.scope, error, call=call)

    def cancelled(self, call: Call, how: str = "cancelled") -> None:
        """The caller does not want ``call`` any more (``how``: or never awaited it); the others cannot finish it."""
        if call.error is not None:
            return  # it was over already: refused by a peer, say, which breaks nothing
        text = f"{call.scope.me} {how} {call.label} of group {call.scope.label!r}"
        error = GroupBrokenError(text, **call.scope.mine(), **call.where())
        call.fail(error)
        self.break_group(call.scope, error)

    def program_failed(self, scope: Scope, error: BaseException, *, everything: bool) -> None:
        """This rank's program raised out of the group: nobody shall wait for it. ``everything``: out of its world."""
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        for each in list(self.endpoint.scopes.values()) if everything else [scope]:
            text = f"{each.me} left group {each.label!r} with {what}"
            self.break_group(each, GroupBrokenError(text, group=each.label, cause=error, **each.mine()))

    def closing(self) -> None:
        """The endpoint closes: whoever still waits here hears so."""
        for inquiry in list(self.inquiries.values()):
            inquiry.cancel()
        for scope in list(self.endpoint.scopes.values()):
            self.close_scope(scope)

    def says_closed(self, scope: Scope) -> None:
        """Those that have links to this rank hear that it closes a group, while it may go on in others."""
        linked = {link.peer for link in self.endpoint.transport.links()}
        for peer in scope.others():
            if peer in linked:
                self.tell(peer, scope.id, 0, {"t": "closed"})

    def left_by(self, scope: Scope, peer: int) -> None:
        """``peer`` has closed the group: whoever waits for a message of it, or for it to take one, waits in vain."""
        scope.left_by.add(peer)
        for each in [*scope.mailbox.wanted, *scope.mailbox.sends]:
            if each.peer == peer:
                self.desert(each)

    def desert(self, waits: MessageReceive | MessageSend) -> None:
        """Ends what waits for one that has closed the group, unless the message is on its way."""
        mailbox = waits.scope.mailbox
        if isinstance(waits, MessageSend):
            if waits.key in self.endpoint.inbox.offers:
                mailbox.stop_sending(waits, self._deserted(waits))
        elif waits.message is None:
            mailbox.withdraw(waits)
            waits.finish(self._deserted(waits))

    def told_whether_left(self, inquiry: Inquiry) -> None:
        """Whoever is to send a message, or to take one, says where it is."""
        for peer, answer in inquiry.answers.items():
            if answer.get("left"):
                self.left_by(inquiry.scope, peer)

    def _deserted(self, waits: MessageReceive | MessageSend) -> GroupBrokenError:
        """What that ends with; for others the group goes on."""
        scope = waits.scope
        member = self.endpoint.members[waits.peer]
        text = (
            f"{waits.describe()} on rank {scope.rank} waits in vain: rank {scope.index[waits.peer]} "
            f"({member.host}, pid {member.pid}) has closed group {scope.label!r}"
        )
        return GroupBrokenError(text, group=scope.label, **scope.who(waits.peer))

    def close_scope(self, scope: Scope) -> None:
        """This rank leaves a group: what is pending on it ends."""
        scope.closed = scope.troubled = True
        self.agreement.close_scope(scope)
        text = f"group {scope.label!r} was closed on this rank ({scope.rank}) while this was pending"
        for call in list(scope.calls.values()):
            call.fail(GroupBrokenError(f"{call.label}: {text}", **scope.mine()))
        scope.mailbox.close(lambda message: GroupBrokenError(f"{message.describe()}: {text}", **scope.mine()))
