"""Drivers: how blocking code runs the coroutines of one event loop.

Inline is the caller's own thread: a coroutine is stepped at once, and only if it parks does its loop run, there and
then. Threaded is a thread that runs the loop for good. A Driver begins inline and moves, once and for ever, at the
first need: a started operation, a call inside another running loop, a second thread that calls while the first waits.

The rule: at any moment one thread at most is inside the loop, and calls enter it in the order in which they were made.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import threading
import weakref
from asyncio.events import _get_running_loop, _set_running_loop  # made for those who run loops; we do
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from .. import observe
from ..errors import NotInitializedError, UsageError
from .work import Work

if TYPE_CHECKING:
    from ..endpoint import Endpoint

T = TypeVar("T")
Make = Callable[[], Awaitable[T]]

_ABANDON_SECONDS_MAX = 1.0  # what an interrupted call gets to tell its peers


class QuietLoop(asyncio.SelectorEventLoop):
    """An event loop that a forked child leaves alone.

    Closing a copy would take the parent's descriptors out of the epoll set that both processes share.
    """

    def __init__(self) -> None:
        super().__init__()
        self._home = os.getpid()

    def close(self) -> None:
        if os.getpid() == self._home:
            super().close()

    def __del__(self) -> None:
        if os.getpid() == self._home:
            super().__del__()


class Driver:
    """Runs coroutines for blocking callers; ``name`` is what errors call the world it drives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop = QuietLoop()
        self._endpoint: Endpoint | None = None
        self._inline = True
        self._turn = threading.Lock()  # whoever holds it is inside the loop; the thread, once there is one, for ever
        self._moving = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = False
        self._operations: set[_Operation[Any]] = set()  # a loop holds its tasks only weakly
        self._home = os.getpid()
        _DRIVERS.add(self)

    def serve(self, endpoint: Endpoint, local_size: int) -> None:
        """Lets the endpoint spin while this driver is inline: a blocked caller has nothing better to do, unless there
        are more ranks on this host than CPUs, so that spinning would take one from the rank waited for."""
        self._endpoint = endpoint
        if self._inline:
            endpoint.inline = True
            crowded = local_size > len(os.sched_getaffinity(0))
            endpoint.spin_seconds = 0.0 if crowded else endpoint.settings.spin_seconds

    # ------------------------------------------------------------------------------------------ what callers use

    def run(self, make: Make[T]) -> T:
        """``make()`` in the loop's thread, and the result of what it returns."""
        if not self._inline or _get_running_loop() is not None or not self._turn.acquire(blocking=False):
            return self._run_on_thread(make)
        loop = self.loop
        try:
            _set_running_loop(loop)
            try:
                coroutine = _coroutine(make())
                parked_on = coroutine.send(None)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            finally:
                _set_running_loop(None)
            task = loop.create_task(_Continued(coroutine, parked_on))
            handed_over = self._turn_the_loop(task)
        finally:
            self._turn.release()
        return _outcome(task, loop, handed_over) if handed_over is not None else task.result()

    def run_as_task(self, make: Make[T]) -> T:
        """The same for a coroutine that must find itself in a Task from its first line on (asyncio.timeout)."""
        return self.run(lambda: _as_task(make))

    def begin(self, make: Make[T], name: str) -> Work[T]:
        """Starts ``make()`` on the loop's thread and returns at once."""
        self.refuse_if_unusable()
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # nobody but the operation itself ends it
        operation = _Operation(self, make, future, name)
        with self._moving:  # so that it is on the loop before its end, or not at all
            self.refuse_if_unusable()
            self._move(f"{name} was started")
            self.loop.call_soon_threadsafe(operation.start, context=contextvars.copy_context())
        return Work(future, operation)

    def move(self, reason: str) -> None:
        """Gives the loop a thread of its own; nothing when it has one."""
        with self._moving:
            self._move(reason)

    def _move(self, reason: str) -> None:
        if self._thread is not None or self._ending:
            return
        self._inline = False
        self.loop.call_soon_threadsafe(self.loop.stop)  # whoever is inside comes out and waits
        self._turn.acquire()
        self._thread = threading.Thread(target=self._serve, name=f"aiocoll-{self.name}", daemon=True)
        self._thread.start()
        observe.emit("driver", mode="threaded", world=self.name, reason=reason)

    @property
    def foreign(self) -> bool:
        """Is this a forked child of the process that made it?"""
        return os.getpid() != self._home

    def refuse_if_unusable(self) -> None:
        """Raises where a blocking call can only go wrong: in a forked child, inside the loop, after the end."""
        if os.getpid() != self._home:
            raise UsageError(
                f"group {self.name!r} was created in process {self._home} and works only there; this is process "
                f"{os.getpid()}, a forked child of it: connect() here for a world of your own"
            )
        if _get_running_loop() is self.loop:
            raise UsageError(
                f"a blocking call on group {self.name!r} from inside its own event loop (an op, a callback, a signal "
                "handler) would deadlock: make it from another thread, or use the async API"
            )
        if self._ending:
            raise NotInitializedError(f"group {self.name!r} is closed: connect() again")

    def close(self, closing: Make[Any] | None = None) -> None:
        """Runs ``closing``, ends the thread and the loop. Does nothing in a forked child or the second time."""
        if self._ending or self.foreign:
            return
        self.refuse_if_unusable()
        try:
            if closing is not None:
                self.run_as_task(closing)
        finally:
            self._end()

    def abandon(self) -> None:
        """Cuts everything without a word to anybody: for a world that its owner has dropped. Never blocks."""
        with self._moving:
            if self._ending or self.foreign:
                return
            self._ending, self._inline = True, False
            if self._thread is not None:
                self.loop.call_soon_threadsafe(self.loop.stop)
            elif not self.loop.is_running() and not self.loop.is_closed():
                self._wind_up()

    # ------------------------------------------------------------------------------------------ inside

    def _turn_the_loop(self, task: asyncio.Task[Any]) -> threading.Event | None:
        """Runs the loop until the task is done: None; or until another thread wants it: an event set at the end."""
        loop = self.loop
        task.add_done_callback(_stop_loop)
        try:
            while not task.done() and self._inline:  # a stop may be left over from a call that was interrupted
                loop.run_forever()
        except BaseException:  # Ctrl-C out of the wait, or out of the coroutine itself
            _abandon(task, loop)
            raise
        if task.done():
            return None
        ended = threading.Event()
        task.remove_done_callback(_stop_loop)
        task.add_done_callback(lambda _: ended.set())
        return ended

    def _run_on_thread(self, make: Make[T]) -> T:
        work = self.begin(make, f"a call on group {self.name!r}")
        try:
            return work.result()
        except KeyboardInterrupt:
            work.cancel()
            raise

    def _serve(self) -> None:
        if self._endpoint is not None:
            self._endpoint.inline, self._endpoint.spin_seconds = False, 0.0
        while not self._ending:  # a stop that was meant for the caller's thread may arrive here
            self.loop.run_forever()
        self._wind_up()

    def _end(self) -> None:
        if _get_running_loop() is not None:
            self.move("it is closed inside a running loop")
        with self._moving:
            self._ending, self._inline = True, False
            if self._thread is None:
                self._turn.acquire()
                self._wind_up()
            else:
                self.loop.call_soon_threadsafe(self.loop.stop)
                self._thread.join()

    def _wind_up(self) -> None:
        loop = self.loop
        if self._endpoint is not None:
            self._endpoint.close()  # nothing where the group was closed
        loop.call_soon(loop.stop)
        loop.run_forever()  # what was begun in the last moment becomes a task
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_ABANDON_SECONDS_MAX))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _forked(self) -> None:
        """In the child: every call must now go the long way, where it is refused."""
        self._inline = False

    def __repr__(self) -> str:
        mode = "closed" if self._ending else "inline" if self._inline else "threaded"
        return f"Driver({self.name!r}, {mode})"


