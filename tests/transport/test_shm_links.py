"""Links through shared memory with hardly any room: every frame arrives, whole and in order, and nothing is left."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiocoll.endpoint.waiting import Waiting
from aiocoll.errors import WireError
from aiocoll.transport.shm import transport
from aiocoll.transport.shm.segment import INLINE_BYTES, META_BYTES
from aiocoll.transport.shm.stamp import Stamp
from aiocoll.wire import frame
from tests.turns import until

from .ends import Ticket, pattern
from .shm_ends import TINY, ShmEnds, shm_ends

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
        link.drained() and not link.inlane.news() for each in world.transports.values() for link in each.made.values()
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
                await until(lambda: settled(world))
            else:
                await until(world.link(0, 1).drained)
        await everything(world, ways)


async def everything(world: ShmEnds, ways: list[Way]) -> None:
    """Waits until all is there, and compares."""
    await until(lambda: settled(world))
    for way in ways:
        came = [each for each in world.owners[way.dst].frames if each[0] == way.src]
        wanted = [each.frame(way.src) for each in way.wanted()]
        assert [each[:5] for each in came] == [each[:5] for each in wanted]
        wrong = [i for i, (theirs, mine) in enumerate(zip(came, wanted, strict=True)) if theirs != mine]
        assert not wrong, [(way.sent[i], came[i][5:] == wanted[i][5:]) for i in wrong][:1]
        way.check_tickets()
    check_room(world)
    assert not any(owner.news for owner in world.owners)


# -- frames that come again: the quick way


def stamp_of(world: ShmEnds, src: int, call_meta: bytes, dtype: Any, count: int, step: int = 0) -> Stamp:
    stamp = world.transports[src].stamp(frame.DATA, 3, step, call_meta, np.dtype(dtype), count)
    assert stamp is not None
    return stamp


@pytest.mark.parametrize("seed", range(8))
async def test_the_quick_way_and_the_usual_one_in_any_order(seed: int) -> None:
    """Posted and fetched, posted and taken, sent and fetched in vain: the same frames in the same order."""
    rng = random.Random(seed)
    geometry = replace(TINY, slots=rng.choice([2, 4]))
    shapes = [(b"", 1), (b"meta", 0), (b"m" * META_BYTES, 128), (b"x", 129), (b"y", CELL // 8)]
    with shm_ends(geometry) as world:
        out, into, owner = world.link(0, 1).outlane, world.link(1, 0).inlane, world.owners[1]
        sent: list[tuple[int, int, np.ndarray[Any, Any]]] = []
        came: list[tuple[int, np.ndarray[Any, Any]]] = []
        for call in range(400):
            index = rng.randrange(len(shapes))
            meta, count = shapes[index]
            x = np.arange(count, dtype=np.float64) * 7 + call
            stamp = stamp_of(world, 0, meta, float, count)
            way = rng.random()
            if way < 0.5:
                if out.post(stamp, call, x):
                    sent.append((call, index, x.copy()))
                    x[...] = -1
            elif way < 0.75 and count * 8 > INLINE_BYTES:
                lent = world.transports[0].heap.empty(count)
                lent[...] = x
                place, ticket = out.place_of(lent), Ticket()
                assert place is not None
                if out.lend(stamp, call, lent, place, ticket):
                    sent.append((call, index, x))
                    if rng.random() < 0.3:  # its call fails: taken back
                        world.link(0, 1).withdraw(ticket, keep=False)
                        lent[...] = -1
                        sent.pop()
            elif out.send(frame.DATA, 3, call, 0, meta, memoryview(x).cast("B") if count else None) is None:
                sent.append((call, index, x.copy()))
            else:
                sent.append((call, index, x))
            for _ in range(rng.choice([0, 1, 3])):
                want, kind, _content = sent[len(came)] if len(came) < len(sent) else (call, 0, None)
                meta, count = shapes[kind]
                theirs = into.fetch(stamp_of(world, 1, meta, float, count), want, False)
                if theirs is not None:
                    taken = theirs.copy()
                    assert into.took(theirs.nbytes)
                    came.append((want, taken))
                elif rng.random() < 0.5:
                    world.link(1, 0).progress()
                came += [(each[3], np.frombuffer(each[-1])) for each in owner.frames]
                owner.frames.clear()
            if rng.random() < 0.2:
                await asyncio.sleep(0)
        await until(lambda: settled(world))
        came += [(each[3], np.frombuffer(each[-1])) for each in owner.frames]
        assert [call for call, _ in came] == [call for call, _, _ in sent]
        assert all((theirs == mine).all() for (_, theirs), (_, _, mine) in zip(came, sent, strict=True))
        check_room(world)


async def test_a_reference_that_is_taken_back_says_nothing_of_the_next_frame_in_its_slot() -> None:
    with shm_ends() as world:
        out, into = world.link(0, 1).outlane, world.link(1, 0).inlane
        large, small = stamp_of(world, 0, b"", float, 500), stamp_of(world, 0, b"", float, 2)
        array = world.transports[0].heap.zeros(500)
        for call in range(2 * TINY.slots):
            ticket, place = Ticket(), out.place_of(array)
            assert place is not None and out.lend(large, call, array, place, ticket)
            world.link(0, 1).withdraw(ticket, keep=False)
            world.link(1, 0).progress()
            for turn in range(TINY.slots):
                assert out.post(small, 100 + turn, np.array([call, turn], float))
                theirs = into.fetch(stamp_of(world, 1, b"", float, 2), 100 + turn, False)
                assert theirs is not None and theirs.tolist() == [call, turn]
                assert into.took(theirs.nbytes)
        assert not world.owners[1].frames


async def test_what_is_half_read_where_it_lies_is_not_to_be_had_twice() -> None:
    with shm_ends(replace(TINY, cell_bytes=1 << 20)) as world:
        out, into, owner = world.link(0, 1).outlane, world.link(1, 0).inlane, world.owners[1]
        array = world.transports[0].heap.zeros(100_000)
        array[:] = np.arange(100_000)
        stamps = [stamp_of(world, rank, b"", float, 100_000) for rank in (0, 1)]
        place = out.place_of(array)
        assert place is not None and out.lend(stamps[0], 5, array, place, Ticket())
        assert into.take(1) and not owner.frames  # the first piece of it
        assert into.fetch(stamps[1], 5, False) is None
        while into.take(1):
            pass
        assert [(each[3], each[-1]) for each in owner.frames] == [(5, array.tobytes())] and into.taken == 1


async def test_a_long_meta_goes_with_its_frame_though_that_is_taken_back() -> None:
    with shm_ends() as world:
        link = world.link(0, 1)
        blocker = link.submit(frame.DATA, 1, 1, 0, b"", memoryview(pattern(3 * CELL)))  # one slot too many
        long = pattern(META_BYTES + 1)
        wanted = link.submit(frame.DATA, 1, 2, 0, long, memoryview(pattern(2 * CELL, 2)))
        assert blocker is not None and wanted is not None
        wanted.sent = ticket = Ticket()
        assert world.link(1, 0).progress() and link.progress()
        assert not wanted.long and not wanted.begun
        assert link.withdraw(ticket, keep=False) is False, "its meta is in the lane"
        link.submit(frame.DATA, 1, 3, 0, b"short", None)
        await until(lambda: settled(world))
        assert [(each[3], each[5]) for each in world.owners[1].frames] == [(1, b""), (2, long), (3, b"short")]


# -- cells that lanes share


async def test_a_lane_that_waits_for_cells_gets_those_of_a_peer_that_ended() -> None:
    with shm_ends(replace(TINY, ranks=3, slots=4)) as world:
        world.transports[2].loop.remove_reader(world.shared[2].bell_fd)  # rank 2 takes nothing
        for call in range(2):
            assert world.link(0, 2).submit(frame.DATA, 1, call, 0, b"", memoryview(pattern(2 * CELL))) is None or call
        held = world.transports[0].segment
        assert len(held.free) == 0
        assert world.link(0, 1).submit(frame.DATA, 1, 9, 0, b"", memoryview(pattern(CELL, 9))) is not None
        for _ in range(5):
            await asyncio.sleep(0)
        assert not world.owners[1].frames
        world.link(2, 0).close()
        await until(lambda: bool(world.owners[1].frames))
        assert world.owners[1].payloads() == [pattern(CELL, 9)]
        assert world.owners[0].told("lost") == [("lost", 2, "its process ended", True)]


async def test_a_lane_that_waits_for_cells_gets_those_that_another_send_finds() -> None:
    """A send to one peer sees that it has read its cells; the lane to another, which waits for cells, must hear."""
    with shm_ends(replace(TINY, ranks=3, slots=4)) as world:
        out = world.link(0, 2).outlane
        stamp = stamp_of(world, 0, b"", float, CELL // 8)
        for call in range(4):
            assert out.post(stamp, call, np.full(CELL // 8, call, float))
        assert world.link(0, 1).submit(frame.DATA, 1, 9, 0, b"", memoryview(pattern(CELL, 9))) is not None
        world.transports[0].loop.remove_reader(world.shared[0].bell_fd)  # rank 0 is just about to do something else
        world.link(2, 0).progress()
        assert out.post(stamp_of(world, 0, b"", float, 1), 4, np.ones(1))  # no room, so it looks
        world.transports[0].loop.add_reader(world.shared[0].bell_fd, world.transports[0]._rung)
        await until(lambda: bool(world.owners[1].frames))


async def test_whoever_looks_stops_when_the_link_ends_under_it() -> None:
    """What a peer wrote that cannot be taken stays where it is: looking again would find it there for ever."""
    with shm_ends() as world:
        world.link(1, 0).submit(frame.DATA, 1, 2, 3, b"m", memoryview(pattern(100)))

        class Refusing:
            def arriving(self, *header: Any) -> Any:
                raise WireError("what no correct peer sends")

        world.link(0, 1).inlane._sink = Refusing()
        world.transports[0].look_for(1e-3, shares_loop=False)
        looks = iter([False] * 1000)
        pending = world.transports[0].pending
        endpoint: Any = SimpleNamespace(inline=True, interrupted=False)
        endpoint.transport = SimpleNamespace(pending=lambda: [next(looks), pending()][1])
        operation: Any = SimpleNamespace(done=False, is_done=lambda: False)
        Waiting._look(endpoint, operation, world.link(0, 1))
        assert world.link(0, 1).ended and [each[:2] for each in world.owners[0].news] == [("lost", 1)]
