"""Counters over the facts of this process: calls and seconds by collective, failures, bytes by transport.

Rule: numbers only grow, and a snapshot is plain data.

Counted are `call` and `called` (a collective begins and ends), `sent` and `received` (transport, nbytes: the simulator
tells of what is sent; what a real connection moves is in `Group.statistics()`), and how often each kind of fact came.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from .sink import Sink


class Stats(Sink):
    """Counts while it listens; a context manager. `clock` gives seconds and may be a loop's `time`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[tuple[Any, Any, Any], float] = {}
        self._facts: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._bytes: dict[str, Counter[str]] = {"sent": Counter(), "received": Counter()}
        self._seconds: dict[str, float] = defaultdict(float)
        super().__init__()

    def __repr__(self) -> str:
        return f"<Stats {self._calls.total()} calls, {self._bytes['sent'].total()} bytes sent>"

    def __call__(self, kind: str, facts: dict[str, Any]) -> None:
        self._facts[kind] += 1
        if kind == "call":
            self._calls[_collective(facts)] += 1
            self._began[_key(facts)] = self._clock()
        elif kind == "called":
            began = self._began.pop(_key(facts), None)
            if began is not None:
                self._seconds[_collective(facts)] += self._clock() - began
            if facts.get("error") is not None:
                self._failures[_collective(facts)] += 1
        elif kind in self._bytes:
            self._bytes[kind][facts["transport"]] += facts["nbytes"]

    def snapshot(self) -> dict[str, Any]:
        """The counters now, as plain dicts and numbers."""
        return {
            "calls": dict(self._calls),
            "failures": dict(self._failures),
            "bytes_sent": dict(self._bytes["sent"]),
            "bytes_received": dict(self._bytes["received"]),
            "seconds": dict(self._seconds),
            "facts": dict(self._facts),
        }


def _key(facts: dict[str, Any]) -> tuple[Any, Any, Any]:
    return facts.get("rank"), facts.get("group"), facts.get("call")


def _collective(facts: dict[str, Any]) -> str:
    """The first word of the call's label: "all_reduce (call 3)"."""
    return str(facts.get("call", "")).partition(" ")[0]


__all__ = ["Stats"]
