"""Drivers: coroutines of one loop, run by blocked callers, by a thread, across interrupts and forks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import os
import signal
import threading
import time
import warnings

import pytest

from aiocoll.errors import GroupBrokenError, NotInitializedError, UsageError
from aiocoll.sync import Work
from aiocoll.sync.drivers import Driver


async def ready(value: int) -> int:
    return value


async def parked(value: int, seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    return value


def test_a_call_that_does_not_park_never_runs_the_loop(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiocoll.sync.drivers._AWAY_SECONDS", float("inf"))  # however slow this machine is
    monkeypatch.setattr(driver.loop, "run_forever", lambda: pytest.fail("the loop ran"))
    assert driver.run(lambda: ready(3)) == 3
    monkeypatch.undo()


def test_a_call_after_a_while_first_hears_what_has_happened(driver: Driver) -> None:
    news: list[str] = []
    driver.loop.call_soon(news.append, "old")
    deadline = time.monotonic() + 0.01
    while time.monotonic() < deadline:
        pass
    assert driver.run(lambda: ready(len(news))) == 1


def test_where_no_thread_can_be_started_calls_go_on_in_turn(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever needs one is told; who is in the loop already, and who comes later, finds it as it was."""

    def refuses(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        for _ in range(2):
            with pytest.raises(UsageError, match="call was started, for which .* can't start new thread"):
                driver.begin(lambda: parked(1), "call")
            assert driver.run(lambda: parked(2)) == 2 and driver.inline
    assert driver.begin(lambda: parked(3), "call").result() == 3 and driver.run(lambda: parked(4)) == 4


def test_make_runs_with_the_loop_set_and_the_caller_sees_none_afterwards(driver: Driver) -> None:
    assert driver.run(lambda: ready(id(asyncio.get_running_loop()))) == id(driver.loop)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_a_call_that_parks_resumes_with_what_it_waited_for(driver: Driver) -> None:
    async def twice() -> tuple[int, int]:
        future = driver.loop.create_future()
        driver.loop.call_soon(future.set_result, 7)
        return await future, await parked(8)

    assert driver.run(twice) == (7, 8)


def test_errors_pass_through_from_make_from_the_first_step_and_from_later_ones(driver: Driver) -> None:
    async def early() -> None:
        raise KeyError("early")

    async def late() -> None:
        await asyncio.sleep(0)
        raise KeyError("late")

    def refused() -> asyncio.Future[None]:
        raise UsageError("refused")

    for make, kind in ((early, KeyError), (late, KeyError), (refused, UsageError)):
        with pytest.raises(kind):
            driver.run(make)
    assert driver.run(lambda: ready(1)) == 1


def test_an_awaitable_that_is_no_coroutine_is_awaited(driver: Driver) -> None:
    def make() -> asyncio.Future[int]:
        future = driver.loop.create_future()
        driver.loop.call_soon(future.set_result, 5)
        return future

    assert driver.run(make) == 5


def test_as_task_gives_a_current_task_so_that_asyncio_timeout_works(driver: Driver) -> None:
    async def timed() -> int:
        async with asyncio.timeout(10):
            return await parked(4)

    assert driver.run_as_task(timed) == 4


def test_calls_in_a_running_loop_move_the_loop_to_a_thread(driver: Driver) -> None:
    async def notebook() -> int:
        return driver.run(lambda: parked(6))

    assert "inline" in repr(driver)
    assert asyncio.run(notebook()) == 6
    assert "threaded" in repr(driver)
    assert driver.run(lambda: parked(7)) == 7


def test_a_runtime_error_of_the_call_is_not_taken_for_a_missing_loop(driver: Driver) -> None:
    async def fails() -> None:
        raise RuntimeError("no running event loop")

    async def notebook() -> None:
        driver.run(fails)

    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.run(notebook())


@pytest.mark.parametrize("threaded", [False, True])
def test_a_blocking_call_from_inside_the_loop_is_refused_at_once(driver: Driver, threaded: bool) -> None:
    if threaded:
        driver.move("test")

    async def nested() -> None:
        await asyncio.sleep(0)
        driver.run(lambda: ready(1))

    with pytest.raises(UsageError, match="group 'w' from inside its own event loop.*would deadlock"):
        driver.run(nested)

    async def steps() -> None:  # as a signal handler does in the middle of a call
        driver.run(lambda: ready(1))

    with pytest.raises(UsageError, match="would deadlock"):
        if driver.run_again(lambda: (None, steps())) is NotImplemented:
            driver.run(steps)

    async def begins() -> Work[int]:
        return driver.begin(lambda: ready(1), "x")

    if threaded:  # what is only started blocks nobody
        assert driver.run(begins).result() == 1
    else:  # the loop would have to move while it is in use
        with pytest.raises(UsageError, match="would deadlock"):
            driver.run(begins)

    async def waits() -> None:
        work.wait()

    if threaded:
        work = driver.begin(lambda: parked(1, 0.05), "x")
        with pytest.raises(UsageError, match="would deadlock"):
            driver.run(waits)
        work.wait()


def test_a_second_thread_gets_in_while_the_first_one_waits(driver: Driver) -> None:
    """The first waits for what only the second one's call brings about."""
    gate: list[asyncio.Future[int]] = []
    inside = threading.Event()

    async def waits() -> int:
        gate.append(driver.loop.create_future())
        inside.set()
        return await gate[0]

    async def opens() -> None:
        gate[0].set_result(11)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(driver.run, waits)
        assert inside.wait(10)
        driver.run(opens)
        assert first.result(10) == 11
    assert driver.run(lambda: parked(12)) == 12


def test_many_threads_hammer_one_driver(driver: Driver) -> None:
    def worker(number: int) -> list[int]:
        makes = [functools.partial(parked if (number + i) % 3 else ready, number * 1000 + i) for i in range(50)]
        return [driver.run(make) for make in makes]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(worker, range(8)))
    assert results == [[n * 1000 + i for i in range(50)] for n in range(8)]


