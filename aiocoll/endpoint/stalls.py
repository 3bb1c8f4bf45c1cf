"""Calls that wait for long say so: once whom they wait for, and once more when that is over.

The rule: it only asks and tells. A call that does not sleep pays nothing, one that sleeps a look at a flag.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from .inquiry import Inquiry, Subject
from .message import MessageReceive, MessageSend
from .operations import Operation
from .outcome import AGREED, CANCELLED, LATE, MISMATCH, REFUSED, SHRUNK
from .recovery import Recovery, Waiter

if TYPE_CHECKING:
    from .core import Endpoint
    from .scope import Scope

T = TypeVar("T")

log: logging.Logger = logging.getLogger("aiocoll.stall")
_ABOUT_NOW: Final = 1e-3
_ENDINGS: Final = {
    AGREED: "", SHRUNK: "", LATE: "CollectiveTimeoutError", MISMATCH: "MismatchError", REFUSED: "UsageError",
}  # fmt: skip
"""What agree and shrink raise, by what they come to."""


class Stalls:
    """The calls of one endpoint that wait longer than ``seconds``."""

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self.endpoint = endpoint
        self.seconds: float = seconds or math.inf
        self.idle: bool = self.seconds < math.inf
        """Whether nobody looks, and somebody should as soon as anything sleeps."""
        self.told: dict[Subject, bool] = {}
        """The calls that are known to stall, and whether the log says so already."""
        self._alike: dict[Subject, int] = {}
        """How many other messages the oldest that waits for the same rank speaks for."""
        self._spoke: dict[tuple[type, int, int], float] = {}
        """When messages of a kind, of a group, to or from a rank were last spoken of."""
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Stalls: {len(self.told)} calls wait longer than {self.seconds:g} s>"

    def watch(self) -> None:
        """Something sleeps from now on."""
        self.idle = False
        self._timer = self.endpoint.loop.call_later(self.seconds, self._look)

    def close(self) -> None:
        """Nobody looks any more."""
        self.idle = False
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now, soonest = self.endpoint.loop.time(), math.inf
        late: list[Subject] = []
        for subject in self._waiting():
            left = subject.began + self.seconds - now
            if left > _ABOUT_NOW:
                soonest = min(soonest, left)
            elif subject not in self.told:
                self.told[subject] = False
                late.append(subject)
        for subject in self._speakers(late, now):
            self.endpoint.failure.ask(subject, _whom(subject), self._tell)
        if soonest < math.inf:
            self._timer = self.endpoint.loop.call_later(soonest, self._look)
        else:
            self.idle = True

    def _speakers(self, late: list[Subject], now: float) -> list[Subject]:
        """Those of whom the log speaks: calls, and of a thousand sends to one rank the oldest, now and then."""
        first: dict[tuple[type, int, int], Subject] = {}
        speakers: list[Subject] = []
        for subject in late:
            if not isinstance(subject, Operation):
                speakers.append(subject)
                continue
            key = (type(subject), subject.scope.id, subject.peer)
            if key in first:
                self._alike[first[key]] = self._alike.get(first[key], 0) + 1
            elif now >= self._spoke.get(key, -math.inf) + self.seconds - _ABOUT_NOW:
                first[key], self._spoke[key] = subject, now
                speakers.append(subject)
        self._spoke = {key: spoke for key, spoke in self._spoke.items() if now < spoke + self.seconds}
        return speakers

    def _waiting(self) -> list[Subject]:
        """What has had to wait and is not over; a receive from anyone has nobody who keeps it waiting."""
        found: list[Subject] = []
        for scope in self.endpoint.scopes.values():
            if not scope.patient:
                found += [call for call in scope.calls.values() if call.waits and call.error is None]
        for operation in self.endpoint.parked:
            if isinstance(operation, MessageSend) or (
                isinstance(operation, MessageReceive) and operation.source is not None
            ):
                found.append(operation)
            elif isinstance(operation, Waiter) and not operation.recovery.scope.patient:
                found.append(operation.recovery)
        return sorted(found, key=lambda each: each.began)

    def _tell(self, inquiry: Inquiry) -> None:
        """The others have said where they are."""
        subject = inquiry.subject
        if subject not in self.told:
            return
        self.told[subject] = True
        scope, label, more = subject.scope, _label(subject), self._alike.pop(subject, 0)
        label += f" (and {more} more)" if more else ""
        missing = inquiry.missing() if _is_call(subject) else inquiry.peers
        who = ", ".join(map(inquiry.where, missing)) if missing else "nobody: every rank is in this call"
        self._warn(label, scope, subject.began, subject.timeout, who, [scope.index[world] for world in missing])

    def _warn(self, label: str, scope: Scope, began: float, timeout: float, who: str, ranks: list[int]) -> None:
        seconds = self.endpoint.loop.time() - began
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
        log.warning(
            "%s of group %r on rank %d has waited %.1f s, since %s, and goes on waiting (timeout %g s); missing: %s",
            label, scope.label, scope.rank, seconds, since, timeout, who,
        )  # fmt: skip
        self.endpoint.note("stall", group=scope.label, rank=scope.rank, call=label, seconds=seconds, missing=ranks)

    def over(self, subject: Subject, error: BaseException | None, why: str = "") -> None:
        """A call that stalled, or may have, is over; ``why`` it has ended where no error says so."""
        self._alike.pop(subject, None)
        if self.told.pop(subject, False):
            why = why or (type(error).__name__ if error is not None else "")
            self._warn_again(_label(subject), subject.scope, subject.began, why)

    def _warn_again(self, label: str, scope: Scope, began: float, why: str) -> None:
        seconds, how = self.endpoint.loop.time() - began, f"ended with {why}" if why else "went on"
        log.warning("%s of group %r on rank %d %s after %.1f s", label, scope.label, scope.rank, how, seconds)
        self.endpoint.note("stall_over", group=scope.label, rank=scope.rank, call=label, seconds=seconds, how=how)

    async def around(
        self, work: Awaitable[T], label: str, scope: Scope, timeout: float, whom: Callable[[], str], *,
        patience: float = 0.0,
    ) -> T:  # fmt: skip
        """What ``work`` gives, which waits for more than the calls that it makes: ``whom`` says for what now. That it
        waits for the seconds of its ``patience`` is as it should be."""
        loop, told = self.endpoint.loop, False
        began = loop.time()

        def tell() -> None:
            nonlocal told
            told = True
            self._warn(label, scope, began, timeout, whom(), [])

        timer = loop.call_later(patience + self.seconds, tell) if self.seconds < math.inf else None
        why = ""
        try:
            return await work
        except BaseException as error:
            why = type(error).__name__
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if told:
                self._warn_again(label, scope, began, why)

    def woke(self, operation: Operation) -> None:
        """Something sleeps no more."""
        if isinstance(operation, MessageSend | MessageReceive):
            self.over(operation, operation.error)
        elif isinstance(operation, Waiter):
            outcome = operation.recovery.outcome or {"o": CANCELLED}
            self.over(operation.recovery, operation.error, _ENDINGS.get(outcome["o"], "GroupBrokenError"))


def _is_call(subject: Subject) -> bool:
    return not isinstance(subject, Operation)


def _label(subject: Subject) -> str:
    return subject.describe() if isinstance(subject, Operation) else subject.label


def _whom(subject: Subject) -> list[int]:
    if isinstance(subject, Recovery):
        return subject.awaited()
    return [subject.peer] if isinstance(subject, Operation) else subject.scope.others()
