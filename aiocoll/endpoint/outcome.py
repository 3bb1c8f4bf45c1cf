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
