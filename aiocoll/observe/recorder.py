"""The last facts of this process, kept for the moment when something goes wrong.

Rule: bounded memory, and recording a fact costs one append.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .sink import Sink


@dataclass(frozen=True, slots=True)
class Fact:
    """What happened, and when on the monotonic clock."""

    at: float
    kind: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return " ".join([f"{self.at:.6f}", self.kind, *(f"{name}={value!r}" for name, value in self.facts.items())])


class Recorder(Sink):
    """Keeps the last `limit` facts while it listens; a context manager. `clock` may be a loop's `time`."""

    def __init__(self, limit: int = 1000, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: deque[Fact] = deque(maxlen=limit)
        self._clock = clock
        super().__init__()
        self.seen: int = 0

    def __repr__(self) -> str:
        state = "listening" if self.listening else "stopped"
        return f"<Recorder {state}: kept {len(self._kept)} of {self.seen} facts>"

    def __call__(self, kind: str, facts: dict[str, Any]) -> None:
        self.seen += 1
        self._kept.append(Fact(self._clock(), kind, facts))

    def facts(self, kind: str | None = None) -> list[Fact]:
        """Those kept, oldest first; only of one kind when `kind` is given."""
        return [fact for fact in self._kept if kind is None or fact.kind == kind]

    def text(self) -> str:
        """One line a fact, for a report."""
        return "\n".join(map(str, self._kept))


__all__ = ["Fact", "Recorder"]
