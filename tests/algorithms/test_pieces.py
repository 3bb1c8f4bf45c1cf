"""What only long arrays and many ranks reach: windows, segments, lanes and slices, made small enough to test."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aiocoll.algorithms import (
    Algorithm,
    all_to_all,
    bundle,
    exchange_all,
    find,
    gather,
    gathered,
    owner,
    pace,
    pipeline,
    reading,
    registry,
    scatter,
    spread,
)
from aiocoll.algorithms.channel import Parcel
from aiocoll.errors import WireError
from aiocoll.ops import MEAN, PROD, SUM, Op

from .cases import AFFINE, CASES, affine_whole
from .test_matrix import ALGORITHMS, check_declared, fake

IN_WINDOWS = ("all_to_all", "exchange_all", "gather", "scatter")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (all_to_all, exchange_all, gather, scatter):
        monkeypatch.setattr(module, "WINDOW", 3)
    monkeypatch.setattr(pipeline, "SEGMENT_BYTES", 64)
    monkeypatch.setattr(pipeline, "SEGMENTS_MAX", 7)
    monkeypatch.setattr(pipeline, "AHEAD", 2)
    monkeypatch.setattr(pace, "SLICE_BYTES", 100)
    monkeypatch.setattr(owner, "BLOCK_BYTES", 100)
    monkeypatch.setattr(owner, "WINDOW", 3)
    monkeypatch.setattr(owner, "ASK_BYTES", 500)
    monkeypatch.setattr(gathered, "BLOCK_BYTES", 200)
    monkeypatch.setattr(gathered, "BLOCK_BYTES_MIN", 100)
    monkeypatch.setattr(gathered, "FOLD_BYTES", 64)
    monkeypatch.setattr(reading, "STEP_BYTES", 200)
    monkeypatch.setattr(spread, "BLOCK_BYTES", 100)
    monkeypatch.setattr(spread, "READ_BYTES_MIN", 500)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("size", [1, 2, 5, *(pytest.param(size, marks=pytest.mark.slow) for size in (3, 8, 11))])
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_many_pieces(algorithm: Algorithm, size: int) -> None:
    for count in (1, 23, 400, 1001):
        if not algorithm.when(size, count * 8):
            continue
        for seed in range(4):
            for call in CASES[algorithm.collective](algorithm, size, count, 100 * count + seed, fake):
                sliced = algorithm.blocked or algorithm.collective in IN_WINDOWS  # which costs rounds
                if not sliced:
                    check_declared(algorithm, size, call.ran, call.floor, call.ceiling, call.worst)


@pytest.mark.usefixtures("small_pieces")
def test_slices_are_whole_for_ops_that_want_it() -> None:
    x = np.zeros(100)
    assert len(pace.slices(x, SUM)) == len(pace.slices(x, AFFINE)) == len(pace.slices(x)) > 1
    assert pace.slices(x, affine_whole(100)) == [slice(0, 100)]
    covered = np.concatenate([np.arange(100)[part] for part in pace.slices(x)])
    assert covered.tolist() == list(range(100))


def parcel(meta: bytes, *data: int) -> Parcel:
    return Parcel(meta, np.array(data, np.uint8))


def test_bundles_come_back() -> None:
    parcels = [parcel(b"x", 1, 2), None, parcel(b""), parcel(b"longer meta"), parcel(b"", 3)]
    found = bundle.unpack(np.frombuffer(bundle.pack(parcels), np.uint8), len(parcels))
    for mine, theirs in zip(found, parcels, strict=True):
        if theirs is None or mine is None:
            assert mine is theirs
        else:
            assert mine.meta == theirs.meta and mine.data.tolist() == theirs.data.tolist()


def test_bad_bundles_are_refused() -> None:
    packed = bundle.pack([parcel(b"ab", 1, 2, 3), parcel(b"", 4)])
    for end in range(len(packed)):
        with pytest.raises(WireError, match="ends at byte"):
            bundle.unpack(np.frombuffer(packed[:end], np.uint8), 2)
    with pytest.raises(WireError, match="1 bytes too many"):
        bundle.unpack(np.frombuffer(packed + b"!", np.uint8), 2)
    rng = np.random.default_rng(0)
    for _ in range(500):  # nothing but WireError, and no memory for what is not there
        noise = rng.integers(0, 256, int(rng.integers(0, 60)), np.uint8)
        try:
            bundle.unpack(noise, 2)
        except WireError:
            pass


def test_registry_tells_what_there_is() -> None:
    assert find("all_reduce", "ring").idea.startswith("Reduce-scatter, then all-gather")
    assert repr(find("barrier", "dissemination")) == "<algorithm barrier:dissemination>"
    assert all(each.idea.endswith(".") or ":" in each.idea for each in ALGORITHMS)
    for collective, names in registry().items():
        only_memory = all(each.on == "memory" for each in names.values())
        assert len(names) >= 2 or only_memory, collective


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("op", [SUM, MEAN, PROD])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_are_rounded_once(dtype: Any, op: Op, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fold is that of float32, in rank order, finished and rounded at the end: equal bits on all ranks."""
    if small:
        monkeypatch.setattr(owner, "BLOCK_BYTES", 64)
    takes_narrow = [each for each in ALGORITHMS if each.narrow]
    assert {each.collective for each in takes_narrow} >= {"all_reduce", "reduce", "reduce_scatter"}
    for algorithm in takes_narrow:
        for size in (1, 2, 5):
            for count in (0, 3, 211):
                rng = np.random.default_rng(count)
                vectors = [(1 + rng.standard_normal(count) / 8).astype(dtype) for _ in range(size)]
                expected = vectors[0].astype(np.float32)
                for vector in vectors[1:]:
                    op.fold(expected, vector.astype(np.float32), expected)
                op.finish(expected, size)

                async def main(ch: Any, algorithm: Algorithm = algorithm, vectors: list[Any] = vectors) -> Any:
                    x = vectors[ch.rank].copy()
                    if algorithm.collective == "reduce_scatter":
                        blocks = np.array_split(x, ch.size)
                        x = np.empty_like(blocks[ch.rank])
                        await algorithm.run(ch, blocks, op, x)
                    else:
                        await algorithm.run(ch, x, op, *([0] if algorithm.collective == "reduce" else []))
                    return x

                results = fake(size, main, size + count).results
                if algorithm.collective == "reduce_scatter":
                    results = [np.concatenate(results)]
                elif algorithm.collective == "reduce":
                    results = results[:1]
                for result in results:
                    assert result.tobytes() == expected.astype(dtype).tobytes(), (algorithm, size, count)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("size", [2, 3, 4, 5, *(pytest.param(size, marks=pytest.mark.slow) for size in (8, 9))])
