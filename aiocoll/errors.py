"""Every exception of aiocoll, cut by whose fault it is; a message says who, what, where and what to do next."""

from __future__ import annotations


class AiocollError(Exception):
    """The base of everything that aiocoll raises on purpose."""


class UsageError(AiocollError, ValueError):
    """The caller's mistake, found before anything is sent: names the argument, the rank and what would be right."""


class NotInitializedError(AiocollError, AssertionError, ValueError, RuntimeError):
    """There is no group (yet, or any more)."""


class MismatchError(AiocollError, RuntimeError):
    """Ranks made different calls under one number: the message shows both sides."""


class PeerLostError(AiocollError, ConnectionError):
    """A rank died or became unreachable.

    ``rank`` is its rank in the group that raised, ``world_rank`` its rank in the world; ``host`` and ``pid`` say where
    it ran, ``operation`` what waited for it here (empty: nothing did).
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        world_rank: int | None = None,
        host: str = "",
        pid: int = 0,
        operation: str = "",
    ) -> None:
        super().__init__(message)
        self.rank, self.world_rank = rank, world_rank
        self.host, self.pid, self.operation = host, pid, operation


class CollectiveTimeoutError(AiocollError, TimeoutError):
    """A call took longer than its deadline.

    ``missing`` are the ranks of the group that have not arrived in it, ``operation`` is the call, ``elapsed`` its age
    in seconds on the rank whose deadline passed.
    """

    def __init__(
        self, message: str, *, missing: tuple[int, ...] = (), operation: str = "", elapsed: float = 0.0
    ) -> None:
        super().__init__(message)
        self.missing, self.operation, self.elapsed = tuple(missing), operation, elapsed


class GroupBrokenError(AiocollError, RuntimeError):
    """An earlier failure broke this group; ``cause`` is that failure (or None when only its text is known)."""

    def __init__(self, message: str, *, cause: BaseException | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class RendezvousError(AiocollError, RuntimeError):
    """The ranks could not meet: who came, who is missing, which address was tried."""


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """The ranks did not meet in time."""


class AuthenticationError(AiocollError, PermissionError):
    """The other side belongs to another job, speaks another version or does not know the job's secret."""


class SerializationError(AiocollError, TypeError):
    """An object cannot be put into, or read from, its wire form: names the rank, the type and what would work."""


class WireError(AiocollError, ValueError):
    """Bytes that no correct peer sends: the connection that carried them is closed."""


class DeadlockError(AiocollError, RuntimeError):
    """Simulator only: every rank waits and nothing can happen any more; the message draws who waits for whom."""
