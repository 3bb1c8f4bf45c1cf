"""The classes of a refused argument: ours (UsageError) and at once the built-in class that the documents name for it;
and how errors from below get the documented name of the call.

The rule: a text starts with the documented words, so that code which reads them works, and goes on with what would be
right.
"""

from __future__ import annotations

from ..errors import AiocollError, UsageError


class RuntimeUsageError(UsageError, RuntimeError):
    """A refused argument for which the documents name RuntimeError."""


class AssertionUsageError(UsageError, AssertionError):
    """A refused argument for which the documents name AssertionError."""


class TypeUsageError(UsageError, TypeError):
    """An argument of the wrong type."""


class TypeAssertionUsageError(TypeUsageError, AssertionError):
    """An argument of the wrong type, which the documented code asserts."""


class IndexUsageError(RuntimeUsageError, IndexError):
    """A number past the end, for which the documents name IndexError."""


class KeyUsageError(UsageError, KeyError):
    """A name that does not exist, for which the documents name KeyError."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError's own shows the text in quotes


def documented(error: UsageError) -> UsageError:
    """The same refusal as a RuntimeError too, which is what the documented engine raised for everything it refused."""
    if isinstance(error, RuntimeError | AssertionError | TypeError):
        return error
    fresh = RuntimeUsageError(*error.args)
    vars(fresh).update(vars(error))
    fresh.__cause__ = error
    return fresh


def renamed(error: AiocollError, below: str, what: str) -> None:
    """What ``below`` has raised speaks of ``what``, which the caller has called."""
    if error.collective == below:
        error.collective = what
    if error.args:
        error.args = (str(error.args[0]).replace(f"{below}:", f"{what}:", 1), *error.args[1:])
