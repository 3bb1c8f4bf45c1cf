"""The plans of the collectives on buffers: each argument judged, then what to await, then where the result goes.

The rule: a plan sends nothing; what it refuses it refuses before anything is sent.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .calling import Plan, followed_by
from .exceptions import RootError, UsageError
from .reductions import kernel_of
from .specs import Blocks, Region, even, is_in_place, reading, vector, writing

Array = NDArray[Any]


def root_of(root: Any, size: int, what: str, rank: int) -> int:
    """A root argument, checked."""
    try:
        number = operator.index(root)
    except TypeError:
        number = -1
    if not 0 <= number < size:
        raise RootError(f"{what} on rank {rank}: root={root!r} is no rank of this communicator of {size}")
    return number


def bcast(rank: int, size: int, buf: Any, root: Any) -> Plan:
    """Root's elements into everybody's buffer."""
    where = root_of(root, size, "Bcast", rank)
    if rank == where:
        given = reading(buf, "Bcast", rank)
        return lambda group: group.broadcast(given.flat, where)
    out = writing(buf, "Bcast", rank)
    return followed_by(lambda group: group.broadcast(None, where, out.flat), lambda _: out.settle())


def reduction(collective: str, rank: int, size: int, sendbuf: Any, recvbuf: Any, op: Any, root: Any = None) -> Plan:
    """Reduce (with a root), Allreduce, Scan and Exscan: ``collective`` is what the group calls it."""
    what = {"reduce": "Reduce", "all_reduce": "Allreduce", "scan": "Scan", "exscan": "Exscan"}[collective]
    where = None if root is None else root_of(root, size, what, rank)
    out = writing(recvbuf, f"{what}: recvbuf", rank) if where in (None, rank) else None
    given = out if is_in_place(sendbuf) and out is not None else reading(sendbuf, f"{what}: sendbuf", rank)
    if out is not None:
        _alike(given, out.flat.size, out, what, rank)
    kernel = kernel_of(op, given.datatype, f"{what} on rank {rank}")
    if out is None:
        return lambda group: group.reduce(given.flat, kernel, where or 0)
    landing = out
    if collective in ("scan", "exscan"):
        first = collective == "exscan" and rank == 0

        def land(result: Any) -> None:
            if not first:  # nobody is before the first rank, whose buffer MPI leaves as it is
                landing.fill(result)

        return followed_by(lambda group: getattr(group, collective)(given.flat, kernel), land)

    def settle(_: Any) -> None:
        landing.settle()

    if where is None:
        return followed_by(lambda group: group.all_reduce(given.flat, kernel, landing.flat), settle)
    return followed_by(lambda group: group.reduce(given.flat, kernel, where, landing.flat), settle)


def gather(rank: int, size: int, sendbuf: Any, recvbuf: Any, root: Any, *, varying: bool) -> Plan:
    """Gather and Gatherv."""
    what = "Gatherv" if varying else "Gather"
    where = root_of(root, size, what, rank)
    if rank != where:
        given = reading(sendbuf, f"{what}: sendbuf", rank)
        return lambda group: group.gather(given.flat, where)
    blocks = _blocks(recvbuf, size, what, rank, varying=varying)
    mine = blocks.parts[rank] if is_in_place(sendbuf) else reading(sendbuf, f"{what}: sendbuf", rank).flat
    _fits(mine, blocks, rank, what)
    return followed_by(lambda group: group.gather(mine, where), lambda parts: _place(parts, blocks))


def all_gather(rank: int, size: int, sendbuf: Any, recvbuf: Any, *, varying: bool) -> Plan:
    """Allgather and Allgatherv."""
    what = "Allgatherv" if varying else "Allgather"
    if varying:
        blocks = _blocks(recvbuf, size, what, rank, varying=True)
        mine = blocks.parts[rank] if is_in_place(sendbuf) else reading(sendbuf, f"{what}: sendbuf", rank).flat
        _fits(mine, blocks, rank, what)
        return followed_by(lambda group: group.all_gather(mine), lambda parts: _place(parts, blocks))
    out = even(writing(recvbuf, f"{what}: recvbuf", rank), size, what)
    given = out.blocks(size)[rank].copy() if is_in_place(sendbuf) else reading(sendbuf, f"{what}: sendbuf", rank).flat
    _same_type(given, out.flat, what, rank)
    if given.size * size != out.flat.size:
        raise UsageError(
            f"{what} on rank {rank}: {given.size} elements from each of {size} rank{'s' * (size > 1)} do not fill a "
            f"buffer of {out.flat.size}"
        )
    return followed_by(lambda group: group.all_gather(given, out.flat), lambda _: out.settle())


def scatter(rank: int, size: int, sendbuf: Any, recvbuf: Any, root: Any, *, varying: bool) -> Plan:
    """Scatter and Scatterv."""
    what = "Scatterv" if varying else "Scatter"
    where = root_of(root, size, what, rank)
    parts: list[Array] | None = None
    if rank == where:
        if varying:
            parts = vector(sendbuf, size, f"{what}: sendbuf", rank, write=False).parts
        else:
            parts = even(reading(sendbuf, f"{what}: sendbuf", rank), size, what).blocks(size)
        if is_in_place(recvbuf):
            return lambda group: group.scatter(parts, where)
    out = writing(recvbuf, f"{what}: recvbuf", rank)
    if parts is not None:
        _same_type(parts[rank], out.flat, what, rank)
        if parts[rank].size > out.flat.size:
            raise UsageError(
                f"{what} on rank {rank}: its own part has {parts[rank].size} elements, recvbuf room for {out.flat.size}"
            )
    return followed_by(lambda group: group.scatter(parts, where), out.take)


def all_to_all(rank: int, size: int, sendbuf: Any, recvbuf: Any, *, varying: bool) -> Plan:
    """Alltoall and Alltoallv."""
    what = "Alltoallv" if varying else "Alltoall"
    blocks = _blocks(recvbuf, size, what, rank, varying=varying)
    if is_in_place(sendbuf):
        parts = [part.copy() for part in blocks.parts]
    elif varying:
        parts = vector(sendbuf, size, f"{what}: sendbuf", rank, write=False).parts
    else:
        parts = even(reading(sendbuf, f"{what}: sendbuf", rank), size, what).blocks(size)
    _fits(parts[rank], blocks, rank, what)
    return followed_by(lambda group: group.all_to_all(parts), lambda came: _place(came, blocks))


def reduce_scatter(
    rank: int, size: int, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, op: Any, *, varying: bool
) -> Plan:
    """Reduce_scatter and Reduce_scatter_block."""
    what = "Reduce_scatter" if varying else "Reduce_scatter_block"
    out = writing(recvbuf, f"{what}: recvbuf", rank)
    given = out if is_in_place(sendbuf) else reading(sendbuf, f"{what}: sendbuf", rank)
    counts = None
    if not varying:
        even(given, size, what)
    elif recvcounts is not None:
        counts = [operator.index(each) for each in recvcounts]
    wanted = given.flat.size // size if not varying else None
    if counts is not None and len(counts) == size and sum(counts) == given.flat.size:
        wanted = counts[rank]
    if wanted is not None and (out.flat.size < wanted if given is out else out.flat.size != wanted):
        raise UsageError(f"{what} on rank {rank}: its block has {wanted} elements, recvbuf is for {out.flat.size}")
    kernel = kernel_of(op, given.datatype, f"{what} on rank {rank}")
    return followed_by(
        lambda group: group.reduce_scatter(given.flat, kernel, counts), out.take if given is out else out.fill
    )


def _blocks(spec: Any, size: int, what: str, rank: int, *, varying: bool) -> Blocks:
    if varying:
        return vector(spec, size, f"{what}: recvbuf", rank, write=True)
    region = even(writing(spec, f"{what}: recvbuf", rank), size, what)
    return Blocks(region.blocks(size), region.datatype, region.where, region.writes_back)


def _place(parts: Sequence[Any], blocks: Blocks) -> None:
    """Each part where its rank's is to be, once all are known to fit."""
    for source, part in enumerate(parts):
        if np.size(part) != blocks.parts[source].size:
            blocks.fill(source, part)  # raises
    for source, part in enumerate(parts):
        blocks.fill(source, part)
    blocks.settle()


def _fits(mine: Array, blocks: Blocks, rank: int, what: str) -> None:
    _same_type(mine, blocks.parts[rank], what, rank)
    if mine.size != blocks.parts[rank].size:
        raise UsageError(
            f"{what} on rank {rank}: it gives itself {mine.size} elements, and its place in recvbuf is for "
            f"{blocks.parts[rank].size}"
        )


def _alike(given: Region, size: int, out: Region, what: str, rank: int) -> None:
    _same_type(given.flat, out.flat, what, rank)
    if given.flat.size != size:
        raise UsageError(
            f"{what} on rank {rank}: sendbuf has {given.flat.size} elements and recvbuf {size}; they must be equal"
        )


def _same_type(given: Array, out: Array, what: str, rank: int) -> None:
    if given.dtype.newbyteorder("=") != out.dtype.newbyteorder("="):
        raise UsageError(
            f"{what} on rank {rank}: sendbuf is of {given.dtype}, recvbuf of {out.dtype}; both must be of one type"
        )
