"""barrier and monitored_barrier.

The rule: nothing moves here but the news that everybody has come, or who has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .arguments import seconds_of, switch
from .request import Request, again, call, judging, run
from .state import WORLD, member_of


def barrier(
    group: Any = WORLD,
    async_op: bool = False,
    device_ids: Sequence[int] | None = None,
    timeout: float | timedelta | None = None,
) -> Request | None:
    """Synchronizes all processes.

    This collective blocks processes until the whole group enters this function.

    Arguments:
        group: Group of the collective.
        async_op: Return a handle at once instead of None at the end.
        device_ids: Accepted for code written for GPUs; nothing here depends on it.
        timeout: How long to wait for the others.
    """
    member = member_of(group)
    if member is None:
        return None
    if timeout is None and async_op is False and again(member.barrier_again):
        return None
    with judging(member, "barrier"):
        limit = seconds_of(timeout)
    return call(member, "barrier", lambda g: g.barrier(timeout=limit), async_op)


def monitored_barrier(
    group: Any = WORLD, timeout: float | timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Synchronizes all processes like ``barrier``, and reports ranks that do not come in time.

    Every rank raises a RuntimeError (and TimeoutError) that names the first rank that failed to pass, or all of them;
    either all ranks pass or all fail.

    Arguments:
        group: Group of the collective; None for the world.
        timeout: How long to wait for the others; the group's timeout when left out.
        wait_all_ranks: Whether to name all ranks that are missing instead of the first.
    """
    member = member_of(group)
    if member is None:
        return
    with judging(member, "monitored_barrier"):
        limit = seconds_of(timeout)
        everybody = switch(wait_all_ranks, f"monitored_barrier on rank {member.rank}", "wait_all_ranks")
    run(member, lambda g: g.monitored_barrier(limit, everybody))
