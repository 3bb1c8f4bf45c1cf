"""Every exception of aiocoll, cut by whose fault it is; a message says who, what, where and what to do next.

The rule: every error answers the same questions (of whom it speaks, where it was raised, what caused it), and keeps
the answers when it is copied or pickled. What happens to a running program (a rank is lost or late, calls differ) is a
RuntimeError besides its own kind, as in torch and MPI; what the caller got wrong is a ValueError or a TypeError.
"""

from __future__ import annotations

import builtins
from typing import Any, Self, TypedDict, Unpack

_PLAIN = (str, bytes, int, float, complex, bool, type(None))


class Where(TypedDict, total=False):
    """What every error may say besides its text."""

    rank: int | None
    world_rank: int | None
    group: str
    collective: str
    call: int | None
    missing: tuple[int, ...]
    cause: BaseException | None


class AiocollError(Exception):
    """The base of everything that aiocoll raises on purpose.

    ``rank`` is the rank of whom the error speaks, in the group that raised it (who died, refused, cancelled, left, or
    made another call), ``world_rank`` the same one's rank in the world; None where it speaks of nobody in particular.
    ``group`` is the group's name, ``collective`` what was called on it (``"all_reduce"``, ``"recv"``), ``call`` the
    number of that call (None for messages and for calls that are matched by name). ``missing`` are the ranks of the
    group that have not arrived in the call. ``cause`` is the failure behind this one, the same as ``__cause__``.
    """

    rank: int | None = None
    world_rank: int | None = None
    group: str = ""
    collective: str = ""
    call: int | None = None
    missing: tuple[int, ...] = ()

    def __init__(self, *args: object, **where: Unpack[Where]) -> None:
        super().__init__(*args)
        for name in where:
            if name not in Where.__annotations__:
                raise TypeError(f"{type(self).__name__} has no {name!r}")
        vars(self).update(where)
        self.missing = tuple(self.missing)
        if "cause" in where:
            self.cause = vars(self).pop("cause")

    @property
    def cause(self) -> BaseException | None:
        """The failure behind this one, if there is one that is known."""
        return self.__cause__

    @cause.setter
    def cause(self, cause: BaseException | None) -> None:
        self.__cause__ = cause

    def at(self, group: str, collective: str, call: int | None = None) -> Self:
        """This error, raised there; what it says already it goes on saying."""
        if not self.group:
            self.group = group
        if not self.collective:
            self.collective, self.call = collective, call
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        made: Any = super().__reduce__()
        state = dict(vars(self))
        if self.__cause__ is not None:
            state["__cause__"] = _portable(self.__cause__)
        return (*made[:2], state)

    def __copy__(self) -> Self:
        made: Any = super().__reduce__()
        fresh: Self = made[0](*made[1])
        vars(fresh).update(vars(self))
        if self.__cause__ is not None:
            fresh.__cause__ = self.__cause__
        return fresh

    def __deepcopy__(self, memory: dict[int, Any]) -> Self:
        return self.__copy__()


class UsageError(AiocollError, ValueError):
    """The caller's mistake, found before anything is sent: names the argument, the rank and what would be right."""


class NotInitializedError(AiocollError, AssertionError, ValueError, RuntimeError):
    """There is no group (yet, or any more)."""


class MismatchError(AiocollError, RuntimeError):
    """Ranks made different calls under one number: the message shows both sides, one of them is that of ``rank``."""


class PeerLostError(AiocollError, ConnectionError, RuntimeError):
    """A rank died or became unreachable.

    ``rank`` is its rank in the group that raised, ``world_rank`` its rank in the world; ``host`` and ``pid`` say where
    it ran, ``operation`` what waited for it here (empty: nothing did).
    """

    host: str
    pid: int
    operation: str

    def __init__(
        self, *args: object, host: str = "", pid: int = 0, operation: str = "", **where: Unpack[Where]
    ) -> None:
        super().__init__(*args, **where)
        self.host, self.pid, self.operation = host, pid, operation


class CollectiveTimeoutError(AiocollError, TimeoutError, RuntimeError):
    """A call took longer than its deadline.

    ``missing`` are the ranks of the group that have not arrived in it, ``operation`` is the call, ``elapsed`` its age
    in seconds on the rank whose deadline passed.
    """

    operation: str
    elapsed: float

    def __init__(self, *args: object, operation: str = "", elapsed: float = 0.0, **where: Unpack[Where]) -> None:
        super().__init__(*args, **where)
        self.operation, self.elapsed = operation, elapsed


class GroupBrokenError(AiocollError, RuntimeError):
    """An earlier failure broke this group; ``cause`` is that failure (or None when only its text is known)."""


class RendezvousError(AiocollError, RuntimeError):
    """The ranks could not meet: who came, who is ``missing``, which address was tried."""


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """The ranks did not meet in time."""


class AuthenticationError(AiocollError, PermissionError, RuntimeError):
    """The other side belongs to another job, speaks another version or does not know the job's secret."""


class SerializationError(AiocollError, TypeError):
    """An object cannot be put into, or read from, its wire form: names the rank, the type and what would work."""


class WireError(AiocollError, ValueError):
    """Bytes that no correct peer sends: the connection that carried them is closed."""


class DeadlockError(AiocollError, RuntimeError):
    """Simulator only: every rank waits and nothing can happen any more; the message draws who waits for whom."""


def _portable(cause: BaseException) -> BaseException:
    """What another process gets for ``cause``: itself if it can be made again there, else its words. An error that
    says what went wrong must not be lost because of what a user's exception carries along."""
    if isinstance(cause, AiocollError):
        return cause
    kind = type(cause)
    known = vars(builtins).get(kind.__name__) is kind or "<locals>" not in kind.__qualname__
    plain = all(isinstance(each, _PLAIN) for each in (*cause.args, *vars(cause).values()))
    try:
        if known and plain and type(kind(*cause.args)) is kind:
            return cause
    except Exception:  # noqa: S110  a constructor that wants more than it keeps: only its words can travel
        pass
    return AiocollError(f"{kind.__name__}: {cause}")
