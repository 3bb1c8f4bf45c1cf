"""Reaching a store: every failure has its own message, and none takes longer than it must."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from aiocoll.errors import AuthenticationError, RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.store import StoreServer, TCPStore, dial, tcp
from tests.ports import free_port


@asynccontextmanager
async def foreign_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    writers = []

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    server = await asyncio.start_server(on_client, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(0)


async def test_http_server_on_the_port() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async with foreign_server(http) as port:
        with pytest.raises(RendezvousError, match=rf"127.0.0.1:{port}.*something else.*HTTP/1.1 400") as info:
            await TCPStore.connect("127.0.0.1", port)
    assert not isinstance(info.value, RendezvousTimeoutError)


@pytest.mark.slow
async def test_silent_server_on_the_port() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with foreign_server(silent) as port:
        started = time.monotonic()
        with pytest.raises(RendezvousError, match=rf"127.0.0.1:{port}.*said nothing for 4 s") as info:
            await TCPStore.connect("127.0.0.1", port)
        assert time.monotonic() - started < 5
        assert not isinstance(info.value, RendezvousTimeoutError)
        with pytest.raises(RendezvousTimeoutError, match="said nothing"):
            await TCPStore.connect("127.0.0.1", port, timeout=0.2)


@pytest.mark.slow
async def test_server_that_hangs_up() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with foreign_server(rude) as port:
        started = time.monotonic()
        with pytest.raises(RendezvousError, match="closes every connection"):
            await TCPStore.connect("127.0.0.1", port)
        assert time.monotonic() - started < 5


async def test_unresolvable_host() -> None:
    with pytest.raises(RendezvousError, match=r"no-such-host\.invalid"):
        await TCPStore.connect("no-such-host.invalid", 29500)
    with pytest.raises(RendezvousError, match="cannot be resolved"):
        await TCPStore.connect("a" * 300, 29500)


async def test_hanging_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    release = threading.Event()
    monkeypatch.setattr(dial, "RESOLVE_SECONDS", 0.1)
    monkeypatch.setattr(dial.socket, "getaddrinfo", lambda *a, **k: release.wait(20) and [])
    with pytest.raises(RendezvousError, match="name server"):
        await TCPStore.connect("somewhere", 29500)
    release.set()


async def test_nobody_listens() -> None:
    port = free_port()
    with pytest.raises(RendezvousTimeoutError, match=rf"127.0.0.1:{port}.*Connection refused.*rank 0"):
        await TCPStore.connect("127.0.0.1", port, timeout=0.3)
    with pytest.raises(RendezvousTimeoutError):
        await TCPStore.connect("127.0.0.1", port, timeout=0)


async def test_waits_for_the_server_to_come() -> None:
    port = free_port()
    connecting = asyncio.ensure_future(TCPStore.connect("127.0.0.1", port))
    await asyncio.sleep(0.12)
    server = await StoreServer.start("127.0.0.1", port)
    store = await connecting
    await store.close()
    await server.close()


async def test_wrong_secret_and_wrong_job() -> None:
    server = await StoreServer.start("127.0.0.1", 0, secret=b"right", job="job")
    at = rf"127.0.0.1:{server.port}"
    with pytest.raises(AuthenticationError, match=f"{at}.*secret"):
        await TCPStore.connect(*server.address, secret=b"wrong", job="job")
    with pytest.raises(AuthenticationError, match=f"{at}.*secret"):
        await TCPStore.connect(*server.address, job="job")
    with pytest.raises(AuthenticationError, match=f"{at}.*another job"):
        await TCPStore.connect(*server.address, secret=b"right", job="other")
    store = await TCPStore.connect(*server.address, secret=b"right", job="job")
    assert len(server.refused) == 3
    assert store.local_address == "127.0.0.1"
    await store.close()
    await server.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
async def test_ipv6_in_brackets() -> None:
    server = await StoreServer.start("::1", 0)
    store = await TCPStore.connect("::1", server.port)
    assert f"[::1]:{server.port}" in store.where
    await store.close()
    await server.close()
    with pytest.raises(RendezvousTimeoutError, match=r"\[::1\]:"):
        await TCPStore.connect("::1", server.port, timeout=0)


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leads first to a port where nobody listens, then to something else, then to us."""

    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")

    server = await StoreServer.start("127.0.0.1", 0)
    async with foreign_server(http) as foreign:
        infos = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
            for port in (free_port(), foreign, server.port)
        ]
        monkeypatch.setattr(dial.socket, "getaddrinfo", lambda *a, **k: infos)
        store = await TCPStore.connect("many", server.port)
        await store.close()
        infos.pop()
        with pytest.raises(RendezvousError, match="220 mail"):
            await TCPStore.connect("many", server.port)
    await server.close()


async def test_localhost_means_every_loopback_address() -> None:
    server = await StoreServer.start("localhost", 0)
    assert server.address[0] == "localhost"
    store = await TCPStore.connect(*server.address)
    await store.close()
    await server.close()


async def test_cancelled_connecting_leaves_nothing() -> None:
    port = free_port()
    connecting = asyncio.ensure_future(TCPStore.connect("127.0.0.1", port))
    await asyncio.sleep(0.02)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting


async def test_ports_are_checked() -> None:
    for port in (0, 65536, -1, "29500", True):
        with pytest.raises(UsageError, match="port"):
            await TCPStore.connect("127.0.0.1", port)


async def test_a_server_that_stops_answering_holds_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(StoreServer, "_on_message", lambda *_: None)  # as if its process were stopped
    server = await StoreServer.start("127.0.0.1", 0)
    try:
        async with await TCPStore.connect(*server.address) as store:
            for late in (store.set("key", b"value"), store.get("key", timeout=0)):
                with pytest.raises(RendezvousTimeoutError, match=rf"{store.where}: [sg]et was not answered within"):
                    await late
    finally:
        await server.close()
