"""One case per collective: inputs that differ by rank and element, a run over any harness, a NumPy oracle.

The rule: a case knows nothing of algorithms but how their collective is called. ``Harness`` is what runs the ranks:
the channels of ``fake``, or real endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import Algorithm
from aiocoll.algorithms.bundle import INLINE_BYTES
from aiocoll.algorithms.channel import Array, Channel, Parcel
from aiocoll.ops import SUM, Op


class Ran(Protocol):
    """What came of a run; lists by rank."""

    results: list[Any]
    rounds: int
    sent: list[int]
    folded: list[int]


Main = Callable[[Any], Coroutine[Any, Any, Any]]
Harness = Callable[[int, Main, int], Ran]
"""harness(size, main, seed) runs main(channel) on all ranks."""


@dataclass(frozen=True)
class Call:
    """A finished call and how many bytes ``n`` it was about, rounded down and up to what p divides."""

    ran: Ran
    floor: int
    ceiling: int
    worst: bool = True
    """Whether the declared costs are met exactly by this call; otherwise they are bounds."""


def counting(channel: Any, op: Op) -> Op:
    return channel.counting(op) if hasattr(channel, "counting") else op


def bounds(count: int, size: int, itemsize: int = 8) -> tuple[int, int]:
    return count // size * size * itemsize, -(-count // size) * size * itemsize


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


def roots(size: int) -> list[int]:
    return sorted({0, size // 2, size - 1})


# ---------------------------------------------------------------------------------------------- reductions


def all_reduce(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    for op, dtype in variants(algorithm, count):
        vectors = random_vectors(np.random.default_rng(seed), size, count, dtype)

        async def main(ch: Channel, op: Op = op, vectors: list[Array] = vectors) -> Array:
            x = vectors[ch.rank].copy()
            await algorithm.run(ch, x, counting(ch, op))
            return x

        ran = harness(size, main, seed)
        for result in ran.results:
            same(result, folded(op, vectors))
        bits_equal(ran.results)
        yield Call(ran, *bounds(count, size))


def reduce_(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    for root in roots(size):
        for op, dtype in variants(algorithm, count):
            vectors = random_vectors(np.random.default_rng(seed), size, count, dtype)

            async def main(ch: Channel, op: Op = op, vectors: list[Array] = vectors, root: int = root) -> Array:
                x = vectors[ch.rank].copy()
                await algorithm.run(ch, x, counting(ch, op), root)
                return x

            ran = harness(size, main, seed)
            same(ran.results[root], folded(op, vectors))
            # Where order is kept, only a root in the middle costs the hop from the top of the tree.
            yield Call(ran, *bounds(count, size), worst=not algorithm.keeps_order or 0 < root < size - 1 or size <= 2)


def uneven(rng: np.random.Generator, count: int, size: int) -> list[int]:
    cuts = np.sort(rng.integers(0, count + 1, size - 1)).tolist()
    return np.diff([0, *cuts, count]).tolist()


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

        async def main(ch: Channel, op: Op = op, vectors: list[Array] = vectors) -> Array:
            x = vectors[ch.rank].copy()
            await algorithm.run(ch, x, counting(ch, op))
            return x

        ran = harness(size, main, seed)
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


# ---------------------------------------------------------------------------------------------- parcels


def parcels_of(rng: np.random.Generator, number: int, length: int | None) -> list[Parcel]:
    """Parcels of one length, or of lengths from nothing to more than a bundle takes."""
    made = []
    for i in range(number):
        nbytes = length if length is not None else int(rng.choice([0, 1, 5, 300, 2040, 5000]))
        meta = f"{i:03d}".encode() if length is None or length >= 3 else b""
        made.append(Parcel(meta, rng.integers(0, 256, nbytes - (len(meta) if length is not None else 0), np.uint8)))
    return made


def same_parcels(found: list[Parcel], expected: list[Parcel]) -> None:
    assert [parcel.meta for parcel in found] == [parcel.meta for parcel in expected]
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine.data, theirs.data)
        assert mine.data.dtype == np.uint8 and mine.data.flags.c_contiguous


def placing(asked: list[Any]) -> Callable[..., Array]:
    """A ``place`` that remembers what it was asked and gives memory that can be recognised."""

    def place(*question: Any) -> Array:
        asked.append(question)
        return np.full(question[-1] + 8, 9, np.uint8)[8:]

    return place


def gather(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    for root in roots(size):
        for length in (count // size, None):
            parcels = parcels_of(np.random.default_rng(seed), size, length)
            asked: list[Any] = []

            async def main(
                ch: Channel, root: int = root, parcels: list[Parcel] = parcels, asked: list[Any] = asked
            ) -> Any:
                mine = parcels[ch.rank]
                return await algorithm.run(ch, mine.meta, mine.data, root, placing(asked) if seed % 3 == 0 else None)

            ran = harness(size, main, seed)
            same_parcels(ran.results[root], parcels)
            assert all(result is None for rank, result in enumerate(ran.results) if rank != root)
            if seed % 3 == 0:
                expected = [(r, p.meta, len(p.data)) for r, p in enumerate(parcels) if r != root]
                assert sorted(asked) == expected
            if length is not None:
                yield Call(ran, length * size, length * size)


def scatter(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    for root in roots(size):
        for length in (count // size, None):
            parcels = parcels_of(np.random.default_rng(seed), size, length)
            asked: list[Any] = []

            async def main(
                ch: Channel, root: int = root, parcels: list[Parcel] = parcels, asked: list[Any] = asked
            ) -> Any:
                place = placing(asked) if seed % 3 == 0 else None
                return await algorithm.run(ch, parcels if ch.rank == root else None, root, place)

            ran = harness(size, main, seed)
            same_parcels(ran.results, parcels)
            if seed % 3 == 0:
                assert sorted(asked) == sorted((p.meta, len(p.data)) for r, p in enumerate(parcels) if r != root)
            if length is not None:
                yield Call(ran, length * size, length * size)


def exchange_all(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    rng = np.random.default_rng(seed)
    for length in (count // size, None):
        table = [parcels_of(rng, size, length) for _ in range(size)]
        asked: list[Any] = []

        async def main(ch: Channel, table: list[list[Parcel]] = table, asked: list[Any] = asked) -> Any:
            return await algorithm.run(ch, table[ch.rank], placing(asked) if seed % 3 == 0 else None)

        ran = harness(size, main, seed)
        for rank, arrived in enumerate(ran.results):
            same_parcels(arrived, [table[source][rank] for source in range(size)])
        if seed % 3 == 0:
            others = [(s, table[s][r].meta, len(table[s][r].data)) for s in range(size) for r in range(size) if s != r]
            assert sorted(asked) == sorted(others)
        if length is not None and (
            length <= INLINE_BYTES or algorithm.name != "bruck"
        ):  # what goes straight goes after
            yield Call(ran, length * size, length * size)


def share(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    rng = np.random.default_rng(seed)
    equal = [count // size] * size
    for lengths in (equal, rng.integers(0, 400, size).tolist()):
        blobs = [rng.bytes(length) for length in lengths]

        async def main(ch: Channel, blobs: list[bytes] = blobs) -> Any:
            return await algorithm.run(ch, blobs[ch.rank])

        ran = harness(size, main, seed)
        assert all(result == blobs for result in ran.results)
        if lengths is equal:
            yield Call(ran, sum(equal), sum(equal))


def announce(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    blob = np.random.default_rng(seed).bytes(count)
    for root in roots(size):

        async def main(ch: Channel, root: int = root) -> Any:
            return await algorithm.run(ch, blob if ch.rank == root else None, root)

        ran = harness(size, main, seed)
        assert ran.results == [blob] * size
        yield Call(ran, count, count)


def show(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    """Without anything likely, and with what no other rank sends: a channel that never has it says so."""
    rng = np.random.default_rng(seed)
    for length in (count // size, None):
        parcels = parcels_of(rng, size, length)

        async def main(ch: Channel, parcels: list[Parcel] = parcels) -> Any:
            mine, own = parcels[ch.rank], np.full(len(parcels[ch.rank].data), 6, np.uint8)
            mine.data.flags.writeable = False  # may be the user's own
            asked: list[Any] = []
            likely = [np.full(len(mine.data), 5, np.uint8) for _ in range(size)] if seed % 3 else None
            came = await algorithm.run(ch, mine.meta, mine.data, placing(asked), likely, own if seed % 2 else None)
            assert sorted(asked) == [(r, p.meta, len(p.data)) for r, p in enumerate(parcels) if r != ch.rank]
            if likely is not None:
                assert came[ch.rank] is None
                came[ch.rank] = Parcel(mine.meta, own if seed % 2 else mine.data)
            if seed % 2:
                assert came[ch.rank].data is own
            return came

        ran = harness(size, main, seed)
        for result in ran.results:
            same_parcels(result, parcels)
        if length is not None:
            yield Call(ran, length * size, length * size)


def spread(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    for root in roots(size):
        (parcel,) = parcels_of(np.random.default_rng(seed), 1, count)
        parcel.data.flags.writeable = False

        async def main(ch: Channel, root: int = root, parcel: Parcel = parcel) -> Any:
            asked: list[Any] = []
            given = parcel if ch.rank == root else Parcel(b"", np.empty(0, np.uint8))
            likely = (b"another head", np.full(count, 5, np.uint8)) if seed % 3 else None
            came = await algorithm.run(ch, given.meta, given.data, root, placing(asked), likely)
            assert asked == [(parcel.meta, len(parcel.data))] * (ch.rank != root)
            return came

        ran = harness(size, main, seed)
        same_parcels(ran.results, [parcel] * size)
        yield Call(ran, count, count)


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
