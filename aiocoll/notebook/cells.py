"""What travels between a notebook and its ranks: JSON behind its length, through pipes of the notebook's own making.

Rule: plain data only. Code goes one way, text the other; no value is unpickled in the notebook.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

READY: Final = 0
"""The number of the answer that a rank gives before its first cell: from now on it bears an interrupt."""
_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a cell on one rank."""

    rank: int
    number: int
    value: str | None = None
    """The last expression as text; None when there was none, or it was None."""
    error: Mapping[str, Any] | None = None
    """As `aiocoll.observe.report.describe` gives it."""
    talked: bool = False
    """Whether the rank has sent or received anything on the groups that the notebook gave it."""

    @property
    def interrupted(self) -> bool:
        """Whether a Ctrl-C ended the cell."""
        return self.error is not None and self.error["class"] == "KeyboardInterrupt"

    @property
    def consequence(self) -> bool:
        """Whether this is only how another rank's failure looks from here."""
        return self.error is not None and bool(self.error["consequence"])


def pack(record: Mapping[str, Any]) -> bytes:
    """One record as bytes."""
    body = json.dumps(record).encode()
    return _LENGTH.pack(len(body)) + body


def unpack(buffer: bytearray) -> dict[str, Any] | None:
    """The first record, taken out of the buffer; None when it is not complete yet."""
    if len(buffer) < _LENGTH.size:
        return None
    end = _LENGTH.size + int(_LENGTH.unpack_from(buffer)[0])
    if len(buffer) < end:
        return None
    record: dict[str, Any] = json.loads(buffer[_LENGTH.size : end])
    del buffer[:end]
    return record
