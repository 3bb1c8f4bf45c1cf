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
import math
import os
import socket
import sys
import threading
import weakref
from asyncio.events import _get_running_loop, _set_running_loop  # made for those who run loops; we do
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any

from .. import observe
from ..cpus import usable_cpus
from ..errors import NotInitializedError, SerializationError, UsageError
from ..observe import dumping
from ..transport.forked import not_for_children
from .interrupt import INTERRUPTS
from .started import Started
from .stepping import ABANDON_SECONDS_MAX, Continued, Make, T, abandon_task, as_task, coroutine_of, outcome, stop_loop
from .work import Work

if TYPE_CHECKING:
    from ..endpoint import Endpoint


_AWAY_SECONDS = 0.002  # between two calls; longer than that, the loop is asked for news before the next


class QuietLoop(asyncio.SelectorEventLoop):
    """An event loop that a forked child leaves alone.

    Closing a copy would take the parent's descriptors out of the epoll set that both processes share.
    """

    _ssock: socket.socket
    _csock: socket.socket

    def __init__(self) -> None:
        super().__init__()
        self._home = os.getpid()
        for wakes in (self._ssock, self._csock):
            not_for_children(wakes)

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
        self.loop: QuietLoop = QuietLoop()
        self.endpoints: list[Endpoint] = []
        """Those whose coroutines it runs."""
        self._inline = True
        self._left = monotonic()
        INTERRUPTS.guard(self)
        self._turn = threading.Lock()  # whoever holds it is inside the loop; the thread, once there is one, for ever
        self._moving = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = False
        self.operations: set[Started[Any]] = set()
        """What has begun and not ended; a loop holds its tasks only weakly."""
        self._handed_over: set[threading.Event] = set()
        """Set when calls end whose callers have left the loop to its thread, or when that ends without them."""
        self._home = os.getpid()
        _DRIVERS.add(self)

    def serve(self, endpoint: Endpoint, local_size: int) -> None:
        """Lets the endpoint spin while this driver is inline: a blocked caller has nothing better to do, unless there
        are more ranks on this host than CPUs, so that spinning would take one from the rank waited for. Looking into
        memory is so cheap that it gives way after every look, and then it is worth it there, too: on two CPUs it made
        small calls of four ranks seven times as fast."""
        self.endpoints = [each for each in self.endpoints if not each.closed and each is not endpoint] + [endpoint]
        if self._inline:
            settings = endpoint.settings
            crowded = local_size > usable_cpus()
            endpoint.serve_blocked(0.0 if crowded else settings.spin_seconds, settings.shm_spin_seconds)

    # ------------------------------------------------------------------------------------------ what callers use

    def run(self, make: Make[T]) -> T:
        """``make()`` in the loop's thread, and the result of what it returns."""
        if not self._inline or _get_running_loop() is not None or not self._turn.acquire(blocking=False):
            return self._run_on_thread(make)
        loop = self.loop
        try:
            if monotonic() - self._left > _AWAY_SECONDS:
                self._catch_up()
            _set_running_loop(loop)
            try:
                coroutine = coroutine_of(make())
                parked_on = coroutine.send(None)
            except StopIteration as stop:
                if INTERRUPTS.pending:
                    INTERRUPTS.arrive()
                value: T = stop.value
                return value
            except (UsageError, SerializationError):
                _set_running_loop(None)
                self._let_news_leave()
                raise
            finally:
                _set_running_loop(None)
            task = loop.create_task(Continued(coroutine, parked_on))
            handed_over = self._turn_the_loop(task)
        finally:
            self._left = monotonic()
            self._turn.release()
        return outcome(task, loop, handed_over) if handed_over is not None else task.result()

    def run_again(self, make: Callable[..., tuple[Any, Coroutine[Any, Any, T]] | None], *arguments: Any) -> Any:
        """The same for calls that were made before with arguments alike: ``make`` gives a coroutine, second in a pair,
        or None where this is none. NotImplemented where the usual way is to be gone."""
        if not self._inline or _get_running_loop() is not None or not self._turn.acquire(False):
            return NotImplemented
        try:
            if monotonic() - self._left > _AWAY_SECONDS:
                self._catch_up()
                self._left = monotonic()
            made = make(*arguments)
            if made is None:
                return NotImplemented
            coroutine = made[1]
            try:
                parked_on = coroutine.send(None)
            except StopIteration as stop:
                return stop.value
            task = self.loop.create_task(Continued(coroutine, parked_on))
            handed_over = self._turn_the_loop(task)
            self._left = monotonic()
        finally:
            self._turn.release()
        return outcome(task, self.loop, handed_over) if handed_over is not None else task.result()

    def run_as_task(self, make: Make[T]) -> T:
        """The same for a coroutine that must find itself in a Task from its first line on (asyncio.timeout)."""
        return self.run(lambda: as_task(make))

    def begin(self, make: Make[T], name: str) -> Work[T]:
        """Starts ``make()`` on the loop's thread and returns at once."""
        within = threading.current_thread() is self._thread and not self._ending  # a callback, say: nothing blocks
        if not within:
            self.refuse_if_unusable()
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # nobody but the operation itself ends it
        operation = Started(self, make, future, name)
        if within:
            self.operations.add(operation)
            self.loop.call_soon(operation.start, context=contextvars.copy_context())
            return Work(future, operation)
        with self._moving:  # so that it is on the loop before its end, or not at all
            self.refuse_if_unusable()
            self._move(f"{name} was started")
            self.operations.add(operation)
            self.loop.call_soon_threadsafe(operation.start, context=contextvars.copy_context())
        return Work(future, operation)

    def move(self, reason: str) -> None:
        """Gives the loop a thread of its own; nothing when it has one."""
        with self._moving:
            self._move(reason)

    def _move(self, reason: str) -> None:
        if self._thread is not None or self._ending:
            return
        begun = threading.Event()
        thread = threading.Thread(target=self._serve, args=[begun], name=f"aiocoll-{self.name}", daemon=True)
        try:
            thread.start()  # before anybody is sent away for its sake
        except RuntimeError as error:  # too many, or too late
            raise UsageError(
                f"group {self.name!r}: {reason}, for which its loop needs a thread of its own, and none can be "
                f"started: {error}. Raise the limit on threads (ulimit -u), or use one thread at a time; "
                "Python 3.12.0 and 3.12.1 start none once the main thread has ended"
            ) from error
        self._inline = False
        self.loop.call_soon_threadsafe(self.loop.stop)  # whoever is inside comes out and waits
        self._turn.acquire()
        self._thread = thread
        begun.set()
        observe.emit("driver", mode="threaded", world=self.name, reason=reason)

    @property
    def ended(self) -> bool:
        """Whether nothing runs here any more."""
        return self._ending

    @property
    def inline(self) -> bool:
        """Does whoever calls run the loop? Not any more at the end."""
        return self._inline

    def listen_soon(self) -> None:
        """The next call turns the loop before it does anything."""
        self._left = -math.inf

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
        if _get_running_loop() is self.loop or self._stepping():
            raise UsageError(
                f"a blocking call on group {self.name!r} from inside its own event loop (an op, a callback, a signal "
                "handler) would deadlock: make it from another thread, or use the async API"
            )
        if self._ending:
            raise NotInitializedError(f"group {self.name!r} is closed: connect() again")

    def _stepping(self) -> bool:
        """Whether this thread is in the middle of ``run_again``, which for the sake of speed sets no loop."""
        frame = sys._getframe() if self._thread is None else None
        while frame is not None:
            if frame.f_code is Driver.run_again.__code__ and frame.f_locals["self"] is self:
                return True
            frame = frame.f_back
        return False

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
        """Cuts everything without a word to anybody: for a world that its owner has dropped. Hardly blocks."""
        with self._moving:
            if self._ending or self.foreign:
                return
            self._ending, self._inline = True, False
            if self._thread is not None:
                self.loop.call_soon_threadsafe(self.loop.stop)
                if threading.current_thread() is not self._thread:
                    self._thread.join(ABANDON_SECONDS_MAX)
            elif not self.loop.is_running() and not self.loop.is_closed():
                self._wind_up()
        INTERRUPTS.release(self)

    # ------------------------------------------------------------------------------------------ inside

    def _catch_up(self) -> None:
        """Hears the news of the time in which nobody ran the loop: who has died or broken the group since."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        for endpoint in self.endpoints:
            if endpoint.memory is not None and not endpoint.closed:
                endpoint.memory.hear_news()

    def _let_news_leave(self) -> None:
        """The peers hear of a refused call though the caller may now compute for hours: a link to them that is still
        being made gets the time that it needs (bounded)."""
        until = self.loop.time() + ABANDON_SECONDS_MAX
        while not all(each.transport.drained() for each in self.endpoints) and self.loop.time() < until:
            self.loop.call_later(0.001, self.loop.stop)
            self.loop.run_forever()

    def _turn_the_loop(self, task: asyncio.Task[Any]) -> threading.Event | None:
        """Runs the loop until the task is done: None; or until another thread wants it: an event set at the end."""
        loop = self.loop
        task.add_done_callback(stop_loop)
        try:
            while not task.done() and self._inline:  # a stop may be left over from a call that was interrupted
                loop.run_forever()
        except BaseException:  # Ctrl-C out of the wait, or out of the coroutine itself
            abandon_task(task, loop)
            raise
        if task.done():
            INTERRUPTS.arrive()
            return None
        ended = threading.Event()
        self._handed_over.add(ended)
        task.remove_done_callback(stop_loop)
        task.add_done_callback(lambda _: self._has_ended(ended))
        return ended

    def _has_ended(self, call: threading.Event) -> None:
        self._handed_over.discard(call)
        call.set()

    def _run_on_thread(self, make: Make[T]) -> T:
        self.refuse_if_unusable()
        work = self.begin(make, f"a call on group {self.name!r}")
        try:
            return work.result()
        except KeyboardInterrupt:
            work.cancel()
            raise

    def _serve(self, begun: threading.Event) -> None:
        begun.wait()
        for endpoint in self.endpoints:
            endpoint.serve_loop()
        while not self._ending:  # a stop that was meant for the caller's thread may arrive here
            try:
                self.loop.run_forever()
            except BaseException as error:  # sys.exit() in an op, say; whoever waits for its call hears of it
                said = f"{error!r} would have ended the thread that runs the calls of {self.name!r}; it goes on"
                self.loop.call_exception_handler({"message": said, "exception": error})
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
        dumping.put_back()
        INTERRUPTS.release(self)

    def _wind_up(self) -> None:
        loop = self.loop
        for endpoint in self.endpoints:
            endpoint.close()  # nothing where the group was closed
        loop.call_soon(loop.stop)
        loop.run_forever()  # what was begun in the last moment becomes a task
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=ABANDON_SECONDS_MAX))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        for operation in list(self.operations):  # what would not end when it was cancelled: nobody shall wait for it
            operation.give_up()
        for call in list(self._handed_over):
            self._has_ended(call)

    def _forked(self) -> None:
        """In the child: every call must now go the long way, where it is refused."""
        self._inline = False

    def __repr__(self) -> str:
        mode = "closed" if self._ending else "inline" if self._inline else "threaded"
        return f"Driver({self.name!r}, {mode})"


_DRIVERS: weakref.WeakSet[Driver] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for driver in list(_DRIVERS):
        driver._forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
