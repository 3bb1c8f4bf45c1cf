"""How many CPUs this process may really use: its affinity, and the quota of the control groups that it is in.

The rule: asked when it is needed, never remembered: both may be changed from outside at any time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MOUNT: Final = Path("/sys/fs/cgroup")
_OF_THIS_PROCESS: Final = Path("/proc/self/cgroup")


def usable_cpus() -> int:
    """CPUs that this process may run on; where its control groups' quota is less, that (but then at least 1)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = min(quotas(), default=float(allowed))
    return allowed if quota >= allowed else max(1, math.ceil(quota))


def quotas(mount: Path = _MOUNT, of_this_process: Path = _OF_THIS_PROCESS) -> Iterator[float]:
    """The quotas, in CPUs, that bind this process: those of its control group and of all groups around it.

    A container sees its own group as the root, so a group that cannot be found below ``mount`` counts as the root."""
    try:
        lines = of_this_process.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            for group in _upwards(mount, path):
                yield from _quota_v2(group)
        elif "cpu" in controllers.split(","):
            for name in dict.fromkeys((controllers, "cpu", "cpu,cpuacct", "cpuacct,cpu")):
                if (mount / name).is_dir():
                    for group in _upwards(mount / name, path):
                        yield from _quota_v1(group)
                    break


def _upwards(root: Path, path: str) -> Iterator[Path]:
    """The group's folder and those around it, up to the root."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    while parts:
        yield root.joinpath(*parts)
        parts.pop()
    yield root


def _quota_v2(group: Path) -> Iterator[float]:
    try:
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        yield int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such file (the root has none), or "max"
        return


def _quota_v1(group: Path) -> Iterator[float]:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        if quota > 0:  # -1: none
            yield quota / int((group / "cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError, ZeroDivisionError):
        return
