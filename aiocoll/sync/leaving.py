"""Worlds that a program did not leave: left for it when it and its threads have ended, while ours still run.

The rule: what rank 0 hosts outlives its program, in a thread that Python waits for; so a program that has ended says so
first, or the others would go on waiting for a rank that only keeps their store. A program has ended when its last
thread has. A child of multiprocessing runs no ``atexit``, but ends its threads in the same way.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import AiocollError
from ..store.hosted import hosting_threads

if TYPE_CHECKING:
    from .group import SyncGroup
    from .started import Started

_START_SECONDS = 0.001  # between two looks at a thread whose start is under way, which takes some microseconds

_OPEN: weakref.WeakSet[SyncGroup] = weakref.WeakSet()
_AT_END: list[Callable[[], None]] = []
_registered = False


def before_threads_end(function: Callable[[], None]) -> None:
    """Calls ``function`` when the program has ended, its own threads too; the last registered first."""
    if not _AT_END:
        # Python calls these the last registered first, before it waits for threads. Ours must come after all others:
        # some of them end threads (of executors) that may be using a group.
        hooks = getattr(threading, "_threading_atexits", None)
        if isinstance(hooks, list):
            hooks.insert(0, _at_end)
        else:
            atexit.register(_at_end)
    _AT_END.append(function)


def _at_end() -> None:
    try:
        _await_threads()
    finally:  # also after Ctrl-C: then they are not waited for
        for function in reversed(_AT_END):
            function()


def _await_threads() -> None:
    """Waits, as Python does a little later, for every thread of the program's that is not a daemon."""
    while True:
        others = [
            thread
            for thread in threading.enumerate()
            if not thread.daemon
            and thread not in (threading.current_thread(), threading.main_thread(), *hosting_threads())
        ]
        if not others:
            return
        try:
            others[0].join()
        except RuntimeError:  # its start is under way in another thread
            time.sleep(_START_SECONDS)


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
            with contextlib.suppress(AiocollError, ResourceWarning):  # even where warnings are errors
                warnings.warn(f"{group!r} was never closed; use 'with' or close()", ResourceWarning, stacklevel=2)
        under_way = group.under_way
        with contextlib.suppress(AiocollError):  # it may be broken, which was told when it broke
            group.close()
        _say_what_was_lost(under_way)


def _say_what_was_lost(under_way: Sequence[Started[Any]]) -> None:
    """Sends that have left are no loss; what was to bring something, and did not, is."""
    lost = [each.name for each in under_way if each.lost]
    if lost:
        many = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors: nobody is left to catch it
            warnings.warn(
                f"process {os.getpid()} ended while {lost[0]}{many} had not finished, so that is lost: "
                "wait() for what you start",
                RuntimeWarning,
                stacklevel=2,
            )
