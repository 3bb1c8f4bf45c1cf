"""What the ranks of a case do: every registered algorithm on a bare channel, with inputs, outputs and an oracle.

Rule: inputs differ per rank, element and turn, are read-only unless they are outputs too, and a program knows nothing
of faults.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ... import patterns
from ...algorithms import Algorithm, registry
from ...algorithms.channel import Parcel
from ...group import Group
from ...ops import SUM, Op

Array = NDArray[Any]

FAULTS: Final = ("crash", "freeze", "cancel")
"""What befalls one rank."""
TURNS: Final = 1
VARIANTS: Final = 8
"""How many sets of data, roots and ops there are of each program; which one is the seed's choice."""
_LONG: Final = 3000
"""Elements of the one variant that is longer than a few."""


@dataclass(slots=True)
class Part:
    """One rank's part in one call."""

    call: Callable[[Group], Awaitable[Any]]
    check: Callable[[Any], bool]
    """Whether the call's result, and what it has written, is right."""
    outs: list[Array] = field(default_factory=list)
    """Memory that the call may write, until it fails."""
    stop: Callable[[], Awaitable[None]] | None = None
    """Given where cancelling the call breaks nothing, and it may be made again: ends what it has left under way."""


Prepare = Callable[[int, int, int, int], Part]
"""(size, rank, turn, variant): makes one rank's part afresh."""


@dataclass(frozen=True, slots=True)
class Program:
    """What all ranks do, turn by turn."""

    name: str
    prepare: Prepare = field(repr=False, default=lambda *which: Part(lambda group: group.barrier(), lambda _: True))
    serves: Callable[[int], bool] = lambda size: True
    turns: int = TURNS
    faults: tuple[str, ...] = FAULTS
    messages: bool = False
    """Whether it sends messages, whose receives are late alone, and beside one another."""
    nested: bool = False
    """Whether it works on groups of its own, so that ranks fail on different groups for different reasons."""
    share: float = 1.0
    """How often it is drawn, compared with others: less often where it takes longer."""

    def __repr__(self) -> str:
        return f"<Program {self.name}>"


# -- ops and data


def _compose(left: Array, right: Array, out: Array) -> None:
    """Affine maps x -> a x + b modulo 2**32, a in the high half of a uint64: associative, and order matters."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = left >> shift, left & mask, right >> shift, right & mask
    out[...] = ((a * c & mask) << shift) | ((a * d + b) & mask)


AFFINE: Final = Op("affine", _compose, commutative=False)


@lru_cache(4096)
def vectors(size: int, turn: int, variant: int, op: Op) -> tuple[list[Array], list[Array]]:
    """Every rank's vector, and the folds of the first 1, 2, … of them."""
    count = _LONG if variant == VARIANTS - 1 else 3 * size + variant - 2
    rng = np.random.default_rng((size, turn, variant))
    given = [rng.integers(0, 1 << 60, count).astype(np.int64 if op is SUM else np.uint64) for _ in range(size)]
    folds = [given[0]]
    for each in given[1:]:
        out = np.empty_like(each)
        op.fold(folds[-1], each, out)
        folds.append(out)
    for each in given + folds:
        each.flags.writeable = False
    return given, folds


@lru_cache(4096)
def blobs(size: int, turn: int, variant: int, many: int) -> list[list[Array]]:
    """Bytes of all lengths, `many` for each rank; one length for all in every other variant."""
    rng = np.random.default_rng((size, turn, variant, many))
    most = _LONG if variant == VARIANTS - 1 else 40

    def length() -> int:
        return most if variant % 2 else int(rng.integers(0, most))

    table = [[rng.integers(0, 256, length(), np.uint8) for _ in range(many)] for _ in range(size)]
    for each in (blob for row in table for blob in row):
        each.flags.writeable = False
    return table


def equal(found: Any, expected: Array) -> bool:
    return bool(np.array_equal(found, expected))


