"""Calls that one rank refuses, and calls that do not fit one another.

The rule: a refused call fails on all ranks and breaks nothing; a mismatch of collectives breaks the group, one of
messages only the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import AiocollError, MismatchError, SerializationError, UsageError
from ..wire import frame
from .channel import description_in
from .message import TAG_MASK, Message
from .news import called, wrap
from .scope import bound

if TYPE_CHECKING:
    from .channel import Call
    from .core import Endpoint
    from .scope import Scope

_REFUSALS_MAX: Final = 8


class Refusals:
    """The refused and the mismatched calls of one endpoint."""

    endpoint: Endpoint

    def tell(self, peer: int, group: int, call: int, news: dict[str, Any]) -> None:
        """Sends a control message to one world rank."""
        raise NotImplementedError

    def break_group(
        self, scope: Scope, error: AiocollError, *, call: Call | None = None, number: int = -1, by: int | None = None
    ) -> None:
        """Fails everything pending on the group and tells the others."""
        raise NotImplementedError

    # -- refusals: one call, all ranks, and the group goes on

    def refuse(self, call: Call, error: BaseException) -> None:
        """This rank's own mistake in ``call``: tells the others and fails the call here."""
        if call.error is None:
            if not isinstance(error, (UsageError, SerializationError)):
                error = wrap(error, f"{call.label}: rank {call.scope.rank} failed: {type(error).__name__}: {error}")
            self.tell_refusal(call.scope, call.number, error)
            if isinstance(error, AiocollError) and error.rank is None:
                error.rank, error.world_rank = call.scope.mine().values()
            call.fail(error)

    def tell_refusal(self, scope: Scope, number: int, error: BaseException) -> None:
        """The call ``number`` is refused here; the other members' calls of that number are the ones refused."""
        name = type(error).__name__ if isinstance(error, (UsageError, SerializationError)) else "UsageError"
        news = {"t": "refused", "class": name, "text": str(error), "by": scope.rank}
        self.endpoint.note("refused", group=scope.label, rank=scope.rank, call=number, by=scope.rank, error=error)
        for peer in scope.others():
            self.tell(peer, scope.id, number, news)

    def _refused_elsewhere(self, scope: Scope, number: int, news: dict[str, Any]) -> None:
        kind = SerializationError if news.get("class") == "SerializationError" else UsageError
        by = news.get("by")
        rank = by if isinstance(by, int) and 0 <= by < scope.size else None
        who = {} if rank is None else scope.who(scope.ranks[rank])
        error = kind(f"rank {by} refused this call: {news.get('text')}", **who)
        self.endpoint.note("refused", group=scope.label, rank=scope.rank, call=number, by=by, error=error)
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
        text = (
            f"ranks made different calls under one number ({scope.words(number)} of group {scope.label!r}): "
            f"rank {scope.rank} made [{mine}], rank {scope.index.get(peer)} made [{description_in(meta)}]; every rank "
            "makes the same calls in the same order with the same op, dtype, shape and root, or name them with name="
        )
        error = MismatchError(text, group=scope.label, **scope.who(peer), **called(scope, number, mine))
        self.break_group(scope, error, number=number)

    def mismatch(self, call: Call, text: str) -> None:
        """What comes for ``call`` does not fit it."""
        self.break_group(call.scope, MismatchError(text, **call.where()), number=call.number)

    def reject(self, scope: Scope, message: Message, text: str) -> None:
        """A message that is not whole yet does not fit its receive: the sender, if still at it, hears of it too."""
        news = {"t": "rejected", "step": message.step, "text": text}
        self.tell(message.source, scope.id, message.tag & TAG_MASK, news)

    def _rejected(self, peer: int, group: int, tag: int, news: dict[str, Any]) -> None:
        key = (peer, frame.MESSAGE, group, tag, int(news.get("step") or 0))
        offer = self.endpoint.inbox.offers.pop(key, None)
        scope = self.endpoint.scopes.get(group)
        error = MismatchError(str(news.get("text")), **({} if scope is None else scope.who(peer)))
        if offer is not None:
            offer[0].finish(error)
        elif scope is not None:
            scope.mailbox.rejected(key, error)
