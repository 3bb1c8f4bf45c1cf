"""A peer that writes whatever it likes into its memory: its link ends with a reason, and nothing else does.

The rule: the victim never crashes, hangs, raises out of its loop or reads beyond what it has mapped.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import socket
import struct
from collections.abc import Awaitable, Iterator
from typing import Any

import numpy as np
import pytest

from aiocoll import AiocollError, Group, GroupBrokenError, MismatchError, PeerLostError
from aiocoll.transport.shm.meeting import Shared
from aiocoll.transport.shm.segment import ASLEEP, INLINE_BYTES, META_BYTES
from aiocoll.transport.shm.slot import ARENA, LONG_META, MORE, OFFSET_BITS, REVOKED
from aiocoll.transport.shm.stamp import CELL
from aiocoll.wire import frame
from tests.endpoint.ranks import HANG_SECONDS, ranks
from tests.turns import until

from .ends import Ticket, pattern
from .shm_ends import TINY, Forger, ShmEnds, shm_ends

pytestmark = pytest.mark.timeout(90)
VICTIM, LIAR = 0, 1
DATA = frame.DATA
ALL_ONES = (1 << 64) - 1


@pytest.fixture
def raised() -> Iterator[list[dict[str, Any]]]:
    """What the loop's callbacks raised: nothing may."""
    said: list[dict[str, Any]] = []
    yield said
    assert not said


def liar(world: ShmEnds, raised: list[dict[str, Any]]) -> Forger:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    return Forger(world.shared[LIAR], LIAR, VICTIM)


async def reason(world: ShmEnds) -> str:
    """Why the victim's link to the liar ended."""
    owner = world.owners[VICTIM]
    await until(lambda: bool(owner.news))
    assert len(owner.news) == 1 and owner.news[0][:2] == ("lost", LIAR), owner.news
    link = world.link(VICTIM, LIAR)
    assert link.ended and not link.ready and link.submit(DATA, 1, 1, 0, b"", memoryview(b"late")) is None
    assert not link.progress() and link.drained()
    return str(owner.news[0][2])


