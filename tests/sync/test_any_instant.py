"""Ctrl-C at any instant of a driver's own code: later calls work, from any thread, and the end leaves nothing behind.

The rule: KeyboardInterrupt is raised where Python may raise it, as a function begins and after a call of one written in
C, at one such place after the other. Our own handler, which waits for better moments, is not asked.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import aiocoll.sync
from aiocoll.sync.drivers import Driver

ROOM = str(Path(aiocoll.sync.__file__).parent)
PLACES_MAX = 1000


async def ready(value: int) -> int:
    return value


async def parked(value: int) -> int:
    await asyncio.sleep(0)
    return value


class Interrupter:
    """Raises KeyboardInterrupt at the ``place``-th place."""

    def __init__(self, place: int) -> None:
        self.place, self.seen = place, 0
        self._hook = self._look  # Python itself lets go of it when it raises, while it still runs

    def __enter__(self) -> Interrupter:
        sys.setprofile(self._hook)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        waits = event == "c_call" and argument.__name__ == "acquire"  # where it finds it waiting
        if frame.f_code.co_name == "__del__" or not frame.f_code.co_filename.startswith(ROOM):
            return  # what is raised in the former, nobody hears of
        if waits or event in ("call", "c_return"):
            self.seen += 1
            if self.seen == self.place:
                raise KeyboardInterrupt


def inline(driver: Driver) -> None:
    assert driver.run(lambda: ready(1)) == 1
    assert driver.run(lambda: parked(2)) == 2


def again(driver: Driver) -> None:
    made: list[Coroutine[Any, Any, int]] = [ready(1), parked(2)]
    try:
        assert [driver.run_again(lambda: (None, made.pop(0))) for _ in range(2)] == [1, 2]
    finally:
        for each in made:
            each.close()


def started(driver: Driver) -> None:
    works = [driver.begin(lambda value=value: parked(value), "call") for value in range(2)]
    assert [work.result() for work in works] == [0, 1]


def on_the_thread(driver: Driver) -> None:
    driver.move("a test")
    assert driver.run(lambda: parked(3)) == 3


def closed(driver: Driver) -> None:
    driver.run(lambda: parked(1))
    driver.close(lambda: parked(2))


def closed_with_a_thread(driver: Driver) -> None:
    driver.begin(lambda: parked(1), "call")
    driver.close(lambda: parked(2))


def closed_within_a_loop(driver: Driver) -> None:
    async def main() -> None:
        driver.close(lambda: parked(2))

    coroutine = main()
    try:
        asyncio.events._set_running_loop(LOOP)
        coroutine.send(None)
    except StopIteration:
        pass
    finally:
        asyncio.events._set_running_loop(None)
        coroutine.close()


LOOP = asyncio.new_event_loop()
LOOP.close()  # only one that is not the driver's


def left_to_a_thread(driver: Driver) -> None:
    """Another thread comes in while this one waits."""
    gate, inside = Gate(driver), threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: inside.wait(20) and driver.run(gate.opened))
        try:
            assert driver.run(lambda: gate.waited_for(inside)) == 11
        finally:
            inside.set()
            other.result(20)


def coming_in(driver: Driver) -> None:
    """This thread comes in while another one waits."""
    gate, inside = Gate(driver), threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(driver.run, lambda: gate.waited_for(inside))
        assert inside.wait(20)
        try:
            driver.run(gate.opened)
        except KeyboardInterrupt:
            driver.run(gate.opened)
            raise
        finally:
            assert other.result(20) == 11


class Gate:
    """A call that waits for another one."""

    def __init__(self, driver: Driver) -> None:
        self.opens: asyncio.Future[int] = driver.loop.create_future()

    async def waited_for(self, inside: threading.Event) -> int:
        inside.set()
        return await self.opens

    async def opened(self) -> None:
        if not self.opens.done():
            self.opens.set_result(11)


def interrupted(scenario: Callable[[Driver], None], driver: Driver, place: int) -> int:
    """How many places it has passed."""
    with Interrupter(place) as interrupter:
        try:
            scenario(driver)
        except KeyboardInterrupt:
            assert interrupter.seen == place
    return interrupter.seen


@pytest.fixture
def elsewhere() -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield lambda call, *args: pool.submit(call, *args).result(20)


SCENARIOS = [
    inline, again, started, on_the_thread, left_to_a_thread, coming_in, closed, closed_with_a_thread,
    closed_within_a_loop,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.* was never awaited")  # which interrupted callers are told
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_after_an_interrupt_at_any_instant_calls_work_and_the_end_is_complete(
    scenario: Callable[[Driver], None], elsewhere: Callable[..., Any]
) -> None:
    for place in range(1, PLACES_MAX):
        driver = Driver("w")
        seen = interrupted(scenario, driver, place)
        if not driver.ended:
            assert elsewhere(driver.run, lambda: parked(5)) == 5
            assert driver.run(lambda: parked(6)) == 6 and driver.begin(lambda: parked(7), "call").result(20) == 7
            assert not driver.operations
            driver.close()
        assert driver.loop.is_closed() and nothing_left(), place
        if seen < place:
            break
    assert 15 < place < PLACES_MAX - 1


def nothing_left() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler and not any(
        thread.name.startswith("aiocoll-") for thread in threading.enumerate()
    )


@pytest.mark.filterwarnings("ignore:.* was never awaited")
def test_after_an_interrupt_at_any_instant_a_group_can_be_closed() -> None:
    for place in range(1, PLACES_MAX):
        group: aiocoll.sync.SyncGroup | None = None
        with Interrupter(place) as interrupter:
            try:
                group = aiocoll.sync.connect(size=1, rank=0)
                assert (group.all_reduce(np.arange(3.0) + place) == np.arange(3.0) + place).all()
                assert group.start.all_reduce(place).result() == place
                group.close()
            except KeyboardInterrupt:
                pass
        if group is not None:
            group.close()
            assert group.closed
        assert nothing_left(), place
        if interrupter.seen < place:
            break
    assert 100 < place < PLACES_MAX - 1
