"""Who waits for whom, in words: the text of a DeadlockError.

Rule: pure; a cycle is shown first, since it is the cause, and the list of ranks is bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..observe.cycle import find_cycle

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


__all__ = ["explain"]
