"""What an algorithm costs by the alpha-beta-gamma model: messages that wait for one another, bytes sent, bytes
folded.

The rule: one formula for all algorithms, fed with what each declares; of one made of parts it is the sum of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiocoll.algorithms import Algorithm, find


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


def cost_among(
    algorithm: Algorithm, links: Mapping[str, Link], nbytes: int, size: int, hosts: int, *, shared: bool
) -> float:
    """Seconds for ``nbytes`` on ``size`` ranks of ``hosts`` machines, where ranks share memory if ``shared``.

    Through shared memory a byte is copied in and copied out again, which only algorithms made for it count as two.
    """
    near = kind_of(1, shared=shared)
    if algorithm.parts:
        per_host = -(-size // hosts)
        total = 0.0
        for part in algorithm.parts:
            share = nbytes / per_host if part.shared else nbytes
            link, ranks = (links[near], per_host) if part.among == "local" else (links["network"], hosts)
            total += cost(find(part.collective, part.name), link, round(share), ranks)
        return total
    link = links[kind_of(hosts, shared=shared)]
    seconds = cost(algorithm, link, nbytes, size)
    if hosts == 1 and shared and algorithm.on != "memory":
        seconds += link.beta * algorithm.path(size, nbytes)
    return seconds


def kind_of(hosts: int, *, shared: bool) -> str:
    """The kind of the slowest link among ranks on so many machines."""
    return "network" if hosts > 1 else "memory" if shared else "host"
