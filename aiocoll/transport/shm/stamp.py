"""Stamps: what the frames of one step of one plan have in common, laid out once and recognised by one word.

The rule: a stamp is equal on two ranks exactly if they mean the same step of the same call, with the same payload; the
words and text in the slot say the rest to whoever does not recognise it.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from .segment import INLINE_AT, INLINE_BYTES, META_BYTES, Geometry

if TYPE_CHECKING:
    from .inlane import Inlane

HEAD: Final = struct.Struct("=QQQQQ")
"""Words 2 to 6 of a slot: stamp, group, kind and step and length of meta, payload length, length of this piece."""
CELL: Final = 1 << 56
"""Beside the length of a piece: it lies in a cell."""
_SIGNED: Final = struct.Struct("=QQQ")


def kind_word(kind: int, step: int, meta_bytes: int) -> int:
    """Kind, step and length of meta in one word."""
    return kind | step << 8 | meta_bytes << 40


class Views:
    """Where payloads of one dtype and length may lie, as arrays: views cost more than what is done with short ones."""

    __slots__ = ("_cells", "_seen", "count", "dtype", "inline", "nbytes")
    dtype: np.dtype[Any]
    count: int

    def __init__(self, dtype: np.dtype[Any], count: int) -> None:
        self.dtype, self.count = dtype, count
        self.nbytes: int = count * dtype.itemsize
        self.inline: bool = self.nbytes <= INLINE_BYTES
        self._cells: list[NDArray[Any]] | None = None
        self._seen: dict[Inlane, list[NDArray[Any]]] = {}

    def __repr__(self) -> str:
        return f"<Views of {self.count} {self.dtype}>"

    def cells(self, memory: NDArray[np.uint8], geometry: Geometry) -> list[NDArray[Any]]:
        """My cells as arrays like the payload."""
        if self._cells is None:
            self._cells = [self._view(memory, geometry.cell(i)) for i in range(geometry.cells)]
        return self._cells

    def seen(self, lane: Inlane, memory: NDArray[np.uint8], geometry: Geometry) -> list[NDArray[Any]]:
        """Where such a payload may lie in a peer's memory: in one of the slots to me, or else in one of its cells."""
        seen = self._seen.get(lane)
        if seen is None:
            if self.inline:
                places = [at + INLINE_AT for at in lane.slots]
            else:
                cells = geometry.cells if self.nbytes <= geometry.cell_bytes else 0
                places = [geometry.cell(i) for i in range(cells)]
            seen = self._seen[lane] = [self._view(memory, at) for at in places]
        return seen

    def close(self) -> None:
        """Lets all views go."""
        self._cells = None
        self._seen.clear()

    def _view(self, memory: NDArray[np.uint8], at: int) -> NDArray[Any]:
        return memory[at : at + self.nbytes].view(self.dtype)


class Stamp:
    """What is constant in the frames of one step: ``sign`` is one word that stands for all of it."""

    __slots__ = ("dtype", "head", "inline", "meta", "nbytes", "price", "sign", "views")
    meta: bytes
    views: Views
    dtype: np.dtype[Any]
    nbytes: int
    inline: bool

    def __init__(self, kind: int, group: int, step: int, meta: bytes, views: Views) -> None:
        self.meta, self.views, self.dtype = meta, views, views.dtype
        self.nbytes, self.inline = views.nbytes, views.inline
        self.price: int = 0
        """What such a frame counts against the bound on unreceived bytes."""
        what = _SIGNED.pack(group, kind_word(kind, step, len(meta)), self.nbytes)
        self.sign: int = int.from_bytes(hashlib.blake2b(what + meta, digest_size=8).digest(), "little") | 1
        piece = self.nbytes if self.inline else self.nbytes | CELL
        self.head: bytes = HEAD.pack(self.sign, group, kind_word(kind, step, len(meta)), self.nbytes, piece)

    def __repr__(self) -> str:
        return f"<Stamp {self.sign:016x}: {self.nbytes} bytes>"

    @staticmethod
    def fits(meta: bytes, nbytes: int, geometry: Geometry) -> bool:
        """Whether such a frame takes one slot and one cell at most."""
        return len(meta) <= META_BYTES and nbytes <= geometry.cell_bytes
