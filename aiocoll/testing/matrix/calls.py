"""More programs: the calls of a group as users write them, ready ones and named ones included, and messages.

Rule: as in `programs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ... import patterns
from ...group import Group
from ...ops import SUM, Op
from .programs import Array, Part, Program, blobs, equal, op_of, vectors

_TURNS: Final = 3
"""The second call of a kind goes another way than the first, and the third uses what the second has left."""


def _all_reduce(size: int, rank: int, turn: int, variant: int) -> Part:
    op = SUM if variant % 2 else op_of(None, 1)
    given, folds = vectors(size, 0, variant | 1, op)
    out = np.zeros_like(given[0])
    return Part(lambda group: group.all_reduce(given[rank], op, out=out), lambda _: equal(out, folds[-1]), [out])


def _all_reduce_in_place(size: int, rank: int, turn: int, variant: int) -> Part:
    given, folds = vectors(size, 0, variant, SUM)
    x = given[rank].copy()
    return Part(lambda group: group.all_reduce(x, out=x), lambda _: equal(x, folds[-1]), [x])


def _reduce(size: int, rank: int, turn: int, variant: int) -> Part:
    given, folds = vectors(size, turn, variant, SUM)
    where = (variant + turn) % size
    if rank != where:
        return Part(lambda group: group.reduce(given[rank], root=where), lambda found: found is None)
    out = np.zeros_like(given[0])
    return Part(lambda group: group.reduce(given[rank], root=where, out=out), lambda _: equal(out, folds[-1]), [out])


def _reduce_scatter(size: int, rank: int, turn: int, variant: int) -> Part:
    given, folds = vectors(size, 0, variant, SUM)
    counts = patterns.even(len(given[0]), size)
    start = sum(counts[:rank])
    out, expected = np.zeros(counts[rank], np.int64), folds[-1][start : start + counts[rank]]
    return Part(lambda group: group.reduce_scatter(given[rank], out=out), lambda _: equal(out, expected), [out])


def _scan(size: int, rank: int, turn: int, variant: int) -> Part:
    op: Op = op_of(None, variant)
    given, folds = vectors(size, turn, variant, op)
    return Part(lambda group: group.scan(given[rank], op), lambda found: equal(found, folds[rank]))


def _broadcast(size: int, rank: int, turn: int, variant: int) -> Part:
    source, where = blobs(size, 0, variant, 1)[0][0], variant % size
    if rank == where:
        return Part(lambda group: group.broadcast(source, root=where), lambda _: True)
    out = np.zeros_like(source)
    return Part(lambda group: group.broadcast(None, root=where, out=out), lambda _: equal(out, source), [out])


def _broadcast_long(size: int, rank: int, turn: int, variant: int) -> Part:
    """Longer than what is announced with its description."""
    source, where = np.arange(40_000, dtype=np.int64)[turn:], (variant + turn) % size
    if rank == where:
        return Part(lambda group: group.broadcast(source, root=where), lambda _: True)
    return Part(lambda group: group.broadcast(None, root=where), lambda found: equal(found, source))


def _gather(size: int, rank: int, turn: int, variant: int) -> Part:
    pieces, where = [row[0] for row in blobs(size, turn, variant, 1)], (variant + turn) % size

    def right(found: Any) -> bool:
        return found is None if rank != where else all(map(equal, found, pieces))

    return Part(lambda group: group.gather(pieces[rank], root=where), right)


def _all_gather(size: int, rank: int, turn: int, variant: int) -> Part:
    pieces = [row[0] for row in blobs(size, 0, variant | 1, 1)]
    out, whole = np.zeros(sum(map(len, pieces)), np.uint8), np.concatenate(pieces)
    return Part(lambda group: group.all_gather(pieces[rank], out=out), lambda _: equal(out, whole), [out])


def _all_gather_uneven(size: int, rank: int, turn: int, variant: int) -> Part:
    pieces = [row[0] for row in blobs(size, turn, variant & 6, 1)]
    return Part(lambda group: group.all_gather(pieces[rank]), lambda found: all(map(equal, found, pieces)))


def _scatter(size: int, rank: int, turn: int, variant: int) -> Part:
    pieces, where = [row[0] for row in blobs(size, turn, variant, 1)], (variant + turn) % size
    out = np.zeros_like(pieces[rank])
    parts = pieces if rank == where else None
    return Part(lambda group: group.scatter(parts, root=where, out=out), lambda _: equal(out, pieces[rank]), [out])


def _all_to_all(size: int, rank: int, turn: int, variant: int) -> Part:
    table = blobs(size, turn, variant, size)
    expected = [row[rank] for row in table]
    return Part(lambda group: group.all_to_all(table[rank]), lambda found: all(map(equal, found, expected)))


def _barrier(size: int, rank: int, turn: int, variant: int) -> Part:
    return Part(lambda group: group.barrier(), lambda found: found is None)


def _objects(size: int, rank: int, turn: int, variant: int) -> Part:
    expected = [{"rank": source, "text": "x" * (source * 7 + turn)} for source in range(size)]
    return Part(lambda group: group.all_gather_object(expected[rank]), lambda found: bool(found == expected))


def _split(size: int, rank: int, turn: int, variant: int) -> Part:
    given, _ = vectors(size, turn, variant, SUM)
    color = (rank + variant) % 2
    expected = np.sum([given[other] for other in range(size) if (other + variant) % 2 == color], axis=0)

    async def both(group: Group) -> Any:
        part = await group.split(color)
        assert part is not None
        async with part:
            return await part.all_reduce(given[rank])

    return Part(both, lambda found: equal(found, expected))


def _named(size: int, rank: int, turn: int, variant: int) -> Part:
    """Several calls at once, begun in another order on each rank."""
    given, folds = vectors(size, turn, variant, SUM)
    outs = [np.zeros_like(given[0]) for _ in range(3)]

    async def all_at_once(group: Group) -> Any:
        order = [(each + rank) % 3 for each in range(3)]
        calls = [group.all_reduce(given[rank], out=outs[each], name=f"{turn} {each}") for each in order]
        await _side_by_side(group, calls)

    return Part(all_at_once, lambda _: all(equal(out, folds[-1]) for out in outs), outs)


def _several(size: int, rank: int, turn: int, variant: int) -> Part:
    """Calls matched by order, several under way."""
    given, folds = vectors(size, turn, variant, SUM)
    out, pieces = np.zeros_like(given[0]), [row[0] for row in blobs(size, turn, variant, 1)]

    async def all_at_once(group: Group) -> Any:
        calls = [group.all_reduce(given[rank], out=out), group.all_gather(pieces[rank]), group.barrier()]
        return (await _side_by_side(group, calls))[1]

    def right(found: Any) -> bool:
        return equal(out, folds[-1]) and (found is None or all(map(equal, found, pieces)))

    return Part(all_at_once, right, [out])


async def _side_by_side(group: Group, calls: list[Any]) -> list[Any]:
    """What all of them give. A cancel that has broken nothing has come when all were through, though asyncio may call
    a task cancelled whose last step that was: then what it gave is not known, and None."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await _stopped(tasks)
        if group.broken is not None:
            raise
    return [None if task.cancelled() else task.result() for task in tasks]


