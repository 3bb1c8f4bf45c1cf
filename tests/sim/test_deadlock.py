"""A deadlock is explained by its cycle, or by who has gone."""

from __future__ import annotations

import itertools

from aiocoll.observe.cycle import find_cycle
from aiocoll.sim.deadlock import explain


def test_cycles_are_found_and_begin_with_the_lowest_rank() -> None:
    assert find_cycle({0: [1], 1: [2], 2: [0]}) == [0, 1, 2]
    assert find_cycle({3: [1], 1: [2], 2: [1]}) == [1, 2]
    assert find_cycle({0: [1, 2], 1: [3], 2: [3], 3: []}) == []
    assert find_cycle({3: {1}, 1: {2}, 2: {3}, 0: {3}}) == [1, 2, 3]
    assert find_cycle({5: [5]}) == [5]
    assert find_cycle({}) == []


def test_every_graph_of_four_ranks_agrees_with_the_definition() -> None:
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    for chosen in itertools.islice(itertools.product([0, 1], repeat=len(pairs)), 0, None, 7):
        edges: dict[int, list[int]] = {rank: [] for rank in range(4)}
        for (a, b), there in zip(pairs, chosen, strict=True):
            if there:
                edges[a].append(b)
        # A graph has a cycle exactly if ranks that wait for nobody cannot be taken away one by one until none is left.
        left = set(edges)
        while free := {rank for rank in left if not left.intersection(edges[rank])}:
            left -= free
        cycle = find_cycle(edges)
        assert bool(cycle) == bool(left)
        assert all(b in edges[a] for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True))


def test_the_text_names_ranks_calls_and_those_that_have_gone() -> None:
    text = explain(
        {0: [("recv (tag 3)", 1)], 1: [("barrier (call 2)", 0), ("barrier (call 2)", 2)], 3: [], 4: [("recv", -1)]},
        {2: "returned"},
        1.5,
    )
    assert text.splitlines() == [
        "deadlock at t=1.5 s: every rank waits and nothing can happen any more",
        "a cycle: 0 -> 1 -> 0",
        "  rank 0 waits for rank 1 in recv (tag 3)",
        "  rank 1 waits for rank 0 and rank 2 (which has returned) in barrier (call 2)",
        "  rank 3 waits for something outside of the group (its own event, lock or queue)",
        "  rank 4 waits for anyone in recv",
    ]


def test_the_text_of_many_ranks_is_bounded() -> None:
    text = explain({rank: [("barrier (call 0)", peer) for peer in range(500)] for rank in range(500)}, {}, 0.0)
    assert len(text) < 10_000 and "468 more ranks" in text
