"""What a piece of code left behind: tasks, threads, child processes and open descriptors, by name.

Rule: the standard library only, and looking costs less than a millisecond (descriptors and children on Linux).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from typing import Any

_STANDING_THREADS = ("pytest_timeout", "execnet")


class LeakError(AssertionError):
    """Something that was begun has not ended; the message lists it."""


@dataclass(frozen=True, slots=True)
class Belongings:
    """What this process holds at one moment."""

    threads: frozenset[threading.Thread]
    children: frozenset[tuple[int, str]]
    descriptors: frozenset[tuple[int, str]]

    @classmethod
    def now(cls) -> Belongings:
        """A look around."""
        threads = (each for each in threading.enumerate() if not each.name.startswith(_STANDING_THREADS))
        return cls(frozenset(threads), frozenset(_children()), frozenset(_descriptors()))

    def beyond(self, before: Belongings) -> list[str]:
        """What stands here and did not stand in `before`, in words."""
        threads = [f"thread {thread.name!r}" for thread in self.threads - before.threads if thread.is_alive()]
        children = [f"child {pid} ({name})" for pid, name in self.children - before.children]
        files = [f"descriptor {number} -> {target}" for number, target in self.descriptors - before.descriptors]
        return sorted(threads) + sorted(children) + sorted(files)


def left_behind(before: Belongings, *, grace: float = 5.0) -> list[str]:
    """What has come since `before` and does not end within `grace` seconds."""
    if not Belongings.now().beyond(before):
        return []
    gc.collect()  # what only a cycle holds open is closed, and warned about, here
    until, pause = time.monotonic() + grace, 0.001
    while (left := Belongings.now().beyond(before)) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(2 * pause, 0.1)
    return left


@contextlib.contextmanager
def no_leaks(*, grace: float = 5.0) -> Iterator[None]:
    """Raises LeakError when the block leaves threads, children or descriptors; not when it raises itself."""
    before = Belongings.now()
    yield
    left = left_behind(before, grace=grace)
    if left:
        raise LeakError("left behind: " + "; ".join(left))


@contextlib.asynccontextmanager
async def no_leaked_tasks(*, grace: float = 1.0) -> Any:
    """Raises LeakError, and cancels them, when the block leaves tasks of this loop running."""
    before = asyncio.all_tasks()
    yield
    fresh = asyncio.all_tasks() - before
    if not fresh:
        return
    _, pending = await asyncio.wait(fresh, timeout=grace)
    if pending:
        names = sorted(map(repr, pending))
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=grace)
        raise LeakError("left tasks running: " + "; ".join(names))


def _children() -> Iterator[tuple[int, str]]:
    """All descendants but multiprocessing's own two helpers, which it keeps for as long as this process lives."""
    tracker: Any = resource_tracker._resource_tracker
    server: Any = forkserver._forkserver
    standing = {tracker._pid, server._forkserver_pid}
    parents = [os.getpid()]
    for parent in parents:
        for task in _listed(f"/proc/{parent}/task"):
            for pid in _read(f"/proc/{parent}/task/{task}/children").split():
                if int(pid) not in standing:
                    parents.append(int(pid))
                    yield int(pid), _read(f"/proc/{pid}/comm").strip()


def _descriptors() -> Iterator[tuple[int, str]]:
    tracker: Any = resource_tracker._resource_tracker
    server: Any = forkserver._forkserver
    kept = {tracker._fd, server._forkserver_alive_fd}
    for name in _listed("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            target = os.readlink(f"/proc/self/fd/{name}")
            if int(name) not in kept and not target.startswith("/dev/"):
                yield int(name), target


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


__all__ = ["Belongings", "LeakError", "left_behind", "no_leaked_tasks", "no_leaks"]
