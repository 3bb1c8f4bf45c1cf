"""Plays cells: worlds of many ranks in one loop for awaited calls, a process per rank for blocking ones.

Rule: a cell is right or has findings; after a finding that broke a world the next cells get a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ...algorithms import Algorithm, registry
from ...errors import AiocollError, UsageError
from ...group import Group
from ...ops import Op
from ..run import run
from .cells import Cell, cell_of
from .forms import Part, facade_call, op_of
from .oracle import only_reads, refusal

RIGHT: Final = "right"
REFUSED: Final = "refused"
_TIMEOUT: Final = 60.0
_LIMIT: Final = 1200.0
_WORLD_CELLS_MAX: Final = 5000
"""After so many there is a new world, so that a long run says how it goes."""
_NEWS_BYTES: Final = 3072
"""What a refusal may cost to each peer: the news of it, and of the one before. Arrays are longer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a cell: RIGHT, REFUSED (as it should be), or what is wrong."""

    cell: Cell
    found: str

    @property
    def wrong(self) -> bool:
        return self.found not in (RIGHT, REFUSED)


def play(cells: Iterable[Cell]) -> Iterator[Verdict]:
    """All of them, world by world."""
    worlds: dict[tuple[bool, str, int], list[Cell]] = {}
    for cell in cells:
        worlds.setdefault((cell.form == "await", cell.transport, cell.size), []).append(cell)
    for (awaited, transport, size), here in sorted(worlds.items()):
        left = here
        while left:
            part = left[:_WORLD_CELLS_MAX]
            found = _awaited(part, transport, size) if awaited else _blocking(part, transport, size)
            yield from map(_together, part, zip(*found, strict=False))
            left = left[min(map(len, found)) :]


def _together(cell: Cell, by_rank: tuple[str, ...]) -> Verdict:
    """All ranks say the same, or what is wrong on some of them."""
    if len(set(by_rank)) == 1:
        return Verdict(cell, by_rank[0])
    return Verdict(cell, "; ".join(f"rank {rank}: {each}" for rank, each in enumerate(by_rank)))


# ------------------------------------------------------------------------------------------------ awaited


def _awaited(cells: list[Cell], transport: str, size: int) -> list[list[str]]:
    async def main(group: Group) -> list[str]:
        groups: dict[str, Group] = {}
        found: list[str] = []
        for cell in cells:
            where = group
            if transport == "sim":
                where = await _with_algorithm(group, groups, algorithm_for(cell))
            found.append(await _one(cell, where))
            if where.broken is not None:
                break
        for each in groups.values():
            await each.close()
        return found

    return run(size, main, transport, timeout=_TIMEOUT, limit=_LIMIT)


async def _with_algorithm(group: Group, groups: dict[str, Group], chosen: Algorithm | None) -> Group:
    """A twin of the group whose calls of one collective go by this algorithm."""
    if chosen is None:
        return group
    key = repr(chosen)
    if key not in groups:
        twin = groups[key] = await group.dup()
        twin._settings = replace(twin._settings, algorithm={chosen.collective: chosen.name})
    return groups[key]


def algorithm_for(cell: Cell) -> Algorithm | None:
    """One of the registered algorithms that can serve the call, dealt out; None for the library's own choice."""
    op: Op | None = op_of(cell.op) if cell.op else None
    able = [
        each
        for each in registry().get(cell.collective, {}).values()
        if each.on != "hosts"
        and (op is None or op.commutative or each.keeps_order)
        and (op is None or op.splittable or not each.splits)
        and all(each.when(cell.size, nbytes) for nbytes in (0, 8, 1 << 20))
    ]
    return (None, *able)[cell.turn // 3 % (len(able) + 1)]


async def _one(cell: Cell, group: Group) -> str:
    part, sent = Part(cell, group.rank), _sent(group)
    try:
        if cell.collective == "send_recv":
            result = await _ring(part, group)
        else:
            name, arguments, more = part.call()
            result = await getattr(group, name)(*arguments, **more)
    except Exception as error:
        return _raised(cell, error, _sent(group) - sent)
    return part.verdict(result) or RIGHT


async def _ring(part: Part, group: Group) -> Any:
    """To the next rank, from the one before. A receive that is to be refused gets no message, which would stay."""
    cell, before, after = part.cell, (part.rank - 1) % group.size, (part.rank + 1) % group.size
    if part.wanted is None and cell.out != "new":
        return await group.recv(before, out=part.out)
    if part.wanted is None:
        return await group.send(part.x, after)
    _, received = await asyncio.gather(group.send(part.x, after), group.recv(before, out=part.out))
    return received


def _sent(group: Any) -> int:
    return sum(group.statistics()["bytes_sent"].values())


def _raised(cell: Cell, error: Exception, sent: int) -> str:
    why = refusal(cell)
    if why is None or not isinstance(error, UsageError):
        return f"raised {error!r:.400}"
    if sent > (cell.size - 1) * _NEWS_BYTES:
        return f"was refused after {sent} bytes had left: {error!r:.200}"
    return REFUSED


# ------------------------------------------------------------------------------------------------ blocking


def _blocking(cells: list[Cell], transport: str, size: int) -> list[list[str]]:
    from ...runner.functions import launch

    texts = [str(cell) for cell in cells]
    found: list[list[str]] = launch(_rank, texts, transport, n=size, transport=transport, timeout=_LIMIT)
    return found


def _rank(group: Any, texts: list[str], transport: str) -> list[str]:
    """One rank's process: the group that it was given, and the documented API beside it."""
    import aiocoll.distributed as dist

    found: list[str] = []
    dist.init_process_group(transport)
    try:
        for text in texts:
            cell = cell_of(text)
            found.append(_documented(cell, dist) if cell.facade else _blocked(cell, group))
            if group.broken is not None:
                break
    except AiocollError as error:
        found.append(f"raised {error!r:.400}")
    finally:
        dist.destroy_process_group()
    return found


def _blocked(cell: Cell, group: Any) -> str:
    part, sent = Part(cell, group.rank), _sent(group)
    try:
        if cell.collective == "send_recv":
            result = _blocked_ring(part, group)
        else:
            name, arguments, more = part.call()
            if cell.form == "started":
                result = getattr(group.start, name)(*arguments, **more).result()
            else:
                result = getattr(group, name)(*arguments, **more)
    except Exception as error:
        return _raised(cell, error, _sent(group) - sent)
    return part.verdict(result) or RIGHT


def _blocked_ring(part: Part, group: Any) -> Any:
    cell, before, after = part.cell, (part.rank - 1) % group.size, (part.rank + 1) % group.size
    if part.wanted is None and cell.out != "new":
        return group.recv(before, out=part.out)
    sending = group.start.send(part.x, after)
    if part.wanted is None:
        return sending.result()
    received = group.start.recv(before, out=part.out).result() if cell.form == "started" else None
    if received is None:
        received = group.recv(before, out=part.out)
    sending.result()
    return received


def _documented(cell: Cell, dist: Any) -> str:
    part, world = Part(cell, dist.get_rank()), dist.group.WORLD.member()
    sent, async_op = _sent(world), cell.form.endswith("async_op")
    try:
        if cell.collective == "send_recv":
            verdict = _documented_ring(part, dist, async_op)
        else:
            make, check = facade_call(part, dist, async_op)
            handle = make()
            if async_op:
                handle.wait()
            if part.wanted is None:
                return REFUSED if only_reads(cell, part.rank) else "should be refused"
            verdict = check()
    except Exception as error:
        return _raised(cell, error, _sent(world) - sent)
    return verdict or RIGHT


def _documented_ring(part: Part, dist: Any, async_op: bool) -> str:
    size = dist.get_world_size()
    before, after = (part.rank - 1) % size, (part.rank + 1) % size
    out = part.blank(part.before[0])
    if part.wanted is None:
        dist.irecv(out, before).wait()
        return "should be refused"
    sending = dist.isend(part.x, after)
    if async_op or size == 1:  # blocking ones to oneself raise
        dist.irecv(out, before).wait()
    else:
        dist.recv(out, before)
    sending.wait()
    return part.holds(out, part.wanted)


def grouped(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How many are right, refused and wrong."""
    counts = {RIGHT: 0, REFUSED: 0, "wrong": 0}
    for each in verdicts:
        counts["wrong" if each.wrong else each.found] += 1
    return counts


__all__ = ["REFUSED", "RIGHT", "Verdict", "algorithm_for", "grouped", "play"]
