"""Work: a started operation watched from outside."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from datetime import timedelta

import pytest

from aiocoll.errors import CollectiveTimeoutError, UsageError
from aiocoll.sync.drivers import Driver
from aiocoll.sync.work import wait_for_first


class Gate:
    """An operation that ends when the test says so."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.future = driver, driver.loop.create_future()

    async def wait(self) -> int:
        return int(await self.future)

    def open(self, value: int) -> None:
        self.driver.loop.call_soon_threadsafe(self.future.set_result, value)


def test_it_progresses_without_wait(driver: Driver) -> None:
    gate = Gate(driver)
    work = driver.begin(gate.wait, "gate")
    assert not work.done() and "running" in repr(work)
    gate.open(3)
    limit = time.monotonic() + 10
    while not work.done():
        assert time.monotonic() < limit
    assert work.wait() is True and work.result() == 3 and work.exception() is None and "done" in repr(work)


@pytest.mark.parametrize("timeout", [0.01, timedelta(milliseconds=10), 0])
def test_a_wait_that_is_too_short_leaves_it_running(driver: Driver, timeout: float | timedelta) -> None:
    gate = Gate(driver)
    work = driver.begin(gate.wait, "irecv of group 'g'")
    for wait in (work.wait, work.result, work.exception):
        with pytest.raises(TimeoutError, match="irecv of group 'g' is still running") as caught:
            wait(timeout)
        assert isinstance(caught.value, CollectiveTimeoutError)
    gate.open(4)
    assert work.result(10) == 4


@pytest.mark.parametrize("timeout", [-1, "1", True, float("nan")])
def test_a_timeout_that_is_none(driver: Driver, timeout: object) -> None:
    work = driver.begin(lambda: asyncio.sleep(0), "x")
    with pytest.raises(UsageError, match="timeout="):
        work.wait(timeout)


def test_errors_arrive_where_it_is_waited_for(driver: Driver) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    work = driver.begin(fails, "fails")
    assert isinstance(work.exception(), KeyError)
    for _ in range(2):
        with pytest.raises(KeyError):
            work.wait()


def test_a_timeout_error_of_the_operation_is_not_taken_for_a_short_wait(driver: Driver) -> None:
    async def fails() -> None:
        raise CollectiveTimeoutError("late", missing=(2,))

    with pytest.raises(CollectiveTimeoutError) as caught:
        driver.begin(fails, "fails").wait(60)
    assert caught.value.missing == (2,)


def test_cancel_ends_it(driver: Driver) -> None:
    gate = Gate(driver)
    work = driver.begin(gate.wait, "gate")
    assert work.cancel() is True
    assert work.done() and gate.future.cancelled() and work.cancel() is False
    for wait in (work.wait, work.result, work.exception):
        with pytest.raises(concurrent.futures.CancelledError):
            wait()


def test_cancel_after_the_end_changes_nothing(driver: Driver) -> None:
    work = driver.begin(lambda: asyncio.sleep(0, 5), "x")
    work.wait()
    assert work.cancel() is False and work.result() == 5


def test_it_can_be_awaited_from_any_loop_and_an_abandoned_await_leaves_it_running(driver: Driver) -> None:
    gate = Gate(driver)
    work = driver.begin(gate.wait, "gate")

    async def elsewhere() -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await work
        assert not work.done()
        gate.open(6)
        return await work

    assert asyncio.run(elsewhere()) == 6
    assert work.result() == 6


def test_waiting_for_the_first_of_several(driver: Driver) -> None:
    gates = [Gate(driver) for _ in range(3)]
    works = [driver.begin(gate.wait, f"gate {number}") for number, gate in enumerate(gates)]
    wait_for_first(works, 0.01)  # nothing has happened, and that is all right
    gates[1].open(7)
    wait_for_first(works)
    assert [work.done() for work in works] == [False, True, False] and works[1].result() == 7
    wait_for_first(works)  # at once
    for gate in (gates[0], gates[2]):
        gate.open(0)
    assert works[0].result(10) == works[2].result(10) == 0


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_a_callback_raises_is_logged_and_ends_no_thread(
    driver: Driver, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    go = asyncio.Event()

    async def wait() -> int:
        await go.wait()
        return 5

    def careless(_: object) -> None:
        heard.append("first")
        raise kind("careless")

    work = driver.begin(wait, "waiting")
    work.add_done_callback(careless)
    work.add_done_callback(lambda ended: heard.append(f"second {ended.result()}"))
    driver.loop.call_soon_threadsafe(go.set)
    assert work.result(20) == 5
    assert driver.begin(lambda: asyncio.sleep(0, 6), "the next one").result(20) == 6
    assert heard == ["first", "second 5"]
    assert "careless" in caplog.text


def test_an_operation_that_exits_ends_no_thread(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    async def leave() -> None:
        await asyncio.sleep(0)
        raise SystemExit(3)

    work = driver.begin(leave, "leaving")
    with pytest.raises(SystemExit):
        work.wait(20)
    assert driver.begin(lambda: asyncio.sleep(0, 6), "the next one").result(20) == 6
    assert "it goes on" in caplog.text


def test_what_a_callback_raises_comes_without_ours(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    async def ready() -> int:
        return 5

    begun = threading.Event()
    driver.move("the test")
    driver.loop.call_soon_threadsafe(begun.wait, 20)
    work = driver.begin(ready, "at once")
    work.add_done_callback(lambda _: 1 // 0)
    begun.set()
    assert work.result(20) == 5
    assert driver.begin(ready, "the next one").result(20) == 5
    assert "ZeroDivisionError" in caplog.text and "StopIteration" not in caplog.text
