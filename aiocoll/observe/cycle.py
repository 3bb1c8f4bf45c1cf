"""Ranks that wait for one another in a ring, for those who explain why nobody goes on.

Rule: pure, in time that grows with the number of edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def find_cycle(edges: Mapping[int, Iterable[int]]) -> list[int]:
    """The ranks of one cycle in order, beginning with the lowest; empty if there is none."""
    settled: set[int] = set()
    for start in sorted(edges):
        path: list[int] = []
        on_path: dict[int, int] = {}
        branches = [iter((start,))]
        while branches:
            rank = next(branches[-1], None)
            if rank is None:
                branches.pop()
                if path:
                    settled.add(path[-1])
                    del on_path[path.pop()]
            elif rank in on_path:
                cycle = path[on_path[rank] :]
                lowest = cycle.index(min(cycle))
                return cycle[lowest:] + cycle[:lowest]
            elif rank not in settled:
                on_path[rank] = len(path)
                path.append(rank)
                branches.append(iter(sorted(edges.get(rank, ()))))
    return []


__all__ = ["find_cycle"]
