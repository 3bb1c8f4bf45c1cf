"""A peer that stands still keeps no cells of a broken group; what else lies in its lane arrives whole and in order."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from aiocoll.wire import frame
from tests.turns import until

from .ends import Ticket, pattern
from .shm_ends import TINY, ShmEnds, shm_ends
from .test_shm_links import METAS, check_room, settled

CELL = TINY.cell_bytes
BROKEN = 7
KINDS = (frame.DATA, frame.BODY_DATA, frame.MESSAGE, frame.CONTROL)


def send(world: ShmEnds, dst: int, kind: int, group: int, number: int, meta: bytes, content: bytes) -> None:
    queued = world.link(0, dst).submit(kind, group, number, 0, meta, memoryview(content) if content else None)
    if queued is not None:
        queued.sent = Ticket()


@pytest.mark.parametrize("seed", range(40))
async def test_what_is_recalled_is_dropped_and_all_else_arrives(seed: int) -> None:
    rng = random.Random(seed)
    with shm_ends(replace(TINY, ranks=3, slots=rng.choice([2, 4, 8]))) as world:
        sent = []
        for number in range(rng.randint(1, 14)):
            group = rng.choice([BROKEN, BROKEN, 8])
            nbytes = rng.choice([0, 9, 1024, 1025, CELL, CELL + 1, 3 * CELL, rng.randrange(9 * CELL)])
            content = pattern(nbytes, number)
            meta = pattern(rng.choice([0, 5, *METAS]), number)
            each = (rng.choice(KINDS), group, number, 0, meta, content)
            send(world, 1, *each[:3], meta, content)
            sent.append(each)
        if rng.random() < 0.5:  # the peer has taken some of it, to the middle of a frame
            world.link(1, 0).inlane.take(rng.randrange(4 * CELL))
            world.link(0, 1).progress()
        world.link(0, 1).recall(BROKEN)
        other = [(frame.DATA, BROKEN, 99, 0, b"to another", pattern(6 * CELL, 99))]
        send(world, 2, *other[0][:3], *other[0][4:])
        await until(lambda: settled(world))
        came = [each[1:] for each in world.owners[1].frames]
        kept = [each for each in sent if each[1] != BROKEN or each[0] == frame.CONTROL]
        assert [each for each in came if each in kept] == kept
        assert all(each in sent for each in came), "a frame that nobody sent"
        assert [each[1:] for each in world.owners[2].frames] == other
        check_room(world)
        assert not any(owner.news for owner in world.owners)


async def test_cells_are_free_at_once_for_those_who_take() -> None:
    with shm_ends(replace(TINY, ranks=3, slots=8)) as world:
        for number in range(6):
            send(world, 1, frame.DATA, BROKEN, number, b"", pattern(CELL, number))
        send(world, 2, frame.DATA, 8, 0, b"", pattern(CELL, 50))
        assert not world.transports[0].segment.free and world.link(0, 2).outlane.queue
        world.link(0, 1).recall(BROKEN)
        assert len(world.transports[0].segment.free) == TINY.cells
        world.link(0, 2).progress()
        assert not world.link(0, 2).outlane.queue
        await until(lambda: settled(world))
        assert [each[-1] for each in world.owners[2].frames] == [pattern(CELL, 50)]
        assert world.owners[1].frames == []


async def test_a_cell_that_is_recalled_while_it_is_read_reaches_nobody() -> None:
    """The quick way looks again after it has read."""
    with shm_ends(replace(TINY, slots=8)) as world:
        x = np.arange(CELL // 8) + 0.5
        stamp = world.transports[0].stamp(frame.DATA, BROKEN, 0, b"", x.dtype, len(x))
        assert stamp is not None and world.link(0, 1).outlane.post(stamp, 1, x)
        inlane = world.link(1, 0).inlane
        assert inlane.fetch(stamp, 1, False) is not None
        world.link(0, 1).recall(BROKEN)
        assert not inlane.took(x.nbytes)
        assert world.link(0, 1).outlane.post(stamp, 2, x + 1)  # in the next slot, which is as it should be
        assert inlane.fetch(stamp, 1, False) is None
        inlane.take(1)
        seen = inlane.fetch(stamp, 2, False)
        assert seen is not None and (seen == x + 1).all() and inlane.took(x.nbytes)
        assert world.owners[1].frames == []
