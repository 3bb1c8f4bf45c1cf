"""What bad news is made of: the words of an error that travel, and the same error for whoever hears of it later.

The rule: whatever somebody put into an error fits a control message.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from .. import errors
from ..errors import (
    AiocollError,
    CollectiveTimeoutError,
    GroupBrokenError,
    MismatchError,
    PeerLostError,
    UsageError,
    WireError,
)
from .scope import NAMED

if TYPE_CHECKING:
    from .core import Endpoint
    from .scope import Scope

_TEXT_MAX: Final = 8000


def broken(scope: Scope, error: AiocollError, by: int) -> dict[str, Any]:
    """News that ``error`` broke a group, as rank ``by`` saw first; beside its text, the ranks in it are world ranks."""
    of = error.rank
    who = scope.ranks[of] if of is not None and 0 <= of < scope.size else None
    news: dict[str, Any] = {
        "t": "broken", "class": type(error).__name__, "text": str(error), "by": by, "world": who,
        "collective": error.collective, "number": error.call,
    }  # fmt: skip
    if isinstance(error, PeerLostError):
        failure, world = scope.endpoint.failure, who or 0
        news |= {"operation": error.operation, "reason": failure.why(world), "sure": failure.certain(world)}
    elif isinstance(error, CollectiveTimeoutError):
        missing = [scope.ranks[rank] for rank in error.missing]
        news |= {"missing": missing, "operation": error.operation, "elapsed": error.elapsed}
    return news


def _lives(endpoint: Endpoint, lost: int, noticed: int, *, sure: bool) -> bool:
    """Whether ``lost``, whom another world rank has given up, lives for all this rank knows: then it is the network
    to whoever noticed that has failed, and that is whom this rank has lost."""
    mine = endpoint.members[endpoint.rank].island
    if noticed == endpoint.rank:
        return False
    if lost == endpoint.rank:
        return True
    near, far = endpoint.members[lost].island == mine, endpoint.members[noticed].island != mine
    return not sure and near and far and lost not in endpoint.failure.absent


def received(scope: Scope, number: int, news: dict[str, Any]) -> AiocollError:
    """The error that ``broken`` tells of, as this rank sees it; raises WireError for a rank that does not exist.
    ``number``: that of the call that failed, or -1."""
    text, operation = str(news.get("text")), str(news.get("operation") or "")
    kind = getattr(errors, str(news.get("class")), GroupBrokenError)
    endpoint = scope.endpoint
    world = None if news.get("world") is None else int(news["world"])
    if world is None and kind is PeerLostError or world is not None and not 0 <= world < endpoint.size:
        raise WireError(f"news of world rank {world}, which does not exist")
    if kind is PeerLostError and world is not None:
        reason, sure = str(news.get("reason") or text), bool(news.get("sure", True))
        by = int(news.get("by") or 0)
        if 0 <= by < scope.size and _lives(endpoint, world, scope.ranks[by], sure=sure):
            who = "this rank" if world == endpoint.rank else f"world rank {world}, which lives on this host"
            world, reason, sure = scope.ranks[by], f"it has given up {who}, of which it says: {reason}", False
        endpoint.failure.hearsay(world, reason, certain=sure)
        return endpoint.failure.loss(world, scope, operation, endpoint.failure.why(world))
    where: dict[str, Any] = dict(
        **({} if world is None else scope.who(world)), group=scope.label,
        collective=str(news.get("collective") or ""), call=None if news.get("number") is None else int(news["number"]),
    )  # fmt: skip
    if kind is CollectiveTimeoutError:
        missing = tuple(scope.index[world] for world in news.get("missing") or () if world in scope.index)
        elapsed = float(news.get("elapsed") or 0.0)
        return CollectiveTimeoutError(text, operation=operation, elapsed=elapsed, missing=missing, **where)
    if kind is MismatchError:
        return MismatchError(text, **{**where, **called(scope, number, where["collective"])})
    return GroupBrokenError(text, **where)


def called(scope: Scope, number: int, otherwise: str) -> dict[str, Any]:
    """What this rank called under a number (or ``otherwise``), as the call of which an error speaks."""
    under_way = scope.calls.get(number)
    description = otherwise if under_way is None else under_way.description
    collective = (scope.over.get(number) or description).partition(" ")[0]
    return {"collective": collective, "call": number if 0 <= number < NAMED else None}


def absentees(scope: Scope, worlds: Sequence[int]) -> dict[str, Any]:
    """Those that have not arrived (world ranks), as an error names them: the one of whom it speaks, if it is one."""
    missing = tuple(scope.index[world] for world in worlds)
    one = len(missing) == 1
    return {"missing": missing, **(scope.who(worlds[0]) if one else {"rank": None, "world_rank": None})}


def renewed(error: AiocollError, operation: str) -> AiocollError:
    """The same error for one more call; a mismatch goes on speaking of the call in which ranks differed."""
    fresh = copy.copy(error)
    if isinstance(fresh, PeerLostError):
        text = str(error).rpartition("; here in ")[0] or str(error)
        fresh.args = (f"{text}; here in {operation}",)
        fresh.operation = operation
    if not isinstance(fresh, MismatchError):
        fresh.collective, fresh.call = "", None
    return fresh


def bare(error: BaseException) -> BaseException:
    """The same error without the frames that it has passed through, which hold whatever was there at that time."""
    try:
        fresh = copy.copy(error)
    except Exception:  # a class that cannot be copied: its words must do
        fresh = AiocollError(f"{type(error).__name__}: {error}")
    if isinstance(fresh, AiocollError) and fresh.cause is not None:
        fresh.cause = bare(fresh.cause)
    return fresh


def consequence(error: AiocollError, text: str) -> GroupBrokenError:
    """What calls raise that ``error`` has broken without being theirs."""
    return GroupBrokenError(
        text, rank=error.rank, world_rank=error.world_rank, group=error.group, missing=error.missing, cause=error
    )


def sayable(text: object) -> str:
    """A text that fits a control message, whatever somebody put into an error."""
    return str(text)[:_TEXT_MAX].encode(errors="backslashreplace").decode()


def wrap(error: BaseException, text: str) -> UsageError:
    """A refusal that shows what caused it."""
    wrapped = UsageError(text)
    wrapped.__cause__ = error
    return wrapped
