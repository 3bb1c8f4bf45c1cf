"""Reading: whoever folds a share reads everybody's operands where they lie, in private memory; so it is with results.

One copy instead of two, and a handful of empty messages however long the vectors are. What is quicker, that or shared
memory, depends on how far apart the cores are on which the ranks happen to run; so it is measured.

The rule: an address is good for as long as its rank is in the call. All say where their data lie; nobody changes
anything before all have read it; and what was read counts once its rank has said, afterwards, that it was still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import barrier
from aiocoll.algorithms.channel import EMPTY, Array, Channel, Rivals, finish

if TYPE_CHECKING:
    from aiocoll.algorithms.owner import Fold

STEP_BYTES = 512 << 10
"""What is read at a time: it is folded before it leaves the second cache."""
_READABLE, _LENT, _WANTED = 1, 2, 4
_FEW = 8


@dataclass(slots=True)
class Answer:
    """What all ranks said, and all understood alike."""

    read: bool
    """Whether the data are read in private memory."""
    lent: bool
    """Whether they all lie in shared memory."""
    addresses: list[int]
    """Where each rank's lie."""
    _record: Rivals | None
    _began: float = 0.0

    def over(self) -> None:
        """The call is over, the one way or the other: how long it took counts."""
        if self._record is not None:
            self._record.took(self.read, perf_counter() - self._began)


async def ask(ch: Channel, what: str, nbytes: int, places: Sequence[Array], lent: bool) -> Answer:
    """Where everybody's data lie, in one round; ``places[i]`` is what rank i may read of mine, ``lent`` whether that is
    in shared memory. What to do with it rank 0 decides by what has been quicker of late."""
    mine, theirs = (np.zeros((ch.size, 2), np.int64) for _ in range(2))
    addresses = {id(place): ch.reach(place) for place in places}
    mine[:, 1] = [addresses[id(place)] for place in places]
    readable = all(addresses.values())
    record = ch.rivals(f"{what} lent" if lent else what, nbytes) if ch.rank == 0 else None
    wanted = record is not None and record.second()
    mine[:, 0] = readable * _READABLE + lent * _LENT + wanted * _WANTED
    theirs[ch.rank] = mine[ch.rank]
    if ch.size == 2:
        peer = 1 - ch.rank
        await ch.exchange(peer, mine[peer], peer, theirs[peer])
    else:
        peers = patterns.around(ch.rank, ch.size)
        sending = [ch.send(peer, mine[peer]) for peer in peers]
        await finish([ch.recv(peer, theirs[peer]) for peer in peers])
        await finish(sending)
    said = int(np.bitwise_and.reduce(theirs[:, 0]))
    read = bool(said & _READABLE and theirs[0, 0] & _WANTED)
    if not said & _READABLE:
        record = None
    return Answer(read, bool(said & _LENT), theirs[:, 1].tolist(), record, perf_counter() if record else 0.0)


async def folded(ch: Channel, fold: Fold, mine: Array, out: Array, addresses: Sequence[int]) -> None:
    """out = the fold, in rank order, of ``mine`` and of what lies at the others' addresses; ``out`` may be ``mine``."""
    if not len(mine):
        return
    rank, size, itemsize = ch.rank, ch.size, mine.itemsize
    length = fold.step if fold.narrow else max(STEP_BYTES // itemsize, 1)
    rooms = [ch.scratch(mine[:length]) for _ in range(size - 1 if fold.narrow else 2)]

    async def operand(source: int, start: int, room: Array) -> Array:
        into = room[: min(length, len(mine) - start)]
        await ch.read(source, addresses[source] + start * itemsize, into)
        return into

    for start in range(0, len(mine), length):
        own, target = mine[start : start + length], out[start : start + length]
        if fold.narrow:
            room = iter(rooms)
            fold.piece([own if i == rank else await operand(i, start, next(room)) for i in range(size)], target)
        else:
            total = await operand(0, start, rooms[0]) if rank else own
            for source in range(1, size):
                term = own if source == rank else await operand(source, start, rooms[1])
                into = target if source >= rank else total  # before my turn mine is still an operand
                fold.op.fold(total, term, into)
                total = into
        await ch.breathe()


async def copied(ch: Channel, peer: int, address: int, into: Array) -> None:
    """Fills ``into`` with what lies there."""
    length = max(2 * STEP_BYTES // into.itemsize, 1)
    for start in range(0, len(into), length):
        await ch.read(peer, address + start * into.itemsize, into[start : start + length])
        await ch.breathe()


async def by_owners(ch: Channel, fold: Fold, x: Array, addresses: Sequence[int], root: int | None) -> None:
    """Each rank folds its share of ``x`` in place, and ``root``, or everybody, reads the results."""
    at = patterns.offsets(patterns.even(len(x), ch.size))
    shares = [x[at[i] : at[i + 1]] for i in range(ch.size)]

    def address(rank: int, share: int) -> int:
        return addresses[rank] + at[share] * x.itemsize

    mine = shares[ch.rank]
    await folded(ch, fold, mine, mine, [address(i, ch.rank) for i in range(ch.size)])
    await all_here(ch)
    if root is None or ch.rank == root:
        for peer in patterns.around(ch.rank, ch.size):
            await copied(ch, peer, address(peer, peer), shares[peer])
    await leave(ch, shares)
    if root != ch.rank:
        for peer in patterns.around(ch.rank, ch.size) if root is None else (root,):
            ch.showed(peer, mine.nbytes)


async def leave(ch: Channel, operands: Sequence[Array]) -> None:
    """Everybody has read what it needs, of mine its own one of the ``operands``, and then everybody is still there."""
    await all_here(ch)
    await all_here(ch)
    for peer in patterns.around(ch.rank, ch.size):
        ch.showed(peer, operands[peer].nbytes)


async def all_here(ch: Channel) -> None:
    """Nobody goes on before everybody has come as far: among few ranks in one round rather than with few messages."""
    await (barrier.full_mesh if 2 < ch.size <= _FEW else barrier.dissemination)(ch)


async def settle(ch: Channel, read: Iterable[int], shown: Mapping[int, Array]) -> None:
    """The same where only some read: this rank what ``read`` show, and others what is ``shown`` to each."""
    for senders, receivers in ((read, shown), (shown, read)):
        sending = [ch.send(peer, EMPTY) for peer in senders]
        await finish([ch.recv(peer, EMPTY) for peer in receivers])
        await finish(sending)
    for peer, data in shown.items():
        ch.showed(peer, data.nbytes)
