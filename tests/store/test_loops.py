"""Stores on other loops: uvloop, several threads with a loop each, and a coroutine stepped without a running loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aiocoll.errors import RendezvousError
from aiocoll.store import MemoryStore, StoreServer, TCPStore
from aiocoll.testing.stores import CHECKS, Check

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as _first:
    _first.run(asyncio.sleep(0))  # the first uvloop of a process opens a pipe for good, which no test is to blame for


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_tcp_conforms_on_uvloop(check: Check) -> None:
    async def main() -> None:
        server = await StoreServer.start("127.0.0.1", 0)
        opened = []

        async def one() -> TCPStore:
            opened.append(await TCPStore.connect(*server.address))
            return opened[-1]

        try:
            await check(one)
        finally:
            for store in opened:
                await store.close()
            await server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_memory_is_shared_between_threads() -> None:
    store = MemoryStore()
    sums: list[int] = []

    async def rank(number: int) -> None:
        mine = store.clone()
        for step in range(50):
            await mine.set(f"{step}/{number}", b"%d" % number)
            values = await mine.multi_get([f"{step}/{other}" for other in range(4)], timeout=30)
            sums.append(sum(map(int, values)))
            await mine.queue_push("all", b"x")
        if number == 0:
            for _ in range(200):
                await mine.queue_pop("all", timeout=30)
        await mine.close()

    threads = [threading.Thread(target=asyncio.run, args=(rank(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == [6] * 200
    assert store._table.waiting == 0


async def test_closing_memory_fails_what_waits() -> None:
    store = MemoryStore()
    other = store.clone()
    waits = [asyncio.ensure_future(each.get("never", timeout=30)) for each in (store, other)]
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(RendezvousError, match="closed while get waited"):
        await waits[0]
    await other.set("never", b"after all")
    assert await waits[1] == b"after all"


def test_a_stepped_coroutine_needs_no_running_loop() -> None:
    """As a blocking program drives it: stepped at once, and the loop runs only for the rest."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        server = runner.run(StoreServer.start("127.0.0.1", 0))
        store = runner.run(TCPStore.connect(*server.address))
        step = store.set("key", b"value")
        parked = step.send(None)
        parked._asyncio_future_blocking = False
        loop.run_until_complete(parked)
        with pytest.raises(StopIteration):
            step.send(None)
        assert runner.run(store.get("key")) == b"value"
        runner.run(store.close())
        runner.run(server.close())
