"""Every block has one owner, who folds what all ranks send for it: what memory algorithms of several collectives share.

The rule: operands are folded ((x0 op x1) op x2) op ..., so the bits of a result depend neither on the transport nor on
who is early.
Blocks are so long that what is copied into shared memory is still in a cache when it is folded or copied out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import pace, reading
from aiocoll.algorithms.channel import Array, Channel, finish
from aiocoll.buffers.narrow import (
    BLOCK,
    SCALE,
    is_narrow,
    narrow,
    narrow_scaled,
    room_for,
    widen,
    widen_scaled,
)
from aiocoll.ops import Op

BLOCK_BYTES = 256 << 10
"""What one rank sends another at a time."""
WINDOW = 4
"""How many blocks are folded before their results travel: so many are more than a second cache holds."""
ASK_BYTES = 1 << 20
"""Vectors from this length on are worth the question whether they can be read where they lie."""


def block_length(x: Array, op: Op | None = None) -> int:
    """The elements of a block; all of ``x`` for ops that want whole arrays."""
    if op is not None and not op.splittable:
        return max(len(x), 1)
    return max(BLOCK_BYTES // max(x.itemsize, 1), 1)


def blocks_of(count: int, length: int) -> list[slice]:
    """``count`` elements in blocks of ``length``, the last one shorter; at least one, so that peers hear of us."""
    return [slice(start, min(start + length, count)) for start in range(0, max(count, 1), length)]


class Fold:
    """Folds what all ranks send for one block, mine among it, in rank order.

    Narrow floats are added up in float32, the op is finished there, and the result is rounded once.
    """

    __slots__ = ("_below", "_ch", "_room", "_sum", "_theirs", "_wide", "narrow", "op", "step")
    op: Op
    step: int

    def __init__(self, ch: Channel, op: Op, dtype: np.dtype[Any], longest: int) -> None:
        self._ch, self.op = ch, op
        self._below: Array | None = None
        self.narrow: bool = is_narrow(dtype) and op.work_dtype(dtype) != dtype
        if self.narrow and longest:
            step = self.step = min(longest, BLOCK)
            self._sum, self._wide = (ch.borrow(4 * step).view(np.float32) for _ in range(2))
            self._room = ch.borrow(room_for(step))
            self._theirs = [ch.borrow(longest * dtype.itemsize).view(dtype) for _ in range(ch.size - 1)]

    def __repr__(self) -> str:
        return f"<Fold {self.op!r}{' of narrow floats' if self.narrow else ''} on {self._ch!r}>"

    async def run(
        self, mine: Array, out: Array, ranks: Sequence[int] | None = None, shown: Awaitable[None] | None = None
    ) -> None:
        """out = the fold of what ``ranks`` (ascending, mine among them; all unless given) send, and ``mine``.

        ``out`` may be ``mine``; otherwise they share no memory. It is not written before ``shown`` is over.
        """
        ch, op = self._ch, self.op
        ranks = range(ch.size) if ranks is None else ranks
        if self.narrow:
            await self._run_narrow(mine, out, ranks, shown)
            return
        here = ranks.index(ch.rank)
        below = await self._fold_below(mine, ranks[:here]) if here > 1 else None
        if shown is not None:
            await shown
        if below is not None:
            await pace.fold(ch, op, below, mine, out)
        elif out is not mine:
            np.copyto(out, mine)
        if here == 1:
            await ch.recv_fold(ranks[0], out, op, left=True)
        for peer in ranks[here + 1 :]:
            await ch.recv_fold(peer, out, op)

    async def _fold_below(self, like: Array, ranks: Sequence[int]) -> Array:
        """What these ranks send, folded beside mine."""
        ch = self._ch
        if self._below is None or len(self._below) < len(like):
            self._below = ch.scratch(like)
        below = self._below[: len(like)]
        await ch.recv(ranks[0], below)
        for peer in ranks[1:]:
            await ch.recv_fold(peer, below, self.op)
        return below

    async def everywhere(self, x: Array) -> None:
        """x = the fold of all ranks' ``x``, by the same expression on every rank."""
        ch, op, rank = self._ch, self.op, self._ch.rank
        shown = ch.publish(x)
        if self.narrow:
            await self._run_narrow(x, x, range(ch.size), shown)
            return
        if rank:  # x is shown until the others have seen it, so what comes before mine is folded beside it
            below = await self._fold_below(x, range(rank))
            await shown
            op.fold(below, x, x)
        else:
            await shown
        for peer in range(rank + 1, ch.size):
            await ch.recv_fold(peer, x, op)

    async def _run_narrow(self, mine: Array, out: Array, ranks: Sequence[int], shown: Awaitable[None] | None) -> None:
        ch, count = self._ch, len(mine)
        peers = [peer for peer in ranks if peer != ch.rank]
        operands = dict.fromkeys(ranks, mine)
        for i, peer in enumerate(peers):
            operands[peer] = self._theirs[i][:count] if count else mine
        await finish([ch.recv(peer, operands[peer]) for peer in peers])
        if shown is not None:
            await shown
        for start in range(0, count, BLOCK):  # all operands of one piece, so that it stays in a cache
            stop = min(start + BLOCK, count)
            self.piece([operands[peer][start:stop] for peer in ranks], out[start:stop])
            await ch.breathe()

    def piece(self, operands: Sequence[Array], out: Array) -> None:
        """out = the fold of narrow operands, of ``step`` elements at most."""
        op, total, wide = self.op, self._sum[: len(out)], self._wide[: len(out)]
        if op.ufunc is np.add and out.dtype == np.float16 and self._add_scaled(operands):
            if not op.finishes:
                narrow_scaled(total, out, self._room)
                return
            np.multiply(total, SCALE, out=total)
        else:
            for place, operand in enumerate(operands):
                widen(operand, wide if place else total)
                if place:
                    op.fold(total, wide, total)
        op.finish(total, len(operands))
        narrow(total, out, self._room)

    def _add_scaled(self, operands: Sequence[Array]) -> bool:
        """Adds up float16; False if some are infinite or NaN, or may become so on the way."""
        total, wide = self._sum[: len(operands[0])], self._wide[: len(operands[0])]
        for place, operand in enumerate(operands):
            if not widen_scaled(operand, wide if place else total):
                return False
            if place:
                np.add(total, wide, out=total)
        return True


