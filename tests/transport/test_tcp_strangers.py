"""Strangers at a rank's door: a closed connection and one log line each, and whoever belongs here notices nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiocoll.transport import tcp_connect
from aiocoll.wire import frame
from aiocoll.wire.hello import RANK, ClientHello, Identity
from tests.turns import until

from .ends import JOB, SECRET, WORLD, Ends, ends, pattern

pytestmark = pytest.mark.timeout(60)


async def visit(world: Ends, *said: bytes, rank: int = 1, end: bool = True) -> bytes:
    """Connects to ``rank``, says something, hangs up its side, and gives what came back until the connection closed."""
    reader, writer = await asyncio.open_connection(*world.addresses[rank])
    back = b""
    with contextlib.suppress(OSError):  # strangers are thrown out at any time
        for each in said:
            writer.write(each)
            await writer.drain()
        if end:
            writer.write_eof()
        async with asyncio.timeout(10):
            while data := await reader.read(65536):
                back += data
    writer.close()
    with contextlib.suppress(OSError):  # as above
        await writer.wait_closed()
    return back


def claim(
    rank: int = 0, peer: int = 1, size: int = 2, secret: bytes = SECRET, job: str = JOB, world: int = WORLD
) -> ClientHello:
    return ClientHello(secret, Identity(RANK, job, rank, peer, size, world), RANK)


WRONG = {
    "noise": [os.urandom(1 << 16)],
    "http": [b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"],
    "frames without a hello": [frame.pack_header(frame.DATA, 1, 2, 3, b"", 2**63)],
    "another version": [b"aioc" + b"\xff" * 200],
    "another job": [claim(job="another").start()],
    "another world": [claim(world=WORLD + 1).start()],
    "another size": [claim(size=3).start()],
    "a rank that does not exist": [claim(rank=7).start()],
    "itself": [claim(rank=1).start()],
    "for another rank": [claim(peer=0).start()],
    "a truncated hello": [claim().start()[:50]],
    "a hello and no proof": [claim().start()],
    "another secret": [claim(secret=b"guessed").start() + os.urandom(32)],
    "a right claim and a wrong proof": [claim().start() + bytes(32)],
    "a right claim, a wrong proof and frames": [
        claim().start() + bytes(32) + frame.pack_header(frame.DATA, 1, 2, 3, b"", 5) + b"12345"
    ],
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_stranger_is_shut_out_with_one_line(what: str, caplog: pytest.LogCaptureFixture) -> None:
    with ends() as world, caplog.at_level(logging.INFO, "aiocoll.transport"):
        await visit(world, *WRONG[what])
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 1, lines
        assert lines[0].startswith("rank 1 closed a connection from 127.0.0.1:") and len(lines[0]) < 400
        assert world.owners[1].news == [] and world.owners[1].frames == [] and world.transports[1].made == {}
        world.send(0, 1, b"the real rank 0")
        await world.owners[1].until(lambda: world.owners[1].payloads() == [b"the real rank 0"])


async def test_a_replayed_conversation_is_shut_out(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody recorded everything that rank 0 said to rank 1, handshake and frames, and says it again."""
    recorded = bytearray()
    with ends() as world:
        near_send = world.transports[0]
        host, port = world.addresses[1]
        proxy = await asyncio.start_server(lambda r, w: _record(r, w, host, port, recorded), "127.0.0.1", 0)
        addresses = list(world.addresses)
        addresses[1] = proxy.sockets[0].getsockname()[:2]
        object.__setattr__(near_send.world, "addresses", tuple(addresses))
        world.send(0, 1, b"once only")
        await world.owners[1].until(lambda: world.owners[1].payloads() == [b"once only"])
        assert b"once only" in recorded

        with caplog.at_level(logging.WARNING, "aiocoll.transport"):
            await visit(world, bytes(recorded))
        assert world.owners[1].payloads() == [b"once only"]
        # Rank 0 is linked already, so the claim is refused as that of a duplicate, which may be an honest race.
        assert caplog.records == []
        proxy.close()
        near_send.close()
        await proxy.wait_closed()

    with ends() as world, caplog.at_level(logging.WARNING, "aiocoll.transport"):
        # The same, said to a rank of the same world that has no link to rank 0 yet.
        await visit(world, bytes(recorded))
        assert len(caplog.records) == 1 and "does not know the secret" in caplog.text
        assert world.owners[1].frames == [] and world.transports[1].made == {}


async def _record(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int, recorded: bytearray
) -> None:
    there, back = await asyncio.open_connection(host, port)

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter, into: bytearray | None) -> None:
        with contextlib.suppress(OSError):  # one way or the other has ended
            while data := await source.read(65536):
                if into is not None:
                    into += data
                sink.write(data)
                await sink.drain()
        sink.close()

    await asyncio.gather(carry(reader, back, recorded), carry(there, writer, None))


async def test_a_stranger_with_a_true_claim_does_not_hold_the_place(caplog: pytest.LogCaptureFixture) -> None:
    """Hellos of rank 0 and of rank 1, complete and right, from somebody who cannot prove them and stays silent."""
    with ends() as world:
        strangers = []
        for rank, peer in ((0, 1), (1, 0)):
            for _ in range(3):
                reader, writer = await asyncio.open_connection(*world.addresses[peer])
                writer.write(claim(rank=rank, peer=peer).start())
                await reader.readexactly(20)  # it has been answered: its claim is believed for the moment
                strangers.append(writer)
        world.send(0, 1, b"from 0")
        world.send(1, 0, b"from 1")
        async with asyncio.timeout(2):  # well before the strangers are thrown out
            await world.owners[1].until(lambda: world.owners[1].payloads() == [b"from 0"])
            await world.owners[0].until(lambda: world.owners[0].payloads() == [b"from 1"])
        for writer in strangers:
            writer.close()
            await writer.wait_closed()