class _Operation(Generic[T]):
    """One call that runs on the loop's thread and reports to a Work."""

    __slots__ = ("_driver", "_future", "_make", "_task", "name")

    def __init__(self, driver: Driver, make: Make[T], future: concurrent.futures.Future[T], name: str) -> None:
        self._driver, self._make, self._future, self.name = driver, make, future, name
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        try:
            coroutine = _coroutine(self._make())
            parked_on = coroutine.send(None)
        except StopIteration as stop:
            self._settle(stop.value, None)
        except BaseException as error:
            self._settle(None, error)
        else:
            self._task = self._driver.loop.create_task(_Continued(coroutine, parked_on))
            self._driver._operations.add(self)
            self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        self._driver.loop.call_soon_threadsafe(self._cancel)

    def refuse_to_block(self) -> None:
        if not self._future.done():
            self._driver.refuse_if_unusable()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _finish(self, task: asyncio.Task[T]) -> None:
        self._driver._operations.discard(self)
        if task.cancelled():
            self._settle(None, concurrent.futures.CancelledError(f"{self.name} was cancelled"))
        elif (error := task.exception()) is not None:
            self._settle(None, error)
        else:
            self._settle(task.result(), None)

    def _settle(self, result: Any, error: BaseException | None) -> None:
        if self._future.done():  # given up by Work.cancel()
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(result)

    def __repr__(self) -> str:
        return f"_Operation({self.name})"


