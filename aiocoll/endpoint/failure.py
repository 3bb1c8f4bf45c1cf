"""How bad news travels: refused calls, mismatches, broken groups, lost peers, timeouts.

One failure breaks the whole group, loudly, everywhere: whoever notices tells every other member once, and a member
that hears of it for the first time passes it on. A refused call breaks nothing. The rule: memory is detached before an
error is raised, and every message names who, what and where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from .. import errors
from ..errors import (
    AiocollError,
    CollectiveTimeoutError,
    GroupBrokenError,
    MismatchError,
    PeerLostError,
    SerializationError,
    UsageError,
    WireError,
)
from ..observe import emit
from ..wire import frame
from ..wire.codec import pack_control
from .channel import description_in
from .inquiry import Inquiry
from .message import TAG_MASK, Message, MessageReceive, MessageSend
from .news import broken, renewed, sayable, wrap
from .operations import Operation
from .scope import NAMED, bound

if TYPE_CHECKING:
    from .channel import Call
    from .core import Endpoint
    from .scope import Scope

_ALL_TOLD_SIZE_MAX: Final = 64
_REFUSALS_MAX: Final = 8
_TOLD_MAX: Final = 4096  # groups that this rank never made, of which news are kept
_FIRST_CLASS: Final = (PeerLostError, MismatchError)
"""Errors that the first call after them raises in their own class, where no call was pending."""


class Failure:
    """The bad news of one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.absent: dict[int, str] = {}
        """World ranks that are gone for good, and why."""
        self._hearsay: dict[int, str] = {}
        """Why world ranks are lost to which this rank had no link, as others told."""
        self._early: dict[int, tuple[int, int, dict[str, Any]]] = {}
        self._early_refusals: dict[tuple[int, int], dict[str, Any]] = {}
        self.inquiries: dict[int, Inquiry] = {}
        self._next_inquiry = 0
        self.bad_news = False
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
            elif not self.endpoint.inbox.gone(group):
                self._early[group] = (peer, number, news)
                bound(self._early, _TOLD_MAX)
        elif kind == "refused":
            if scope is not None:
                self._refused_elsewhere(scope, call, news)
            elif not self.endpoint.inbox.gone(group):
                self._early_refusals[group, call] = news
                bound(self._early_refusals, _TOLD_MAX)
        elif kind == "rejected":
            self._rejected(peer, group, call, news)
        elif kind == "rescinded":
            self.endpoint.inbox.rescinded(peer, group, call, int(news.get("step") or 0))
        elif kind == "status?":
            answer = self._status(scope, call)
            self.tell(peer, group, call, {"t": "status", "id": news.get("id"), **answer})
        elif kind == "status":
            inquiry = self.inquiries.get(int(news.get("id") or 0))
            if inquiry is not None:
                inquiry.answered(peer, news)

    def entered(self, scope: Scope) -> None:
        """This rank has made a group: what was heard of it before holds now."""
        for group, call in [key for key in self._early_refusals if key[0] == scope.id] if self._early_refusals else ():
            self._refused_elsewhere(scope, call, self._early_refusals.pop((group, call)))
        early = self._early.pop(scope.id, None)
        if early is not None:
            self._broken_elsewhere(scope, *early)

    # -- refusals: one call, all ranks, and the group goes on

    def refuse(self, call: Call, error: BaseException) -> None:
        """This rank's own mistake in ``call``: tells the others and fails the call here."""
        if call.error is None:
            if not isinstance(error, (UsageError, SerializationError)):
                error = wrap(error, f"{call.label}: rank {call.scope.rank} failed: {type(error).__name__}: {error}")
            self.tell_refusal(call.scope, call.number, error)
            call.fail(error)

    def tell_refusal(self, scope: Scope, number: int, error: BaseException) -> None:
        """The call ``number`` is refused here; the other members' calls of that number are the ones refused."""
        name = type(error).__name__ if isinstance(error, (UsageError, SerializationError)) else "UsageError"
        news = {"t": "refused", "class": name, "text": str(error), "by": scope.rank}
        for peer in scope.others():
            self.tell(peer, scope.id, number, news)

    def _refused_elsewhere(self, scope: Scope, number: int, news: dict[str, Any]) -> None:
        kind = SerializationError if news.get("class") == "SerializationError" else UsageError
        error = kind(f"rank {news.get('by')} refused this call: {news.get('text')}")
        scope.refusals[number] = news
        bound(scope.refusals, _REFUSALS_MAX)
        call = scope.calls.get(number)
        if call is not None:
            call.fail(error)
        elif number not in scope.over:
            scope.refuse(number, error)

    # -- mismatches

    def differ(self, scope: Scope, number: int, mine: str, peer: int, meta: bytes) -> None:
        """A peer's first frame of a call says that its call is another one than mine."""
        call = scope.calls.get(number)
        what = "a call" if call is None else call.label
        text = (
            f"ranks made different calls under one number ({what} of group {scope.label!r}): rank {scope.rank} made "
            f"[{mine}], rank {scope.index.get(peer)} made [{description_in(meta)}]; every rank makes the same calls "
            "in the same order with the same op, dtype, shape and root, or name them with name="
        )
        self.break_group(scope, MismatchError(text), number=number)

    def mismatch(self, call: Call, text: str) -> None:
        """What comes for ``call`` does not fit it."""
        self.break_group(call.scope, MismatchError(text), number=call.number)

    def reject(self, scope: Scope, message: Message, text: str) -> None:
        """A message that is not whole yet does not fit its receive: the sender, if still at it, hears of it too."""
        news = {"t": "rejected", "step": message.step, "text": text}
        self.tell(message.source, scope.id, message.tag & TAG_MASK, news)

    def _rejected(self, peer: int, group: int, tag: int, news: dict[str, Any]) -> None:
        key = (peer, frame.MESSAGE, group, tag, int(news.get("step") or 0))
        error = MismatchError(str(news.get("text")))
        offer = self.endpoint.inbox.offers.pop(key, None)
        scope = self.endpoint.scopes.get(group)
        if offer is not None:
            offer[0].finish(error)
        elif scope is not None:
            scope.mailbox.rejected(key, error)

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
        emit("broken", group=scope.label, rank=scope.rank, by=by, error=error)
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
        self._fail_pending(scope, error, number)

    def _fail_pending(self, scope: Scope, error: AiocollError, number: int) -> None:
        first_class = isinstance(error, _FIRST_CLASS)

        def ending(what: str, *, failed: bool = False) -> AiocollError:
            if first_class or failed:
                return renewed(error, what)
            return GroupBrokenError(f"{what}: group {scope.label!r} is broken: {error}", cause=error)

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
        text, operation = str(news.get("text")), str(news.get("operation") or "")
        kind = getattr(errors, str(news.get("class")), GroupBrokenError)
        error: AiocollError
        if kind is PeerLostError:
            world = int(news.get("world") or 0)
            if not 0 <= world < self.endpoint.size:
                raise WireError(f"news of the loss of world rank {world}, which does not exist")
            self._hearsay[world] = str(news.get("reason") or text)
            error = self.loss(world, scope, operation, self.why(world))
        elif kind is CollectiveTimeoutError:
            missing = tuple(scope.index[world] for world in news.get("missing") or () if world in scope.index)
            elapsed = float(news.get("elapsed") or 0.0)
            error = CollectiveTimeoutError(text, missing=missing, operation=operation, elapsed=elapsed)
        elif kind is MismatchError:
            error = MismatchError(text)
        else:
            error = GroupBrokenError(text)
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
            error = GroupBrokenError(text, cause=error)
        self.break_group(call.scope, error, call=call)

    def cancelled(self, call: Call, how: str = "cancelled") -> None:
        """The caller does not want ``call`` any more (``how``: or never awaited it); the others cannot finish it."""
        if call.error is not None:
            return  # it was over already: refused by a peer, say, which breaks nothing
        error = GroupBrokenError(f"{call.scope.me} {how} {call.label} of group {call.scope.label!r}")
        call.fail(error)
        self.break_group(call.scope, error)

    def program_failed(self, scope: Scope, error: BaseException, *, everything: bool) -> None:
        """This rank's program raised out of the group: nobody shall wait for it. ``everything``: out of its world."""
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        for each in list(self.endpoint.scopes.values()) if everything else [scope]:
            self.break_group(each, GroupBrokenError(f"{each.me} left group {each.label!r} with {what}"))

    # -- lost peers

    def loss(self, peer: int, scope: Scope, operation: str, reason: str | None = None) -> PeerLostError:
        """The error for a lost world rank as ``scope`` sees it."""
        member = self.endpoint.members[peer]
        rank = scope.index.get(peer)
        why = reason or self.why(peer) or "its connection ended"
        who = f"rank {rank} of group {scope.label!r} (world rank {peer}, {member.host}, pid {member.pid})"
        return PeerLostError(
            f"{who} is lost: {why}; here in {operation or scope.last}",
            rank=rank, world_rank=peer, host=member.host, pid=member.pid, operation=operation,
        )  # fmt: skip

    def why(self, peer: int) -> str:
        """What is known of the end of a world rank, seen or heard; empty: nothing."""
        return self.absent.get(peer) or self._hearsay.get(peer, "")

    def lost(self, peer: int, reason: str) -> None:
        """The link to ``peer`` ended without a BYE: it died, and breaks every group that it belongs to."""
        if peer in self.absent:
            return
        self.absent[peer] = reason
        emit("peer_lost", rank=self.endpoint.rank, peer=peer, reason=reason)
        for scope in list(self.endpoint.scopes.values()):
            if peer in scope.index:
                self.break_group(scope, self.loss(peer, scope, "", reason))
        for inquiry in list(self.inquiries.values()):
            inquiry.answered(peer, {})

    def left(self, peer: int, reason: str = "it left: it closed its world") -> None:
        """``peer`` said BYE, or was gone before any link to it was made: others go on among themselves; whoever waits
        for it waits in vain."""
        if peer in self.absent:
            return
        self.absent[peer] = reason
        inbox = self.endpoint.inbox
        for call in inbox.depart(peer):
            self.break_group(call.scope, self.loss(peer, call.scope, call.label))
        for scope in list(self.endpoint.scopes.values()):
            if peer in scope.index:
                scope.mailbox.depart(peer)
        for ticket in [ticket for ticket in inbox.offers if ticket[0] == peer]:
            inbox.offers.pop(ticket)[0].finish(ConnectionError(reason))
        for inquiry in list(self.inquiries.values()):
            inquiry.answered(peer, {})

    def died(self, peer: int, reason: str) -> None:
        """``peer``, gone before any link to it was made, has not left: it died."""
        self.absent.pop(peer, None)
        self.lost(peer, reason)

    def in_vain(self, call: Call, peer: int) -> NoReturn:
        """A call needs a rank that is gone: breaks the group and raises."""
        error = self.loss(peer, call.scope, call.label)
        self.break_group(call.scope, error)
        raise call.error or error

    # -- deadlines

    def late(self, operation: Operation) -> None:
        """The deadline of something that waits has passed."""
        call = operation.call
        if isinstance(operation, MessageReceive):
            operation.scope.mailbox.withdraw(operation)
            elapsed = self.endpoint.loop.time() - operation.began
            scope = operation.scope
            missing = () if operation.source is None else (scope.index[operation.source],)
            text = (
                f"{operation.describe()} on rank {scope.rank} of {scope.label!r} timed out after {elapsed:.1f} s: "
                "no such message came; the receive is withdrawn and nothing is broken"
            )
            operation.finish(
                CollectiveTimeoutError(text, missing=missing, operation=operation.describe(), elapsed=elapsed)
            )
        elif call is not None or isinstance(operation, MessageSend):
            subject = call if call is not None else operation
            if any(inquiry.subject is subject and inquiry.final for inquiry in self.inquiries.values()):
                return
            self._inquire(subject)  # type: ignore[arg-type]

    def look(self, call: Call, peers: list[int]) -> None:
        """A call has waited long for ``peers``, and may do so: asks them only whether it is their call, too."""
        self._inquire(call, peers)

    def _inquire(self, subject: Call | MessageSend, peers: list[int] | None = None) -> None:
        self._next_inquiry += 1
        inquiry = self.inquiries[self._next_inquiry] = Inquiry(self, self._next_inquiry, subject, peers)
        inquiry.begin()

    def _status(self, scope: Scope | None, call: int) -> dict[str, Any]:
        """What this rank tells one that asks why it waits."""
        waits = [[what, peer] for what, peer in self.endpoint.waiting_for()[:20]]
        if scope is None:
            return {"here": False, "last": "not in this group (any more)", "waits": waits}
        under_way = scope.calls.get(call)
        description = under_way.description if under_way is not None else scope.over.get(call)
        return {"here": description is not None, "made": description, "last": scope.last, "waits": waits}

    def closing(self) -> None:
        """The endpoint closes: whoever still waits here hears so."""
        for inquiry in list(self.inquiries.values()):
            inquiry.cancel()
        for scope in list(self.endpoint.scopes.values()):
            self.close_scope(scope)

    def close_scope(self, scope: Scope) -> None:
        """This rank leaves a group: what is pending on it ends."""
        scope.closed = scope.troubled = True
        text = f"group {scope.label!r} was closed on this rank ({scope.rank}) while this was pending"
        for call in list(scope.calls.values()):
            call.fail(GroupBrokenError(f"{call.label}: {text}"))
        scope.mailbox.close(lambda message: GroupBrokenError(f"{message.describe()}: {text}"))