async def test_silent_strangers_are_thrown_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp_connect, "_STRANGER_SECONDS", 0.05)
    with ends() as world, caplog.at_level(logging.WARNING, "aiocoll.transport"):
        assert await visit(world, end=False) == b""
        await visit(world, claim().start()[:9], end=False)
        assert caplog.text.count("did not finish the handshake within 0.05 s") == 2
        assert world.transports[1]._porch.strangers == set()


async def test_a_crowd_of_strangers_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with ends() as world, caplog.at_level(logging.WARNING, "aiocoll.transport"):
        crowd = [await asyncio.open_connection(*world.addresses[1]) for _ in range(60)]
        porch = world.transports[1]._porch
        closed = 0
        for reader, _ in crowd[-30:]:
            closed += await reader.read(1) == b""
        assert closed == 30 and len(porch.strangers) <= 24
        assert caplog.text.count("too many strangers") == 60 - len(porch.strangers)
        for _, writer in crowd:
            writer.close()
        world.send(0, 1, b"still open for those who belong here")
        await world.owners[1].until(lambda: len(world.owners[1].frames) == 1)


async def test_a_job_goes_on_under_fire(caplog: pytest.LogCaptureFixture) -> None:
    """Frames flow both ways while strangers come and go; memory stays flat."""
    logging.getLogger("aiocoll.transport").setLevel(logging.CRITICAL)
    try:
        with ends() as world:
            await world.linked()
            steps = 0

            async def work(rounds: int) -> None:
                nonlocal steps
                for _ in range(rounds):
                    for src in (0, 1):
                        world.send(src, 1 - src, pattern(5000, steps % 3), steps)
                    for rank in (0, 1):
                        owner = world.owners[rank]
                        await owner.until(lambda owner=owner: len(owner.frames) == 1)
                        assert owner.frames.pop()[-1] == pattern(5000, steps % 3)
                    steps += 1

            async def fire(turn: int) -> None:
                for what in WRONG:
                    if "no proof" not in what:
                        await visit(world, *WRONG[what], rank=turn % 2)

            await asyncio.gather(work(50), fire(0))
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            for turn in range(5):
                await asyncio.gather(work(50), fire(turn))
            assert tracemalloc.get_traced_memory()[0] - before < 200_000
            tracemalloc.stop()
            assert [each[0] for owner in world.owners for each in owner.news] == ["linked", "linked"]
            assert all(each._porch.strangers == set() for each in world.transports)
    finally:
        tracemalloc.stop()
        logging.getLogger("aiocoll.transport").setLevel(logging.NOTSET)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4), st.booleans())
@settings(max_examples=25)
def test_any_bytes_at_the_door(said: list[bytes], after_a_hello: bool) -> None:
    async def main() -> None:
        with ends() as world:
            opening = [claim().start()] if after_a_hello else []
            await visit(world, *opening, *said)
            assert world.owners[1].frames == [] and world.owners[1].news == []
            world.send(0, 1, b"ours")
            await world.owners[1].until(lambda: world.owners[1].payloads() == [b"ours"])

    asyncio.run(main())


async def test_without_descriptors_nobody_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Neither accepting nor dialling ends anything when descriptors run out: it goes on when there are some again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ends() as world, caplog.at_level(logging.ERROR, "aiocoll.transport"):
        highest = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
        taken: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        try:
            with contextlib.suppress(OSError):  # until there are no more
                while True:
                    taken.append(os.dup(0))
            world.send(0, 1, b"patience")
            await until(lambda: "cannot connect to rank 1 yet" in caplog.text)
            os.close(taken.pop())  # enough to dial, too little to accept
            await until(lambda: "cannot accept a connection" in caplog.text, 0.01)
            assert "ulimit -n" in caplog.text
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for number in taken:
                os.close(number)
        await world.owners[1].until(lambda: world.owners[1].payloads() == [b"patience"])
        assert world.owners[0].told("lost") == world.owners[0].told("unreached") == []
        assert caplog.text.count("cannot accept a connection") == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"secret": b"another"}, "does not know the secret"), ({"job": "another"}, "another job"),
     ({"world": 5}, "another world")],
)  # fmt: skip
async def test_an_address_that_is_not_ours_any_more_is_named(wrong: dict[str, object], says: str) -> None:
    with ends() as world:
        mine = world.transports[0].world
        for name, value in wrong.items():
            object.__setattr__(mine, name, value)
        world.send(0, 1, b"hello?")
        await world.owners[0].until(lambda: bool(world.owners[0].news))
        what, peer, reason = world.owners[0].news[0]
        assert (what, peer) == ("unreached", 1) and "handshake failed" in reason and says in reason
        assert world.owners[1].news == []


async def test_something_else_listens_where_a_rank_did() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    with ends() as world:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        mine = world.transports[0].world
        object.__setattr__(mine, "addresses", (mine.addresses[0], server.sockets[0].getsockname()[:2]))
        world.send(0, 1, b"hello?")
        await world.owners[0].until(lambda: bool(world.owners[0].news))
        assert "HTTP/1.1 400" in world.owners[0].news[0][2]
        server.close()
        await server.wait_closed()
