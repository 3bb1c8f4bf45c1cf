"""Slurm's way to write many host names, ``n[1-3,07],gpu-a[1-2]b[3-4]``; the rule: padding is kept, nonsense quoted."""

from __future__ import annotations

import re
from itertools import product

from aiocoll.errors import UsageError

HOSTS_MAX = 65_536
_ITEM = re.compile(r"(?:[A-Za-z0-9_.-]|\[[0-9,-]+\])+")
_PIECE = re.compile(r"\[([0-9,-]+)\]|([A-Za-z0-9_.-]+)")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def hosts(text: str, what: str = "host list") -> list[str]:
    """The names in `text`, in its order, as ``scontrol show hostnames`` gives them; UsageError that names `what`."""
    found: list[str] = []
    position, text = 0, text.strip()
    while True:
        item = _ITEM.match(text, position)
        if item is None:
            raise _malformed(what, text, f"no host name stands at {text[position:]!r}")
        found += _expand(item[0], what, text, HOSTS_MAX - len(found))
        position = item.end()
        if position == len(text):
            return found
        if text[position] != ",":
            raise _malformed(what, text, f"{text[position:]!r} follows a host name")
        position += 1


def _expand(item: str, what: str, text: str, room: int) -> list[str]:
    pieces: list[list[str]] = []
    for piece in _PIECE.finditer(item):
        numbers, name = piece.groups()
        pieces.append([name] if numbers is None else _numbers(numbers, what, text))
        count = 1
        for each in pieces:
            count *= len(each)
        if count > room:
            raise _malformed(what, text, f"it names more than {HOSTS_MAX} hosts")
    return ["".join(each) for each in product(*pieces)]


def _numbers(ranges: str, what: str, text: str) -> list[str]:
    found: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None or len(part) > 40:
            raise _malformed(what, text, f"{part!r} is no range of numbers")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _malformed(what, text, f"{part!r} runs backwards")
        if int(last) - int(first) >= HOSTS_MAX - len(found):
            raise _malformed(what, text, f"it names more than {HOSTS_MAX} hosts")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _malformed(what: str, text: str, why: str) -> UsageError:
    shown = text if len(text) <= 200 else f"{text[:200]}…"
    return UsageError(f"{what}={shown!r} is malformed: {why}")
