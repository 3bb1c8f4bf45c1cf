"""What a rank's dump holds: who it is, its groups, what waits for whom, and its last facts; as plain data.

The rule: it only reads, and may be called in the middle of anything, by a signal handler or from another thread: what
may change under it is copied first.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from ..observe.dump import FORMAT
from ..observe.flight import words

if TYPE_CHECKING:
    from .core import Endpoint
    from .operations import Operation
    from .scope import Scope

_WAITS_MAX: Final = 1000


def snapshot(endpoint: Endpoint, why: str, *, job: str = "", restart: int = 0, facts: bool = True) -> dict[str, Any]:
    """The state of one rank now; ``why`` says what for. Ranks are those of the connection, group by group. Without
    ``facts`` those are left for whoever has more time."""
    me = endpoint.members[endpoint.rank]
    return {
        "format": FORMAT,
        "why": why,
        "job": job,
        "restart": restart,
        "world": f"{endpoint.world:016x}",
        "rank": endpoint.rank,
        "size": endpoint.size,
        "host": me.host,
        "pid": os.getpid(),
        "wall": time.time(),
        "clock": endpoint.flight.clock(),
        "members": [
            {"rank": each.rank, "shown": each.number, "host": each.host, "pid": each.pid} for each in endpoint.members
        ],
        "gone": {str(rank): reason for rank, reason in dict(endpoint.failure.absent).items()},
        "groups": [_group(scope) for scope in list(endpoint.scopes.values())],
        "waits": [_wait(endpoint, each) for each in list(endpoint.parked)[:_WAITS_MAX]],
        "facts": endpoint.flight.facts() if facts else [],
    }


def _group(scope: Scope) -> dict[str, Any]:
    return {
        "id": f"{scope.id:016x}",
        "name": scope.label,
        "rank": scope.rank,
        "ranks": list(scope.ranks),
        "broken": None if scope.broken is None else words(scope.broken),
        "closed": scope.closed,
        "next_call": scope.next_call,
        "last": scope.last,
        "under_way": [
            {"call": call.number, "label": call.label, "made": call.description} for call in list(scope.calls.values())
        ],
    }


def _wait(endpoint: Endpoint, operation: Operation) -> dict[str, Any]:
    call, scope = operation.call, getattr(operation, "scope", None)
    if call is not None:
        scope = call.scope
    return {
        "what": operation.describe(),
        "for": operation.peer,
        "group": "" if scope is None else f"{scope.id:016x}",
        "call": None if call is None else call.number,
        "label": operation.describe() if call is None else call.label,
        "seconds": round(endpoint.waited(operation), 3),
    }
