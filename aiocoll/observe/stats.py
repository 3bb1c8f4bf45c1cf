"""Counters over the facts: calls by collective, bytes by transport, seconds waited.

Rule: numbers only grow, and a snapshot is plain data.

What is counted: `call` (collective), `done` (collective, seconds, waited), `failed` (collective, error), `sent` and
`received` (transport, nbytes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

from . import listen


class Stats:
    """Counts while it listens; a context manager. It may also be fed directly: ``stats(kind, facts)``."""

    def __init__(self) -> None:
        self._facts: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._bytes: dict[str, Counter[str]] = {"sent": Counter(), "received": Counter()}
        self._seconds: Counter[str] = Counter()
        self._waited = 0.0
        self._remove: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<Stats {self._calls.total()} calls, {self._bytes['sent'].total()} bytes sent>"

    def __call__(self, kind: str, facts: dict[str, Any]) -> None:
        self._facts[kind] += 1
        if kind == "call":
            self._calls[facts["collective"]] += 1
        elif kind == "done":
            self._seconds[facts["collective"]] += facts.get("seconds", 0.0)
            self._waited += facts.get("waited", 0.0)
        elif kind == "failed":
            self._failures[facts["collective"]] += 1
        elif kind in self._bytes:
            self._bytes[kind][facts["transport"]] += facts["nbytes"]

    def start(self) -> Stats:
        """Listens from now on; a second start changes nothing."""
        if self._remove is None:
            self._remove = listen(self)
        return self

    def stop(self) -> None:
        """Listens no more; the counters stay."""
        if self._remove is not None:
            self._remove()
            self._remove = None

    __enter__ = start

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def snapshot(self) -> dict[str, Any]:
        """The counters now, as plain dicts and numbers."""
        return {
            "calls": dict(self._calls),
            "failures": dict(self._failures),
            "bytes_sent": dict(self._bytes["sent"]),
            "bytes_received": dict(self._bytes["received"]),
            "seconds": dict(self._seconds),
            "seconds_waited": self._waited,
            "facts": dict(self._facts),
        }


__all__ = ["Stats"]
