"""Drivers: how blocking code runs the coroutines of one event loop.

Inline is the caller's own thread: a coroutine is stepped at once, and only if it parks does its loop run, there and
then. Threaded is a thread that runs the loop for good. A Driver begins inline and moves, once and for ever, at the
first need: a started operation, a call inside another running loop, a second thread that calls while the first waits.

The rule: at any moment one thread at most is inside the loop, and calls enter it in the order in which they were made.
A Ctrl-C may come out of any call in here and leaves nothing half done: locks are taken inside the ``try`` that gives
them back, and what takes several steps is done by the loop's thread, which no Ctrl-C reaches, or done to its end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import math
import os
import threading
import weakref
from asyncio.events import _get_running_loop, _set_running_loop  # made for those who run loops; we do
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from .. import observe
from ..cpus import usable_cpus
from ..errors import NotInitializedError, SerializationError, UsageError
from ..observe import dumping
from .interrupt import INTERRUPTS
from .quiet import QuietLoop
from .started import Started
from .stepping import ABANDON_SECONDS_MAX, Continued, Latch, Make, T, abandon, as_task, coroutine_of, outcome, stop_loop
from .work import Work

if TYPE_CHECKING:
    from ..endpoint import Endpoint


_AWAY_SECONDS = 0.002  # between two calls; longer than that, the loop is asked for news before the next


class Driver:
    """Runs coroutines for blocking callers; ``name`` is what errors call the world it drives."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.endpoints: list[Endpoint] = []
        """Those whose coroutines it runs."""
        self._inline = True
        self._left = monotonic()
        self._turn = threading.RLock()  # whoever holds it is inside the loop; the thread, once there is one, for ever
        self._inside: Callable[[], bool] = cast(Any, self._turn)._is_owned  # is this thread? (as Condition asks it)
        self._moving = threading.Lock()  # for moments only
        self._thread: threading.Thread | None = None
        self._moved, self._gone = Latch(), Latch()  # the thread is inside the loop, and has ended it
        self._ending = False
        self.operations: set[Started[Any]] = set()
        """What has begun and not ended; a loop holds its tasks only weakly."""
        self._handed_over: set[Latch] = set()
        """Opened when calls end whose callers have left the loop to its thread, or when that ends without them."""
        self._home = os.getpid()
        self.loop: QuietLoop = QuietLoop()
        try:
            _DRIVERS.add(self)
            INTERRUPTS.guard(self)
        except BaseException:
            INTERRUPTS.release(self)
            self.loop.close()
            raise

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
        if not self._inline or _get_running_loop() is not None or self._inside():
            return self._run_on_thread(make)
        loop = self.loop
        coroutine: Coroutine[Any, Any, T] | None = None
        task: asyncio.Task[T] | None = None
        try:
            if self._turn.acquire(blocking=False):
                if monotonic() - self._left > _AWAY_SECONDS:
                    self._catch_up()
                try:
                    _set_running_loop(loop)
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
                ended = self._turn_the_loop(task)
                return task.result() if ended is None else outcome(task, loop, ended, self._turn.release)
        except BaseException:
            if coroutine is not None and self._inside():
                abandon(coroutine, task, loop)
            raise
        finally:
            try:
                self._turn.release()  # the first thing, for a Ctrl-C may come out of any other
            except RuntimeError:  # it was not this thread's, or it has gone with the call
                pass
            self._left = monotonic()
        return self._run_on_thread(make)

    def run_again(self, make: Callable[..., tuple[Any, Coroutine[Any, Any, T]] | None], *arguments: Any) -> Any:
        """The same for calls that were made before with arguments alike: ``make`` gives a coroutine, second in a pair,
        or None where this is none. NotImplemented where the usual way is to be gone."""
        if not self._inline or _get_running_loop() is not None or self._inside():
            return NotImplemented
        coroutine: Coroutine[Any, Any, T] | None = None
        task: asyncio.Task[T] | None = None
        try:
            if not self._turn.acquire(False):
                return NotImplemented
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
            ended = self._turn_the_loop(task)
            self._left = monotonic()
            return task.result() if ended is None else outcome(task, self.loop, ended, self._turn.release)
        except BaseException:
            if coroutine is not None and self._inside():
                abandon(coroutine, task, self.loop)
            raise
        finally:
            try:
                self._turn.release()
            except RuntimeError:
                pass

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
        work = Work(future, operation)
        if within:
            self.operations.add(operation)
            self.loop.call_soon(operation.start, context=contextvars.copy_context())
            return work
        try:
            self.move(f"{name} was started")
            with self._moving:  # so that it is on the loop before its end, or not at all
                self.refuse_if_unusable()
                self.operations.add(operation)
                self.loop.call_soon_threadsafe(operation.start, context=contextvars.copy_context())
        except BaseException:
            operation.withdraw()
            raise
        return work

    def move(self, reason: str) -> None:
        """Gives the loop a thread of its own; nothing when it has one."""
        with self._moving:
            if self._ending:
                return
            first = self._thread is None
            if first:
                self._start_thread(reason)
        self._moved.wait()
        if first:
            observe.emit("driver", mode="threaded", world=self.name, reason=reason)

    def _start_thread(self, reason: str) -> None:
        thread = threading.Thread(target=self._serve, name=f"aiocoll-{self.name}", daemon=True)
        try:
            thread.start()  # before anybody is sent away for its sake
        except RuntimeError as error:  # too many, or too late
            raise UsageError(
                f"group {self.name!r}: {reason}, for which its loop needs a thread of its own, and none can be "
                f"started: {error}. Raise the limit on threads (ulimit -u), or use one thread at a time; "
                "Python 3.12.0 and 3.12.1 start none once the main thread has ended"
            ) from error
        self._thread = thread

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
        if _get_running_loop() is self.loop or (self._inside() and not self._ending):
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
            try:
                self._stop()
            except BaseException:  # a Ctrl-C, say: nothing is left behind for its sake, unless a second one comes
                self._stop()
                raise

    def abandon(self) -> None:
        """Cuts everything without a word to anybody: for a world that its owner has dropped. Hardly blocks."""
        with self._moving:
            if self._ending or self.foreign:
                return
            self._ending, self._inline = True, False
            thread = self._thread
        if thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not thread:
                thread.join(ABANDON_SECONDS_MAX)
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

    def _turn_the_loop(self, task: asyncio.Task[Any]) -> Latch | None:
        """Runs the loop until the task is done: None; or until another thread wants it: what opens at its end."""
        task.add_done_callback(stop_loop)
        while not task.done() and self._inline:  # a stop may be left over from a call that was interrupted
            self.loop.run_forever()
        if task.done():
            INTERRUPTS.arrive()
            return None
        ended = Latch()
        self._handed_over.add(ended)
        task.remove_done_callback(stop_loop)
        task.add_done_callback(lambda _: self._has_ended(ended))
        return ended

    def _has_ended(self, call: Latch) -> None:
        self._handed_over.discard(call)
        call.open()

    def _run_on_thread(self, make: Make[T]) -> T:
        self.refuse_if_unusable()
        work = self.begin(make, f"a call on group {self.name!r}")
        try:
            return work.result()
        except KeyboardInterrupt:
            work.cancel()
            raise

    def _serve(self) -> None:
        with self._moving:
            if self._thread is None and not self._ending:  # whoever started it was interrupted before he could say so
                self._thread = threading.current_thread()
            if self._thread is not threading.current_thread():
                return  # and then another was started, or the end came
            self._inline = False
        self.loop.call_soon_threadsafe(self.loop.stop)  # whoever is inside comes out and waits
        self._turn.acquire()
        self._moved.open()
        for endpoint in self.endpoints:
            endpoint.serve_loop()
        while not self._ending:  # a stop that was meant for the caller's thread may arrive here
            try:
                self.loop.run_forever()
            except BaseException as error:  # sys.exit() in an op, say; whoever waits for its call hears of it
                said = f"{error!r} would have ended the thread that runs the calls of {self.name!r}; it goes on"
                self.loop.call_exception_handler({"message": said, "exception": error})
        try:
            self._wind_up()
        finally:
            self._gone.open()

    def _stop(self) -> None:
        if _get_running_loop() is not None:
            self.move("it is closed inside a running loop")
        with self._moving:
            self._ending, self._inline = True, False
            thread = self._thread
        if thread is None:
            with self._turn:
                self._wind_up()
        else:
            with contextlib.suppress(RuntimeError):  # it is closed already
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._gone.wait()  # before join(), which on some Pythons is through once it was interrupted
            thread.join()
        dumping.put_back()
        INTERRUPTS.release(self)

    def _wind_up(self) -> None:
        """Also goes on where it was interrupted."""
        for endpoint in self.endpoints:
            endpoint.close()  # nothing where the group was closed
        if not self.loop.is_closed():
            self._end_tasks()
            self.loop.close()
        for operation in list(self.operations):  # what would not end when it was cancelled: nobody shall wait for it
            operation.give_up()
        for call in list(self._handed_over):
            self._has_ended(call)

    def _end_tasks(self) -> None:
        loop = self.loop
        loop.call_soon(loop.stop)
        loop.run_forever()  # what was begun in the last moment becomes a task
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=ABANDON_SECONDS_MAX))
        loop.run_until_complete(loop.shutdown_asyncgens())

    def __repr__(self) -> str:
        mode = "closed" if self._ending else "inline" if self._inline else "threaded"
        return f"Driver({self.name!r}, {mode})"


_DRIVERS: weakref.WeakSet[Driver] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for driver in list(_DRIVERS):
        driver._inline = False  # every call must now go the long way, where it is refused


os.register_at_fork(after_in_child=_after_fork_in_child)
