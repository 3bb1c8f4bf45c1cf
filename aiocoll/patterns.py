"""Who talks to whom, and which part of an array is whose: pure arithmetic on ranks and sizes.

The rule: no arrays, no I/O, no state. Every function gives, for one rank, the steps that its peers' answers match: whom
I send to in step k receives from me in its step k. The tests check that for all ranks of many sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

_CACHED = 8192  # answers kept per pattern; each has at most 2 log2(size) numbers, so that this stays small


# ------------------------------------------------------------------------------------------------ parts of an array


def even(count: int, size: int) -> list[int]:
    """How many of ``count`` things each of ``size`` ranks owns: np.array_split's rule, longer parts first.

    >>> even(10, 4)
    [3, 3, 2, 2]
    """
    quotient, longer = divmod(count, size)
    return [quotient + 1] * longer + [quotient] * (size - longer)


def offsets(counts: Sequence[int]) -> list[int]:
    """Where each part begins, and at the end where the last one stops.

    >>> offsets([3, 3, 2, 2])
    [0, 3, 6, 8, 10]
    """
    at = [0]
    for count in counts:
        at.append(at[-1] + count)
    return at


def arc(at: Sequence[int], first: int, count: int) -> list[slice]:
    """The elements of ``count`` blocks from block ``first`` on, going round: one slice, or two where it wraps.

        blocks  0 1 2 3 4 5      arc(first=4, count=4) = 4 5 | 0 1
                =====   ===

    A wrap that carries nothing is left out, but there is always one slice, so that peers always hear of one another.
    """
    size = len(at) - 1
    first %= size
    if first + count <= size:
        return [slice(at[first], at[first + count])]
    tail, head = slice(at[first], at[size]), slice(0, at[first + count - size])
    if head.stop == 0:
        return [tail]
    return [tail, head] if tail.start < tail.stop else [head]


def segments(start: int, stop: int, length: int, most: int) -> list[slice]:
    """Cuts [start, stop) into equal segments of about ``length``, at most ``most`` of them and at least one."""
    pieces = min(max(-(-(stop - start) // max(length, 1)), 1), most)
    at = offsets(even(stop - start, pieces))
    return [slice(start + at[i], start + at[i + 1]) for i in range(pieces)]


# ------------------------------------------------------------------------------------------------ logarithms


def log2_ceil(size: int) -> int:
    """Steps in which everybody can hear of everybody when each step doubles what a rank knows."""
    return (size - 1).bit_length()


def log2_floor(size: int) -> int:
    """The longest path of a binomial tree over ``size`` ranks: the most one-bits that a rank below ``size`` has."""
    return size.bit_length() - 1


# ------------------------------------------------------------------------------------------------ everybody


def around(rank: int, size: int) -> list[int]:
    """All other ranks, my right-hand neighbour first, so that not everybody begins with the same one."""
    return [(rank + i) % size for i in range(1, size)]


class Exchange(NamedTuple):
    """One full-duplex step."""

    to: int
    source: int


def pairwise(rank: int, size: int) -> Iterator[Exchange]:
    """Size - 1 steps in which every rank sends to one and receives from one, and meets each other rank once.

    Step i: to rank + i, from rank - i. Sources come as rank-1, rank-2, ..., 0, size-1, ..., rank+1: descending with one
    wrap, which is what lets an in-order fold take them as they come.
    """
    for i in range(1, size):
        yield Exchange((rank + i) % size, (rank - i) % size)


@lru_cache(_CACHED)
def dissemination(rank: int, size: int) -> tuple[Exchange, ...]:
    """Step k: to rank + 2^k, from rank - 2^k (Hensgen, Finkel, Manber 1988). After the last, all have heard of all.

    size 5, what rank 4 has heard of:   k=0  3     k=1  2 1     k=2  0
    """
    return tuple(Exchange((rank + (1 << k)) % size, (rank - (1 << k)) % size) for k in range(log2_ceil(size)))


# ------------------------------------------------------------------------------------------------ circulant


class Skip(NamedTuple):
    """One round of the circulant pattern, in blocks counted from my own: block i stands for block (rank + i) mod size.

    Reduce-scatter: blocks [skip, span) go ``ahead``, and as many arrive from ``behind`` for blocks [0, span - skip).
    All-gather, rounds in reverse: blocks [0, span - skip) go ``behind``, and [skip, span) arrive from ``ahead``.
    """

    ahead: int
    behind: int
    skip: int
    span: int


@lru_cache(_CACHED)
def circulant(rank: int, size: int) -> tuple[Skip, ...]:
    """Rounds for a reduce-scatter of size - 1 blocks in ceil(log2 size) rounds, for any size (Traeff 2024).

    size 5, blocks that a rank still works on (counted from its own):
    [0 1 2 3 4] --3 4--> rank+3     [0 1 2] --2--> rank+2     [0 1] --1--> rank+1     [0]
    """
    rounds, span = [], size
    while span > 1:
        skip = (span + 1) // 2
        rounds.append(Skip((rank + skip) % size, (rank - skip) % size, skip, span))
        span = skip
    return tuple(rounds)


# ------------------------------------------------------------------------------------------------ trees


class Branch(NamedTuple):
    """A child of a tree node and the end of its subtree, which is the contiguous range [rank, stop)."""

    rank: int
    stop: int


class Node(NamedTuple):
    parent: int | None
    children: tuple[Branch, ...]
    """Nearest and smallest first: the order of a fold. Go through them backwards to spread something."""
    stop: int
    """My own subtree is [rank, stop)."""


@lru_cache(_CACHED)
def binomial(rank: int, size: int) -> Node:
    """The binomial tree with root 0: my parent is my rank without its lowest bit.

        size 7       0
                   / | \\
                  1  2  4       subtrees are contiguous: 2 has [2, 4), 4 has [4, 7),
                     |  | \\      so a fold that takes children left to right keeps rank order
                     3  5  6
    """
    children, bit = [], 1
    while rank + bit < size and not rank & bit:
        children.append(Branch(rank + bit, min(rank + 2 * bit, size)))
        bit *= 2
    lowest = rank & -rank
    return Node(rank - lowest if rank else None, tuple(children), min(rank + lowest, size) if rank else size)


def turned(rank: int, root: int, size: int) -> int:
    """My place in a tree over 0..size-1 whose root 0 is played by ``root``."""
    return (rank - root) % size


def unturned(place: int, root: int, size: int) -> int:
    """The rank that stands at ``place`` of such a tree."""
    return (place + root) % size


# ------------------------------------------------------------------------------------------------ recursive doubling


class Doubling(NamedTuple):
    """Recursive doubling for any size; ranks above a power of two are folded into a neighbour first.

        size 6 = 4 + 2      0-1  2-3  4  5       even ones of the first 2*2 give to their right neighbour ...
                              1    3  4  5       ... the rest double: (1 3) (4 5), then (1 4) (3 5) ...
                            0-1  2-3  4  5       ... and the result goes back

    A rank that doubles stands for a contiguous range of ranks and its peer for the next or the previous one: with the
    lower rank's side as the left operand, rank order is kept.
    """

    lends_to: int | None
    """I only give my array away, and get the result back from there."""
    stands_for: int | None
    """The left neighbour whose array I fold in first, as the left operand, and to whom I send the result."""
    peers: tuple[int, ...]


@lru_cache(_CACHED)
def doubling(rank: int, size: int) -> Doubling:
    steps = log2_floor(size)
    extra = size - (1 << steps)
    if rank < 2 * extra and rank % 2 == 0:
        return Doubling(rank + 1, None, ())
    place = rank // 2 if rank < 2 * extra else rank - extra
    others = (place ^ (1 << k) for k in range(steps))
    peers = tuple(2 * other + 1 if other < extra else other + extra for other in others)
    return Doubling(None, rank - 1 if rank < 2 * extra else None, peers)


# ------------------------------------------------------------------------------------------------ prefixes


class Hop(NamedTuple):
    """One step of a prefix; None where that side lies beyond the first or last rank."""

    to: int | None
    source: int | None


@lru_cache(_CACHED)
def prefix(rank: int, size: int) -> tuple[Hop, ...]:
    """Step k: to rank + 2^k, from rank - 2^k, without going round (Hillis and Steele 1986).

    rank 5 holds   5     4..5     2..5     0..5
                step 0: 4   step 1: 2..3   step 2: 0..1 from rank 1
    """
    hops = []
    for k in range(log2_ceil(size)):
        to, source = rank + (1 << k), rank - (1 << k)
        hops.append(Hop(to if to < size else None, source if source >= 0 else None))
    return tuple(hops)


# ------------------------------------------------------------------------------------------------ Bruck


class Relay(NamedTuple):
    """One step of Bruck's all-to-all: the items whose remaining distance has this bit travel ``to``."""

    to: int
    source: int
    distances: tuple[int, ...]


def bruck(rank: int, size: int) -> list[Relay]:
    """Items for rank + d travel along the one-bits of d, lowest first: log2 steps of about size/2 items each.

    distance 6 = 2 + 4:  rank --(+2)--> rank + 2 --(+4)--> rank + 6
    """
    return [
        Relay(
            (rank + (1 << k)) % size,
            (rank - (1 << k)) % size,
            tuple(distance for distance in range(1, size) if distance >> k & 1),
        )
        for k in range(log2_ceil(size))
    ]


def bruck_items(size: int) -> int:
    """How many items one rank sends in all steps of Bruck's pattern together."""
    return sum(distance.bit_count() for distance in range(size))
