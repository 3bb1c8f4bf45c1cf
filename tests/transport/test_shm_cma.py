"""Private memory that peers read where it lies: only where that was tried, whole or not at all, and cells elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll import SUM, Group, PeerLostError
from aiocoll.buffers import address_of
from aiocoll.endpoint import private as verbs
from aiocoll.endpoint.rivals import Rivals
from aiocoll.testing import Crash, run
from aiocoll.transport.shm import private
from aiocoll.transport.shm.private import STEP_BYTES, Private
from aiocoll.transport.shm.segment import NONCE_BYTES, PROOF_AT
from aiocoll.transport.shm.slot import PRIVATE
from aiocoll.wire import frame
from tests.private_reads import private_reads
from tests.turns import until

from .ends import Ticket, pattern
from .shm_ends import TINY, Forger, ShmEnds, shared_by, shm_ends

pytestmark = pytest.mark.timeout(60)
CELL = TINY.cell_bytes
MIN = verbs.PRIVATE_BYTES_MIN


def kernel_refuses(*_: object) -> int:
    ctypes.set_errno(errno.EPERM)
    return -1


def kernel_stops_short(*_: object) -> int:
    return NONCE_BYTES - 1


def kernel_reads_another(*_: object) -> int:
    return NONCE_BYTES


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return private_reads(monkeypatch)


def expose(world: ShmEnds, src: int, dst: int, payload: Any, call: int = 0, meta: bytes = b"") -> Ticket | None:
    """Sends ``payload`` by its address; None if it was copied."""
    view = memoryview(payload).cast("B") if len(payload) else None
    queued = world.link(src, dst).outlane.send(frame.DATA, 5, call, 0, meta, view, True)
    if queued is None:
        return None
    ticket = queued.sent = Ticket()
    return ticket


async def test_whether_memory_can_be_read_is_tried() -> None:
    with shm_ends() as world:
        for src, dst in ((0, 1), (1, 0)):
            assert world.link(src, dst).inlane.private and world.link(src, dst).outlane.private


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (None, "no process_vm_readv"),
        (kernel_refuses, "Operation not permitted"),
        (kernel_stops_short, "15 of 16 bytes"),
        (kernel_reads_another, "is another one here"),
    ],
)
async def test_where_it_cannot_be_read_nobody_gives_addresses(
    kernel: Callable[..., int] | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "_CALL", kernel)
    with shm_ends() as world:
        for src, dst in ((0, 1), (1, 0)):
            link = world.link(src, dst)
            assert why in link.inlane._private.refusal
            assert not link.inlane.private and not link.outlane.private


@pytest.mark.parametrize("process", [0, 1 << 40, (1 << 31) - 1])
async def test_a_process_that_is_none(process: int) -> None:
    shared = shared_by(TINY)
    shared[1].segment.words[PROOF_AT] = process
    refusal = Private(shared[0].peers[1].mapped, shared[0].peers[1].connection, True).refusal
    assert str(process) in refusal or refusal == "its process ended"
    for each in shared:
        each.close()


@pytest.mark.parametrize(
    "nbytes", [0, 1, 7, 1024, 1025, CELL, CELL + 1, STEP_BYTES - 1, STEP_BYTES, 3 * STEP_BYTES + 13]
)
async def test_payloads_come_whole_and_are_kept_until_then(nbytes: int, reads: list[int]) -> None:
    with shm_ends() as world:
        content = pattern(nbytes, nbytes)
        payloads: list[Any] = [bytearray(content), content]  # one that cannot be written, too
        for call, payload in enumerate(payloads):
            ticket = expose(world, 0, 1, payload, call, b"m")
            await until(lambda call=call: len(world.owners[1].frames) > call)
            if ticket is not None:
                await until(ticket.future.done)
                assert ticket.future.result() is None
            assert world.owners[1].frames[call] == (0, frame.DATA, 5, call, 0, b"m", content)
        assert sum(reads) == (2 * nbytes if nbytes > 1024 else 0)
        assert max(reads, default=0) <= STEP_BYTES
        await until(world.link(0, 1).drained)


async def test_more_than_there_are_slots(reads: list[int]) -> None:
    with shm_ends() as world:
        contents = [pattern(CELL + 100 * i, i) for i in range(7)]
        tickets = [expose(world, 0, 1, bytearray(content), i) for i, content in enumerate(contents)]
        await until(lambda: len(world.owners[1].frames) == 7)
        assert [each[-1] for each in world.owners[1].frames] == contents and len(reads) == 7
        await until(lambda: all(ticket is not None and ticket.future.done() for ticket in tickets))


async def test_what_is_taken_back_is_not_read_by_anybody() -> None:
    with shm_ends() as world:
        link = world.link(0, 1)
        payloads = [bytearray(pattern(2 * CELL, i)) for i in range(4)]
        tickets = [expose(world, 0, 1, payload, i) for i, payload in enumerate(payloads)]
        for i in (1, 3):  # one in the lane, one that waits for a slot
            ticket = tickets[i]
            assert ticket is not None and link.withdraw(ticket, keep=False) is (i == 3)
            payloads[i][:] = b"?" * len(payloads[i])
        expose(world, 0, 1, b"after", 9)
        await until(lambda: len(world.owners[1].frames) == 3)
        assert [each[3] for each in world.owners[1].frames] == [0, 2, 9]
        assert [each[-1] for each in world.owners[1].frames[:2]] == [bytes(payloads[0]), bytes(payloads[2])]


@pytest.mark.parametrize("unmapped", [False, True])
async def test_what_is_taken_back_in_the_middle(unmapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with shm_ends() as world:
        read, ticket = Private.read, expose(world, 0, 1, bytearray(pattern(3 * STEP_BYTES, 1)))
        assert ticket is not None

        def reading(self: Private, address: int, into: Any) -> None:
            world.link(0, 1).withdraw(ticket, keep=False)
            read(self, 8 if unmapped else address, into)

        monkeypatch.setattr(Private, "read", reading)
        expose(world, 0, 1, b"after", 9)
        await until(lambda: bool(world.owners[1].frames))
        assert [each[3] for each in world.owners[1].frames] == [9] and not world.owners[1].news


async def lost(world: ShmEnds) -> str:
    """Why rank 0's link to the forger ended; nothing of what it wrote came."""
    await until(lambda: bool(world.owners[0].news))
    assert not world.owners[0].frames
    return str(world.owners[0].news)


