"""The model's constants and the exceptions to it, from default.json.

The rule: data, not code: a row says for which calls which algorithm is known to be better than the model thinks, and
why. The first row that fits and whose algorithm can serve the call decides.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from aiocoll.tuning.model import Link

_FILE = Path(__file__).with_name("default.json")


@dataclass(frozen=True, slots=True)
class Rule:
    """For calls between these bounds, both inclusive; None leaves a side open."""

    collective: str
    algorithm: str
    why: str
    bytes_min: int = 0
    bytes_max: int | None = None
    size_min: int = 1
    size_max: int | None = None
    hosts_min: int = 1
    hosts_max: int | None = None
    per_host_max: int | None = None
    """Ranks on one host, on the average."""
    link: str | None = None
    """Only where this kind of link joins all ranks."""
    in_turn: bool = False
    """Only where the operands must be folded from rank 0 on."""

    def fits(self, collective: str, nbytes: int, size: int, hosts: int, link: str, *, in_turn: bool = False) -> bool:
        return (
            collective == self.collective
            and self.link in (None, link)
            and in_turn >= self.in_turn
            and self.bytes_min <= nbytes <= _open(self.bytes_max, nbytes)
            and self.size_min <= size <= _open(self.size_max, size)
            and self.hosts_min <= hosts <= _open(self.hosts_max, hosts)
            and size <= hosts * _open(self.per_host_max, size)
        )


def _open(bound: int | None, value: int) -> int:
    return value if bound is None else bound


def parse(content: dict[str, Any]) -> tuple[dict[str, Link], tuple[Rule, ...]]:
    """Constants by kind of link, and the rules in order."""
    links = {kind: Link(**constants) for kind, constants in content["links"].items()}
    return links, tuple(Rule(**row) for row in content["rules"])


@lru_cache(1)
def defaults() -> tuple[dict[str, Link], tuple[Rule, ...]]:
    """What ships with the package; read once."""
    return parse(json.loads(_FILE.read_text()))