async def swap(ch: Channel, x: Array, op: Op) -> None:
    """Two ranks fold one another's ``x``, block by block, into equal bits."""
    for part in blocks_of(len(x), block_length(x, op)):
        await ch.combine(1 - ch.rank, x[part], op)
        await ch.breathe()


async def by_owners(ch: Channel, x: Array, op: Op, root: int | None = None) -> None:
    """Folds ``x`` in place: each rank folds its share of it and gives the result to ``root``, or to all.

    Long vectors are read where they lie if they all lie in shared memory, or if reading private memory has been quicker
    of late. Else they go through shared memory block by block.
    """
    if ch.size == 1:
        return
    fold = Fold(ch, op, x.dtype, min(block_length(x), -(-len(x) // ch.size)))
    answer = reading.NOT_ASKED
    if x.nbytes >= ASK_BYTES:
        what = "reduce" if root is not None else "all_reduce"
        answer = await reading.ask(ch, what, x.nbytes, [x] * ch.size, x.dtype, len(x))
    if answer.read:
        await reading.by_owners(ch, fold, x, answer, root)
    elif ch.size == 2 and root is None and not fold.narrow:
        await swap(ch, x, op)  # the same folds as in windows, with a wait less for each block
    else:
        await _in_windows(ch, x, fold, root)
    answer.over()


async def _in_windows(ch: Channel, x: Array, fold: Fold, root: int | None) -> None:
    """A window of blocks is folded before the results travel: by the time that they overwrite what others read, it has
    left the readers' caches, from where taking it back would cost more than all the rest."""
    size, rank = ch.size, ch.rank
    at, peers = patterns.offsets(patterns.even(len(x), size)), patterns.around(rank, size)
    length = block_length(x)

    def chunks(start: int) -> list[Array]:
        """Everybody's chunk of a block."""
        return [x[at[i] + start : min(at[i] + start + length, at[i + 1])] for i in range(size)]

    def give(mine: list[Array]) -> list[Awaitable[None]]:
        return [ch.send(peer, mine[peer]) for peer in peers]

    def show(result: Array) -> list[Awaitable[None]]:
        if root is None:
            return [ch.publish(result)]
        return [ch.send(root, result)] if rank != root else []

    starts = range(0, max(at[1], 1), length)
    for first in range(0, len(starts), WINDOW):
        window = [chunks(start) for start in starts[first : first + WINDOW]]
        given = [give(window[0])]
        for block, following in zip(window, [*window[1:], None], strict=True):
            if following is not None:  # is on its way before anybody waits for this one
                given.append(give(following))
            await fold.run(block[rank], block[rank])
            await ch.breathe()
        shown: list[Awaitable[None]] = []
        for block, leaving in zip(window, given, strict=True):
            shown += show(block[rank])
            if root is None or rank == root:  # a result comes when its owner is through with what lies in its place
                await finish([ch.recv(peer, block[peer]) for peer in peers])
            await finish(leaving)
            await ch.breathe()
        await finish(shown)


async def _swap_blocks(ch: Channel, blocks: Sequence[Array], op: Op, out: Array, length: int) -> None:
    """``fold_blocks`` of two ranks: one sends as the other does, with one wait for each piece."""
    mine, theirs, peer = blocks[ch.rank], blocks[1 - ch.rank], 1 - ch.rank
    for start in range(0, max(len(mine), len(theirs), 1), length):
        into, leaving = out[start : start + length], theirs[start : start + length]
        if out is not mine:
            np.copyto(into, mine[start : start + length])
        if start < max(len(mine), 1) and start < max(len(theirs), 1):
            await ch.exchange(peer, leaving, peer, into, op, left=ch.rank == 1)
        elif start < len(mine):
            await ch.recv_fold(peer, into, op, left=ch.rank == 1)
        else:
            await ch.send(peer, leaving)
        await ch.breathe()


async def fold_blocks(ch: Channel, blocks: Sequence[Array], op: Op, out: Array) -> None:
    """out = the fold of what all ranks have as block number ``rank``; the blocks are only read."""
    mine = blocks[ch.rank]
    length = block_length(mine)
    fold = Fold(ch, op, mine.dtype, min(length, len(mine)))
    nbytes, answer = sum(block.nbytes for block in blocks), reading.NOT_ASKED
    if nbytes >= ASK_BYTES:
        answer = await reading.ask(ch, "reduce_scatter", nbytes, blocks, mine.dtype, len(mine))
    if answer.read:
        await reading.folded(ch, fold, mine, out, answer)
        await reading.leave(ch)
        for peer in patterns.around(ch.rank, ch.size):
            ch.counted(peer, blocks[peer].nbytes, 0 if answer.views is None else mine.nbytes)
    elif ch.size == 2 and not fold.narrow:
        await _swap_blocks(ch, blocks, op, out, length)
    else:
        await _pass_blocks(ch, blocks, fold, out, length)
    answer.over()


async def _pass_blocks(ch: Channel, blocks: Sequence[Array], fold: Fold, out: Array, length: int) -> None:
    """``fold_blocks`` through shared memory, piece by piece."""
    mine, peers = blocks[ch.rank], patterns.around(ch.rank, ch.size)
    parts = {rank: blocks_of(len(block), length) for rank, block in enumerate(blocks)}
    sending: list[Awaitable[None]] = []
    for number in range(max(len(each) for each in parts.values()) + 1):
        # The next pieces leave before anybody waits for these.
        leaving = sending
        sending = [ch.send(peer, blocks[peer][parts[peer][number]]) for peer in peers if number < len(parts[peer])]
        if 0 < number <= len(parts[ch.rank]):
            part = parts[ch.rank][number - 1]
            own, into = mine[part], out[part]
            await fold.run(own, own if out is mine else into)
        await finish(leaving)
        await ch.breathe()