CELLS = TINY.cells
LIES: dict[str, list[dict[str, Any]]] = {
    "kind 0 without a frame": [{"kind": MORE, "piece": 5}],
    "a kind that there is not": [{"kind": frame.KIND_MAX + 1}],
    "kind 254": [{"kind": 254}],
    "a meta longer than its place": [{"kind": DATA, "meta_bytes": META_BYTES + 1}],
    "a meta of the largest length": [{"kind": DATA, "meta_bytes": (1 << 24) - 1}],
    "a payload past all bounds": [{"kind": DATA, "length": frame.PAYLOAD_BYTES_MAX + 1, "piece": 1}],
    "a payload of all ones": [{"kind": DATA, "length": ALL_ONES, "piece": 1}],
    "a payload for which there is no memory": [{"kind": DATA, "length": frame.PAYLOAD_BYTES_MAX, "piece": 1}],
    "a piece longer than the payload": [{"kind": DATA, "length": 10, "piece": 11}],
    "an inline piece longer than its place": [{"kind": DATA, "length": 1 << 20, "piece": INLINE_BYTES + 1}],
    "a piece of nothing": [{"kind": DATA, "length": 10, "piece": 0}],
    "a piece of nothing in the middle": [{"kind": DATA, "length": 9, "piece": 5}, {"kind": MORE, "piece": 0}],
    "a cell behind the last": [{"kind": DATA, "length": 10, "piece": 10 | CELL, "place": CELLS}],
    "a cell of nearly all ones": [{"kind": DATA, "length": 10, "piece": 10 | CELL, "place": ALL_ONES - 1}],
    "a cell of a negative number": [{"kind": DATA, "length": 10, "piece": 10 | CELL, "place": -1 << 32}],
    "more than a cell holds": [{"kind": DATA, "length": 9000, "piece": (TINY.cell_bytes + 1) | CELL, "place": 3}],
    "a place that there is not": [{"kind": DATA, "length": 10, "piece": 10 | CELL | ARENA}],
    "another place that there is not": [{"kind": DATA, "length": 10, "piece": 10 | 128 << 56}],
    "an arena that never came": [{"kind": DATA, "length": 10, "piece": 10 | ARENA, "place": 0}],
    "an arena of a large number": [{"kind": DATA, "length": 10, "piece": 10 | ARENA, "place": 5 << OFFSET_BITS}],
    "an arena of nearly all ones": [{"kind": DATA, "length": 10, "piece": 10 | ARENA, "place": ALL_ONES - 1}],
    "a frame within another": [{"kind": DATA, "length": 10, "piece": 5}, {"kind": DATA, "length": 3, "piece": 3}],
    "a long meta in the slot": [{"kind": LONG_META, "piece": META_BYTES + 1}],
    "a long meta that is short": [{"kind": LONG_META, "piece": META_BYTES | CELL}],
    "a long meta past all bounds": [{"kind": LONG_META, "piece": (frame.META_BYTES_MAX + 1) | CELL}],
    "a long meta longer than a cell": [{"kind": LONG_META, "piece": (TINY.cell_bytes + 1) | CELL}],
    "a long meta in no cell": [{"kind": LONG_META, "piece": (META_BYTES + 1) | CELL, "place": CELLS}],
    "a long meta after a long meta": [{"kind": LONG_META, "piece": (META_BYTES + 1) | CELL, "place": 0}] * 2,
    "a long meta within a frame": [
        {"kind": DATA, "length": 10, "piece": 5},
        {"kind": LONG_META, "piece": (META_BYTES + 1) | CELL},
    ],
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_slot_that_no_correct_peer_writes(lie: str, raised: list[dict[str, Any]]) -> None:
    with shm_ends(forged=(LIAR,)) as world:
        forger = liar(world, raised)
        forger.put(DATA, call=7, step=3, length=4, piece=4, inline=b"true")
        await until(lambda: len(world.owners[VICTIM].frames) == 1)
        for slot in LIES[lie]:
            forger.put(**slot)
        assert await reason(world)
        assert world.owners[VICTIM].payloads() == [b"true"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((5,), "took 5 of 1 slots"),
        ((1 << 40,), "of 1 slots"),
        ((ALL_ONES,), "of 1 slots"),
        ((1, 0), "and said 1 before"),
    ],
)
async def test_a_count_of_taken_slots_that_jumps(
    words: tuple[int, ...], said: str, raised: list[dict[str, Any]]
) -> None:
    with shm_ends(forged=(LIAR,)) as world:
        forger, link = liar(world, raised), world.link(VICTIM, LIAR)
        assert link.submit(DATA, 1, 1, 0, b"", memoryview(pattern(2000))) is None
        for word in words:
            forger.take(word)
            link.outlane.settle()
        assert said in await reason(world)
        world.transports[VICTIM].settle_lanes()
        assert sorted(world.shared[VICTIM].segment.free) == list(range(CELLS))


async def test_a_count_of_taken_slots_that_jumps_while_much_is_queued(raised: list[dict[str, Any]]) -> None:
    with shm_ends(forged=(LIAR,)) as world:
        forger, link = liar(world, raised), world.link(VICTIM, LIAR)
        payload = bytearray(pattern(50 * TINY.cell_bytes))
        queued = link.submit(DATA, 1, 1, 0, b"", memoryview(payload))
        assert queued is not None
        queued.sent = ticket = Ticket()
        forger.take(2)
        await until(lambda: link.outlane.posted == 4)
        forger.take(5)
        assert "took 5 of 4 slots, and said 2 before" in await reason(world)
        assert isinstance(await ticket.future, ConnectionError)