# ---------------------------------------------------------------------------------------------- coroutines


def _coroutine(awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
    return cast(Coroutine[Any, Any, T], awaitable) if hasattr(awaitable, "send") else _awaited(awaitable)


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _as_task(make: Make[T]) -> T:
    await asyncio.sleep(0)  # parks, so that what follows runs in the Task that continues this
    return await make()


class _Continued(Coroutine[Any, Any, T]):
    """The rest of a coroutine that was stepped once by hand and waits for `parked_on`, as a Task's coroutine.

    Not an ``async def``: a Task that is cancelled before its first step would close that one unstarted, and the
    coroutine inside, which has started, would never learn of it.
    """

    __slots__ = ("_coroutine", "_parked_on", "_resumed")

    def __init__(self, coroutine: Coroutine[Any, Any, T], parked_on: Any) -> None:
        self._coroutine, self._parked_on, self._resumed = coroutine, parked_on, False

    def send(self, value: Any) -> Any:
        if self._resumed:
            return self._coroutine.send(value)
        self._resumed = True
        return self._parked_on

    def throw(self, *error: Any) -> Any:
        if not self._resumed:
            self._resumed = True
            if self._parked_on is not None and self._parked_on.cancel():  # what a Task does to what it waits for
                return self._parked_on
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise NotImplementedError("only a Task runs this")

    @property
    def __name__(self) -> str:
        return getattr(self._coroutine, "__name__", type(self._coroutine).__name__)

    def __repr__(self) -> str:
        return f"_Continued({self._coroutine!r})"


# ---------------------------------------------------------------------------------------------- ends of a wait


def _stop_loop(task: asyncio.Task[Any]) -> None:
    task.get_loop().stop()


def _abandon(task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Cancels an interrupted call and gives it a moment to tell its peers."""
    if not task.done():
        task.cancel()
        limit = loop.call_later(_ABANDON_SECONDS_MAX, loop.stop)
        try:
            loop.run_forever()
        finally:
            limit.cancel()
    if task.done() and not task.cancelled():
        task.exception()  # seen: it is the interrupt itself, or what the cancelled call made of it


def _outcome(task: asyncio.Task[T], loop: asyncio.AbstractEventLoop, ended: threading.Event) -> T:
    """Waits for a call whose loop has moved to its thread in the meantime."""
    try:
        ended.wait()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(task.cancel)
        ended.wait(_ABANDON_SECONDS_MAX)
        raise
    return task.result()


_DRIVERS: weakref.WeakSet[Driver] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for driver in list(_DRIVERS):
        driver._forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
