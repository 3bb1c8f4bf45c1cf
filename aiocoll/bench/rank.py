"""The program of each rank: joins the world, measures row after row, and on rank 0 tells what it finds.

The rule: one connection for everything, but one for each algorithm that is forced, since a group's settings are those
that it was connected with.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from .. import __version__, sync
from ..distributed.state import STATE
from ..errors import UsageError
from ..group import Group
from ..world import run
from .callers import Awaited, Blocking, Caller, stepped
from .measure import rows_of
from .request import Request

Tell = Callable[[Mapping[str, Any]], None]
"""Takes what rank 0 says: {"kind": "begin" | "next" | "row" | "end", ...}."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one connection measures."""

    override: str
    """AIOCOLL_ALGORITHM's entry, or nothing."""
    rows: list[tuple[str, str, str, int]]
    """(collective, dtype, op, bytes)"""


def parts_of(request: Request) -> Iterator[Part]:
    """The connections of a request, in the order of its rows."""

    def override(row: tuple[str, str, str, str, int]) -> str:
        return f"{row[0]}:{row[1]}" if row[1] else ""

    for forced, rows in groupby(request.rows(), override):
        yield Part(forced, [(collective, dtype, op, nbytes) for collective, _, dtype, op, nbytes in rows])


def measure(request: Request, tell: Tell, ranks: int | None = None) -> None:
    """Measures everything that is asked for; ``tell`` is called on rank 0 only.

    ``ranks``: how many the user believes there are; UsageError if the world has another size.
    """
    parts = list(parts_of(request))
    count = sum(len(part.rows) for part in parts)
    before = os.environ.get("AIOCOLL_ALGORITHM")
    for number, part in enumerate(parts):
        if part.override:
            os.environ["AIOCOLL_ALGORITHM"] = part.override

        async def program(caller: Caller, part: Part = part, first: bool = number == 0) -> None:
            say = tell if caller.group.rank == 0 else _nobody
            _check(caller, request, ranks)
            if first:
                say({"kind": "begin", "rows": count, "machine": machine_of(caller, request)})
            forced = part.override.partition(":")[2]
            say({"kind": "next", "text": title(part.rows[0])})
            done = 0
            async for row in rows_of(request, caller, forced, part.rows):
                done += 1
                if row is not None:
                    say({"kind": "row", "row": row.as_json()})
                if done < len(part.rows):
                    say({"kind": "next", "text": title(part.rows[done])})

        try:
            _joined(request, f"bench {number}", program)
        finally:
            if before is None:
                os.environ.pop("AIOCOLL_ALGORITHM", None)
            else:
                os.environ["AIOCOLL_ALGORITHM"] = before


def _joined(request: Request, name: str, program: Callable[[Caller], Any]) -> None:
    """Runs the program in a world of this name, called as the request wants it."""
    if request.caller == "await":

        async def main(group: Group) -> None:
            await program(Awaited(group))

        run(main, transport=request.transport, name=name)
        return
    with sync.connect(transport=request.transport, name=name) as group:
        if request.caller == "group":
            stepped(lambda: program(Blocking(group)))
            return
        from .. import distributed

        STATE.join(group, request.transport)
        try:
            stepped(lambda: program(Blocking(group, distributed)))
        finally:
            STATE.leave()


def _check(caller: Caller, request: Request, ranks: int | None) -> None:
    size = caller.group.size
    if ranks is not None and ranks != size:
        raise UsageError(f"--ranks {ranks}, but this world has {size}: leave --ranks out inside a job")
    if not 0 <= request.root < size:
        raise UsageError(f"-r {request.root} is no rank of this world of {size}: ranks are 0 to {size - 1}")


def title(row: tuple[str, str, str, int]) -> str:
    """A row in a few words."""
    collective, dtype, op, nbytes = row
    return " ".join(filter(None, (collective, dtype, op, f"{nbytes} B" if dtype else "")))


def machine_of(caller: Caller, request: Request) -> dict[str, Any]:
    """Where and with what this was measured."""
    group = caller.group
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cpu": _cpu(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": np.__version__,
        "aiocoll": __version__,
        "ranks": group.size,
        "hosts": len(dict.fromkeys(group.hosts)),
        "transport": request.transport,
        "caller": request.caller,
    }


def _cpu() -> str:
    """The processor's name, where the kernel tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _nobody(_: Mapping[str, Any]) -> None:
    return None
