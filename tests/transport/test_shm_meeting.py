"""Ranks of one host that come to share memory: pairs, strangers, members that pass something else, what is short."""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import fcntl
import gc
import logging
import mmap
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from aiocoll.config import Settings
from aiocoll.transport.shm import meeting
from aiocoll.transport.shm.door import Door, Line, impossible, islands
from aiocoll.transport.shm.meeting import Pairing, Shared
from aiocoll.transport.shm.segment import NONCE_BYTES, Geometry, Segment
from aiocoll.transport.tcp_connect import TcpWorld
from aiocoll.wire.hello import RANK, ClientHello, Identity

from .ends import JOB, SECRET, WORLD

pytestmark = pytest.mark.timeout(60)
SETTINGS = Settings(shm_cells=4, shm_cell_bytes=4096, shm_slots=4)
SECONDS = 20.0


@contextlib.contextmanager
def doors(size: int) -> Iterator[list[Door]]:
    made = [Door() for _ in range(size)]
    try:
        yield made
    finally:
        for door in made:
            door.close()


def world_of(rank: int, size: int, secret: bytes = SECRET) -> TcpWorld:
    return TcpWorld(rank, size, (("", 0),) * size, secret, JOB, WORLD)


def pairing(made: list[Door], rank: int, settings: Settings = SETTINGS, seconds: float = SECONDS) -> Pairing:
    names = {each: door.name for each, door in enumerate(made)}
    return Pairing(world_of(rank, len(made)), made[rank], names, settings, seconds)


@contextlib.asynccontextmanager
async def island(size: int) -> AsyncIterator[list[Shared]]:
    """What ``size`` ranks of this process share."""

    async def one(made: list[Door], rank: int) -> Shared:
        async with pairing(made, rank) as mine:
            assert await mine.run() == ""
            return mine.take()

    with doors(size) as made:
        shared = await asyncio.gather(*(one(made, rank) for rank in range(size)))
    try:
        yield list(shared)
    finally:
        for each in shared:
            each.close()


def test_this_machine_can() -> None:
    assert impossible() == ""


def test_islands_are_what_all_can_see() -> None:
    def at(boot: str, net: int, door: str = "x") -> dict[str, Any]:
        return {"boot": boot, "net": net, "unix": door}

    assert islands([]) == [] and islands([at("a", 1)]) == []
    assert islands([at("a", 1), at("b", 1), at("a", 1), at("b", 1), at("a", 2)]) == [(0, 2), (1, 3)]
    assert islands([at("a", 1, ""), at("a", 1), {"boot": "a"}, at("", 1), at("", 1), {}]) == []


@pytest.mark.parametrize("size", [2, 3, 5])
async def test_each_reads_the_others_memory_and_rings_their_bells(size: int) -> None:
    async with island(size) as shared:
        for rank, mine in enumerate(shared):
            assert sorted(mine.peers) == [other for other in range(size) if other != rank]
            mine.segment.words[100] = 1000 + 7 * rank
        for rank, mine in enumerate(shared):
            for other, peer in mine.peers.items():
                assert peer.mapped.words[100] == 1000 + 7 * other
                with pytest.raises(TypeError):
                    peer.mapped.words[100] = 1
                os.eventfd_write(peer.bell_fd, rank + 1)
                assert os.eventfd_read(shared[other].bell_fd) == rank + 1
                for descriptor in (peer.bell_fd, peer.connection.fileno(), mine.segment.fd, mine.bell_fd):
                    assert not os.get_inheritable(descriptor)


async def test_a_connection_ends_with_its_other_end() -> None:
    async with island(3) as shared:
        shared[1].close()
        for rank in (0, 2):
            assert shared[rank].peers[1].connection.recv(1) == b""
            with pytest.raises(BlockingIOError):
                shared[rank].peers[2 - rank].connection.recv(1)


async def meet_with(stranger: Callable[[Door], Any], caplog: pytest.LogCaptureFixture) -> list[str]:
    """Rank 0 and 1 of an island of two, where a stranger comes to rank 0 before rank 1 does; what the log says."""
    with doors(2) as made, caplog.at_level(logging.INFO, "aiocoll.transport"):
        async with pairing(made, 0) as zero:
            running = asyncio.ensure_future(zero.run())
            await stranger(made[0])
            async with pairing(made, 1) as one:
                assert await one.run() == "" and await running == ""
                one.take().close()
            zero.take().close()
    return [record.getMessage() for record in caplog.records]