async def test_a_bell_and_a_sleep_that_mean_nothing(raised: list[dict[str, Any]]) -> None:
    """A peer that always sleeps, always waits and rings without reason costs time, and no more."""
    with shm_ends(forged=(LIAR,)) as world:
        forger, link = liar(world, raised), world.link(VICTIM, LIAR)
        forger.segment.words[ASLEEP] = ALL_ONES
        forger.segment.words[TINY.waits(VICTIM)] = ALL_ONES
        for turn in range(50):
            forger.ring()
            forger.put(DATA, call=turn, length=1, piece=1, inline=b"x")
            await until(lambda turn=turn: len(world.owners[VICTIM].frames) > turn)
            link.submit(DATA, 1, turn, 0, b"", None)
            forger.take(turn + 1)
        assert not world.owners[VICTIM].news


@pytest.mark.parametrize("number", [0, 3, 1023])
async def test_an_arena_that_is_none(number: int, raised: list[dict[str, Any]]) -> None:
    with shm_ends(forged=(LIAR,)) as world:
        forger = liar(world, raised)
        fd = os.memfd_create("not sealed")
        try:
            os.ftruncate(fd, 4096)
            socket.send_fds(forger.connection, [struct.pack("<QQ", number, 4096)], [fd])
        finally:
            os.close(fd)
        assert "not sealed" in await reason(world)


@pytest.mark.parametrize(("offset", "nbytes"), [(4096, 1), (0, 4097), (4095, 2), ((1 << OFFSET_BITS) - 1, 1)])
async def test_a_place_behind_an_arena(offset: int, nbytes: int, raised: list[dict[str, Any]]) -> None:
    with shm_ends(forged=(LIAR,)) as world:
        forger = liar(world, raised)
        fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, 4096)
            os.pwrite(fd, b"there", 7)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            socket.send_fds(forger.connection, [struct.pack("<QQ", 2, 4096)], [fd])
        finally:
            os.close(fd)
        forger.put(DATA, length=5, piece=5 | ARENA, place=2 << OFFSET_BITS | 7)
        await until(lambda: bool(world.owners[VICTIM].frames))
        forger.put(DATA, length=nbytes, piece=nbytes | ARENA, place=2 << OFFSET_BITS | offset)
        assert "no such place" in await reason(world)
        assert world.owners[VICTIM].payloads() == [b"there"]


async def test_what_else_a_peer_sends_over_its_connection(raised: list[dict[str, Any]]) -> None:
    with shm_ends(forged=(LIAR,)) as world:
        liar(world, raised).connection.send(b"hello")
        assert "5 bytes and 0 descriptors" in await reason(world)


async def test_a_reference_that_is_taken_back_again_and_again(raised: list[dict[str, Any]]) -> None:
    with shm_ends(forged=(LIAR,)) as world:
        forger = liar(world, raised)
        for call in range(5):
            forger.put(DATA, call=call, length=1 << 20, piece=1 << 20 | ARENA, place=REVOKED)
            await until(lambda call=call: forger.taken == call + 1)
        forger.put(DATA, call=9, length=2, piece=2, inline=b"ok")
        await until(lambda: bool(world.owners[VICTIM].frames))
        assert world.owners[VICTIM].payloads() == [b"ok"] and not world.owners[VICTIM].news


INTERESTING = (
    0, 1, 2, 3, 4, 5, 12, 255, 1023, 1024, 1025, 4095, 4096, 4097, 1 << 20, CELL, ARENA, CELL | 10, ARENA | 10,
    CELL | 4096, ARENA | 4097, CELL | ARENA, 1 << 47, 1 << 48, 1 << 63, ALL_ONES, ALL_ONES - 1, DATA | 960 << 40,
    DATA | 961 << 40, DATA | 3 << 8, MORE, LONG_META, frame.CONTROL, frame.BYE,
)  # fmt: skip


def garbage(rng: random.Random) -> Any:
    """Seven words: random ones, and such as mean something somewhere."""
    style = rng.random()
    words = [rng.getrandbits(64) if rng.random() < style else rng.choice(INTERESTING) for _ in range(7)]
    return np.array(words, np.uint64)