def test_from_left_means_from_left(size: int, small: bool, request: pytest.FixtureRequest) -> None:
    """Whoever says so, and with two ranks everybody, gives the bits of ((x0 op x1) op x2) op ... on all ranks."""
    if small:
        request.getfixturevalue("small_pieces")
    said = [each for each in ALGORITHMS if each.from_left or (size == 2 and each.collective in REDUCTIONS)]
    assert {each.collective for each in said} == REDUCTIONS
    for algorithm in said:
        for count in (1, 23, 401):
            for seed in range(4 if algorithm.when(size, 16 * count) else 0):
                bits_from_left(algorithm, size, count, seed)


REDUCTIONS = {"all_reduce", "reduce", "reduce_scatter", "scan", "exscan"}


def bits_from_left(algorithm: Algorithm, size: int, count: int, seed: int) -> None:
    rng = np.random.default_rng([seed, count])
    vectors = [(1 + rng.standard_normal((count, 2)) / 8).view(complex).reshape(-1) for _ in range(size)]
    root = seed % size

    async def main(ch: Any) -> Any:
        x = vectors[ch.rank].copy()
        if algorithm.collective == "reduce_scatter":
            out = np.empty_like(np.array_split(x, size)[ch.rank])
            await algorithm.run(ch, np.array_split(x, size), PROD, out)
            return out
        await algorithm.run(ch, x, PROD, *([root] if algorithm.collective == "reduce" else []))
        return x

    def fold(first: list[Any]) -> Any:
        total = first[0].copy()
        for vector in first[1:]:
            PROD.fold(total, vector, total)
        return total

    for rank, found in enumerate(fake(size, main, seed).results):
        if algorithm.collective in ("scan", "exscan"):
            wanted = fold(vectors[: max(rank + (algorithm.collective == "scan"), 1)])
        elif algorithm.collective == "reduce_scatter":
            wanted = np.array_split(fold(vectors), size)[rank]
        elif algorithm.collective == "reduce" and rank != root:
            continue
        else:
            wanted = fold(vectors)
        assert found.tobytes() == wanted.tobytes(), (algorithm, size, count, seed, rank)
