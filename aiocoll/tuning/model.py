"""What an algorithm costs by the alpha-beta-gamma model: messages that wait for one another, bytes sent, bytes
folded.

The rule: one formula for all algorithms, fed with what each declares.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiocoll.algorithms import Algorithm


@dataclass(frozen=True, slots=True)
class Link:
    """The constants of one kind of link, in seconds."""

    alpha: float
    """From the start of a send to its arrival, for an empty message."""
    overhead: float
    """What each message costs the rank that sends or receives it, beyond that."""
    beta: float
    """Per byte sent."""
    gamma: float
    """Per byte folded."""


def cost(algorithm: Algorithm, link: Link, nbytes: int, size: int) -> float:
    """Seconds for ``nbytes`` on ``size`` ranks.

    >>> from aiocoll.algorithms import find
    >>> cost(find("barrier", "dissemination"), Link(10e-6, 2e-6, 0.0, 0.0), 0, 8)
    3.6e-05
    """
    return (
        link.alpha * algorithm.rounds(size)
        + link.overhead * algorithm.messages(size)
        + link.beta * algorithm.path(size, nbytes)
        + link.gamma * algorithm.folded(size, nbytes)
    )