def op_of(algorithm: Algorithm | None, variant: int) -> Op:
    return AFFINE if variant % 2 and (algorithm is None or algorithm.keeps_order) else SUM


def parcel_of(data: Array, source: int) -> Parcel:
    return Parcel(b"%d" % source, data)


def same_parcels(found: Sequence[Parcel | None], expected: Sequence[Parcel]) -> bool:
    return len(found) == len(expected) and all(
        mine is not None and mine.meta == theirs.meta and equal(mine.data, theirs.data)
        for mine, theirs in zip(found, expected, strict=True)
    )


def _through(algorithm: Algorithm, *arguments: Any) -> Callable[[Group], Awaitable[Any]]:
    """One call that runs the algorithm itself."""
    description = f"{algorithm.collective}:{algorithm.name}"

    def call(group: Group) -> Awaitable[Any]:
        turn = group._turn(algorithm.collective, None)
        return group._made(turn, None, lambda: (description, lambda ch: algorithm.run(ch, *arguments)))

    return call


# -- reductions


def _in_place(algorithm: Algorithm, root: bool, prefix: int) -> Prepare:
    """all_reduce (prefix 0), reduce, scan (1) and exscan (2): a vector that is input and result."""

    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        op = op_of(algorithm, variant)
        given, folds = vectors(size, turn, variant, op)
        x, where = given[rank].copy(), (variant + turn) % size
        expected = folds[-1] if not prefix else folds[rank] if prefix == 1 else folds[rank - 1] if rank else given[0]
        part = Part(_through(algorithm, x, op, *([where] if root else [])), lambda _: equal(x, expected), [x])
        if root and rank != where:  # what its memory holds afterwards is nobody's business
            part.check = lambda _: True
        return part

    return prepare


