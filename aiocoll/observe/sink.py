"""What every sink is: something that listens between start and stop; the rule: a sink only looks."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from . import listen


class Sink:
    """Takes facts while it listens; a context manager."""

    def __init__(self) -> None:
        self._remove: Callable[[], None] | None = None

    def __call__(self, kind: str, facts: dict[str, Any]) -> None:
        raise NotImplementedError("a sink says what it does with a fact")

    @property
    def listening(self) -> bool:
        """Between start and stop."""
        return self._remove is not None

    def start(self) -> Self:
        """Listens from now on; a second start changes nothing."""
        if self._remove is None:
            self._remove = listen(self)
        return self

    def stop(self) -> None:
        """Listens no more; what was taken in stays."""
        if self._remove is not None:
            self._remove()
            self._remove = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
