"""The last facts of one rank, always kept: what it called, when that began and ended, and every bad news.

The rule: bounded memory, and nothing is built for a reader who may never come: a call costs one short list, whose end
is filled in when the call ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

FACTS_MAX: Final = 1000
TEXT_CHARS_MAX: Final = 2000
_GROUPS_MAX: Final = 1000

CALL: Final = "call"
"""[CALL, began, ended or None, group id, label, number, description, error or None]"""
MESSAGE: Final = "message"
"""[MESSAGE, made, ended or None, group id, method, peer (None: anyone), tag (None: any), error or None]"""
ENDED: Final = 2
ERROR: Final = 7

Entry = list[Any]


class Flight:
    """The flight recorder of one rank. ``clock`` is monotonic; a simulation puts its own in place."""

    __slots__ = ("_kept", "clock", "groups", "record")

    def __init__(self, limit: int = FACTS_MAX, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: deque[Entry] = deque(maxlen=limit)
        self.record: Callable[[Entry], None] = self._kept.append
        """Takes one entry; for those who cannot afford more than that."""
        self.clock = clock
        self.groups: dict[int, str] = {}
        """The names of the groups that were entered, by their numbers on the wire."""

    def __repr__(self) -> str:
        return f"<Flight: {len(self._kept)} facts>"

    def entered(self, group: int, name: str) -> None:
        """Calls of this group may follow."""
        self.groups[group] = name
        if len(self.groups) > _GROUPS_MAX:
            del self.groups[next(iter(self.groups))]

    def message(self, group: int, what: str, peer: int | None, tag: int | None) -> Entry:
        """A message is sent or wanted from now on; `over` ends it."""
        entry: Entry = [MESSAGE, self.clock(), None, group, what, peer, tag, None]
        self.record(entry)
        return entry

    def over(self, entry: Entry, error: BaseException | None = None) -> None:
        """What the entry is about has ended."""
        entry[ENDED] = self.clock()
        if error is not None:
            entry[ERROR] = words(error)

    def note(self, kind: str, facts: dict[str, Any]) -> None:
        """Anything else that happened."""
        self.record([kind, self.clock(), {name: _plain(value) for name, value in facts.items()}])

    def facts(self) -> list[dict[str, Any]]:
        """What is kept, oldest first, as plain data."""
        return [self._fact(list(entry)) for entry in list(self._kept)]

    def succeeded_since(self, when: float) -> bool:
        """Whether a call or a message has ended well since then."""
        return any(
            entry[0] in (CALL, MESSAGE) and entry[ERROR] is None and entry[ENDED] is not None and entry[ENDED] > when
            for entry in list(self._kept)
        )

    def _fact(self, entry: Entry) -> dict[str, Any]:
        kind, at = entry[:2]
        if kind not in (CALL, MESSAGE):
            return {"at": at, "kind": kind, **entry[2]}
        fact = {"at": at, "kind": kind, "ended": entry[ENDED], "error": entry[ERROR]}
        fact |= {"group": self.groups.get(entry[3], "?"), "group_id": f"{entry[3]:016x}"}
        if kind == CALL:
            return {**fact, "collective": entry[4].partition(" ")[0], "label": entry[4], "call": entry[5],
                    "made": entry[6]}  # fmt: skip
        return {**fact, "what": entry[4], "peer": entry[5], "tag": entry[6]}


def words(error: BaseException) -> str:
    """An error as text: an exception that is kept would keep the memory of those it went through."""
    return f"{type(error).__name__}: {error}"[:TEXT_CHARS_MAX]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return words(value) if isinstance(value, BaseException) else str(value)[:TEXT_CHARS_MAX]


__all__ = ["CALL", "ENDED", "ERROR", "FACTS_MAX", "MESSAGE", "Entry", "Flight", "words"]
