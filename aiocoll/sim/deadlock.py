"""Who waits for whom, in words: the text of a DeadlockError.

Rule: pure; a cycle is shown first, since it is the cause, and the list of ranks is bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

RANKS_SHOWN_MAX = 32

Waits = Mapping[int, Sequence[tuple[str, int]]]
"""rank -> (what it waits in, the rank it waits for; negative: anyone)."""


def explain(waits: Waits, ended: Mapping[int, str], now: float) -> str:
    """`ended` says of ranks that run no more how they ended."""
    lines = [f"deadlock at t={now:g} s: every rank waits and nothing can happen any more"]
    cycle = find_cycle({rank: [peer for _, peer in edges if peer >= 0] for rank, edges in waits.items()})
    if cycle:
        lines.append("a cycle: " + " -> ".join(map(str, [*cycle, cycle[0]])))
    for rank in sorted(waits)[:RANKS_SHOWN_MAX]:
        lines.append(f"  rank {rank} waits {_edges(waits[rank], ended)}")
    if len(waits) > RANKS_SHOWN_MAX:
        lines.append(f"  … and {len(waits) - RANKS_SHOWN_MAX} more ranks")
    return "\n".join(lines)


def _edges(edges: Sequence[tuple[str, int]], ended: Mapping[int, str]) -> str:
    if not edges:
        return "for something outside of the group (its own event, lock or queue)"
    by_call: dict[str, list[int]] = {}
    for what, peer in edges:
        by_call.setdefault(what, []).append(peer)
    return "; ".join(f"for {_peers(peers, ended)} in {what}" for what, peers in by_call.items())


def _peers(peers: Collection[int], ended: Mapping[int, str]) -> str:
    names = []
    for peer in sorted(set(peers)):
        name = "anyone" if peer < 0 else f"rank {peer}"
        names.append(f"{name} (which has {ended[peer]})" if peer in ended else name)
    return " and ".join(names) if len(names) <= 8 else f"{len(names)} ranks: {', '.join(names[:8])}, …"


def find_cycle(edges: Mapping[int, Sequence[int]]) -> list[int]:
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
                branches.append(iter(edges.get(rank, ())))
    return []


__all__ = ["explain", "find_cycle"]
