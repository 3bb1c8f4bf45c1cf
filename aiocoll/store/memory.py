"""A store within one process; the rule: any number of event loops and threads may share it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from typing import Any, Self

from aiocoll.errors import AiocollError, RendezvousError
from aiocoll.store.base import CallStore
from aiocoll.store.table import NotYet, Table, Waiter


class MemoryStore(CallStore):
    """A handle on a table behind a lock; closing it fails what waits here, and `clone` gives another handle."""

    def __init__(self) -> None:
        self._table = Table()
        self._lock = threading.Lock()
        self._begin()

    def clone(self) -> Self:
        """Another handle on the same data."""
        twin = type(self).__new__(type(self))
        twin._table, twin._lock, twin.timeout = self._table, self._lock, self.timeout
        twin._begin()
        return twin

    def _begin(self) -> None:
        self._parked: dict[asyncio.Future[Any], Waiter] = {}
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryStore {self._table!r}{' closed' if self._closed else ''}>"

    @property
    def where(self) -> str:
        return "store in memory"

    async def _call(self, op: str, args: list[Any], timeout: float | None) -> Any:
        with self._lock:
            if self._closed:
                raise RendezvousError(f"{self.where}: it is closed")
            try:
                return self._table.apply(op, args)
            except NotYet:
                if timeout == 0:
                    raise self._late(op, args, 0.0) from None
            # Only now a loop is needed: what is there already can be had without one.
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Any] = loop.create_future()
            waiter = self._table.apply_or_wait(op, args, lambda value: self._serve(future, op, args, value))
            if waiter is not None:
                self._parked[future] = waiter
        started = time.monotonic()
        timer = None
        if timeout is not None and timeout != math.inf:
            timer = loop.call_later(timeout, lambda: _set(future, self._late(op, args, time.monotonic() - started)))
        try:
            value = await future
        except BaseException:
            if future.done() and not future.cancelled():
                self._give_back(op, args, future.result())  # served in the very moment in which it was cancelled
            raise
        finally:
            if timer is not None:
                timer.cancel()
            with self._lock:
                parked = self._parked.pop(future, None)
                if parked is not None:
                    self._table.forget(parked)
        if isinstance(value, AiocollError):
            raise value
        return value

    def _serve(self, future: asyncio.Future[Any], op: str, args: list[Any], value: Any) -> None:
        """The table has served a waiter, in whatever thread; the lock is held."""
        loop = future.get_loop()
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
            if _running_loop() is loop and not future.done():
                future.set_result(value)
            else:
                loop.call_soon_threadsafe(self._arrive, future, op, args, value)

    def _arrive(self, future: asyncio.Future[Any], op: str, args: list[Any], value: Any) -> None:
        if future.done():
            self._give_back(op, args, value)
        else:
            future.set_result(value)

    def _give_back(self, op: str, args: list[Any], value: Any) -> None:
        """An item that was popped for somebody who no longer waits goes back to the front."""
        if op == "queue_pop" and isinstance(value, bytes):
            with self._lock:
                self._table.give_back(args[0], value)

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            for future, waiter in self._parked.items():
                self._table.forget(waiter)
                error = RendezvousError(f"{self.where}: it was closed while {waiter.op} waited")
                with contextlib.suppress(RuntimeError):  # as above
                    future.get_loop().call_soon_threadsafe(_set, future, error)
            self._parked.clear()


def _set(future: asyncio.Future[Any], value: Any) -> None:
    """Errors travel as results, so that an abandoned future is no warning."""
    if not future.done():
        future.set_result(value)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
