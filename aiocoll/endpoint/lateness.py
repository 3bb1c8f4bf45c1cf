"""What becomes of an operation whose deadline has passed, and what this rank tells others that wait for it.

The rule: a receive of a message is only withdrawn; for everything else the other members are asked first.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ..errors import CollectiveTimeoutError
from .inquiry import Inquiry, Subject
from .message import MessageReceive, MessageSend
from .news import absentees
from .operations import Operation
from .scope import NAMED

if TYPE_CHECKING:
    from .channel import Call
    from .core import Endpoint
    from .scope import Scope

_CALLS_TOLD_MAX: Final = 20
_WORDS_TOLD_MAX: Final = 500


class Lateness:
    """The deadlines of one endpoint that have passed."""

    endpoint: Endpoint

    def __init__(self) -> None:
        self.inquiries: dict[int, Inquiry] = {}
        self._next_inquiry = 0

    def late(self, operation: Operation) -> None:
        """The deadline of something that waits has passed."""
        if isinstance(operation, MessageReceive):
            operation.scope.mailbox.withdraw(operation)
            elapsed = self.endpoint.loop.time() - operation.began
            scope = operation.scope
            missing = [] if operation.source is None else [operation.source]
            text = (
                f"{operation.describe()} on rank {scope.rank} of {scope.label!r} timed out after {elapsed:.1f} s: "
                "no such message came; the receive is withdrawn and nothing is broken"
            )
            what = operation.describe()
            operation.finish(CollectiveTimeoutError(text, operation=what, elapsed=elapsed, **absentees(scope, missing)))
            return
        subject = operation if isinstance(operation, MessageSend) else operation.call
        if subject is None or any(each.subject is subject and each.final for each in self.inquiries.values()):
            return
        self._inquire(subject)

    def look(self, call: Call, peers: list[int]) -> None:
        """A call has waited long for ``peers``, and may do so: asks them only whether it is their call, too."""
        self._inquire(call, peers)

    def ask(self, subject: Subject, peers: list[int], then: Callable[[Inquiry], None]) -> None:
        """Something waits for long: ``then`` hears where ``peers`` are."""
        self._inquire(subject, peers, then)

    def _inquire(
        self, subject: Subject, peers: list[int] | None = None, then: Callable[[Inquiry], None] | None = None
    ) -> None:
        self._next_inquiry += 1
        inquiry = self.inquiries[self._next_inquiry] = Inquiry(
            self.endpoint.failure, self._next_inquiry, subject, peers, then
        )
        inquiry.begin()

    def _status(self, scope: Scope | None, group: int, call: int, recovery: int, message: bool) -> dict[str, Any]:
        """What this rank tells one that asks why it waits, in a call, an agree or shrink, or for a message."""
        waits = [[what, peer] for what, peer in self.endpoint.waiting_for()[:20]]
        if scope is None:
            made = self.endpoint.inbox.gone.get(group)
            here = made is not None and call < made
            left = made is not None and (message or made <= call < NAMED)
            return {"here": here, "left": left, "last": "not in this group (any more)", "waits": waits}
        if recovery:
            return {"here": scope.recoveries >= recovery, "last": scope.last, "waits": waits}
        under_way = scope.calls.get(call)
        description = under_way.description if under_way is not None else scope.over.get(call)
        some = islice(scope.calls.values(), _CALLS_TOLD_MAX)
        begun = [[each.number, each.description] for each in some if len(each.description) < _WORDS_TOLD_MAX]
        return {
            "here": description is not None, "made": description, "last": scope.last, "waits": waits, "begun": begun,
        }  # fmt: skip
