"""Facts out, never control in: ``emit`` hands what happened to whoever listens; when nobody does it costs nothing.

One sink per file: ``recorder`` keeps the last facts, ``stats`` counts, ``chrome`` writes a timeline. ``report`` is no
sink: it tells the runner why this rank ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

Listener = Callable[[str, dict[str, Any]], None]

active: bool = False
"""Whether anybody listens; hot paths look at ``observe.active`` before they build the facts."""

_listeners: tuple[Listener, ...] = ()
_log = logging.getLogger("aiocoll.observe")


def emit(kind: str, **facts: Any) -> None:
    """Tell every listener, in the order in which they came, that `kind` happened."""
    if not active:
        return
    for listener in _listeners:
        try:
            listener(kind, facts)
        except Exception:
            # Observation is one-way: a sink that fails must not change what the program does.
            _log.exception("a listener failed on %r and was removed: %r", kind, listener)
            _remove(listener)


def listen(listener: Listener) -> Callable[[], None]:
    """Call ``listener(kind, facts)`` on every fact from now on; the function returned ends that (twice is harmless).

    A listener runs in the thread that emits and must neither block nor change `facts`.
    """
    global _listeners, active
    _listeners, active = (*_listeners, listener), True

    listening = True

    def remove() -> None:
        nonlocal listening
        if listening:
            listening = False
            _remove(listener)

    return remove


def _remove(listener: Listener) -> None:
    global _listeners, active
    left = list(_listeners)
    if listener in left:
        left.remove(listener)
    _listeners = tuple(left)
    active = bool(left)


__all__ = ["Listener", "active", "emit", "listen"]