async def _stopped(tasks: list[Any]) -> None:
    """The end of calls that are made side by side, when one has failed; what the others raised is no news."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()


# -- messages


def _ring(size: int, rank: int, turn: int, variant: int) -> Part:
    """To the next rank, from the one before."""
    pieces, before = [row[0] for row in blobs(size, turn, variant, 1)], (rank - 1) % size
    return _mail(rank, turn, pieces[rank], [(rank + 1) % size], {before: pieces[before]}, anyone=variant % 4 == 3)


def _everybody(size: int, rank: int, turn: int, variant: int) -> Part:
    """To and from every other rank."""
    pieces = [row[0] for row in blobs(size, turn, variant, 1)]
    others = [peer for peer in range(size) if peer != rank]
    return _mail(rank, turn, pieces[rank], others, {peer: pieces[peer] for peer in others}, anyone=variant % 4 == 3)


def _mail(rank: int, turn: int, data: Array, to: list[int], expected: dict[int, Array], *, anyone: bool) -> Part:
    """Sends `data` to some ranks and receives something of others. A receive that is cancelled is made again, and must
    find what came meanwhile."""
    wanted, outs = dict(expected), {peer: np.zeros_like(each) for peer, each in expected.items()}
    sending: list[Any] = []

    async def post(group: Group) -> None:
        if not sending:
            sending.extend(asyncio.ensure_future(group.send(data, peer, turn)) for peer in to)
        while wanted:
            came = await group.recv_message(None if anyone else next(iter(wanted)), turn)
            outs[came.source][...] = came.data
            del wanted[came.source]
        await asyncio.wait(sending)
        for each in sending:
            each.result()

    async def stop() -> None:
        await _stopped(sending)

    part = Part(post, lambda _: all(equal(outs[peer], each) for peer, each in expected.items()))
    part.stop = stop
    return part


CALLS: Final[dict[str, Callable[[int, int, int, int], Part]]] = {
    "all_reduce": _all_reduce,
    "all_reduce in place": _all_reduce_in_place,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "scan": _scan,
    "broadcast": _broadcast,
    "broadcast long": _broadcast_long,
    "gather": _gather,
    "all_gather": _all_gather,
    "all_gather uneven": _all_gather_uneven,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
    "objects": _objects,
    "split": _split,
    "named": _named,
    "several": _several,
    "messages in a ring": _ring,
    "messages to everybody": _everybody,
}


def call_programs() -> dict[str, Program]:
    """A program for each kind of call, by its name."""
    found = {name: Program(name, prepare, turns=_TURNS) for name, prepare in CALLS.items()}
    for name in ("messages in a ring", "messages to everybody"):
        found[name] = replace(found[name], messages=True)
    found["split"] = replace(found["split"], faults=("crash",), nested=True)
    return found


__all__ = ["call_programs"]
