"""Links through shared memory with hardly any room: every frame arrives, whole and in order, and nothing stays behind."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from aiocoll.transport.shm import transport
from aiocoll.transport.shm.segment import INLINE_BYTES, META_BYTES
from aiocoll.transport.shm.stamp import Stamp
from aiocoll.wire import frame

from .ends import Ticket, pattern
from .shm_ends import TINY, ShmEnds, shm_ends, turns_until

pytestmark = pytest.mark.timeout(60)
CELL = TINY.cell_bytes
LENGTHS = (
    0, 1, 7, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, CELL - 1, CELL, CELL + 1, 2 * CELL, 5 * CELL + 3,
    CELL + INLINE_BYTES, CELL + INLINE_BYTES + 1, 41 * CELL + 77,
)  # fmt: skip
METAS = (0, 1, META_BYTES - 1, META_BYTES, META_BYTES + 1, CELL - 1, CELL)
LENT = (frame.DATA, frame.BODY_DATA)


@dataclass(repr=False)
class Sent:
    """One frame, and what must come of it."""

    kind: int
    group: int
    call: int
    step: int
    meta: bytes
    payload: Any
    content: bytes
    ticket: Ticket | None = None
    may_miss: bool = False
    """It was taken back while its receiver could be reading it."""

    def __repr__(self) -> str:
        return f"<Sent kind {self.kind}, {len(self.meta)} + {len(self.content)} bytes of {type(self.payload).__name__}>"

    def frame(self, source: int) -> tuple[Any, ...]:
        return source, self.kind, self.group, self.call, self.step, self.meta, self.content


@dataclass
class Way:
    """What goes from one rank to another."""

    world: ShmEnds
    src: int
    dst: int
    rng: random.Random
    sent: list[Sent] = field(default_factory=list)

    def send(self, meta_max: int) -> None:
        rng = self.rng
        kind = rng.choice([rng.randint(1, frame.KIND_MAX), frame.DATA])
        nbytes = rng.choice([*LENGTHS, rng.randrange(3 * CELL)])
        meta = pattern(min(rng.choice([0, 20, *METAS, rng.randrange(meta_max + 1)]), meta_max), len(self.sent))
        content = pattern(nbytes, 13 * len(self.sent) + self.src)
        payload = self._payload(content)
        words = rng.getrandbits(64), rng.getrandbits(64), rng.getrandbits(32)
        link = self.world.link(self.src, self.dst)
        queued = link.submit(kind, *words, meta, memoryview(payload).cast("B") if nbytes else None)
        each = Sent(kind, *words, meta, payload, content)
        if queued is None:
            self._scribble(each)
        else:
            queued.sent = each.ticket = Ticket()
        self.sent.append(each)

    def _payload(self, content: bytes) -> Any:
        if content and self.rng.random() < 0.3:
            array = self.world.transports[self.src].heap.empty(len(content), np.uint8)
            array[...] = np.frombuffer(content, np.uint8)
            return array
        return bytearray(content)

    def _scribble(self, each: Sent) -> None:
        """The payload may be reused: nobody reads it any more."""
        if len(each.payload):
            memoryview(each.payload).cast("B")[:] = b"?" * len(each.payload)

    def withdraw_one(self) -> None:
        waiting = [each for each in self.sent if each.ticket is not None and not each.ticket.future.done()]
        if not waiting:
            return
        each = self.rng.choice(waiting)
        keep = self.rng.random() < 0.5
        assert each.ticket is not None
        gone = self.world.link(self.src, self.dst).withdraw(each.ticket, keep=keep)
        assert not (keep and gone)
        each.ticket = None
        each.may_miss = each.kind in LENT and isinstance(each.payload, np.ndarray)
        if gone:
            self.sent.remove(each)
        self._scribble(each)

    def check_tickets(self) -> None:
        for each in self.sent:
            assert each.ticket is None or (each.ticket.future.done() and each.ticket.future.result() is None)

    def wanted(self) -> list[Sent]:
        """The frames that came, as far as may be: those that were taken back and did not come are left out."""
        came = {each[:5] for each in self.world.owners[self.dst].frames if each[0] == self.src}
        return [each for each in self.sent if not each.may_miss or each.frame(self.src)[:5] in came]


def settled(world: ShmEnds) -> bool:
    """Whether all that was sent has been taken, and every cell is free again."""
    return all(
        link.drained() and not link.inlane.news()
        for each in world.transports.values()
        for link in each.made.values()
    )


def check_room(world: ShmEnds) -> None:
    """Nothing is held any more."""
    for each in world.transports.values():
        each.settle_lanes()
        assert sorted(each.segment.free) == list(range(world.geometry.cells)), each.segment
        assert not each.hungry and not any(each.segment.readers)


@pytest.fixture(autouse=True)
def without_a_belt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks unless it was woken: a bell that is not rung is a hang."""
    monkeypatch.setattr(transport, "_LOOK_AGAIN_SECONDS", 1e6)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("ranks", [2, 3])
async def test_random_frames_both_ways(seed: int, ranks: int) -> None:
    rng = random.Random(f"{seed} {ranks}")
    geometry = replace(TINY, ranks=ranks, slots=rng.choice([2, 4, 8]), cell_bytes=rng.choice([CELL, 32 << 10]))
    with shm_ends(geometry) as world:
        ways = [Way(world, a, b, rng) for a in range(ranks) for b in range(ranks) if a != b]
        for _ in range(12):
            for _ in range(rng.choice([1, 3, 20])):
                rng.choice(ways).send(min(geometry.cell_bytes, frame.META_BYTES_MAX))
                if rng.random() < 0.2:
                    rng.choice(ways).withdraw_one()
            if rng.random() < 0.5:
                await turns_until(lambda: settled(world))
            else:
                await turns_until(world.link(0, 1).drained)
        await everything(world, ways)


async def everything(world: ShmEnds, ways: list[Way]) -> None:
    """Waits until all is there, and compares."""
    await turns_until(lambda: settled(world))
    for way in ways:
        came = [each for each in world.owners[way.dst].frames if each[0] == way.src]
        wanted = [each.frame(way.src) for each in way.wanted()]
        assert [each[:5] for each in came] == [each[:5] for each in wanted]
        wrong = [i for i, (theirs, mine) in enumerate(zip(came, wanted, strict=True)) if theirs != mine]
        assert not wrong, [(way.sent[i], came[i][5:] == wanted[i][5:]) for i in wrong][:1]
        way.check_tickets()
    check_room(world)
    assert not any(owner.news for owner in world.owners)
