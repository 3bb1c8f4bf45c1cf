"""Reading: whoever folds a share reads everybody's operands where they lie; so it is with results.

In arrays of ``group.empty()`` nothing is copied to be folded, and out of private memory everything once. Both take a
handful of empty messages however long the vectors are. Whether reading private memory is quicker than cells, or than
reading shared memory, depends on how far apart the cores are on which the ranks happen to run; so it is measured.

The rule: what a rank shows is good for as long as it is in the call. All say where their data lie; nobody changes
anything before all have read it; and what was read counts once its rank has said, afterwards, that it was still there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import barrier, pace
from aiocoll.algorithms.channel import EMPTY, Array, Channel, Rivals, finish

if TYPE_CHECKING:
    from aiocoll.algorithms.owner import Fold

STEP_BYTES = 512 << 10
"""What is read at a time: it is folded before it leaves the second cache."""
_READABLE, _LENT, _WANTED = 1, 2, 4
"""Bits of what a rank says: others can read its private memory; its data lie in shared memory; rank 0 wants the former.
"""
_FEW = 8
"""Up to so many ranks wait for one another in one round, though that takes more messages."""


@dataclass(slots=True)
class Answer:
    """What all ranks said, and all understood alike."""

    read: bool
    """Whether everybody's data are read, the one way or the other."""
    views: list[Array] | None
    """Everybody's, if they are read in shared memory (mine is not looked at)."""
    addresses: list[int]
    """Where they lie in private memory."""
    _record: Rivals | None
    _second: bool
    _began: float

    def over(self) -> None:
        """The call is over: how long it took counts."""
        if self._record is not None:
            self._record.took(self._second, perf_counter() - self._began)


NOT_ASKED = Answer(False, None, [], None, False, 0.0)
"""What short data go by: as they always do."""


async def ask(ch: Channel, what: str, nbytes: int, mine: Sequence[Array], dtype: np.dtype[Any], length: int) -> Answer:
    """Where everybody's data lie, in one round: ``mine[i]`` is what rank i may read of mine, and ``length`` the
    elements that I may read of each. How it is done rank 0 decides, by what has been quicker of late."""
    peers = patterns.around(ch.rank, ch.size)
    places = [ch.place(mine[peer], peer) for peer in peers]
    addresses = [ch.reach(mine[peer], peer) for peer in peers]
    lent = min(places) >= 0
    bits = (_READABLE if all(addresses) else 0) | (_LENT if lent else 0)
    record = ch.rivals(f"{what} lent" if lent else what, nbytes) if ch.rank == 0 else None
    if record is not None and record.second():
        bits |= _WANTED
    said = np.array([(bits, *where) for where in zip(addresses, places, strict=True)])
    heard = np.empty((ch.size, 3), np.int64)
    heard[ch.rank] = bits, 0, -1
    if ch.size == 2:
        await ch.exchange(peers[0], said[0], peers[0], heard[peers[0]])
    else:
        sending = [ch.send(peer, words) for peer, words in zip(peers, said, strict=True)]
        await finish([ch.recv(peer, heard[peer]) for peer in peers])
        await finish(sending)
    answers = heard.tolist()
    everybody = reduce(and_, [answer[0] for answer in answers], _READABLE | _LENT)
    second = bool(everybody & _READABLE and answers[0][0] & _WANTED)
    views = None
    if everybody & _LENT and not second:
        views = [EMPTY.view(dtype)] * ch.size
        for peer in peers:
            views[peer] = (await ch.lent(peer, answers[peer][2], length * dtype.itemsize)).view(dtype)
    if not everybody & _READABLE:
        record = None
    return Answer(second or views is not None, views, [each[1] for each in answers], record, second, perf_counter())


async def folded(ch: Channel, fold: Fold, mine: Array, out: Array, answer: Answer, base: int = 0) -> None:
    """out = the fold, in rank order, of ``mine`` and of what the others show, from element ``base`` on; ``out`` may be
    ``mine``."""
    if not len(mine):
        return
    rank, size = ch.rank, ch.size
    length = fold.step if fold.narrow else max(STEP_BYTES // mine.itemsize, 1)
    reads = answer.views is None
    copies = (size - 1) * reads if fold.narrow else 2 if size > 2 else int(reads)
    rooms = [ch.scratch(mine[:length]) for _ in range(copies)]

    async def operand(source: int, start: int, place: int) -> Array:
        count = min(length, len(mine) - start)
        if answer.views is not None:
            return answer.views[source][base + start : base + start + count]
        room = rooms[place][:count]
        await ch.read(source, answer.addresses[source] + (base + start) * mine.itemsize, room)
        return room

    for start in range(0, len(mine), length):
        own, target = mine[start : start + length], out[start : start + length]
        if fold.narrow:
            fold.piece([own if i == rank else await operand(i, start, i - (i > rank)) for i in range(size)], target)
        else:
            total = await operand(0, start, 0) if rank else own
            for source in range(1, size):
                term = own if source == rank else await operand(source, start, -1)
                into = target if source >= rank else rooms[0][: len(own)]  # before my turn mine is still an operand
                fold.op.fold(total, term, into)
                total = into
        await ch.breathe()


async def by_owners(ch: Channel, fold: Fold, x: Array, answer: Answer, root: int | None) -> None:
    """Each rank folds its share of ``x`` in place, and ``root``, or everybody, reads the results."""
    at = patterns.offsets(patterns.even(len(x), ch.size))
    shares = [x[at[i] : at[i + 1]] for i in range(ch.size)]
    mine, peers = shares[ch.rank], patterns.around(ch.rank, ch.size)
    await folded(ch, fold, mine, mine, answer, at[ch.rank])
    await all_here(ch)
    for peer in peers if root is None or ch.rank == root else ():
        if answer.views is not None:
            await pace.copy(ch, answer.views[peer][at[peer] : at[peer + 1]], shares[peer])
        else:
            await ch.read(peer, answer.addresses[peer] + at[peer] * x.itemsize, shares[peer])
    await leave(ch)
    for peer in peers:
        sent = shares[peer].nbytes + (mine.nbytes if root is None or peer == root else 0)
        received = mine.nbytes + (shares[peer].nbytes if root is None or ch.rank == root else 0)
        ch.counted(peer, sent, received if answer.views is not None else 0)


async def leave(ch: Channel) -> None:
    """Everybody has read what it needs, and then everybody is still there."""
    await all_here(ch)
    await all_here(ch)


async def all_here(ch: Channel) -> None:
    """Nobody goes on before everybody has come as far: among few ranks in one round rather than with few messages."""
    if ch.size == 2:
        await ch.exchange(1 - ch.rank, EMPTY, 1 - ch.rank, EMPTY)
    else:
        await (barrier.full_mesh if ch.size <= _FEW else barrier.dissemination)(ch)


async def settle(ch: Channel, read: Iterable[int], shown: Mapping[int, Array]) -> None:
    """What ``leave`` does, where only some read: this rank what ``read`` show, and others what is ``shown`` to each."""
    for senders, receivers in ((read, shown), (shown, read)):
        sending = [ch.send(peer, EMPTY) for peer in senders]
        await finish([ch.recv(peer, EMPTY) for peer in receivers])
        await finish(sending)
    for peer, data in shown.items():
        ch.counted(peer, data.nbytes, 0)
