"""Cases of the collectives that carry parcels or bytes: lengths that differ, and what only the sender knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from aiocoll.algorithms import Algorithm
from aiocoll.algorithms.bundle import INLINE_BYTES
from aiocoll.algorithms.channel import Array, Channel, Parcel

from .harness import Call, Harness, roots


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


def _each(size: int, count: int, seed: int) -> Iterator[tuple[int, int | None, list[Parcel]]]:
    """Every root, with parcels of one length and of several."""
    for root in roots(size):
        for length in (count // size, None):
            yield root, length, parcels_of(np.random.default_rng(seed), size, length)


def gather(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    for root, length, parcels in _each(size, count, seed):
        asked: list[Any] = []
        place = placing(asked) if seed % 3 == 0 else None

        async def main(ch: Channel, root: int = root, parcels: list[Parcel] = parcels, place: Any = place) -> Any:
            return await algorithm.run(ch, parcels[ch.rank].meta, parcels[ch.rank].data, root, place)

        ran = harness(size, main, seed)
        same_parcels(ran.results[root], parcels)
        assert all(result is None for rank, result in enumerate(ran.results) if rank != root)
        if place is not None:
            assert sorted(asked) == [(r, p.meta, len(p.data)) for r, p in enumerate(parcels) if r != root]
        if length is not None:
            yield Call(ran, length * size, length * size)


def scatter(algorithm: Algorithm, size: int, count: int, seed: int, harness: Harness) -> Iterator[Call]:
    for root, length, parcels in _each(size, count, seed):
        asked: list[Any] = []
        place = placing(asked) if seed % 3 == 0 else None

        async def main(ch: Channel, root: int = root, parcels: list[Parcel] = parcels, place: Any = place) -> Any:
            return await algorithm.run(ch, parcels if ch.rank == root else None, root, place)

        ran = harness(size, main, seed)
        same_parcels(ran.results, parcels)
        if place is not None:
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
        late = algorithm.name == "bruck" and (length or 0) > INLINE_BYTES  # what goes straight goes after the rest
        if length is not None and not late:
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
