"""Carrier: another library that moves and reduces the arrays of a group's collectives.

The rule: a group asks its carrier where it would choose an algorithm, and nowhere else; arguments, call numbers,
descriptions and failures stay the group's own, whoever carries the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from ..algorithms import Algorithm
    from ..endpoint import Scope
    from ..ops import Op


class Carrier(Protocol):
    """What a lineage may have; see ``Lineage.carrier``."""

    name: str
    """What errors call it."""

    def algorithm(self, collective: str, scope: Scope) -> Algorithm | None:
        """How it does this collective on the members of a group; None for what it leaves to aiocoll."""

    def check(self, collective: str, op: Op, dtype: np.dtype[Any], rank: int) -> None:
        """Raises UsageError unless it can fold arrays of the op's work dtype ``dtype``."""

    def left(self, scope: Scope) -> None:
        """This rank has closed a group."""

    def close(self) -> None:
        """Everything that grew out of the connection is over."""
