"""Which process this is and whether another one lives; the rule: "dead" is said only where it can be seen.

A process id means something only on its own host (boot id), in its own pid namespace (containers), and only together
with the moment the process started (ids are used again).
"""

from __future__ import annotations

import os
import socket
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Process:
    """One process, anywhere."""

    host: str
    pid: int
    boot: str
    namespace: int
    started: int

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"

    @classmethod
    def of(cls, fields: list[Any]) -> Process:
        """The inverse of `fields`; TypeError if these are not a process."""
        host, pid, boot, namespace, started = fields
        if not (isinstance(host, str) and isinstance(boot, str)):
            raise TypeError(f"not a process: {fields!r}")
        return cls(host, int(pid), boot, int(namespace), int(started))

    def fields(self) -> tuple[Any, ...]:
        """Plain values."""
        return astuple(self)

    def is_dead(self) -> bool:
        """True only if this process can see that the other one is gone."""
        here = me()
        if not self.boot or (self.boot, self.namespace) != (here.boot, here.namespace):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # somebody else's: it lives, and that is all that can be known
            return False
        return _started(self.pid) != self.started


def me() -> Process:
    """This process (asked again after a fork)."""
    return _me(os.getpid())


@cache
def _me(pid: int) -> Process:
    return Process(socket.gethostname(), pid, boot_id(), _namespace(), _started(pid))


@cache
def boot_id() -> str:
    """What tells this running machine from every other; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _started(pid: int) -> int:
    """Clock ticks from boot to the start of `pid`; 0 if there is no such process (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
