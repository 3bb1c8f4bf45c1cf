"""The facts of several ranks in one order.

The rule: by wall time as each rank's clock had it; between hosts that is as good as their clocks.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from aiocoll.observe.dump import fact_in_words

from .dumps import Dump


def timeline(dumps: Iterable[Dump], most: int) -> list[str]:
    """The last ``most`` facts of all dumps, oldest first."""
    found: dict[tuple[float, int, str], str] = {}
    for dump in dumps:
        for fact in dump.facts():
            text = fact_in_words(fact)
            found[round(dump.when(fact["at"]), 6), dump.shown(dump.rank), text] = text
    last = sorted(found.items())[-most:] if most else []
    width = max((len(str(rank)) for (_, rank, _), _ in last), default=1)
    return [
        f"{datetime.datetime.fromtimestamp(at):%H:%M:%S.%f} [r{rank}]{' ' * (width - len(str(rank)))} {text}"
        for (at, rank, _), text in last
    ]
