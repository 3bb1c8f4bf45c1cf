"""The last facts of this process, kept for the moment when something goes wrong.

Rule: bounded memory, and recording a fact costs one append.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import listen


@dataclass(frozen=True, slots=True)
class Fact:
    """What happened, and when on the monotonic clock."""

    at: float
    kind: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return " ".join([f"{self.at:.6f}", self.kind, *(f"{name}={value!r}" for name, value in self.facts.items())])


class Recorder:
    """Keeps the last `limit` facts while it listens; a context manager. `clock` may be a loop's `time`."""

    def __init__(self, limit: int = 1000, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: deque[Fact] = deque(maxlen=limit)
        self._clock = clock
        self._remove: Callable[[], None] | None = None
        self.seen = 0

    def __repr__(self) -> str:
        state = "listening" if self._remove else "stopped"
        return f"<Recorder {state}: kept {len(self._kept)} of {self.seen} facts>"

    def __call__(self, kind: str, facts: dict[str, Any]) -> None:
        self.seen += 1
        self._kept.append(Fact(self._clock(), kind, facts))

    def start(self) -> Recorder:
        """Listens from now on; a second start changes nothing."""
        if self._remove is None:
            self._remove = listen(self)
        return self

    def stop(self) -> None:
        """Listens no more; what was kept stays."""
        if self._remove is not None:
            self._remove()
            self._remove = None

    __enter__ = start

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def facts(self, kind: str | None = None) -> list[Fact]:
        """Those kept, oldest first; only of one kind when `kind` is given."""
        return [fact for fact in self._kept if kind is None or fact.kind == kind]

    def text(self) -> str:
        """One line a fact, for a report."""
        return "\n".join(map(str, self._kept))


__all__ = ["Fact", "Recorder"]
