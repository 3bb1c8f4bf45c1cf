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

ENDED: Final = 1
ERROR: Final = 2

Entry = list[Any]
"""A call or a message, told apart by their lengths, since every call makes one:
[began, ended or None, error or None, number, (group id, label, description)], or
[made, ended or None, error or None, group id, method, peer (None: anyone), tag (None: any)]."""
_CALL_FIELDS: Final = 5


class Flight:
    """The flight recorder of one rank. ``clock`` is monotonic; a simulation puts its own in place."""

    __slots__ = ("_kept", "clock", "groups", "record")

    def __init__(self, limit: int = FACTS_MAX, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kept: deque[Entry | tuple[float, str, dict[str, Any]]] = deque(maxlen=limit)
        self.record: Callable[[Entry], None] = self._kept.append
        """Takes one entry; for those who cannot afford more than that."""
        self.clock: Callable[[], float] = clock
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
        entry: Entry = [self.clock(), None, None, group, what, peer, tag]
        self.record(entry)
        return entry

    def over(self, entry: Entry, error: BaseException | None = None) -> None:
        """What the entry is about has ended."""
        entry[ENDED] = self.clock()
        if error is not None:
            entry[ERROR] = words(error)

    def note(self, kind: str, facts: dict[str, Any]) -> None:
        """Anything else that happened."""
        self._kept.append((self.clock(), kind, {name: _plain(value) for name, value in facts.items()}))

    def kept(self) -> list[Entry | tuple[float, str, dict[str, Any]]]:
        """What is kept now, for `facts`; calls under way will still say how they ended."""
        return list(self._kept)

    def facts(self, kept: list[Entry | tuple[float, str, dict[str, Any]]] | None = None) -> list[dict[str, Any]]:
        """What is (or was) kept, oldest first, as plain data."""
        return [self._fact(entry) for entry in (self.kept() if kept is None else kept)]

    def succeeded_since(self, when: float) -> bool:
        """Whether a call or a message has ended well since then."""
        return any(
            isinstance(entry, list) and entry[ERROR] is None and entry[ENDED] is not None and entry[ENDED] > when
            for entry in list(self._kept)
        )

    def _fact(self, entry: Entry | tuple[float, str, dict[str, Any]]) -> dict[str, Any]:
        if isinstance(entry, tuple):
            at, kind, facts = entry
            return {"at": at, "kind": kind, **facts}
        at, ended, error = entry[:3]
        if len(entry) == _CALL_FIELDS:
            number, (group, label, made) = entry[3:]
            what = {"collective": label.partition(" ")[0], "label": label, "call": number, "made": made}
            kind = "call"
        else:
            group, method, peer, tag = entry[3:]
            what = {"what": method, "peer": peer, "tag": tag}
            kind = "message"
        of = {"group": self.groups.get(group, "?"), "group_id": f"{group:016x}"}
        return {"at": at, "kind": kind, "ended": ended, "error": error, **of, **what}


def words(error: BaseException) -> str:
    """An error as text: an exception that is kept would keep the memory of those it went through."""
    return f"{type(error).__name__}: {error}"[:TEXT_CHARS_MAX]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return words(value) if isinstance(value, BaseException) else str(value)[:TEXT_CHARS_MAX]


__all__ = ["ENDED", "ERROR", "FACTS_MAX", "Entry", "Flight", "words"]
