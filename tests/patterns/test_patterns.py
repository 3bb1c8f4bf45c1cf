"""Patterns for every rank of many sizes: both sides of each message agree, and in the end everybody has been heard."""

from __future__ import annotations

import numpy as np
import pytest

from aiocoll import patterns
from aiocoll.patterns import log2_ceil, log2_floor

SIZES = [*range(1, 70), 96, 100, 127, 128, 129, 255, 256, 257]
all_sizes = pytest.mark.parametrize("size", SIZES)


@all_sizes
def test_even_is_array_splits_rule(size: int) -> None:
    for count in (0, 1, size - 1, size, size + 1, 3 * size + 2, 10007):
        expected = [len(part) for part in np.array_split(np.arange(count), size)]
        assert patterns.even(count, size) == expected
        assert patterns.offsets(expected)[-1] == count


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_arc_is_the_blocks_going_round(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(50):
        counts = rng.integers(0, 4, size).tolist()
        at = patterns.offsets(counts)
        array = np.arange(at[-1])
        blocks = [array[at[i] : at[i + 1]] for i in range(size)]
        for first in range(2 * size):
            for count in range(size + 1):
                parts = patterns.arc(at, first, count)
                expected = [blocks[(first + i) % size] for i in range(count)]
                assert 1 <= len(parts) <= 2
                assert np.array_equal(
                    np.concatenate([array[part] for part in parts]), np.concatenate([*expected, array[:0]])
                )


def test_segments_cover_in_order_and_are_bounded() -> None:
    for start, stop in ((0, 0), (5, 5), (0, 1), (3, 1000), (0, 4096)):
        for length in (0, 1, 7, 256, 10**6):
            parts = patterns.segments(start, stop, length, 16)
            assert 1 <= len(parts) <= 16
            assert parts[0].start == start and parts[-1].stop == stop
            assert all(a.stop == b.start for a, b in zip(parts, parts[1:], strict=False))
            if (stop - start) <= 16 * length:
                assert all(part.stop - part.start <= length for part in parts)


@all_sizes
def test_logarithms(size: int) -> None:
    assert 2 ** log2_ceil(size) >= size > 2 ** (log2_ceil(size) - 1) or size == 1
    assert log2_floor(size) == max(rank.bit_count() for rank in range(size))


@all_sizes
def test_around_and_pairwise_meet_everybody_once(size: int) -> None:
    everyone = [list(patterns.pairwise(rank, size)) for rank in range(size)]
    for rank in range(size):
        assert sorted([*patterns.around(rank, size), rank]) == list(range(size))
        assert patterns.around(rank, size) == [step.to for step in everyone[rank]]
        for k, step in enumerate(everyone[rank]):
            assert everyone[step.to][k].source == rank
        sources = [step.source for step in everyone[rank]]
        assert sources == [*range(rank - 1, -1, -1), *range(size - 1, rank, -1)]


@all_sizes
def test_dissemination_reaches_all(size: int) -> None:
    steps = [patterns.dissemination(rank, size) for rank in range(size)]
    heard = [{rank} for rank in range(size)]
    for k in range(log2_ceil(size)):
        for rank in range(size):
            assert steps[steps[rank][k].to][k].source == rank
        heard = [heard[rank] | heard[steps[rank][k].source] for rank in range(size)]
    assert all(len(known) == size for known in heard)


@pytest.mark.parametrize("size", [pytest.param(size, marks=[pytest.mark.slow] * (size > 200)) for size in SIZES])
def test_circulant_reduces_and_gathers_every_block_once(size: int) -> None:
    rounds = [patterns.circulant(rank, size) for rank in range(size)]
    assert {len(mine) for mine in rounds} == {log2_ceil(size)}
    folded = [[frozenset([rank]) for _ in range(size)] for rank in range(size)]  # [rank][i]: block rank + i
    volume = 0
    for k in range(log2_ceil(size)):
        before = [list(blocks) for blocks in folded]
        for rank in range(size):
            ahead, behind, skip, span = rounds[rank][k]
            assert rounds[ahead][k].behind == rank and span - skip <= skip
            for i in range(span - skip):
                arrived = before[behind][skip + i]
                assert not folded[rank][i] & arrived
                folded[rank][i] |= arrived
        volume += rounds[0][k].span - rounds[0][k].skip
    assert volume == size - 1
    assert all(len(folded[rank][0]) == size for rank in range(size))
    held = [{0: rank} for rank in range(size)]  # position i -> block
    for k in reversed(range(log2_ceil(size))):
        before_gather = [dict(blocks) for blocks in held]
        for rank in range(size):
            ahead, _, skip, span = rounds[rank][k]
            for i in range(span - skip):
                held[rank][skip + i] = before_gather[ahead][i]
    assert all(held[rank] == {i: (rank + i) % size for i in range(size)} for rank in range(size))


@all_sizes
def test_binomial_tree_has_contiguous_subtrees(size: int) -> None:
    nodes = [patterns.binomial(rank, size) for rank in range(size)]
    assert nodes[0].parent is None
    depth = [0] * size
    for rank, node in enumerate(nodes):
        reached = rank + 1
        for child in node.children:
            assert nodes[child.rank].parent == rank
            assert child.rank == reached and nodes[child.rank].stop == child.stop
            reached = child.stop
        assert reached == node.stop
        if node.parent is not None:
            assert rank in [child.rank for child in nodes[node.parent].children]
            depth[rank] = depth[node.parent] + 1
    assert nodes[0].stop == size
    assert max(depth) == log2_floor(size)
    assert len(nodes[0].children) == log2_ceil(size)


@all_sizes
def test_turning_a_tree_and_back(size: int) -> None:
    for root in {0, size // 2, size - 1}:
        assert patterns.turned(root, root, size) == 0
        assert all(patterns.unturned(patterns.turned(r, root, size), root, size) == r for r in range(size))


@all_sizes
def test_doubling_keeps_rank_order(size: int) -> None:
    plans = [patterns.doubling(rank, size) for rank in range(size)]
    held: list[tuple[int, ...]] = [(rank,) for rank in range(size)]
    for rank, plan in enumerate(plans):
        if plan.lends_to is not None:
            assert plans[plan.lends_to].stands_for == rank and not plan.peers
        if plan.stands_for is not None:
            assert plan.stands_for == rank - 1
            held[rank] = (rank - 1, rank)
    for k in range(log2_floor(size)):
        before = list(held)
        for rank, plan in enumerate(plans):
            if plan.lends_to is None:
                peer = plan.peers[k]
                assert plans[peer].peers[k] == rank
                held[rank] = before[peer] + before[rank] if peer < rank else before[rank] + before[peer]
    assert all(held[rank] == tuple(range(size)) for rank in range(size) if plans[rank].lends_to is None)


@all_sizes
def test_prefix_holds_everything_up_to_me(size: int) -> None:
    hops = [patterns.prefix(rank, size) for rank in range(size)]
    held: list[tuple[int, ...]] = [(rank,) for rank in range(size)]
    for k in range(log2_ceil(size)):
        before = list(held)
        for rank in range(size):
            to, source = hops[rank][k]
            if to is not None:
                assert hops[to][k].source == rank
            if source is not None:
                assert hops[source][k].to == rank
                held[rank] = before[source] + held[rank]
    assert all(held[rank] == tuple(range(rank + 1)) for rank in range(size))


@pytest.mark.parametrize("size", [*range(1, 34), 48, 64, 65])
def test_bruck_takes_every_item_home(size: int) -> None:
    relays = [patterns.bruck(rank, size) for rank in range(size)]
    items = [{d: (rank, (rank + d) % size) for d in range(size)} for rank in range(size)]
    sent = 0
    for k in range(log2_ceil(size)):
        before = [dict(mine) for mine in items]
        for rank in range(size):
            to, source, distances = relays[rank][k]
            assert relays[to][k].source == rank
            sent += len(distances) if rank == 0 else 0
            for distance in distances:
                items[rank][distance] = before[source][distance]
    assert sent == patterns.bruck_items(size)
    for rank in range(size):
        assert sorted(items[rank].values()) == [(source, rank) for source in range(size)]
        assert all(items[rank][d] == ((rank - d) % size, rank) for d in range(size))
