"""The documented timeout: a timedelta, or seconds.

The rule: no timeout at all is None, and the group's own holds then.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from .refusals import RuntimeUsageError, TypeUsageError

default_pg_timeout: Final[timedelta] = timedelta(minutes=30)
"""torch's own default, for code that reads it; a call here has 60 seconds, or ``AIOCOLL_TIMEOUT``, unless told."""


def seconds_of(timeout: float | timedelta | None) -> float | None:
    """A documented timeout (timedelta, or seconds) as seconds."""
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeUsageError(f"timeout must be a datetime.timedelta or seconds, got {type(timeout).__name__}")
    if not timeout > 0:
        raise RuntimeUsageError(f"timeout={timeout!r}: it must be positive")
    return float(timeout)
