"""Debug levels, and names for stretches of a program in what is recorded.

The rule: nothing here changes what a call does. What torch checks at DETAIL (that all ranks make the same call, with
the same shapes) is checked here always; the level says how much is logged, under ``aiocoll.distributed``.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

from .. import observe
from .refusals import RuntimeUsageError, TypeUsageError
from .state import STATE

_VARIABLE = "TORCH_DISTRIBUTED_DEBUG"

_log = logging.getLogger("aiocoll.distributed")


class DebugLevel(enum.IntEnum):
    """How much is logged: nothing more, joining and leaving, or everything that is observed."""

    OFF = 0
    INFO = 1
    DETAIL = 2


class _Debugging:
    """The level, and what listens at DETAIL."""

    def __init__(self) -> None:
        self.level: DebugLevel | None = None
        """None: nobody has asked yet, and the variable counts."""
        self._stop: Callable[[], None] | None = None

    def set(self, level: DebugLevel) -> None:
        self.level = level
        if level is DebugLevel.DETAIL and self._stop is None:
            self._stop = observe.listen(_tell)
        elif level is not DebugLevel.DETAIL and self._stop is not None:
            self._stop()
            self._stop = None

    def __repr__(self) -> str:
        return f"<_Debugging {self.level!r}>"


_DEBUGGING = _Debugging()


def get_debug_level() -> DebugLevel:
    """Gets the debug level of the distributed package: ``TORCH_DISTRIBUTED_DEBUG``, unless somebody has set it."""
    if _DEBUGGING.level is None:
        set_debug_level_from_env()
    assert _DEBUGGING.level is not None
    return _DEBUGGING.level


def set_debug_level(debug_level: DebugLevel) -> None:
    """Sets the debug level of the distributed package."""
    if not isinstance(debug_level, DebugLevel):
        raise TypeUsageError(f"set_debug_level: expected a DebugLevel, got {type(debug_level).__name__}")
    _DEBUGGING.set(debug_level)


def set_debug_level_from_env() -> None:
    """Sets the debug level from the ``TORCH_DISTRIBUTED_DEBUG`` environment variable: OFF, INFO or DETAIL."""
    said = os.environ.get(_VARIABLE, "").strip().upper() or "OFF"
    if said not in DebugLevel.__members__:
        raise RuntimeUsageError(f"The value of {_VARIABLE} must be OFF, INFO, or DETAIL, not {said!r}")
    _DEBUGGING.set(DebugLevel[said])


def told(text: str, *facts: Any) -> None:
    """Logs what happens to this process's membership, from INFO on."""
    if get_debug_level() >= DebugLevel.INFO:
        _log.info(text, *facts)


@contextlib.contextmanager
def record_comm(name: str) -> Iterator[None]:
    """Names the stretch of the program within: the flight recorder, its dumps and whoever observes have its begin and
    end among the calls.

    Example::

        with dist.record_comm("gradients, layer 1"):
            dist.all_reduce(x)
    """
    if not isinstance(name, str):
        raise TypeUsageError(f"record_comm: the name must be a str, got {type(name).__name__}")
    _note("stretch_begins", name)
    try:
        yield
    finally:
        _note("stretch_ends", name)


def _note(kind: str, name: str) -> None:
    joined = STATE.world
    if joined is not None and not joined.foreign:
        joined.note(kind, name=name)
    else:
        observe.emit(kind, name=name)


def _tell(kind: str, facts: Any) -> None:
    _log.info("%s %s", kind, facts)
