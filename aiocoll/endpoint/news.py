"""What bad news is made of: the words of an error that travel, and the same error for whoever hears of it later.

The rule: whatever somebody put into an error fits a control message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import AiocollError, CollectiveTimeoutError, PeerLostError, UsageError

if TYPE_CHECKING:
    from .scope import Scope

_TEXT_MAX: Final = 8000


def broken(scope: Scope, error: AiocollError, by: int) -> dict[str, Any]:
    """News that ``error`` broke a group, as rank ``by`` saw first; beside its text, the ranks in it are world ranks."""
    news: dict[str, Any] = {"t": "broken", "class": type(error).__name__, "text": str(error), "by": by}
    if isinstance(error, PeerLostError):
        reason = scope.endpoint.failure.why(error.world_rank or 0)
        news |= {"world": error.world_rank, "operation": error.operation, "reason": reason}
    elif isinstance(error, CollectiveTimeoutError):
        missing = [scope.ranks[rank] for rank in error.missing]
        news |= {"missing": missing, "operation": error.operation, "elapsed": error.elapsed}
    return news


def renewed(error: AiocollError, operation: str) -> AiocollError:
    """The same error for one more call."""
    if isinstance(error, PeerLostError):
        text = str(error).rpartition("; here in ")[0] or str(error)
        return PeerLostError(
            f"{text}; here in {operation}", rank=error.rank, world_rank=error.world_rank, host=error.host,
            pid=error.pid, operation=operation,
        )  # fmt: skip
    if isinstance(error, CollectiveTimeoutError):
        return CollectiveTimeoutError(
            str(error), missing=error.missing, operation=error.operation, elapsed=error.elapsed
        )
    return type(error)(str(error))


def sayable(text: object) -> str:
    """A text that fits a control message, whatever somebody put into an error."""
    return str(text)[:_TEXT_MAX].encode(errors="backslashreplace").decode()


def wrap(error: BaseException, text: str) -> UsageError:
    """A refusal that shows what caused it."""
    wrapped = UsageError(text)
    wrapped.__cause__ = error
    return wrapped
