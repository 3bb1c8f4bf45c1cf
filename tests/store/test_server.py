"""The store's server among strangers: whatever they send costs a closed connection and one line in the log."""

from __future__ import annotations

import asyncio
import os
import struct
import tracemalloc
from collections.abc import AsyncIterator

import msgpack
import psutil
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from aiocoll.errors import RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.store import StoreServer, TCPStore, server, stream
from aiocoll.wire.hello import STORE_CLIENT, STORE_SERVER, ClientHello, Identity
from tests.turns import until

SECRET = b"a secret of tests"
JOB = "job"


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[StoreServer]:
    running = await StoreServer.start("127.0.0.1", 0, secret=SECRET, job=JOB)
    yield running
    await running.close()


async def stranger(to: StoreServer, *chunks: bytes, eof: bool = True) -> bytes:
    """Send chunks, say that it was all, read what comes until the other side closes."""
    reader, writer = await asyncio.open_connection(*to.address)
    try:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        if eof:
            writer.write_eof()
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def member(to: StoreServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw connection that has proved itself."""
    reader, writer = await asyncio.open_connection(*to.address)
    hello = ClientHello(SECRET, Identity(STORE_CLIENT, JOB), STORE_SERVER)
    writer.write(hello.start())
    while not hello.done:
        writer.write(hello.feed(await reader.read(1000)))
    return reader, writer


async def still_serves(to: StoreServer) -> None:
    async with await TCPStore.connect(*to.address, secret=SECRET, job=JOB) as store:
        await store.set("alive", b"yes")
        assert await store.get("alive") == b"yes"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "aiocoll.store"]


def framed(message: object) -> bytes:
    payload = msgpack.packb(message)
    return struct.pack("!I", len(payload)) + payload


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00" * 76,
        (2**63).to_bytes(8, "big") * 20,
        b"aioc" + (2**63).to_bytes(8, "big") * 20,
        ClientHello(SECRET, Identity(STORE_CLIENT, JOB), STORE_SERVER).start()[:40],
        ClientHello(SECRET, Identity(STORE_CLIENT, JOB), STORE_SERVER).start(),
        ClientHello(SECRET, Identity(STORE_CLIENT, "other"), STORE_SERVER).start(),
        ClientHello(SECRET, Identity(STORE_CLIENT, JOB), STORE_SERVER).start() + bytes(32),
        os.urandom(1 << 20),
        b"",
    ],
    ids=["http", "zeros", "lengths", "magic+lengths", "truncated", "no proof", "other job", "bad proof", "MiB", "none"],
)
async def test_strangers_cost_one_line(serving: StoreServer, caplog: pytest.LogCaptureFixture, noise: bytes) -> None:
    answer = await stranger(serving, noise)
    await until(lambda: not serving._half_open and len(serving.refused) == 1, 0.005)
    assert len(answer) <= 76 + 32  # a refusal or a hello, never more
    assert len(warnings(caplog)) == 1 and "127.0.0.1" in warnings(caplog)[0]
    await still_serves(serving)
    assert len(warnings(caplog)) == 1


@settings(max_examples=50)
@given(chunks=st.lists(st.binary(max_size=300), max_size=5), magic=st.booleans())
async def test_i7_random_bytes_close_the_connection(serving: StoreServer, chunks: list[bytes], magic: bool) -> None:
    if magic:
        chunks = [b"aioc\x00\x01" + b"".join(chunks)]
    await stranger(serving, *chunks)
    await until(lambda: not serving._half_open, 0.005)
    assert serving.clients == 0


@settings(max_examples=50)
@given(payload=st.binary(max_size=200), length=st.one_of(st.none(), st.integers(0, 2**32 - 1)))
async def test_random_messages_after_the_handshake(serving: StoreServer, payload: bytes, length: int | None) -> None:
    """Even whoever knows the secret can do no more than lose its own connection."""
    reader, writer = await member(serving)
    writer.write(struct.pack("!I", len(payload) if length is None else length) + payload)
    writer.write_eof()
    async with asyncio.timeout(20):
        await reader.read()
    writer.close()
    await until(lambda: serving.clients == 0, 0.005)


@settings(max_examples=100)
@given(
    st.lists(
        st.one_of(
            st.integers(-(2**63), 2**64 - 1),
            st.text(max_size=20),
            st.binary(max_size=20),
            st.none(),
            st.booleans(),
            st.sampled_from(
                sorted(server.OPERATIONS) + ["cancel", "process", "give_back", "get?", "__init__", "apply"]
            ),
        ),
        max_size=6,
    )
)
async def test_wellformed_nonsense(serving: StoreServer, message: list[object]) -> None:
    reader, writer = await member(serving)
    writer.write(framed(message))
    writer.write_eof()
    async with asyncio.timeout(20):
        await reader.read()
    writer.close()
    await until(lambda: serving.clients == 0, 0.005)
    assert serving._table.waiting == 0


async def test_replayed_conversation_is_refused(serving: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    """What an eavesdropper has recorded of a client is worth nothing."""
    hello = ClientHello(SECRET, Identity(STORE_CLIENT, JOB), STORE_SERVER)
    reader, writer = await asyncio.open_connection(*serving.address)
    writer.write(hello.start())
    proof = hello.feed(await reader.readexactly(76 + 32))
    request = framed([1, "set", "stolen", b"x"])
    writer.write(proof + request)
    assert await reader.readexactly(4)
    writer.close()
    await stranger(serving, hello.start() + proof + request)
    await until(lambda: len(serving.refused) == 1, 0.005)
    assert "secret" in serving.refused[0]
    assert len(warnings(caplog)) == 1


async def test_silence_is_dropped(
    serving: StoreServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.1)
    assert await stranger(serving, b"aioc", eof=False) == b""
    assert len(warnings(caplog)) == 1 and "no valid handshake" in warnings(caplog)[0]


async def test_half_open_connections_are_bounded(serving: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HALF_OPEN_MAX", 8)
    held = [await asyncio.open_connection(*serving.address) for _ in range(40)]
    await until(lambda: len(serving.refused) == 16, 0.005)
    assert len(serving._half_open) <= 8
    await still_serves(serving)
    for _, writer in held:
        writer.close()
    await until(lambda: not serving._half_open, 0.005)


async def test_log_does_not_flood(
    serving: StoreServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LOG_LINES_MAX", 5)
    for _ in range(10):
        await stranger(serving, b"noise")
    await until(lambda: not serving._half_open, 0.005)
    assert len(warnings(caplog)) == 5
    monkeypatch.setattr(server, "LOG_WINDOW_SECONDS", 0.0)
    await stranger(serving, b"noise")
    await until(lambda: not serving._half_open, 0.005)
    assert "5 more such lines" in warnings(caplog)[5]


async def test_i7_announced_lengths_reserve_nothing(serving: StoreServer) -> None:
    reader, writer = await member(serving)
    tracemalloc.start()
    writer.write(struct.pack("!I", stream.REQUEST_BYTES_MAX) + b"only this")
    await still_serves(serving)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    writer.close()
    _, other = await member(serving)
    other.write(struct.pack("!I", stream.REQUEST_BYTES_MAX + 1))
    await until(lambda: serving.clients == 0, 0.005)
    other.close()


async def test_i7_noise_does_not_grow_memory(serving: StoreServer) -> None:
    for _ in range(20):
        await stranger(serving, os.urandom(100_000))
    before = psutil.Process().memory_info().rss
    for _ in range(100):
        await stranger(serving, os.urandom(100_000))
    assert psutil.Process().memory_info().rss - before < 16 << 20
    await still_serves(serving)


async def test_whoever_does_not_read_is_read_no_further(serving: StoreServer) -> None:
    async with await TCPStore.connect(*serving.address, secret=SECRET, job=JOB) as store:
        await store.set("big", bytes(1 << 20))
        reader, writer = await member(serving)
        for number in range(1000):
            writer.write(framed([number, "get", "big"]))
        await until(lambda: any(not s._reading for s in serving._clients), 0.005)
        held = sum(len(s._unsent) for s in serving._clients)
        assert held < 8 << 20
        await store.set("other", b"goes on")
        assert await store.get("other") == b"goes on"
        got = 0
        async with asyncio.timeout(60):
            while got < 20 << 20:  # it goes on as soon as it reads
                got += len(await reader.read(1 << 20))
        writer.close()


async def test_waits_leave_with_their_client(serving: StoreServer) -> None:
    store = await TCPStore.connect(*serving.address, secret=SECRET, job=JOB)
    waits = [asyncio.ensure_future(store.get(f"never {i}")) for i in range(50)]
    await until(lambda: serving._table.waiting == 50, 0.005)
    waits[0].cancel()
    await until(lambda: serving._table.waiting == 49, 0.005)
    await store.close()
    for outcome in (await asyncio.gather(*waits, return_exceptions=True))[1:]:
        assert isinstance(outcome, RendezvousError) and "closed" in str(outcome)
    await until(lambda: serving._table.waiting == 0, 0.005)
    assert not serving._table._waiters


async def test_a_pop_that_came_to_nothing_is_forgotten(serving: StoreServer) -> None:
    async with await TCPStore.connect(*serving.address, secret=SECRET, job=JOB) as store:
        for _ in range(3):
            with pytest.raises(RendezvousTimeoutError):
                await store.queue_pop("empty", timeout=0.01)
        await until(lambda: "0 pending" in repr(store), 0.005)
        await store.queue_push("empty", b"x")
        assert await store.queue_pop("empty", timeout=5) == b"x"


async def test_a_lost_server_fails_what_waits(serving: StoreServer) -> None:
    store = await TCPStore.connect(*serving.address, secret=SECRET, job=JOB)
    waiting = asyncio.ensure_future(store.get("never"))
    await until(lambda: serving._table.waiting == 1, 0.005)
    await serving.close()
    with pytest.raises(RendezvousError, match=f"127.0.0.1:{serving.port}.*lost"):
        await waiting
    with pytest.raises(RendezvousError, match="lost"):
        await store.set("a", b"")
    await store.close()


async def test_h9_two_hundred_clients(serving: StoreServer) -> None:
    stores = await asyncio.gather(*(TCPStore.connect(*serving.address, secret=SECRET, job=JOB) for _ in range(200)))
    waiting = asyncio.gather(*(store.get("go") for store in stores))
    counts = await asyncio.gather(*(store.add("here") for store in stores))
    assert sorted(counts) == list(range(1, 201))
    assert serving.clients == 200
    await stores[0].set("go", b"now")
    assert await waiting == [b"now"] * 200
    tasks = len(asyncio.all_tasks())
    assert tasks == 1  # no task per client, none per request
    for store in stores:
        await store.close()
    await until(lambda: serving.clients == 0, 0.005)


async def test_a_full_store_says_so(serving: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiocoll.store.table.HELD_BYTES_MAX", 10_000)
    monkeypatch.setattr("aiocoll.store.table.WAITERS_MAX", 1)
    async with await TCPStore.connect(*serving.address, secret=SECRET, job=JOB) as store:
        with pytest.raises(RendezvousError, match="full"):
            await store.set("big", bytes(10_001))
        for _ in range(10):  # what is deleted counts no more
            await store.set("most", bytes(9_000))
            await store.queue_push("queue", bytes(500))
            await store.delete("most")
            await store.delete("queue")
        assert serving._table._held_bytes == 0
        waiting = asyncio.ensure_future(store.get("never"))
        await until(lambda: serving._table.waiting == 1, 0.005)
        with pytest.raises(RendezvousError, match="limit"):
            await store.get("never either")
        monkeypatch.setattr("aiocoll.store.table.KEYS_MAX", 0)
        with pytest.raises(RendezvousError, match="keys"):
            await store.set("one more", b"")
        waiting.cancel()


async def test_only_loopback_without_a_secret() -> None:
    for host in ("0.0.0.0", "", "::", "192.0.2.1"):
        with pytest.raises(UsageError, match=r"secret=.*aiocoll run"):
            await StoreServer.start(host, 0)
    server = await StoreServer.start("0.0.0.0", 0, secret=SECRET)
    await server.close()


async def test_i5_port_taken() -> None:
    first = await StoreServer.start("127.0.0.1", 0)
    with pytest.raises(RendezvousError, match=rf"127\.0\.0\.1:{first.port}: Address already in use"):
        await StoreServer.start("127.0.0.1", first.port)
    await first.close()
    second = await StoreServer.start("127.0.0.1", first.port)
    await second.close()
    await second.close()


async def test_i7_listens_only_where_asked(serving: StoreServer) -> None:
    places = {c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"}
    assert places == {"127.0.0.1"}
