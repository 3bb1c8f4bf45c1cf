"""A store hosted by a process that also computes: it outlives its host's interest, never its last client."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from aiocoll.errors import RendezvousError, UsageError
from aiocoll.store import HostedStore, TCPStore, host_store, hosted, listen
from tests.turns import until


async def ended(store: HostedStore) -> None:
    """Wait until the server has ended, without holding up the loop that its clients may need."""
    await until(lambda: not store.running, 0.005)


def python(code: str, *args: object, **more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **more)


async def test_twenty_times_on_the_same_port() -> None:
    port = 0
    for turn in range(20):
        host = host_store("127.0.0.1", port, secret=b"s", job="j")
        port = host.address[1]
        store = await TCPStore.connect("127.0.0.1", port, secret=b"s", job="j")
        await store.set("turn", b"%d" % turn)
        assert await store.get("turn") == b"%d" % turn
        host.release()
        host.release()
        await store.close()
        await ended(host)
    assert not hosted._hosts
    assert not [t for t in threading.enumerate() if t.name.startswith("aiocoll-store")]


async def test_twenty_times_without_waiting_for_the_end() -> None:
    port = 0
    for _ in range(20):
        host = host_store("127.0.0.1", port)
        port = host.address[1]
        store = await TCPStore.connect("127.0.0.1", port)
        await store.add("n")
        await store.close()
        host.release()
    await ended(host)


async def test_lives_until_who_is_just_coming_is_in_or_has_left() -> None:
    host = host_store("127.0.0.1", 0)
    coming = socket.create_connection(host.address)  # as a client that comes for the next turn, half-way in
    last = await TCPStore.connect(*host.address)  # accepted after it
    host.release()
    await last.close()
    with coming:
        newcomer = await TCPStore.connect(*host.address)  # so the server has heard of the end of `last`
        await newcomer.set("turn", b"2")
        await newcomer.close()
        assert host.running
    await ended(host)


async def test_lives_until_the_last_client_has_left() -> None:
    host = host_store("127.0.0.1", 0)
    first, second = [await TCPStore.connect(*host.address) for _ in range(2)]
    host.release()
    await first.close()
    await second.set("still", b"here")
    third = await TCPStore.connect(*host.address)
    await second.close()
    assert await third.get("still") == b"here"
    assert host.running
    await third.close()
    await ended(host)


async def test_shared_within_the_process() -> None:
    one = host_store("127.0.0.1", 0, job="j")
    two = host_store("127.0.0.1", one.address[1], job="j")
    assert two.address == one.address
    with pytest.raises(RendezvousError, match="another job"):
        host_store("127.0.0.1", one.address[1], job="k")
    one.release()
    store = await TCPStore.connect(*two.address, job="j")
    await store.close()
    assert two.running
    two.release()
    await ended(two)


async def test_strangers_do_not_keep_it_alive() -> None:
    host = host_store("127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*host.address)
    writer.write(b"aioc")
    await writer.drain()
    host.release()
    await ended(host)
    writer.close()


async def test_errors_come_from_the_call() -> None:
    with pytest.raises(UsageError, match="secret="):
        host_store("0.0.0.0", 0)
    host = host_store("127.0.0.1", 0)
    with pytest.raises(RendezvousError, match="Address already in use"):
        host_store("localhost", host.address[1])
    host.release()
    await ended(host)


async def test_i6_takes_a_socket_that_is_bound_already() -> None:
    (sock,) = listen.listen("127.0.0.1", 0, secret=b"")
    port = sock.getsockname()[1]
    host = host_store("ignored", 1, sock=sock)
    assert host.address == ("127.0.0.1", port)
    store = await TCPStore.connect(*host.address)
    await store.close()
    host.release()
    await ended(host)


HOST_AND_EXIT = """
    import asyncio, sys
    from aiocoll.store import TCPStore, host_store
    host = host_store("127.0.0.1", 0)
    async def main():
        store = await TCPStore.connect(*host.address)
        await store.set("from", b"host")
        print(host.address[1], flush=True)
        sys.stdin.readline()
        if sys.argv[1] == "close":
            await store.close()
            host.release()
        globals()["kept"] = store
    asyncio.run(main())
    print("over", flush=True)
    if sys.argv[1] == "raise":
        sys.exit(7)
"""


@pytest.mark.parametrize("how", ["close", "leave", "raise"])
async def test_the_process_stays_for_its_clients(how: str) -> None:
    """Also when it neither closes nor releases, or ends badly: then its own connection counts for nothing."""
    process = python(HOST_AND_EXIT, how)
    try:
        assert process.stdout is not None and process.stdin is not None
        port = int(await asyncio.to_thread(process.stdout.readline))
        store = await TCPStore.connect("127.0.0.1", port)
        print(file=process.stdin, flush=True)
        assert await asyncio.to_thread(process.stdout.readline) == "over\n"
        await asyncio.sleep(3 * hosted.TICK_SECONDS)  # it has had time to go, and must not
        assert await store.get("from") == b"host"
        assert process.poll() is None
        await store.close()
        assert await asyncio.to_thread(process.wait, 20) == (7 if how == "raise" else 0)
    finally:
        process.kill()
        process.communicate()
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_forked_child_lets_go() -> None:
    """The child must hold neither the port nor the connections: else nobody would notice that its parent has died."""
    code = """
        import asyncio, os, signal, sys
        from aiocoll.store import TCPStore, host_store
        host = host_store("127.0.0.1", 0)
        ready, say = os.pipe()
        child = os.fork()
        if child == 0:
            assert not host.running
            host.release()
            os.write(say, b".")
            sys.stdin.read()  # lives on until the test has seen enough
            os._exit(0)
        os.read(ready, 1)  # the child has let go: a busy machine may take its time
        print(host.address[1], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    process = python(code)
    try:
        assert process.stdout is not None and process.stdin is not None
        port = int(await asyncio.to_thread(process.stdout.readline))
        assert await asyncio.to_thread(process.wait, 20) == -signal.SIGKILL
        again = host_store("127.0.0.1", port)  # impossible while the child listens
        again.release()
        await ended(again)
    finally:
        process.communicate()
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_a_clients_forked_child_is_told() -> None:
    host = host_store("127.0.0.1", 0)
    store = await TCPStore.connect(*host.address)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store._call("num_keys", [], None).send(None)
        except RendezvousError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    await asyncio.get_running_loop().shutdown_default_executor()
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert "parent process" in pipe.read()
    await store.close()
    host.release()
    await ended(host)