async def visit(door: Door, *said: bytes, files: int = 0, end: bool = True) -> bytes:
    """Says something, with descriptors, and gives what came back until the connection ended."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        visitor.setblocking(False)
        visitor.connect(f"\0{door.name}")
        back = b""
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:  # strangers are thrown out
            for each in said:
                descriptors = [os.dup(0) for _ in range(files)]
                for descriptor in descriptors:
                    stack.callback(os.close, descriptor)
                socket.send_fds(visitor, [each], descriptors)
            if end:
                visitor.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(10):
                while data := await loop.sock_recv(visitor, 4096):
                    back += data
        return back


def claim(rank: int = 1, secret: bytes = SECRET, size: int = 2, world: int = WORLD, peer: int = 0) -> ClientHello:
    return ClientHello(secret, Identity(RANK, JOB, rank, peer, size, world), RANK)


STRANGERS: dict[str, Callable[[Door], Any]] = {
    "noise": lambda door: visit(door, os.urandom(5000)),
    "silence": lambda door: visit(door),
    "another secret": lambda door: visit(door, claim(secret=b"guess").start() + bytes(32)),
    "another world": lambda door: visit(door, claim(world=WORLD + 1).start()),
    "itself": lambda door: visit(door, claim(rank=0, peer=0).start()),
    "a hello and no proof": lambda door: visit(door, claim().start()),
    "a wrong proof": lambda door: visit(door, claim().start() + bytes(32)),
    "descriptors": lambda door: visit(door, b"a", b"b", files=2, end=False),
    "too many descriptors": lambda door: visit(door, claim().start()[:20], files=9, end=False),
    "descriptors, one by one": lambda door: visit(door, *(claim().start()[i : i + 1] for i in range(9)), files=1),
}


@pytest.mark.parametrize("what", STRANGERS)
async def test_a_stranger_changes_nothing(what: str, caplog: pytest.LogCaptureFixture) -> None:
    lines = await meet_with(STRANGERS[what], caplog)
    assert len(lines) == 1 and lines[0].startswith("rank 0 closed a connection from this host: "), lines


async def test_strangers_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(meeting, "_STRANGER_SECONDS", 0.2)
    loop = asyncio.get_running_loop()
    with doors(2) as made, caplog.at_level(logging.INFO, "aiocoll.transport"), contextlib.ExitStack() as stack:
        async with pairing(made, 0) as zero:
            running = asyncio.ensure_future(zero.run())
            visitors = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in range(60)]
            for visitor in visitors:
                visitor.setblocking(False)
                visitor.connect(f"\0{made[0].name}")
            async with asyncio.timeout(20):
                for visitor in visitors:  # the last ones are sent away at once, the others when they are late
                    assert await loop.sock_recv(visitor, 1) == b""
            async with pairing(made, 1) as one:
                assert await one.run() == "" and await running == ""
    lines = [record.getMessage() for record in caplog.records]
    assert sum("too many strangers" in line for line in lines) > 30
    assert sum("it did not prove itself within 0.2 s" in line for line in lines) >= 20


# ------------------------------------------------------------------------- a member that passes what it should not


def sealed(fd: int) -> int:
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def memory(nbytes: int) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    return fd


GEOMETRY = Geometry.of(SETTINGS, ranks=2)
NONCE = secrets.token_bytes(NONCE_BYTES)


def good_memory(nonce: bytes = NONCE, geometry: Geometry = GEOMETRY) -> int:
    segment = Segment.create(geometry, nonce)
    fd = os.dup(segment.fd)
    segment.close()
    return fd


def bell(flags: int = os.EFD_NONBLOCK) -> int:
    return os.eventfd(0, flags | os.EFD_CLOEXEC)


WRONG: dict[str, tuple[bytes, Callable[[], list[int]], str]] = {
    "nothing": (b"", lambda: [], "closed the connection"),
    "no descriptors": (NONCE, lambda: [], "0 descriptors"),
    "one descriptor": (NONCE, lambda: [good_memory()], "1 descriptors"),
    "three": (NONCE, lambda: [good_memory(), bell(), bell()], "descriptors were lost"),
    "too many bytes": (NONCE + b"x", lambda: [good_memory(), bell()], "17 bytes"),
    "a file": (NONCE, lambda: [os.open("/etc/passwd", os.O_RDONLY), bell()], "no memory file"),
    "unsealed memory": (NONCE, lambda: [memory(GEOMETRY.nbytes), bell()], "not sealed"),
    "little memory": (NONCE, lambda: [sealed(memory(4096)), bell()], "4096 bytes instead of"),
    "other memory": (NONCE, lambda: [sealed(memory(GEOMETRY.nbytes)), bell()], "laid out otherwise"),
    "another nonce": (NONCE, lambda: [good_memory(bytes(16)), bell()], "not the one that was promised"),
    "a pipe for a bell": (NONCE, lambda: [good_memory(), *one_of_a_pipe()], "no eventfd"),
    "a bell that blocks": (NONCE, lambda: [good_memory(), bell(0)], "no eventfd that never blocks"),
    "the wrong order": (NONCE, lambda: [bell(), good_memory()], "no eventfd"),
}


def one_of_a_pipe() -> list[int]:
    reading, writing = os.pipe()
    os.close(reading)
    return [writing]


@pytest.mark.parametrize("what", WRONG)
async def test_a_member_that_passes_something_else(what: str) -> None:
    note, make, words = WRONG[what]
    loop = asyncio.get_running_loop()
    with doors(2) as made:
        async with pairing(made, 0) as zero:
            running = asyncio.ensure_future(zero.run())
            line = Line(loop, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            files = make()
            try:
                await line.connect(made[0].name)
                hello = claim()
                await line.prove(hello, hello.start())
                if note:
                    socket.send_fds(line.connection, [note], files)
                line.connection.shutdown(socket.SHUT_WR)
                reason = await running
            finally:
                line.close()
                for descriptor in files:
                    os.close(descriptor)
            assert reason.startswith("rank 0: no shared memory with rank 1: ") and words in reason


async def test_the_settings_of_all_must_agree() -> None:
    with doors(3) as made:
        settings = [SETTINGS, SETTINGS, replace(SETTINGS, shm_slots=8)]
        async with contextlib.AsyncExitStack() as stack:
            ranks = [await stack.enter_async_context(pairing(made, i, settings[i], 1.0)) for i in range(3)]
            reasons = await asyncio.gather(*(rank.run() for rank in ranks))
    assert all(reason.startswith(f"rank {rank}: ") for rank, reason in enumerate(reasons))
    assert any("bytes instead of" in reason for reason in reasons)


# ------------------------------------------------------------------------------------------------ what is short


def fails(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("owner", "name", "code"),
    [
        (os, "memfd_create", errno.EMFILE),
        (os, "posix_fallocate", errno.ENOSPC),
        (mmap, "mmap", errno.ENOMEM),
        (os, "eventfd", errno.EMFILE),
        (os, "eventfd", errno.ENFILE),
    ],
)
async def test_what_cannot_be_had_is_the_reason(
    owner: Any, name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with doors(2) as made:
        async with pairing(made, 0) as zero:
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, fails(code))
                reason = await zero.run()
    assert reason.startswith("rank 0: ") and os.strerror(code) in reason


async def test_more_memory_than_there_is_is_not_even_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", fails(errno.EIO))
    with doors(2) as made:
        async with pairing(made, 0, replace(SETTINGS, shm_cell_bytes=1 << 50)) as zero:
            assert "are free" in await zero.run()


async def test_descriptors_that_are_lost_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver at its limit gets the bytes and fewer descriptors."""

    class Short(socket.socket):
        def recvmsg(self, *limits: Any) -> Any:
            data, ancillary, flags, where = super().recvmsg(limits[0])
            return data, ancillary, flags, where

    monkeypatch.setattr(socket, "socket", Short)
    with doors(2) as made:
        async with pairing(made, 0) as zero, pairing(made, 1) as one:
            reasons = await asyncio.gather(zero.run(), one.run())
    assert any("ulimit -n" in reason for reason in reasons)


