"""Dumps of ranks as they lie on disk, read and sorted by the connection that they belong to.

The rule: a file that is no dump is an error that names it; of one rank the newest dump speaks.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiocoll.errors import AiocollError
from aiocoll.observe.dump import FORMAT, SUFFIX

_LEFT: Final = "it left"


@dataclass(frozen=True, slots=True)
class Made:
    """One call as a rank made it."""

    label: str
    description: str
    ended: bool
    error: str | None = None

    @property
    def collective(self) -> str:
        return self.label.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that a rank waits for: ``peer`` is a rank of the connection, -1 for anyone."""

    group: str
    label: str
    peer: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank knew; ranks are those of its connection."""

    content: dict[str, Any]
    path: str = ""

    @property
    def rank(self) -> int:
        return int(self.content["rank"])

    @property
    def pid(self) -> int:
        return int(self.content["pid"])

    @property
    def job(self) -> str:
        """The name that all handshakes of its job know; empty for ranks that were started by hand."""
        return str(self.content.get("job") or "")

    @property
    def world(self) -> str:
        return str(self.content["world"])

    @property
    def size(self) -> int:
        return int(self.content["size"])

    @property
    def wall(self) -> float:
        return float(self.content["wall"])

    @property
    def place(self) -> str:
        """Where the program was, "" if nobody asked."""
        return str(self.content.get("place") or "")

    def when(self, clock: float) -> float:
        """A moment of this rank's clock in wall time."""
        return self.wall + clock - float(self.content["clock"])

    def who(self, rank: int) -> str:
        """A rank with its host and pid."""
        for member in self.content["members"]:
            if member["rank"] == rank:
                return f"rank {member['shown']} ({member['host']}, pid {member['pid']})"
        return f"rank {rank}"

    def shown(self, rank: int) -> int:
        """The number under which users know a rank."""
        return next((int(each["shown"]) for each in self.content["members"] if each["rank"] == rank), rank)

    def gone(self) -> dict[int, str]:
        """Ranks that this one has seen die, and why; those that said goodbye are not among them."""
        return {int(rank): why for rank, why in self.content["gone"].items() if not str(why).startswith(_LEFT)}

    def groups(self) -> dict[str, dict[str, Any]]:
        """Its groups by their numbers on the wire."""
        return {str(group["id"]): group for group in self.content["groups"]}

    def group_name(self, group: str) -> str:
        """What users call a group."""
        found = self.groups().get(group)
        if found is not None:
            return str(found["name"])
        return next((str(fact["group"]) for fact in self.facts("call") if fact["group_id"] == group), "?")

    def facts(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """Its facts, oldest first; of some kinds only, if any are given."""
        for fact in self.content["facts"]:
            if not kinds or fact["kind"] in kinds:
                yield fact

    def calls(self) -> dict[str, dict[int, Made]]:
        """By group and number, the calls that it knows of."""
        found: dict[str, dict[int, Made]] = {}
        for fact in self.facts("call"):
            made = Made(str(fact["label"]), str(fact["made"]), fact["ended"] is not None, fact["error"])
            found.setdefault(str(fact["group_id"]), {})[int(fact["call"])] = made
        for group in self.content["groups"]:
            for call in group["under_way"]:
                made = Made(str(call["label"]), str(call["made"]), False)
                found.setdefault(str(group["id"]), {})[int(call["call"])] = made
        return found

    def through(self) -> set[tuple[str, str]]:
        """By group and label, the calls in which it has done its part."""
        return {
            (str(fact["group_id"]), str(fact["label"]))
            for fact in self.facts("call")
            if fact["ended"] is not None and fact["error"] is None
        }

    def waits(self) -> list[Wait]:
        """What it waits for, each thing once."""
        found: dict[tuple[str, str, int], Wait] = {}
        for wait in self.content["waits"]:
            one = Wait(str(wait["group"]), str(wait["label"]), int(wait["for"]), float(wait["seconds"]))
            key = (one.group, one.label, one.peer)
            if key not in found or found[key].seconds < one.seconds:
                found[key] = one
        return sorted(found.values(), key=lambda wait: (wait.group, wait.label, wait.peer))


def read(path: str) -> Dump:
    """One file; AiocollError where it cannot be read or is none of ours."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise AiocollError(f"dump {path!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise AiocollError(f"{path!r} is no dump of a rank: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise AiocollError(f"{path!r} is no dump of a rank: it does not begin with the format {FORMAT!r}")
    return Dump(content, path)


def files(paths: Iterable[str]) -> list[str]:
    """The dumps that files and directories name; AiocollError for a directory without any."""
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            inside = sorted(glob.glob(os.path.join(glob.escape(path), f"*{SUFFIX}")))
            if not inside:
                raise AiocollError(f"directory {path!r} holds no dumps (*{SUFFIX})")
            found += inside
        else:
            found.append(path.removesuffix(".txt") + ".json" if path.endswith(".trace.txt") else path)
    return list(dict.fromkeys(found))


def latest(dumps: Sequence[Dump], before: float = float("inf")) -> dict[str, dict[int, Dump]]:
    """By connection and rank, the dump that speaks: the newest one made before a moment, else the oldest after it."""
    worlds: dict[str, dict[int, list[Dump]]] = {}
    for dump in dumps:
        worlds.setdefault(dump.world, {}).setdefault(dump.rank, []).append(dump)
    return {
        world: {rank: _chosen(each, before) for rank, each in sorted(ranks.items())}
        for world, ranks in sorted(worlds.items(), key=lambda item: min(d.wall for r in item[1].values() for d in r))
    }


def _chosen(dumps: list[Dump], before: float) -> Dump:
    early = [dump for dump in dumps if dump.wall <= before]
    return max(early, key=lambda dump: dump.wall) if early else min(dumps, key=lambda dump: dump.wall)
