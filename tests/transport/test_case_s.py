"""Streams over sockets: situations reported of other systems (S1, S3, F7, N3), on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll.testing import run
from aiocoll.wire import frame

from .ends import Ends, Landed, Sink, ends, pattern

pytestmark = pytest.mark.timeout(120)
MIB = 1 << 20


async def _read_slowly(world: Ends, turn_bytes: int) -> None:
    """Rank 1 takes a little in each turn of the loop, and never twice without giving the sender one."""
    link, owner = world.transports[1].link(0), world.owners[1]
    world.transports[1].turn_bytes = turn_bytes
    async with asyncio.timeout(60):
        while not owner.frames and not link.ended:
            link._receive()
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("nbytes", "sndbuf"),
    [(200 << 10, 0), (200 << 10, 4096), (200 << 10, MIB), (3 * MIB + 1, 0), (3 * MIB + 1, 4096), (3 * MIB + 1, MIB),
     pytest.param(64 * MIB, 0, marks=pytest.mark.slow)],
)  # fmt: skip
async def test_s1_a_large_write_to_a_slow_reader_leaves_no_rest(nbytes: int, sndbuf: int) -> None:
    with ends(sndbuf=sndbuf, rcvbuf=8192) as world:
        _, far = await world.linked()
        assert far._socket is not None
        asyncio.get_running_loop().remove_reader(far._socket.fileno())
        ticket = world.send(0, 1, pattern(nbytes))
        await _read_slowly(world, max(nbytes >> 10, 1000))
        assert world.owners[1].payloads() == [pattern(nbytes)]
        assert (ticket is None or await ticket.future is None) and world.transports[0].pending() == []


WHOLE = frame.pack_header(frame.DATA, 1, 2, 3, b"words", 100) + pattern(100)


@pytest.mark.parametrize(
    ("sent", "says"),
    [(0, "its process ended"), (1, "1 of 40 bytes of its header"), (39, "39 of 40 bytes of its header"),
     (40, "0 of 5 bytes of its description"), (44, "4 of 5 bytes of its description"),
     (45, "0 of 100 bytes of its payload"), (144, "99 of 100 bytes of its payload"), (145, "its process ended")],
)  # fmt: skip
async def test_s3_an_end_in_the_middle_of_a_frame_says_how_much_had_come(sent: int, says: str) -> None:
    with ends() as world:
        _, far = await world.linked()
        assert far._socket is not None
        far._socket.send(WHOLE + WHOLE[:sent])
        far._socket.shutdown(socket.SHUT_WR)
        await world.owners[0].until(lambda: bool(world.owners[0].told("lost")))
        ((_, peer, reason, _),) = world.owners[0].told("lost")
        assert peer == 1 and says in reason and ("middle of a frame" in reason) == (0 < sent < len(WHOLE))
        assert world.owners[0].payloads() == [pattern(100)] * (1 + sent // len(WHOLE))


async def test_s3_what_was_queued_while_nobody_read_comes_before_the_end() -> None:
    with ends() as world:
        near, far = await world.linked()
        assert near._socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(near._socket.fileno())
        for step in range(20):
            world.send(1, 0, pattern(1000, step), step)
        far.close()
        for _ in range(5):
            await asyncio.sleep(0)
        assert world.owners[0].frames == [] and world.owners[0].told("lost") == []
        loop.add_reader(near._socket.fileno(), near._receive)
        await world.owners[0].until(lambda: bool(world.owners[0].told("lost")))
        assert world.owners[0].payloads() == [pattern(1000, step) for step in range(20)]


@pytest.mark.parametrize("method", ["window", "advance", "complete"])
async def test_s3_a_receiver_that_raises_ends_its_link_and_no_other(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ends(3) as world:
        near, _ = await world.linked(0, 1)
        await world.linked(0, 2)

        class Faulty(Landed):
            pass

        def fail(self: Any, *arguments: Any) -> None:
            raise RuntimeError(f"{method} failed")

        setattr(Faulty, method, fail)

        class FaultySink(Sink):
            def arriving(self, kind: int, *header: Any) -> Any:
                return Faulty(self.owner, self.peer, (kind, *header[:3]), header[3], header[4])

        monkeypatch.setattr(near._reader, "_sink", FaultySink(world.owners[0], 1))
        for step in range(3):
            world.send(1, 0, pattern(20_000, step), step)
            world.send(2, 0, pattern(20_000, step + 3), step)
        await world.owners[0].until(lambda: bool(world.owners[0].told("lost")) and len(world.owners[0].frames) == 3)
        ((_, peer, reason, certain),) = world.owners[0].told("lost")
        assert (peer, certain) == (1, False) and f"RuntimeError: {method} failed" in reason
        assert world.owners[0].payloads(2) == [pattern(20_000, step + 3) for step in range(3)]
        assert "cannot take what rank 1 sent" in caplog.text


@pytest.mark.parametrize("fabric", ["tcp", "shm"])
def test_f7_a_receive_that_is_cancelled_in_the_middle_loses_no_byte(fabric: str) -> None:
    """At every turn of the loop while eight MiB come: the next receive gets all of it, and the one after the next."""
    count = MIB

    def sent(turn: int) -> Any:
        return np.arange(count) * 3.0 + turn

    async def main(group: aiocoll.Group) -> int:
        cancelled = 0
        for turns in range(0, 48, 3):
            if group.rank == 1:
                await asyncio.gather(group.send(sent(turns), 0), group.send(np.arange(5) + turns, 0))
            else:
                out = np.full(count, -1.0)
                receive = asyncio.ensure_future(group.recv(1, out=out))
                for _ in range(turns):
                    await asyncio.sleep(0)
                receive.cancel()
                try:
                    message = await receive
                except asyncio.CancelledError:
                    cancelled += 1
                    before = out.copy()
                    message = await group.recv(1)
                    assert (out == before).all()  # nothing is written behind a receive that was withdrawn
                assert (message == sent(turns)).all(), turns
                assert ((await group.recv(1)) == np.arange(5) + turns).all(), turns
            await group.barrier()
        return cancelled

    assert run(2, main, fabric, timeout=20)[0] > 0


@pytest.mark.parametrize("turns", range(8))
async def test_f7_whoever_gives_up_while_it_connects_gets_through_the_next_time(turns: int) -> None:
    """The one who listens has taken the connection, has answered, or has not heard yet."""
    with ends() as world:
        dialling = socket.socket()
        with dialling:
            dialling.setblocking(False)
            dialling.connect_ex(world.addresses[0])
            for _ in range(turns):
                await asyncio.sleep(0)
        world.send(1, 0, pattern(1000))
        await world.owners[0].until(lambda: bool(world.owners[0].frames))
        assert world.owners[0].payloads() == [pattern(1000)] and world.owners[0].told("lost") == []


def _peak_mib() -> float:
    """The most memory that this process has had, in MiB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_n3_sends_to_a_rank_that_sleeps_keep_memory_bounded(tmp_path: Path, transport: str) -> None:
    """400 MiB in all, of which the bound for what lies unreceived (64 MiB) is on its way, and the rest waits."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    messages = 400

    async def main(group: aiocoll.Group) -> tuple[float, int]:
        await group.barrier()
        before, done = _peak_mib(), 0
        if group.rank == 1:
            gate.read_text()  # it sleeps: no turn of its loop until somebody writes there
            for message in range(messages):
                assert (await group.recv(0))[-1] == message // 100
        else:
            parcels = [np.full(MIB // 8, number) for number in range(messages // 100)]
            sends = [asyncio.ensure_future(group.send(parcels[message // 100], 1)) for message in range(messages)]
            for _ in range(500):
                await asyncio.sleep(0)
            done = sum(send.done() for send in sends)
            threading.Thread(target=gate.write_text, args=("go on",)).start()
            await asyncio.gather(*sends)
        await group.barrier()
        return _peak_mib() - before, done

    (sender, done), (receiver, _) = run(2, main, "process", transport=transport, timeout=60)
    assert 0 < done < messages // 2, done
    assert sender < 200 and receiver < 200, (sender, receiver)


@pytest.mark.parametrize("fabric", ["inproc", "tcp", "shm"])
@pytest.mark.parametrize("count", [3, 100_000, 16 * MIB])
def test_n3_what_was_received_is_freed_with_its_last_reference(fabric: str, count: int) -> None:
    """Whether the receive was there first, the message, or its offer: the collector of cycles is not needed."""

    async def main(group: aiocoll.Group) -> None:
        gc.disable()
        for first in range(2):
            await group.barrier()
            if group.rank == 0:
                await group.send(np.arange(count, dtype=np.uint8), 1, tag=first)
            else:
                receive = asyncio.ensure_future(group.recv(0, tag=first)) if first else group.recv(0, tag=first)
                await asyncio.sleep(0)
                array = await receive
                assert array[-1] == (count - 1) % 256
                gone = weakref.ref(array if array.base is None else array.base)
                del array, receive
                await asyncio.sleep(0)
                assert gone() is None
        await group.barrier()

    try:
        run(2, main, fabric)
    finally:
        gc.enable()
