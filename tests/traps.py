"""`Trap`: an object that notes in `SPRUNG` that somebody has loaded it from a pickle.

The rule: a test that uses it begins with an empty `SPRUNG`.
"""

from __future__ import annotations

from typing import Any

SPRUNG: list[Any] = []


def spring(where: Any) -> Any:
    """What loading a trap does."""
    SPRUNG.append(where)
    return where


class Trap:
    """Whoever loads it from a pickle gets ``where`` instead, and leaves it in `SPRUNG`."""

    def __init__(self, where: Any) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        return spring, (self.where,)
