"""Who uses a file, and who of them is certainly dead; the rule: in doubt somebody lives.

A process is named by host, boot, process-id namespace, pid and start time: a pid that was given to another process, a
reboot, and a container that cannot see the process are all told apart.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Protocol

_ENDING: Final = 0x4  # PF_EXITING among the flags in /proc/PID/stat


class Cast(Protocol):
    """Processes that are played within this one, each in contexts of its own."""

    def me(self) -> dict[str, Any]:
        """The one whose context this is, in the terms of ``me``."""

    def is_dead(self, user: Mapping[str, Any]) -> bool:
        """Whether one that is played here has ended, as the one whose context this is can see."""


played: ContextVar[Cast | None] = ContextVar("played", default=None)
"""Set where many processes are played in one, as in a simulation."""


def me() -> dict[str, Any]:
    """This process, as plain data."""
    if (cast := played.get()) is not None:
        return cast.me()
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "namespace": _namespace(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def is_dead(user: Mapping[str, Any]) -> bool:
    """Whether that process has certainly ended."""
    if (cast := played.get()) is not None:
        return cast.is_dead(user)
    if not isinstance(user, Mapping) or user.get("host") != socket.gethostname():
        return False
    if not user.get("boot") or not _boot():
        return False
    if user["boot"] != _boot():
        return True
    if user.get("namespace") != _namespace() or not isinstance(user.get("pid"), int):
        return False
    return _started(user["pid"]) != user.get("started")


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty when there is none, or none but a zombie."""
    try:
        return started_in(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except OSError:
        return ""


def started_in(stat: str) -> str:
    """The same from the kernel's line about a process. One that is ending closes its connections before it is a zombie,
    so that others may look at it in between."""
    # The name in parentheses may hold anything, spaces and parentheses included: fields count from behind it.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" or int(fields[6]) & _ENDING else fields[19]