async def test_nobody_comes() -> None:
    with doors(3) as made:
        async with pairing(made, 1, seconds=0.05) as one:
            made[0].close()
            reason = await one.run()
            assert reason.startswith("rank 1: no shared memory with rank 0: ") and "refused" in reason
        async with pairing(made, 1, seconds=0.05) as one:
            made[0] = Door()
            one._names = {rank: door.name for rank, door in enumerate(made)}
            assert await one.run() == "rank 1: nothing came of rank 0, 2 within 0.05 s"


async def test_a_full_queue_is_waited_for() -> None:
    with doors(2) as made, contextlib.ExitStack() as stack:
        made[0].listener.listen(0)
        visitor = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        visitor.setblocking(False)
        visitor.connect(f"\0{made[0].name}")  # fills it
        async with pairing(made, 1) as one, pairing(made, 0) as zero:
            with pytest.raises(BlockingIOError):
                another = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                another.setblocking(False)
                another.connect(f"\0{made[0].name}")
            running = asyncio.ensure_future(one.run())
            visitor.close()
            assert await zero.run() == "" and await running == ""


@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_at_any_moment_it_leaves_nothing(turns: int) -> None:
    with doors(3) as made:
        async with contextlib.AsyncExitStack() as stack:
            ranks = [await stack.enter_async_context(pairing(made, rank)) for rank in range(3)]
            running = [asyncio.ensure_future(rank.run()) for rank in ranks]
            for _ in range(turns):
                await asyncio.sleep(0)
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    gc.collect()


def test_descriptors_of_a_closed_line_are_closed() -> None:
    ours, theirs = socket.socketpair()
    spare = os.dup(0)
    with theirs, contextlib.closing(asyncio.SelectorEventLoop()) as loop:
        line = Line(loop, ours)
        socket.send_fds(theirs, [b"x"], [spare, spare])
        assert loop.run_until_complete(line._receive()) == b"x"
        held = array.array("i", line._files)
        line.close()
        for descriptor in held:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
    os.close(spare)
