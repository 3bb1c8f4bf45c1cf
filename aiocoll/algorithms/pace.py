"""Local work of any size in slices, with a turn for the event loop between them.

The rule: nothing here holds the loop for longer than one slice takes.
"""

from __future__ import annotations

from aiocoll.algorithms.channel import Array, Channel
from aiocoll.buffers import PIECE_BYTES, pieces
from aiocoll.ops import Op

SLICE_BYTES = 1 << 20


def slices(x: Array, op: Op | None = None) -> list[slice]:
    """``x`` in slices; ops that want whole arrays get it whole."""
    if x.nbytes <= SLICE_BYTES or not (op is None or op.splittable):
        return [slice(0, len(x))]
    step = max(1, SLICE_BYTES // x.itemsize)
    return [slice(start, start + step) for start in range(0, len(x), step)]


async def fold(ch: Channel, op: Op, left: Array, right: Array, out: Array) -> None:
    """out = op(left, right); ``out`` may be either."""
    if left.nbytes <= SLICE_BYTES:
        op.fold(left, right, out)
        return
    for part in slices(left, op):
        op.fold(left[part], right[part], out[part])
        await ch.breathe()


async def copy(ch: Channel, source: Array, target: Array) -> None:
    """target[...] = source, for any layouts of one shape."""
    quick = source.flags.c_contiguous and target.flags.c_contiguous
    for _ in pieces(source, target, SLICE_BYTES if quick else PIECE_BYTES):
        await ch.breathe()