async def test_an_address_where_nothing_is() -> None:
    with shm_ends(forged=(1,)) as world:
        Forger(world.shared[1], 1, 0).put(frame.DATA, length=5000, piece=5000 | PRIVATE, place=4096)
        assert "its memory could not be read: Bad address" in await lost(world)


async def test_an_address_from_one_whose_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_CALL", kernel_refuses)
    data = np.arange(5000, dtype=np.uint8)
    with shm_ends(forged=(1,)) as world:
        Forger(world.shared[1], 1, 0).put(frame.DATA, length=5000, piece=5000 | PRIVATE, place=address_of(data))
        assert "no correct peer" in await lost(world)


async def test_memory_of_one_who_has_left_does_not_count() -> None:
    data = np.arange(5000, dtype=np.uint8)
    with shm_ends(forged=(1,)) as world:
        forger = Forger(world.shared[1], 1, 0)
        forger.put(frame.DATA, length=5000, piece=5000 | PRIVATE, place=address_of(data))
        forger.connection.close()
        assert "its process ended" in await lost(world)


@pytest.mark.leaks("what the child was given stays with it until it is reaped")
async def test_an_owner_that_dies_in_the_middle() -> None:
    data = np.arange(3 * STEP_BYTES, dtype=np.uint8)
    shared = shared_by(TINY)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):  # nothing of this test may go on in the child
            signal.pause()
        os._exit(1)
    try:
        shared[1].segment.words[PROOF_AT] = child  # where all lies as it does here
        peer = shared[0].peers[1]
        theirs = Private(peer.mapped, peer.connection, True)
        assert not theirs.refusal
        into = np.zeros(STEP_BYTES, np.uint8)
        theirs.read(address_of(data) + STEP_BYTES, into)
        assert (into == data[STEP_BYTES : 2 * STEP_BYTES]).all()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # noqa: ASYNC222  killed, so it is soon over
    with pytest.raises(private.Unreadable, match="its process ended"):
        theirs.read(address_of(data), into)
    for each in shared:
        each.close()


# -- calls

SIZES = (0, 8, MIN - 8, MIN, MIN + 8, MIN + 24, verbs.PRIVATE_BYTES_MAX, verbs.PRIVATE_BYTES_MAX + 8)


