"""The program of each rank: joins the world, measures row after row, and on rank 0 tells what it finds.

The rule: all ranks go through the same rows in the same order, and only rank 0 speaks.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from .. import __version__, sync
from ..errors import UsageError
from ..group import Group
from ..world import run
from .callers import Awaited, Blocking, Caller, stepped
from .floor import Machine
from .measure import Table
from .request import Request

Tell = Callable[[Mapping[str, Any]], None]
"""Takes what rank 0 says: {"kind": "begin" | "next" | "row" | "end", ...}."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows for which one algorithm is forced, or none."""

    override: str
    """``collective:algorithm``, or nothing."""
    rows: list[tuple[str, str, str, int]]
    """(collective, dtype, op, bytes)"""


def parts_of(request: Request) -> list[Part]:
    """The rows of a request, in their order."""

    def override(row: tuple[str, str, str, str, int]) -> str:
        return f"{row[0]}:{row[1]}" if row[1] else ""

    return [
        Part(forced, [(collective, dtype, op, nbytes) for collective, _, dtype, op, nbytes in rows])
        for forced, rows in groupby(request.rows(), override)
    ]


def measure(request: Request, tell: Tell, ranks: int | None = None) -> None:
    """Joins the world and measures everything that is asked for; ``tell`` is called on rank 0 only.

    ``ranks``: how many the user believes there are; UsageError if the world has another size.
    """

    async def program(caller: Caller) -> None:
        _check(caller, request, ranks)
        await everything(request, caller, tell if caller.group.rank == 0 else _nobody)

    if request.caller == "await":

        async def main(group: Group) -> None:
            await program(Awaited(group))

        run(main, transport=request.transport, name="bench")
        return
    from .. import distributed

    with sync.connect(transport=request.transport, name="bench") as group:
        caller = Blocking(group, distributed if request.caller == "facade" else None)
        try:
            stepped(lambda: program(caller))
        finally:
            caller.restore()  # the group is left to connect: if a rank fails here, it tells the others as it closes


async def everything(request: Request, caller: Caller, say: Tell) -> None:
    """All rows, on all ranks."""
    parts = parts_of(request)
    say({"kind": "begin", "rows": sum(len(part.rows) for part in parts), "machine": machine_of(caller, request)})
    machine = Machine(caller)
    try:
        await machine.prepare()
        for part in parts:
            one = await caller.forcing(part.override) if part.override else caller
            try:
                table = Table(request, one, machine, part.override.partition(":")[2])
                for row in part.rows:
                    say({"kind": "next", "text": title(row)})
                    measured = await table.row(*row)
                    if measured is not None:
                        say({"kind": "row", "row": measured.as_json()})
            finally:
                if one is not caller:
                    await one.close()
    finally:
        machine.close()


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
        pass  # no Linux
    return platform.processor() or platform.machine()


def _nobody(_: Mapping[str, Any]) -> None:
    return None
