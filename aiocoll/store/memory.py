"""A store within one process; the rule: any number of event loops and threads may share it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from typing import Any

from aiocoll.errors import AiocollError, RendezvousError
from aiocoll.store.base import CallStore
from aiocoll.store.table import NotYet, Table, Waiter


class MemoryStore(CallStore):
    """The table itself, behind a lock; closing it fails whatever waits."""

    def __init__(self) -> None:
        self._table = Table()
        self._lock = threading.Lock()
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
            waiter = self._table.apply_or_wait(op, args, lambda value: _resolve(future, value))
            if waiter is not None:
                self._parked[future] = waiter
        started = time.monotonic()
        timer = None
        if timeout is not None and timeout != math.inf:
            timer = loop.call_later(timeout, lambda: _resolve(future, self._late(op, args, time.monotonic() - started)))
        try:
            value = await future
        except BaseException:
            self._undo(op, args, future)
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

    def _undo(self, op: str, args: list[Any], future: asyncio.Future[Any]) -> None:
        """A cancelled pop that was served in the same moment puts its item back."""
        with self._lock, contextlib.suppress(asyncio.CancelledError):
            if op == "queue_pop" and future.done() and isinstance(future.result(), bytes):
                self._table.give_back(args[0], future.result())

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            for future, waiter in self._parked.items():
                self._table.forget(waiter)
                _resolve(future, RendezvousError(f"{self.where}: it was closed while {waiter.op} waited"))
            self._parked.clear()


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    """Set a result from whatever thread; errors travel as results, so that nobody can forget to retrieve them."""
    loop = future.get_loop()
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop:
        _set(future, value)
    else:
        with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_set, future, value)


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)
