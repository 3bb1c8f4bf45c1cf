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


def joined(news: dict[str, Any]) -> dict[str, Any]:
    """What a member says when it joins a leader, as it must be; raises what reading a malformed one raises."""
    accepted = news["accepted"]
    if accepted is not None:
        (leader, turn), outcome = accepted
        accepted = ([int(leader), int(turn)], dict(outcome))
    return {
        "what": str(news["what"]), "how": str(news["how"]), "value": bool(news["value"]), "force": bool(news["force"]),
        "seconds": None if news["seconds"] is None else float(news["seconds"]), "accepted": accepted,
        "dead": [int(world) for world in news["dead"]], "lost": [int(world) for world in news["lost"]],
    }  # fmt: skip
