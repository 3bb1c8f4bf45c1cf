"""What members of a group ask of one another after a failure, and what that may come to.

The rule: an outcome is plain data that travels as it is; the ranks in it are world ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

Outcome = dict[str, Any]
"""``o`` is one of the following, what else there is depends on it."""
AGREED: Final = "agreed"
"""``value``"""
SHRUNK: Final = "shrunk"
"""``members`` go on as group ``id``, called ``name``; ``away`` are those left behind who may be alive"""
LATE: Final = "late"
"""``missing`` have not come, or not answered, for ``elapsed`` seconds"""
MISMATCH: Final = "mismatch"
"""``made``: pairs of a member and what it called"""
CANCELLED: Final = "cancelled"
"""``by`` whom, and ``how``"""
REFUSED: Final = "refused"
"""``by`` whom, and ``how``: its arguments are wrong, and the group is what it was"""
MINORITY: Final = "minority"
"""those ``here`` are too few, since those ``away`` may be alive"""
CLOSED: Final = "closed"
"""the group was closed on this rank"""


@dataclass(frozen=True, slots=True)
class Wish:
    """What one member calls: ``kind`` is "agree" or "shrink"; ``follow`` gives number and name of the group of some
    members that would follow."""

    kind: str
    seconds: float
    value: bool = True
    force: bool = False
    follow: Callable[[tuple[int, ...]], tuple[int, str]] | None = None


def _ranks(told: Any) -> list[int]:
    return [int(world) for world in told]


def _calls(told: Any) -> list[list[Any]]:
    return [[int(world), str(what)] for world, what in told]


_FIELDS: Final[dict[str, dict[str, Callable[[Any], Any]]]] = {
    AGREED: {"value": bool},
    SHRUNK: {"members": _ranks, "id": int, "name": str, "away": _ranks},
    LATE: {"missing": _ranks, "elapsed": float},
    MISMATCH: {"made": _calls},
    CANCELLED: {"by": int, "how": str},
    REFUSED: {"by": int, "how": str},
    MINORITY: {"here": _ranks, "away": _ranks},
}


def _outcome(told: dict[str, Any]) -> Outcome:
    fields = _FIELDS[told["o"]]
    return {"o": told["o"], **{name: read(told[name]) for name, read in fields.items()}}


def _accepted(told: Any) -> tuple[list[int], Outcome] | None:
    if told is None:
        return None
    ballot, outcome = told
    return _ranks(ballot), _outcome(outcome)


def understood(what: str, news: dict[str, Any]) -> dict[str, Any]:
    """What another member says, as it must be; raises what reading a malformed message raises."""
    if what == "join":
        return {
            "what": str(news["what"]), "how": str(news["how"]), "value": bool(news["value"]),
            "force": bool(news["force"]), "seconds": None if news["seconds"] is None else float(news["seconds"]),
            "accepted": _accepted(news["accepted"]), "dead": _ranks(news["dead"]), "lost": _ranks(news["lost"]),
        }  # fmt: skip
    if what == "propose":
        leader, turn = _ranks(news["ballot"])
        return {"ballot": [leader, turn], "outcome": _outcome(news["outcome"])}
    if what == "came to":
        return {"outcome": _outcome(news["outcome"])}
    return news