@pytest.mark.parametrize("seed", range(6))
async def test_random_words(seed: int, raised: list[dict[str, Any]]) -> None:
    rng = random.Random(seed)
    ended = 0
    for _ in range(60):
        with shm_ends(forged=(LIAR,)) as world:
            ended += await ends_of_itself(world, liar(world, raised), rng)
    assert ended > 30, "garbage was hardly ever noticed"


async def ends_of_itself(world: ShmEnds, forger: Forger, rng: random.Random) -> bool:
    """Whether some slots of garbage end the link."""
    owner = world.owners[VICTIM]
    for _ in range(12):
        forger.raw(garbage(rng))
        if rng.random() < 0.3:
            forger.take(rng.choice(INTERESTING))
            world.link(VICTIM, LIAR).submit(DATA, 1, 1, 0, b"", memoryview(pattern(rng.randrange(9000))))
        await until(lambda: bool(owner.news) or forger.taken == forger.posted)
        assert forger.taken <= forger.posted
        if owner.news:
            return True
    return False


# -- whole worlds: only the groups of the liar break


async def outcome(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except AiocollError as error:
        return error


def lies_of(group: Group, to: int) -> Forger:
    """The memory of a rank that goes on in this process, in the hands of one who writes anything."""
    memory = group._endpoint.memory
    assert memory is not None
    shared = Shared(memory.segment, memory._bell, memory.peers)
    forger = Forger(shared, memory.rank, to)
    forger.posted = memory.made[to].outlane.posted
    return forger


def nearly_right(forger: Forger, rng: random.Random) -> Any:
    """What the next frame of a call that comes again would be, but for the place of its payload."""
    at = forger.geometry.slot(forger.to, (forger.posted - 1) & (forger.geometry.slots - 1))
    words = np.frombuffer(bytes(forger.segment.bytes[at + 8 : at + 64]), np.uint64).copy()
    words[0] += 1  # the call
    words[5] = int(words[4]) | rng.choice([CELL, ARENA, 0])
    words[6] = rng.choice([0, 3, 4, 5, 1 << 40, 1 << OFFSET_BITS, ALL_ONES, ALL_ONES - 1])
    return words


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("seed", range(8))
async def test_only_groups_with_the_liar_break(seed: int, blocked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_SHM_CELLS", "4")
    monkeypatch.setenv("AIOCOLL_SHM_CELL_BYTES", "4096")
    rng = random.Random(seed)
    async with ranks(3, "shm") as groups, asyncio.timeout(HANG_SECONDS):
        honest = [await groups[rank].subgroup([0, 2]) for rank in (0, 2)]
        given = [np.arange(400.0) + group.rank for group in groups]
        outs = [np.empty(400) for _ in groups]
        for _ in range(4):
            await asyncio.gather(*(groups[i].all_reduce(given[i], out=outs[i]) for i in range(3)))
            assert all((out == 3 * np.arange(400.0) + 3).all() for out in outs)
        waiting = [asyncio.ensure_future(outcome(groups[i].all_reduce(given[i], out=outs[i]))) for i in (0, 2)]
        if not blocked:  # the liar writes before its victim looks
            await asyncio.sleep(0)
        forger = lies_of(groups[1], 0)
        while groups[0].broken is None:
            forger.raw(nearly_right(forger, rng) if rng.random() < 0.7 else garbage(rng))
            if rng.random() < 0.2:
                forger.take(rng.choice(INTERESTING))
            await asyncio.wait(waiting, timeout=0.002)
        for error in await asyncio.gather(*waiting):  # some lies look like another call
            assert isinstance(error, (PeerLostError, MismatchError, GroupBrokenError)), error
            cause = error.cause if isinstance(error, GroupBrokenError) else error
            assert cause is None or not isinstance(cause, PeerLostError) or cause.world_rank == LIAR
        for turn in range(10):
            results = await asyncio.gather(*(group.all_reduce(np.arange(3000.0) + turn) for group in honest))
            assert all((result == 2 * (np.arange(3000.0) + turn)).all() for result in results)