def _reduce_scatter(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        op = op_of(algorithm, variant)
        given, folds = vectors(size, turn, variant, op)
        counts = patterns.even(len(given[0]), size)
        at = patterns.offsets(counts)
        x, out = given[rank], np.empty(counts[rank], given[rank].dtype)
        blocks = [x[at[i] : at[i + 1]] for i in range(size)]
        expected = folds[-1][at[rank] : at[rank + 1]]
        return Part(_through(algorithm, blocks, op, out), lambda _: equal(out, expected), [out])

    return prepare


# -- movement


def _barrier(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        return Part(_through(algorithm), lambda _: True)

    return prepare


def _broadcast(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        source, where = blobs(size, turn, variant | 1, 1)[0][0], (variant + turn) % size
        if rank == where:
            return Part(_through(algorithm, source, where), lambda _: True)
        out = np.zeros_like(source)
        return Part(_through(algorithm, out, where), lambda _: equal(out, source), [out])

    return prepare


def _all_gather(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        pieces = [row[0] for row in blobs(size, turn, variant, 1)]
        whole, counts = np.concatenate(pieces), [len(piece) for piece in pieces]
        at = patterns.offsets(counts)
        out = np.zeros_like(whole)
        out[at[rank] : at[rank + 1]] = pieces[rank]
        return Part(_through(algorithm, out, counts), lambda _: equal(out, whole), [out])

    return prepare


def _all_to_all(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        table = blobs(size, turn, variant, size)
        incoming = [np.zeros(len(row[rank]), np.uint8) for row in table]

        def right(_: Any) -> bool:
            return all(equal(incoming[i], table[i][rank]) for i in range(size) if i != rank)

        return Part(_through(algorithm, table[rank], incoming), right, incoming)

    return prepare


def _placing(part: Part) -> Callable[..., Array]:
    """A `place` that gives memory which is watched."""

    def place(*question: Any) -> Array:
        out = np.zeros(question[-1], np.uint8)
        part.outs.append(out)
        return out

    return place


def _gather(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        pieces, where = [row[0] for row in blobs(size, turn, variant, 1)], (variant + turn) % size
        expected = [parcel_of(piece, source) for source, piece in enumerate(pieces)]
        part = Part(_through(algorithm), lambda found: found is None)
        if rank == where:
            part.check = lambda found: same_parcels(found, expected)
        part.call = _through(algorithm, expected[rank].meta, pieces[rank], where, _placing(part))
        return part

    return prepare


def _scatter(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        pieces, where = [row[0] for row in blobs(size, turn, variant, 1)], (variant + turn) % size
        parcels = [parcel_of(piece, target) for target, piece in enumerate(pieces)]
        part = Part(_through(algorithm), lambda found: same_parcels([found], [parcels[rank]]))
        part.call = _through(algorithm, parcels if rank == where else None, where, _placing(part))
        return part

    return prepare


def _exchange_all(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        table = blobs(size, turn, variant, size)
        mine = [parcel_of(blob, rank) for blob in table[rank]]
        expected = [parcel_of(row[rank], source) for source, row in enumerate(table)]
        part = Part(_through(algorithm), lambda found: same_parcels(found, expected))
        part.call = _through(algorithm, mine, _placing(part))
        return part

    return prepare


def _share(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        expected = [row[0].tobytes() for row in blobs(size, turn, variant, 1)]
        return Part(_through(algorithm, expected[rank]), lambda found: bool(found == expected))

    return prepare


def _announce(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        blob, where = blobs(size, turn, variant, 1)[0][0].tobytes(), (variant + turn) % size
        return Part(_through(algorithm, blob if rank == where else None, where), lambda found: bool(found == blob))

    return prepare


def _show(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        expected = [parcel_of(row[0], source) for source, row in enumerate(blobs(size, turn, variant, 1))]
        part = Part(_through(algorithm), lambda found: same_parcels(found, expected))
        part.call = _through(algorithm, expected[rank].meta, expected[rank].data, _placing(part))
        return part

    return prepare


def _spread(algorithm: Algorithm) -> Prepare:
    def prepare(size: int, rank: int, turn: int, variant: int) -> Part:
        where = (variant + turn) % size
        parcel = parcel_of(blobs(size, turn, variant, 1)[0][0], where)
        given = parcel if rank == where else Parcel(b"", np.empty(0, np.uint8))
        part = Part(_through(algorithm), lambda found: same_parcels([found], [parcel]))
        part.call = _through(algorithm, given.meta, given.data, where, _placing(part))
        return part

    return prepare


MAKERS: Final[dict[str, Callable[[Algorithm], Prepare]]] = {
    "all_gather": _all_gather,
    "all_reduce": lambda algorithm: _in_place(algorithm, False, 0),
    "all_to_all": _all_to_all,
    "announce": _announce,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "exchange_all": _exchange_all,
    "exscan": lambda algorithm: _in_place(algorithm, False, 2),
    "gather": _gather,
    "reduce": lambda algorithm: _in_place(algorithm, True, 0),
    "reduce_scatter": _reduce_scatter,
    "scan": lambda algorithm: _in_place(algorithm, False, 1),
    "scatter": _scatter,
    "share": _share,
    "show": _show,
    "spread": _spread,
}


def _serves(algorithm: Algorithm, size: int) -> bool:
    return algorithm.when(size, 8 * _LONG)


def algorithm_programs() -> dict[str, Program]:
    """A program for each registered algorithm, by its name; an algorithm of a new collective needs a maker above."""
    found = {}
    for collective, algorithms in registry().items():
        for algorithm in algorithms.values():
            name = f"{collective}:{algorithm.name}"
            found[name] = Program(name, MAKERS[collective](algorithm), partial(_serves, algorithm))
    return found


__all__ = [
    "AFFINE", "FAULTS", "TURNS", "VARIANTS", "Part", "Program", "algorithm_programs", "blobs", "equal", "op_of",
    "vectors",
]  # fmt: skip