def of(rank: int, nbytes: int, turn: int) -> np.ndarray[Any, Any]:
    return np.arange(nbytes // 8, dtype=np.int64) * (rank + 2) + turn


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("long_read", [False, True])
def test_all_gathers_around_the_threshold(
    nbytes: int, size: int, long_read: bool, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rivals, "second", lambda _: long_read)

    async def main(group: Group) -> None:
        await group.barrier()  # by now everybody has tried
        out = np.empty((size, nbytes // 8), np.int64)
        for turn in range(3):
            x = of(group.rank, nbytes, turn)
            x.flags.writeable = turn != 1
            wanted = np.stack([of(rank, nbytes, turn) for rank in range(size)])
            assert np.array_equal(await group.all_gather(x, out=out), wanted)
            assert np.array_equal(np.stack(await group.all_gather(x)), wanted)
            assert np.array_equal(x, wanted[group.rank])

    run(size, main, "shm")
    whole = MIN <= nbytes and (long_read or nbytes <= verbs.PRIVATE_BYTES_MAX)
    assert sum(reads) == (2 * 3 * size * (size - 1) * nbytes if whole else 0)


@pytest.mark.parametrize("nbytes", SIZES[1:6])
def test_all_to_alls_around_the_threshold(nbytes: int, reads: list[int]) -> None:
    async def main(group: Group) -> None:
        await group.barrier()
        for turn in range(3):
            sent = [of(group.rank, nbytes, turn + 7 * to) for to in range(3)]
            came = await group.all_to_all(sent)
            for source, each in enumerate(came):
                assert np.array_equal(each, of(source, nbytes, turn + 7 * group.rank))

    run(3, main, "shm")
    assert sum(reads) == (3 * 6 * nbytes if nbytes >= MIN else 0)


def test_sizes_orders_and_memory_may_differ_from_rank_to_rank(reads: list[int]) -> None:
    async def main(group: Group) -> None:
        for turn in range(3):
            lengths = [MIN // 8, 3, MIN // 2]
            both = [of(rank, 8 * lengths[(rank + turn) % 3], turn).reshape(-1, 1) for rank in range(3)]
            mine = both[group.rank]
            if group.rank == 1:  # which its peers have mapped
                mine = group.empty(mine.shape, np.int64)
                mine[...] = both[1]
            if group.rank == 2:
                mine = np.repeat(mine, 2, axis=1)[:, ::2]
            for came, wanted in zip(await group.all_gather(mine), both, strict=True):
                assert np.array_equal(came, wanted)

    run(3, main, "shm")
    assert reads


def test_calls_that_come_again_with_other_memory() -> None:
    async def main(group: Group) -> None:
        out, held = np.empty((2, MIN // 8), np.int64), group.empty(MIN // 8, np.int64)
        for turn in range(6):
            x = held if group.rank and turn % 2 else np.empty(MIN // 8, np.int64)
            x[...] = of(group.rank, MIN, turn)
            await group.all_gather(x, out=out)
            for rank in range(2):
                assert np.array_equal(out[rank], of(rank, MIN, turn))

    run(2, main, "shm")


def test_it_can_be_switched_off(reads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_SHM_CMA", "0")

    async def main(group: Group) -> None:
        for turn in range(2):
            came = await group.all_gather(of(group.rank, MIN, turn))
            assert all(np.array_equal(each, of(rank, MIN, turn)) for rank, each in enumerate(came))

    run(2, main, "shm")
    assert not reads


def test_folds_of_what_is_shown_so_are_right_too(reads: list[int]) -> None:
    async def main(group: Group) -> None:
        x = of(group.rank, MIN, 1)
        await group.barrier()

        async def body(ch: Any) -> None:
            sending = ch.expose(x)
            total = of(group.rank, MIN, 5)
            await ch.recv_fold(1 - group.rank, total, SUM)
            await sending
            assert np.array_equal(total, of(0, MIN, 0) + of(1, MIN, 0) + 6)

        turn = group._turn("fold", None)
        await group._made(turn, None, lambda: ("fold", body))

    run(2, main, "shm")
    assert sum(reads) == 2 * MIN


@pytest.mark.parametrize("after", [0.05, 0.11, 0.2])
def test_a_rank_that_is_killed_while_others_read_it(after: float) -> None:
    async def main(group: Group) -> str:
        out = np.empty((3, MIN // 4), np.int64)
        await group.barrier()
        if group.rank == 1:
            threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
        for turn in range(100_000):
            try:
                await group.all_gather(of(group.rank, 2 * MIN, turn), out=out)
            except PeerLostError as error:
                return str(error)
            for rank in range(3):
                assert np.array_equal(out[rank], of(rank, 2 * MIN, turn))
        return "nobody died"

    results = run(3, main, "process", faults=Crash(1, at=100.0))
    assert all("rank 1" in results[rank] for rank in (0, 2)), results


def test_a_peer_that_gives_up_in_a_call_leaves_nothing_wrong() -> None:
    async def main(group: Group) -> Any:
        await group.barrier()
        x = of(group.rank, MIN, 0)
        if group.rank == 0:
            with pytest.raises(TimeoutError):
                await group.all_gather(x, timeout=0.2)
            x[...] = -1
            return None
        await asyncio.sleep(0)
        with pytest.raises(Exception, match="rank 0"):
            while True:
                came = await group.all_gather(x, name="other")
                assert came is not None
        return None

    run(2, main, "shm")