def test_calls_enter_in_the_order_in_which_they_were_begun(driver: Driver) -> None:
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)
        await asyncio.sleep(0)

    works = [driver.begin(lambda number=number: note(number), "note") for number in range(100)]
    driver.run(lambda: note(100))
    for work in reversed(works):
        work.wait()
    assert order == list(range(101))


def test_the_callers_context_reaches_the_call_on_the_thread(driver: Driver) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="lost")

    async def look() -> str:
        await asyncio.sleep(0)
        return variable.get()

    variable.set("kept")
    assert driver.begin(look, "look").result() == "kept"
    assert driver.run(look) == "kept"


# ---------------------------------------------------------------------------------------------- interrupts


@pytest.mark.parametrize("threaded", [False, True])
def test_ctrl_c_ends_a_blocked_call_and_cancels_it(driver: Driver, threaded: bool) -> None:
    if threaded:
        driver.move("test")
    cancelled = threading.Event()

    async def waits() -> None:
        driver.loop.call_soon(lambda: os.kill(os.getpid(), signal.SIGINT))
        try:
            await driver.loop.create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        driver.run(waits)
    assert cancelled.is_set()
    assert time.monotonic() - before < 5
    assert driver.run(lambda: parked(2)) == 2


def test_ctrl_c_in_the_eager_part_comes_out_as_it_is(driver: Driver) -> None:
    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        driver.run(interrupted)
    assert driver.run(lambda: parked(2)) == 2


def test_ctrl_c_inside_the_parked_coroutine_comes_out_as_it_is(driver: Driver) -> None:
    async def interrupted() -> None:
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        driver.run(interrupted)
    assert driver.run(lambda: parked(2)) == 2


# ---------------------------------------------------------------------------------------------- fork and the end


@pytest.mark.parametrize("threaded", [False, True])
def test_a_forked_child_is_refused_by_name_and_harms_nothing(threaded: bool) -> None:
    driver = Driver("world-7")
    if threaded:
        driver.move("test")
    driver.run(lambda: parked(1))
    report, say = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork with threads, which is the point here
        child = os.fork()
    if child == 0:
        try:
            driver.close()  # nothing
            driver.loop.close()  # nothing
            try:
                driver.run(lambda: ready(1))
            except UsageError as error:
                os.write(say, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(say)
    with os.fdopen(report) as file:
        text = file.read()
    assert "'world-7'" in text and f"process {os.getpid()}" in text and f"process {child}" in text
    assert driver.begin(lambda: parked(5), "x").result(10) == 5  # wakes the loop through the descriptor they shared
    driver.close()


def test_closing_runs_the_last_words_cancels_what_is_left_and_is_final() -> None:
    driver = Driver("w")
    said: list[str] = []

    async def last_words() -> None:
        await asyncio.sleep(0)
        said.append("bye")

    endless = driver.begin(lambda: parked(1, 3600), "endless")
    driver.close(last_words)
    driver.close(last_words)
    assert said == ["bye"] and endless.done()
    with pytest.raises(concurrent.futures.CancelledError):
        endless.result()
    with pytest.raises(NotInitializedError, match="'w' is closed"):
        driver.run(lambda: ready(1))
    with pytest.raises(NotInitializedError):
        driver.begin(lambda: ready(1), "x")


def test_closing_inside_a_running_loop() -> None:
    async def notebook() -> None:
        driver = Driver("w")
        driver.close(lambda: parked(1))
        unused = Driver("u")
        unused.close()

    asyncio.run(notebook())


def test_what_is_begun_in_the_last_moment_ends_too() -> None:
    for _ in range(50):
        driver = Driver("w")
        work = driver.begin(lambda: parked(1, 3600), "last")
        driver.close()
        with pytest.raises(concurrent.futures.CancelledError):
            work.result(10)


def test_what_does_not_end_when_it_is_cancelled_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it is told so when the world is closed: the caller whose loop has moved, and a Work's."""
    monkeypatch.setattr("aiocoll.sync.drivers.ABANDON_SECONDS_MAX", 0.02)
    driver, inside = Driver("w"), threading.Semaphore(0)

    async def stubborn() -> None:
        await asyncio.sleep(0)  # what follows runs in a Task
        asyncio.current_task()._log_destroy_pending = False  # left over, as is wanted here
        inside.release()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await driver.loop.create_future()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(driver.run, stubborn)
        assert inside.acquire(timeout=10)
        work = driver.begin(stubborn, "a call")
        assert inside.acquire(timeout=10)
        waiting = threading.Thread(target=work.exception, args=(10,))
        waiting.start()
        driver.close()
        with pytest.raises(GroupBrokenError, match="did not end when its world was closed"):
            blocked.result(10)
        waiting.join(10)
    assert isinstance(work.exception(), GroupBrokenError) and "a call did not end" in str(work.exception())
