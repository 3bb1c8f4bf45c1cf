"""How much memory could still be had: the machine's, or less where control groups allow less.

The rule: asked before memory is committed. A control group that runs over its limit is not refused memory but killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_MOUNT: Final = Path("/sys/fs/cgroup")


def available_bytes(proc: Path = _PROC, mount: Path = _MOUNT) -> int:
    """Bytes that this process could have without anything being pushed out; 0 where nothing can be found out."""
    machine = _entry(proc / "meminfo", "MemAvailable:") * 1024
    return max(0, min((machine, *_of_groups(proc / "self" / "cgroup", mount))))


def _of_groups(of_this_process: Path, mount: Path) -> Iterator[int]:
    """What each control group around this process has left; file pages that nobody uses count as free."""
    for line in _text(of_this_process).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            root, names = mount, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = mount / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inner = root.joinpath(*(part for part in path.split("/") if part not in ("", "..")))
        for group in (inner, *inner.parents):
            limit, used = _number(_text(group / names[0])), _number(_text(group / names[1]))
            if limit is not None and used is not None:
                yield limit - used + _entry(group / "memory.stat", names[2])
            if group == root:
                break


def _entry(file: Path, name: str) -> int:
    for line in _text(file).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name:
            return _number(words[1]) or 0
    return 0


def _number(text: str) -> int | None:
    """None for "max", which is no limit, and for what is not there."""
    return int(text) if text.strip().isdecimal() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
