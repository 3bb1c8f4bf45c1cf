"""Worlds that a program did not leave: left for it when it ends, before Python waits for its threads.

The rule: what rank 0 hosts outlives its program, in a thread that Python waits for; so a program that has ended says so
first, or the others would go on waiting for a rank that only keeps their store. A child of multiprocessing runs no
``atexit``, but ends its threads in the same way.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import AiocollError

if TYPE_CHECKING:
    from .group import SyncGroup

_OPEN: weakref.WeakSet[SyncGroup] = weakref.WeakSet()
_registered = False


def before_threads_end(function: Callable[[], None]) -> None:
    """Calls ``function`` when the program has ended, while its threads still run; the last registered first."""
    register = getattr(threading, "_register_atexit", atexit.register)  # as concurrent.futures does
    register(function)


def leave_at_the_end(group: SyncGroup) -> None:
    """Has ``group`` closed when the program ends without closing it."""
    global _registered
    _OPEN.add(group)
    if not _registered:
        _registered = True
        before_threads_end(_leave_all)


def _leave_all() -> None:
    for group in list(_OPEN):
        if group.closed or group.foreign:
            continue
        if not group.followed:
            with contextlib.suppress(AiocollError, ResourceWarning):
                warnings.warn(f"{group!r} was never closed; use 'with' or close()", ResourceWarning, stacklevel=2)
        with contextlib.suppress(AiocollError):
            group.close()
