"""The wait-for graph of one connection, in words.

The rule: ranks that wait alike stand in one line; where a chain of waiting ends, or bites its own tail, is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from aiocoll.observe.cycle import find_cycle
from aiocoll.observe.dump import called

from .dumps import Dump, Wait

_LINES_MAX: Final = 40


def waiting(ranks: Mapping[int, Dump]) -> list[str]:
    """Who waits for whom and in what; then those that are waited for and wait for nobody; then a cycle, if one is."""
    alike: dict[tuple[str, str, int], list[tuple[int, Wait]]] = {}
    for rank, dump in ranks.items():
        for wait in dump.waits():
            alike.setdefault((wait.group, wait.label, wait.peer), []).append((rank, wait))
    done = {rank: dump.through() for rank, dump in ranks.items()}
    lines = [_edge(ranks, waits, done) for _, waits in sorted(alike.items(), key=lambda item: item[1][0][0])]
    edges = {
        rank: {wait.peer for wait in dump.waits() if wait.peer >= 0 and not _under_way(wait, done)}
        for rank, dump in ranks.items()
    }
    wanted = sorted({peer for peers in edges.values() for peer in peers})
    if len(lines) > _LINES_MAX:
        lines = [*lines[:_LINES_MAX], f"and {len(lines) - _LINES_MAX} more that wait"]
    busy = {rank for rank, dump in ranks.items() if any(wait.peer >= 0 for wait in dump.waits())}
    lines += [_end(ranks[peer]) for peer in wanted if peer in ranks and peer not in busy]
    ring = find_cycle(edges)
    if ring and _apart(ranks, ring):
        shown = [str(ranks[rank].shown(rank)) for rank in ring]
        lines.append(f"a cycle: rank {' waits for rank '.join([*shown, shown[0]])}; nobody of them can go on")
    return lines


def _under_way(wait: Wait, done: Mapping[int, set[tuple[str, str]]]) -> bool:
    """Whether whoever is waited for has done its part: only what it sent is still missing."""
    return (wait.group, wait.label) in done.get(wait.peer, ())


def _edge(ranks: Mapping[int, Dump], waits: list[tuple[int, Wait]], done: Mapping[int, set[tuple[str, str]]]) -> str:
    members = [rank for rank, _ in waits]
    one, dump = waits[0][1], ranks[members[0]]
    shown = sorted(dump.shown(rank) for rank in members)
    who = f"rank {shown[0]} waits" if len(shown) == 1 else f"ranks {', '.join(map(str, shown))} wait"
    whom = "anyone" if one.peer < 0 else f"rank {dump.shown(one.peer)}"
    where = f" of group {dump.group_name(one.group)!r}" if one.group else ""
    ended = ", which has ended it: what it sent is under way" if _under_way(one, done) else ""
    return f"{who} for {whom} in {one.label}{where}, {max(wait.seconds for _, wait in waits):.1f} s{ended}"


def _end(dump: Dump) -> str:
    """A rank that is waited for and waits for nobody."""
    busy = [call["label"] for group in dump.content["groups"] for call in group["under_way"]]
    last = next((fact for fact in reversed(list(dump.facts("call", "message")))), None)
    if busy:
        what = f"it is in {busy[0]}"
    elif last is None:
        what = "it has made no call"
    else:
        age = float(dump.content["clock"]) - float(last["at"] if last["ended"] is None else last["ended"])
        how = "began" if last["ended"] is None else "ended"
        what = f"its last call, {called(last)} of group {last['group']!r}, {how} {age:.1f} s ago"
    place = f"; it is at {dump.place}" if dump.place else ""
    return f"rank {dump.shown(dump.rank)} waits for nobody: {what}{place}"


def _apart(ranks: Mapping[int, Dump], ring: Iterable[int]) -> bool:
    """Whether a ring of ranks is more than one collective in which all of them are: there a cycle is how it works."""
    labels = {(wait.group, wait.label) for rank in ring for wait in ranks[rank].waits()}
    return len(labels) > 1
