"""Every block has one owner, who gathers what all ranks have for it and folds that from rank 0 on: for links that copy.

The rule: receives are posted a block ahead, so nothing that comes is kept anywhere else first; and the operands are
folded ((x0 op x1) op x2) op ... whoever is early, by the expression that ``owner`` uses where memory is shared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Sequence

import numpy as np

from aiocoll import patterns
from aiocoll.algorithms import owner
from aiocoll.algorithms.channel import Array, Channel, finish
from aiocoll.ops import Op

BLOCK_BYTES = 1 << 20
"""What one rank sends another at a time where there are few; each message costs as much as some 100 KiB."""
ROOM_BYTES = 16 << 20
"""What all that is received together takes at most, unless there are very many ranks."""
BLOCK_BYTES_MIN = 64 << 10
AHEAD = 1
"""For how many further pieces receives are posted in advance."""
FOLD_BYTES = 64 << 10
"""So much of every operand is folded at a time: what is read and written meanwhile stays in the second cache."""


class Blocks:
    """The blocks of all owners in pieces, mine among them with room for the other ranks' operands."""

    __slots__ = ("_ch", "_op", "_out", "_parts", "_rooms", "_under_way", "blocks", "pieces")
    blocks: Sequence[Array]

    def __init__(self, ch: Channel, blocks: Sequence[Array], op: Op, out: Array) -> None:
        self._ch, self.blocks, self._op, self._out = ch, blocks, op, out
        mine = blocks[ch.rank]
        nbytes = max(min(BLOCK_BYTES, ROOM_BYTES // ((1 + AHEAD) * max(ch.size - 1, 1))), BLOCK_BYTES_MIN)
        length = max(nbytes // max(mine.itemsize, 1), 1)
        self._parts = [owner.blocks_of(len(block), length) for block in blocks]
        self.pieces: int = max(len(parts) for parts in self._parts)
        longest = mine[self._parts[ch.rank][0]]
        self._rooms = [[ch.scratch(longest) for _ in range(ch.size - 1)] for _ in range(min(self.pieces, 1 + AHEAD))]
        self._under_way: deque[list[Awaitable[None]]] = deque()
        for number in range(len(self._rooms)):
            self._begin(number)

    def __repr__(self) -> str:
        return f"<Blocks of {self._ch.size} owners in {self.pieces} pieces, folded with {self._op!r}>"

    def part(self, rank: int, number: int) -> slice | None:
        """Where a piece of a rank's block is; None where it has fewer."""
        parts = self._parts[rank]
        return parts[number] if number < len(parts) else None

    def _begin(self, number: int) -> None:
        """Sends the others their pieces, and makes ready for what they send for mine."""
        ch, mine = self._ch, self.part(self._ch.rank, number)
        peers = patterns.around(ch.rank, ch.size)
        verbs: list[Awaitable[None]] = []
        if mine is not None:
            operands = self._operands(number, mine)
            verbs += [ch.recv(peer, operands[peer]) for peer in reversed(peers)]
        for peer in peers:
            theirs = self.part(peer, number)
            if theirs is not None:
                verbs.append(ch.send(peer, self.blocks[peer][theirs]))
        self._under_way.append(verbs)

    async def fold(self, number: int) -> Array | None:
        """The result of my piece, in ``out``, while the next ones are on their way. None if I have none."""
        await finish(self._under_way.popleft())
        mine = self.part(self._ch.rank, number)
        if mine is not None:
            self._fold(self._out[mine], self._operands(number, mine))
        if number + len(self._rooms) < self.pieces:
            self._begin(number + len(self._rooms))
        return None if mine is None else self._out[mine]

    def _fold(self, result: Array, operands: Sequence[Array]) -> None:
        step = max(FOLD_BYTES // max(result.itemsize, 1), 1)
        for start in range(0, len(result), step):
            self._fold_piece([operand[start : start + step] for operand in operands], result[start : start + step])

    def _operands(self, number: int, mine: slice) -> list[Array]:
        """What all ranks have for my piece, in rank order: mine where it lies, the others' where they arrive."""
        own = self.blocks[self._ch.rank][mine]
        rooms = [room[: len(own)] for room in self._rooms[number % len(self._rooms)]]
        return [*rooms[: self._ch.rank], own, *rooms[self._ch.rank :]]

    def _fold_piece(self, operands: Sequence[Array], out: Array) -> None:
        """out = the operands folded from the left. ``out`` may be mine, so it is not written before mine was read; the
        others may be written."""
        rank, op, total = self._ch.rank, self._op, operands[0]
        for i, operand in enumerate(operands[1:], 1):
            target = out if i >= rank else total
            op.fold(total, operand, target)
            total = target


async def to_owners(ch: Channel, blocks: Sequence[Array], op: Op, out: Array, *, show: bool, root: int = -1) -> None:
    """out = my block's result. If ``show``, results travel as soon as they are there: into everybody's ``blocks``, or
    into those of ``root`` alone."""
    if ch.size == 1:
        if out is not blocks[0]:
            np.copyto(out, blocks[0])
        return
    work = Blocks(ch, blocks, op, out)
    peers = patterns.around(ch.rank, ch.size)
    gets = show and root in (-1, ch.rank)
    shown: list[Awaitable[None]] = []
    for number in range(work.pieces):
        before, shown = shown, []
        result = await work.fold(number)
        if gets:
            for peer in reversed(peers):
                theirs = work.part(peer, number)
                if theirs is not None:
                    shown.append(ch.recv(peer, blocks[peer][theirs]))
        if show and result is not None and ch.rank != root:
            shown.append(ch.publish(result) if root < 0 else ch.send(root, result))
        await finish(before)
        await ch.breathe()
    await finish(shown)
