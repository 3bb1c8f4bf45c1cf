"""How a call is made: blocking or started, and refused where its arguments are wrong.

The rule: what a call does is a plan, a function from the async group to what is awaited, so that the blocking form and
the started form of a call are the same plan.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from .. import errors
from ..sync import SyncGroup, Work
from ..sync.stepping import followed
from ..sync.work import seconds
from .exceptions import UsageError, translated

if TYPE_CHECKING:
    from ..group import Group

Plan = Callable[["Group"], Awaitable[Any]]
T = TypeVar("T")


def followed_by(plan: Plan, after: Callable[[Any], Any]) -> Plan:
    """The same, and ``after`` makes the caller's result of its result before anybody sees the end."""

    def longer(group: Group) -> Awaitable[Any]:
        return followed(plan(group), after)

    return longer


def blocking(group: SyncGroup, plan: Plan) -> Any:
    """Waits for it."""
    try:
        return group.run(plan)
    except errors.AiocollError as error:
        raise translated(error) from error.__cause__


def started(group: SyncGroup, plan: Plan, what: str) -> Work[Any]:
    """Starts it; returns once it has been made, so that objects have been taken as they are now."""
    made = threading.Event()

    def make(inner: Group) -> Awaitable[Any]:
        try:
            return plan(inner)
        finally:
            made.set()

    try:
        work = group.begin(make, what)
    except errors.AiocollError as error:
        raise translated(error) from error.__cause__
    try:
        work.refuse_to_block()
    except errors.AiocollError:
        return work  # on the loop's own thread, in an op of the program's: it is made once that returns
    made.wait(seconds(group.timeout))
    return work


def collective(group: SyncGroup, what: str, judge: Callable[[], T]) -> T:
    """What ``judge()`` makes of a collective's arguments: its plan, say. What it refuses is refused for all ranks: they
    do not wait for this one."""
    try:
        return judge()
    except errors.UsageError as error:
        refusal: errors.UsageError = error
        cause = error.__cause__
    except Exception as error:  # an argument with a mind of its own
        refusal, cause = UsageError(f"{what} on rank {group.rank}: {error}"), error
    try:
        group.run(lambda inner: inner.refuse(what, refusal))
    except errors.AiocollError:
        pass  # the refusal itself, or a group that is broken already: the argument is still what to tell
    raise translated(refusal) from cause


class Calling:
    """What the calls of a communicator stand on; each family of them is a class that Comm mixes in."""

    @property
    def _group(self) -> SyncGroup:
        raise NotImplementedError  # every communicator has one

    def _now(self, what: str, planned: Callable[[int, int], Plan]) -> Any:
        """Blocks for the plan that ``planned(rank, size)`` gives."""
        group = self._group
        return blocking(group, collective(group, what, lambda: planned(group.rank, group.size)))
