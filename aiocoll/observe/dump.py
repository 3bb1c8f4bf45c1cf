"""A rank's dump on disk, as JSON for programs and as text for people.

The rule: a file appears whole or not at all, and nobody but its owner may read it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Iterator
from typing import Any, Final

FORMAT: Final = "aiocoll trace 1"
SUFFIX: Final = ".trace.json"
NAMED: Final = 1 << 63
"""Calls that are matched by name have numbers from here on."""


def write(directory: str, name: str, dump: dict[str, Any]) -> str:
    """Writes ``name``.trace.json and ``name``.trace.txt into ``directory``, which is made if need be; the first's path.

    Raises OSError where that cannot be.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, name + SUFFIX)
    _whole(path.removesuffix(".json") + ".txt", text_of(dump))
    _whole(path, json.dumps(dump, default=str) + "\n")
    return path


def _whole(path: str, text: str) -> None:
    """Whoever looks for the file finds all of it."""
    unfinished = f"{path}.{os.getpid()}.part"
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(unfinished, path)
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            os.unlink(unfinished)
        raise


def text_of(dump: dict[str, Any]) -> str:
    """One dump for people: who, what it waits for, and its facts, the latest last."""
    return "\n".join(_lines(dump)) + "\n"


def _lines(dump: dict[str, Any]) -> Iterator[str]:
    wall, clock = float(dump["wall"]), float(dump["clock"])
    offset = wall - clock
    yield (
        f"rank {dump['rank']} of {dump['size']} ({dump['host']}, pid {dump['pid']}) at {_moment(wall)}: {dump['why']}"
    )
    for rank, reason in dump["gone"].items():
        yield f"  gone: rank {rank}: {reason}"
    for group in dump["groups"]:
        state = f"broken: {group['broken']}" if group["broken"] else "closed" if group["closed"] else "open"
        ranks = "" if group["ranks"] == list(range(dump["size"])) else f", ranks {group['ranks']}"
        yield f"  group {group['name']!r}: rank {group['rank']} of {len(group['ranks'])}{ranks}; {state}"
        yield f"    made last: {group['last']}"
        for call in group["under_way"]:
            yield f"    under way: {call['label']} [{call['made']}]"
    for wait in dump["waits"]:
        whom = "anyone" if wait["for"] < 0 else f"rank {wait['for']}"
        yield f"  waits for {whom} since {wait['seconds']:.3f} s: {wait['what']}"
    for line in dump.get("stack") or ():
        yield f"  | {line}"
    yield f"  the last {len(dump['facts'])} facts:"
    for fact in dump["facts"]:
        yield f"    {_moment(fact['at'] + offset)} {fact_in_words(fact)}"


def fact_in_words(fact: dict[str, Any]) -> str:
    """One fact in a line."""
    if fact["kind"] not in ("call", "message"):
        rest = (f"{name}={value!r}" for name, value in fact.items() if name not in ("at", "kind"))
        return " ".join([fact["kind"], *rest])
    made = f" [{fact['made']}]" if fact["kind"] == "call" else ""
    what = f"{called(fact)} of {fact['group']!r}{made}"
    if fact["ended"] is None:
        return f"{what}: has not ended"
    return f"{what}: {fact['error'] or 'done'} after {_span(fact['ended'] - fact['at'])}"


def called(fact: dict[str, Any]) -> str:
    """What a rank called: a collective with its number, or a message with its peer and tag."""
    if fact["kind"] == "call":  # labels of calls that came again have no number
        label, number = str(fact["label"]), int(fact["call"])
        return label if " " in label or number >= NAMED else f"{label} (call {number})"
    peer = "anyone" if fact["peer"] is None else f"rank {fact['peer']}"
    tag = "any tag" if fact["tag"] is None else f"tag {fact['tag']}"
    return f"{fact['what']} {'to' if str(fact['what']).startswith('send') else 'from'} {peer} with {tag}"


def _moment(wall: float) -> str:
    return datetime.datetime.fromtimestamp(wall).strftime("%H:%M:%S.%f")


def _span(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


__all__ = ["FORMAT", "NAMED", "SUFFIX", "called", "fact_in_words", "text_of", "write"]
