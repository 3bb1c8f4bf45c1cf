"""One case per collective: inputs that differ by rank and element, a run over any harness, a NumPy oracle.

The rule: a case knows nothing of algorithms but how their collective is called. What runs the ranks is a
``Harness``: the channels of ``fake``, or real endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import Algorithm
from aiocoll.algorithms.channel import Array, Channel
from aiocoll.ops import SUM, Op

from .harness import Call, Harness, Main, bounds, counting, roots, uneven
from .parcel_cases import announce, exchange_all, gather, scatter, share, show, spread

# ---------------------------------------------------------------------------------------------- ops


def _compose(left: Array, right: Array, out: Array) -> None:
    """Affine maps x -> a x + b modulo 2**32, a in the high half of a uint64: associative, and order matters."""
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    a, b, c, d = left >> shift, left & mask, right >> shift, right & mask
    out[...] = ((a * c & mask) << shift) | ((a * d + b) & mask)


AFFINE = Op("affine", _compose, commutative=False)


def affine_whole(count: int) -> Op:
    """The same for whole arrays only."""

    def fold(left: Array, right: Array, out: Array) -> None:
        assert len(left) == count, "an op for whole arrays got a piece"
        _compose(left, right, out)

    return Op("affine_whole", fold, commutative=False, splittable=False)


def random_vectors(rng: np.random.Generator, size: int, count: int, dtype: Any) -> list[Array]:
    if np.dtype(dtype).kind == "f":
        return [rng.standard_normal(count).astype(dtype) for _ in range(size)]
    return [rng.integers(0, 2**62, count).astype(dtype) for _ in range(size)]


def variants(algorithm: Algorithm, count: int) -> Iterator[tuple[Op, Any]]:
    """The ops that an algorithm must serve, each with a dtype."""
    yield SUM, np.int64
    yield SUM, np.float64
    if algorithm.keeps_order:
        yield AFFINE, np.uint64
    if algorithm.keeps_order and not algorithm.splits:
        yield affine_whole(count), np.uint64


def folded(op: Op, vectors: list[Array]) -> Array:
    """The oracle: left to right."""
    if op.name == "SUM":
        return np.sum(vectors, axis=0, dtype=vectors[0].dtype)

    def pair(left: Array, right: Array) -> Array:
        out = np.empty_like(left)
        op.fold(left, right, out)
        return out

    return reduce(pair, vectors)


def same(found: Array, expected: Array) -> None:
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    else:
        np.testing.assert_array_equal(found, expected)


def bits_equal(results: list[Array]) -> None:
    assert len({result.tobytes() for result in results}) == 1, "ranks disagree in bits"


# ---------------------------------------------------------------------------------------------- reductions


def in_place(algorithm: Algorithm, op: Op, vectors: list[Array], *root: int) -> Main:
    """Every rank reduces a copy of its vector where it lies."""

    async def main(ch: Channel) -> Array:
        x = vectors[ch.rank].copy()
        await algorithm.run(ch, x, counting(ch, op), *root)
        return x

    return main


def all_reduce(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    for op, dtype in variants(algorithm, count):
        vectors = random_vectors(np.random.default_rng(seed), size, count, dtype)
        ran = harness(size, in_place(algorithm, op, vectors), seed)
        for result in ran.results:
            same(result, folded(op, vectors))
        bits_equal(ran.results)
        yield Call(ran, *bounds(count, size))


def reduce_(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    for root in roots(size):
        for op, dtype in variants(algorithm, count):
            vectors = random_vectors(np.random.default_rng(seed), size, count, dtype)
            ran = harness(size, in_place(algorithm, op, vectors, root), seed)
            same(ran.results[root], folded(op, vectors))
            # Where order is kept, only a root in the middle costs the hop from the top of the tree.
            yield Call(ran, *bounds(count, size), worst=not algorithm.keeps_order or 0 < root < size - 1 or size <= 2)


def reduce_scatter(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    rng = np.random.default_rng(seed)
    for counts in (patterns.even(count, size), uneven(rng, count, size)):
        at = patterns.offsets(counts)
        for op, dtype in variants(algorithm, count):
            vectors = random_vectors(rng, size, count, dtype)

            async def main(
                ch: Channel,
                op: Op = op,
                vectors: list[Array] = vectors,
                counts: list[int] = counts,
                at: list[int] = at,
            ) -> Array:
                x = vectors[ch.rank].copy()
                x.flags.writeable = False  # the blocks may be the user's own
                blocks = [x[at[i] : at[i + 1]] for i in range(ch.size)]
                out = np.full(counts[ch.rank], 7, x.dtype)
                await algorithm.run(ch, blocks, counting(ch, op), out)
                return out

            ran = harness(size, main, seed)
            expected = folded(op, vectors)
            for rank, result in enumerate(ran.results):
                same(result, expected[at[rank] : at[rank + 1]])
            if counts == patterns.even(count, size):
                yield Call(ran, *bounds(count, size))


def scan(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    for op, dtype in variants(algorithm, count):
        vectors = random_vectors(np.random.default_rng(seed), size, count, dtype)
        ran = harness(size, in_place(algorithm, op, vectors), seed)
        for rank, result in enumerate(ran.results):
            if algorithm.collective == "scan":
                same(result, folded(op, vectors[: rank + 1]))
            else:
                same(result, folded(op, vectors[:rank]) if rank else vectors[0])
        yield Call(ran, *bounds(count, size))


# ---------------------------------------------------------------------------------------------- movement


def barrier(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    arrived: set[int] = set()

    async def main(ch: Channel) -> int:
        arrived.add(ch.rank)
        await algorithm.run(ch)
        return len(arrived)

    ran = harness(size, main, seed)
    assert ran.results == [size] * size
    yield Call(ran, 0, 0)


def broadcast(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    data = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    for root in roots(size):
        source = data.copy()
        source.flags.writeable = False  # root's array may be the user's own

        async def main(ch: Channel, root: int = root, source: Array = source) -> Array:
            buf = source if ch.rank == root else np.full(count, 7, np.uint8)
            await algorithm.run(ch, buf, root)
            return buf

        ran = harness(size, main, seed)
        for result in ran.results:
            np.testing.assert_array_equal(result, data)
        yield Call(ran, *bounds(count, size, 1))


def all_gather(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, count, np.uint8)
    for counts in (patterns.even(count, size), uneven(rng, count, size)):
        at = patterns.offsets(counts)

        async def main(ch: Channel, counts: list[int] = counts, at: list[int] = at) -> Array:
            buf = np.full(count, 7, np.uint8)
            buf[at[ch.rank] : at[ch.rank + 1]] = data[at[ch.rank] : at[ch.rank + 1]]
            await algorithm.run(ch, buf, counts)
            return buf

        ran = harness(size, main, seed)
        for result in ran.results:
            np.testing.assert_array_equal(result, data)
        if counts == patterns.even(count, size):
            yield Call(ran, *bounds(count, size, 1))


def all_to_all(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    rng = np.random.default_rng(seed)
    equal = [[count // size] * size] * size
    for lengths in (equal, rng.integers(0, 2 * (count // size) + 1, (size, size)).tolist()):
        table = [[rng.integers(0, 256, lengths[a][b], np.uint8) for b in range(size)] for a in range(size)]

        async def main(ch: Channel, table: list[list[Array]] = table) -> list[Array]:
            incoming = [np.full(len(table[source][ch.rank]), 7, np.uint8) for source in range(ch.size)]
            await algorithm.run(ch, table[ch.rank], incoming)
            return incoming

        ran = harness(size, main, seed)
        for rank, incoming in enumerate(ran.results):
            for source in range(size):
                expected = table[source][rank] if source != rank else np.full_like(incoming[source], 7)
                np.testing.assert_array_equal(incoming[source], expected)
        if lengths is equal:
            yield Call(ran, count // size * size, count // size * size)


CASES: dict[str, Callable[[Algorithm, int, int, int, Harness], Iterator[Call]]] = {
    "all_gather": all_gather,
    "all_reduce": all_reduce,
    "all_to_all": all_to_all,
    "announce": announce,
    "barrier": barrier,
    "broadcast": broadcast,
    "exchange_all": exchange_all,
    "exscan": scan,
    "gather": gather,
    "reduce": reduce_,
    "reduce_scatter": reduce_scatter,
    "scan": scan,
    "scatter": scatter,
    "share": share,
    "show": show,
    "spread": spread,
}
