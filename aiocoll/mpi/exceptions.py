"""MPI.Exception: what every call of this room raises, and at once the class of aiocoll.errors that says whose fault.

The rule: an error leaves the room as both, so that ``except MPI.Exception`` and ``except aiocoll.PeerLostError`` work.
"""

from __future__ import annotations

from typing import ClassVar

from .. import errors
from . import constants
from .outside import instead_of


class Exception(errors.AiocollError, RuntimeError):  # the name that programs catch
    """Whatever goes wrong in a call; ``str()`` says who, what, where and what to do.

    A program that raises it itself may give one of the ERR_ constants for a text, as mpi4py has it.
    """

    code: ClassVar[int] = constants.ERR_OTHER

    def Get_error_class(self) -> int:
        """One of the ERR_ constants."""
        given = self.args[0] if len(self.args) == 1 else None
        return given if type(given) is int else self.code

    def Get_error_code(self) -> int:
        """The same as the class."""
        return self.Get_error_class()

    def Get_error_string(self) -> str:
        """The text."""
        return str(self)

    @property
    def error_class(self) -> int:
        """One of the ERR_ constants."""
        return self.Get_error_class()

    @property
    def error_code(self) -> int:
        """The same as the class."""
        return self.Get_error_class()

    @property
    def error_string(self) -> str:
        """The text."""
        return str(self)


class UsageError(errors.UsageError, Exception):
    """A refused argument."""

    code = constants.ERR_ARG


class RankError(UsageError):
    """A peer or a member that is no rank."""

    code = constants.ERR_RANK


class RootError(UsageError):
    """A root that is no rank."""

    code = constants.ERR_ROOT


class TagError(UsageError):
    """A tag that no message has."""

    code = constants.ERR_TAG


class OpError(UsageError):
    """What cannot fold."""

    code = constants.ERR_OP


class DimsError(UsageError):
    """A grid that the ranks do not make."""

    code = constants.ERR_DIMS


class CountError(UsageError):
    """A count that is negative."""

    code = constants.ERR_COUNT


class OutsideError(errors.UsageError, Exception, AttributeError):
    """A name of mpi4py that this room does not have; the text says what to use instead."""

    code = constants.ERR_OTHER


class NotInitializedError(errors.NotInitializedError, Exception):
    """There is no such communicator (yet, or any more)."""

    code = constants.ERR_COMM


class MismatchError(errors.MismatchError, Exception):
    """Ranks made different calls."""


class TruncateError(MismatchError):
    """A message is longer than the buffer that is to take it, or of another type; it is consumed."""

    code = constants.ERR_TRUNCATE


class PeerLostError(errors.PeerLostError, Exception):
    """A rank died."""

    code = constants.ERR_PROC_FAILED


class CollectiveTimeoutError(errors.CollectiveTimeoutError, Exception):
    """A call has waited for too long."""

    code = constants.ERR_PENDING


class GroupBrokenError(errors.GroupBrokenError, Exception):
    """An earlier failure broke this communicator."""

    code = constants.ERR_REVOKED


class RendezvousError(errors.RendezvousError, Exception):
    """The ranks could not meet."""


class RendezvousTimeoutError(errors.RendezvousTimeoutError, Exception):
    """The ranks did not meet in time."""


class AuthenticationError(errors.AuthenticationError, Exception):
    """The other side belongs to another job."""


class SerializationError(errors.SerializationError, Exception):
    """An object cannot travel."""

    code = constants.ERR_TYPE


_BOTH: dict[type[errors.AiocollError], type[Exception]] = {
    errors.UsageError: UsageError,
    errors.NotInitializedError: NotInitializedError,
    errors.MismatchError: MismatchError,
    errors.PeerLostError: PeerLostError,
    errors.CollectiveTimeoutError: CollectiveTimeoutError,
    errors.GroupBrokenError: GroupBrokenError,
    errors.RendezvousError: RendezvousError,
    errors.RendezvousTimeoutError: RendezvousTimeoutError,
    errors.AuthenticationError: AuthenticationError,
    errors.SerializationError: SerializationError,
}


def translated(error: errors.AiocollError) -> Exception:
    """The same error as an MPI.Exception, too; raise it ``from error.__cause__``."""
    if isinstance(error, Exception):
        return error
    kind = next((_BOTH[each] for each in type(error).__mro__ if each in _BOTH), Exception)
    fresh = kind(*error.args)
    vars(fresh).update(vars(error))
    fresh.__cause__ = error.__cause__
    return fresh


def outside(owner: str, name: str) -> AttributeError:
    """The error for a name that is not here: a pointer for those of mpi4py, the usual words for others."""
    instead = instead_of(name)
    if instead is None:
        return AttributeError(f"{owner} has no attribute {name!r}")
    what = f"{owner}.{name}" if owner != "aiocoll.mpi" else f"MPI.{name}"
    error: AttributeError = OutsideError(f"{what} is mpi4py's and not part of aiocoll.mpi: {instead}")
    return error
