"""A timeline of this process in Chrome's trace format, for chrome://tracing and Perfetto; one row per rank and group.

Rule: events are written as they come, so that a process that dies leaves a file that the viewers still read (they
accept an array whose closing bracket is missing).

`call` opens a slice, `called` with the same rank, group and call closes it; every other fact is an instant.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any, Self, TextIO

from .sink import Sink


class ChromeTrace(Sink):
    """Writes facts to `path` while it listens; a context manager. `clock` gives seconds and may be a loop's `time`."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path: pathlib.Path = pathlib.Path(path)
        self._clock = clock
        self._file: TextIO | None = None
        super().__init__()
        self._open: set[tuple[Any, Any, Any]] = set()

    def __repr__(self) -> str:
        return f"<ChromeTrace {self.path} {'writing' if self._file else 'closed'}>"

    def __call__(self, kind: str, facts: dict[str, Any]) -> None:
        key = (facts.get("rank"), facts.get("group"), facts.get("call"))
        event: dict[str, Any] = {"ts": round(self._clock() * 1e6, 3), **self._row(facts)}
        if kind == "call":
            # Calls of one group overlap freely, so slices are asynchronous: matched by id, not by nesting.
            self._open.add(key)
            event |= {"ph": "b", "name": str(facts.get("call", kind)), "args": facts}
        elif kind == "called" and key in self._open:
            self._open.discard(key)
            event |= {"ph": "e", "name": str(facts.get("call", kind)), "args": facts}
        else:
            self._write(event | {"ph": "i", "s": "t", "name": kind, "cat": "fact", "args": facts})
            return
        self._write(event | {"cat": "collective", "id": ".".join(map(str, key))})

    @staticmethod
    def _row(facts: dict[str, Any]) -> dict[str, Any]:
        rank = facts.get("rank")
        return {"pid": rank if isinstance(rank, int) else os.getpid(), "tid": str(facts.get("group", "process"))}

    def _write(self, event: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(event, default=repr) + ",\n")

    def start(self) -> Self:
        """Opens the file, an earlier one of that name is replaced, and listens; a second start changes nothing."""
        if self._file is None:
            self._file = self.path.open("w", encoding="utf-8", buffering=1)
            self._file.write("[\n")
        return super().start()

    def stop(self) -> None:
        """Listens no more and completes the file."""
        super().stop()
        if self._file is not None:
            self._write({"ph": "M", "name": "process_labels", "pid": os.getpid(), "args": {"labels": "aiocoll"}})
            self._file.seek(self._file.tell() - 2)  # the comma after the last event
            self._file.write("\n]\n")
            self._file.close()
            self._file = None


__all__ = ["ChromeTrace"]
