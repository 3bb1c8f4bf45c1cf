"""Who keeps what is written to shared memory in order: the processor where it can, else the kernel.

An x86-64 shows stores to others in the order in which they were made, so that "data, then counter" needs no fence, and
taking a lock is the one between "I sleep" and the last look. Other processors promise neither, and Python has no
instruction to ask them for it: there the fences are the kernel's, if they hold.

The rule: where the kernel keeps order, a word that peers wait for or look at is written behind a fence, whoever writes
it, and after a reference was taken back there is another.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from .litmus import hold, kernel_fence

if TYPE_CHECKING:
    from .segment import Geometry

TOTAL_STORE_ORDER: Final = ("x86_64", "AMD64")
KERNEL: Final = "kernel"
"""The setting that asks for the kernel's fences where the processor's order would do."""


def by_kernel(setting: str) -> bool:
    """Whether the kernel has to keep order here."""
    return setting == KERNEL or platform.machine() not in TOTAL_STORE_ORDER


def disorder(setting: str) -> str:
    """Why nobody keeps order here, so that memory cannot be shared; empty if somebody does."""
    return _proved(os.getpid())[1] if by_kernel(setting) else ""


def fence_of(setting: str) -> Callable[[], None] | None:
    """The kernel's fence where it has to keep order."""
    return _proved(os.getpid())[0] if by_kernel(setting) else None


@lru_cache(1)
def _proved(pid: int) -> tuple[Callable[[], None] | None, str]:
    """The kernel's fence for this process, and what speaks against it; found out once."""
    try:
        fence = kernel_fence()
    except OSError as error:
        found = f"{error.strerror or error}"
    else:
        found = hold(fence)
        if not found:
            return fence, ""
    return None, f"{platform.machine()} does not keep stores in order by itself, and the kernel is no help: {found}"


class OrderedWords:
    """A segment's words, written so that no peer sees one that counts before what it counts."""

    __slots__ = ("_cells", "_fence", "_lanes", "_per_slot", "_revoked", "_words")

    def __init__(self, words: memoryview, geometry: Geometry, fence: Callable[[], None]) -> None:
        from .segment import SLOT_BYTES, WORD
        from .slot import REVOKED

        self._words, self._fence, self._revoked = words, fence, REVOKED
        self._lanes, self._cells = geometry.lanes_at // WORD, geometry.cells_at // WORD
        self._per_slot = SLOT_BYTES // WORD

    def __repr__(self) -> str:
        return f"<OrderedWords of {len(self._words)}>"

    def __getitem__(self, index: int) -> int:
        word: int = self._words[index]
        return word

    def __setitem__(self, index: int, value: int) -> None:
        if index < self._lanes or (index < self._cells and not (index - self._lanes) % self._per_slot):
            self._fence()
        self._words[index] = value
        if value == self._revoked:
            self._fence()
