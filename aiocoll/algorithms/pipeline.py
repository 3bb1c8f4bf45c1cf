"""Arrays that are passed on from rank to rank in segments: what rings and chains of several collectives share.

The rule: receives are posted in advance and nothing waits for a send before the next receive is posted, so the links
stay busy and no cycle of ranks can wait for itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from aiocoll import patterns
from aiocoll.algorithms.channel import Array, Channel, finish

SEGMENT_BYTES = 256 << 10
"""The length of a segment: long against what a message costs, short against a cache."""
SEGMENTS_MAX = 64
"""No chain has more segments than this; longer arrays get longer segments."""
LANES_MAX = 4
"""Into how many segments a ring cuts a block: one is folded while the next arrives and the one before leaves."""
AHEAD = 8
"""For how many steps of a ring receives are posted in advance."""

Receive = Callable[[Array], Awaitable[None]]


async def ring(ch: Channel, x: Array, at: Sequence[int], first: int, receive: Receive) -> None:
    """Sends block ``first`` ahead, then first-1, first-2, ... as ``receive`` gets them; keeps first+1, the last."""
    size = ch.size
    if size == 1:
        return

    def lanes(step: int) -> list[Array]:
        block = (first - step) % size
        parts = patterns.segments(at[block], at[block + 1], SEGMENT_BYTES // x.itemsize, LANES_MAX)
        return [x[part] for part in parts]

    def post(step: int) -> list[tuple[Array, Awaitable[None]]]:
        return [(lane, receive(lane)) for lane in lanes(step)]

    ahead = (ch.rank + 1) % size
    arriving = deque(post(step) for step in range(1, min(AHEAD + 1, size)))
    leaving = [ch.send(ahead, lane) for lane in lanes(0)]
    for step in range(1, size):
        passed_on = []
        for lane, arrival in arriving.popleft():
            await arrival
            if step < size - 1:
                passed_on.append(ch.send(ahead, lane))
        if step + AHEAD < size:
            arriving.append(post(step + AHEAD))
        await finish(leaving)
        leaving = passed_on


async def chain(
    x: Array, parts: Sequence[slice], receive: Receive | None, send: Callable[[Array], Awaitable[None]] | None
) -> None:
    """Passes ``parts`` of ``x`` on, one by one; the first rank of a chain has no ``receive``, the last no ``send``."""
    arrivals = [receive(x[part]) for part in parts] if receive else []
    leaving = []
    for i, part in enumerate(parts):
        if receive:
            await arrivals[i]
        if send:
            leaving.append(send(x[part]))
    await finish(leaving)


def chain_parts(x: Array, *, whole: bool = False) -> list[slice]:
    """The segments in which a chain passes ``x`` on; one if it must stay ``whole``."""
    return patterns.segments(0, len(x), SEGMENT_BYTES // x.itemsize, 1 if whole else SEGMENTS_MAX)


def chain_path(p: int, n: int) -> float:
    """Bytes that follow one another along a chain: all of them, and one segment for every rank in between."""
    segment = n / min(max(-(-n // SEGMENT_BYTES), 1), SEGMENTS_MAX)
    return (n + max(p - 2, 0) * segment) * (p > 1)
