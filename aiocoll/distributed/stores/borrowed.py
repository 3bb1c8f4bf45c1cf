"""Blocking stores as ``aiocoll.store`` objects, so that a world can meet in them.

The rule: a view never closes what it shows, and keeps it open for as long as it is used itself.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from ... import store
from ...errors import RendezvousError
from ...store.base import CallStore

if TYPE_CHECKING:
    from .opened import Opened
    from .thread import StoreThread

_POLL_SECONDS_MIN = 0.005
_POLL_SECONDS_MAX = 0.05


class OnThread(CallStore):
    """A store that lives on the stores' thread, for any other loop."""

    timeout: float

    def __init__(self, owner: Opened, opened: CallStore, thread: StoreThread) -> None:
        self._owner, self._store, self._thread = owner, opened, thread
        self.timeout = opened.timeout

    @property
    def where(self) -> str:
        return self._store.where

    @property
    def local_address(self) -> str:
        """The address of this side of a connection to a server, if there is one."""
        return str(getattr(self._store, "local_address", ""))

    async def _call(self, op: str, args: list[Any], timeout: float | None) -> Any:
        running: list[asyncio.Task[Any]] = []

        async def there() -> Any:
            task = asyncio.current_task()
            assert task is not None
            running.append(task)
            return await self._store._call(op, args, timeout)

        try:
            return await asyncio.wrap_future(self._thread.begin(there()))
        except asyncio.CancelledError:
            if op == "queue_pop":
                self._thread.begin(self._put_back(args[0], running))
            raise

    async def _put_back(self, key: str, running: list[asyncio.Task[Any]]) -> None:
        """What was popped while its taker gave up goes back; on the stores' thread, where the pop runs."""
        for task in running:
            await asyncio.wait([task])
            if task.cancelled() or task.exception() is not None:
                continue
            if isinstance(self._store, store.MemoryStore):
                self._store._give_back("queue_pop", [key], task.result())
            elif isinstance(self._store, store.TCPStore):
                self._store._give_back(key, task.result())
            else:
                await self._store.queue_push(key, task.result())

    async def close(self) -> None:
        """It belongs to whoever opened it."""

    def __repr__(self) -> str:
        return f"<OnThread {self._store!r}>"


_NAMES = {"delete": "delete_key", "list": "list_keys"}
_WAITING = {"get", "wait", "multi_get", "queue_pop"}


class InThreads(CallStore):
    """A store of somebody else's make that has the documented blocking methods: a program's own, or torch's.

    A wait asks again and again whether what it waits for is there, so that no thread stays behind in it.
    """

    def __init__(self, theirs: Any) -> None:
        self._store = theirs

    @property
    def where(self) -> str:
        return f"store {type(self._store).__name__}"

    async def _call(self, op: str, args: list[Any], timeout: float | None) -> Any:
        started = time.monotonic()
        if op in _WAITING:
            await self._until_there(op, args, timeout, started)
        method = getattr(self._store, _NAMES.get(op, op), None)
        if method is None:
            raise RendezvousError(
                f"{self.where} has no method {_NAMES.get(op, op)!r}, which ranks that meet in it need"
            )
        while True:
            try:
                return await self._made(op, method, args)
            except Exception as error:
                if op != "queue_pop":
                    raise
                # A length tells nothing of the moment of the pop: by now somebody may have pushed again.
                if not _says_empty(error) and await asyncio.to_thread(self._store.queue_len, args[0]):
                    raise
            await self._until_there(op, args, timeout, started)  # another has taken what was there

    async def _made(self, op: str, method: Any, args: list[Any]) -> Any:
        if op == "wait":
            return None
        if op in ("check", "multi_get"):
            return await asyncio.to_thread(method, args)
        if op == "multi_set":
            return await asyncio.to_thread(method, args[::2], args[1::2])
        if op == "list":
            return sorted(key for key in await asyncio.to_thread(method) if key.startswith(args[0]))
        if op == "queue_pop":
            return await asyncio.to_thread(method, args[0], False)
        answer = await asyncio.to_thread(method, *args)
        return answer.encode() if op in ("get", "compare_set") and isinstance(answer, str) else answer

    async def _until_there(self, op: str, args: list[Any], timeout: float | None, started: float) -> None:
        pause = _POLL_SECONDS_MIN
        while True:
            if op == "queue_pop":
                there = await asyncio.to_thread(self._store.queue_len, args[0])
            else:
                there = await asyncio.to_thread(self._store.check, args)
            if there:
                return
            elapsed = time.monotonic() - started
            if timeout is not None and elapsed >= timeout:
                raise self._late(op, args, elapsed)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _POLL_SECONDS_MAX)

    async def close(self) -> None:
        """It belongs to whoever made it."""

    def __repr__(self) -> str:
        return f"<InThreads {self._store!r}>"


def _says_empty(error: Exception) -> bool:
    """Whether it is the documented error of an empty queue: aiocoll's, torch's or a program's own of that name."""
    return any(each.__name__ == "QueueEmptyError" for each in type(error).__mro__)


def is_documented(given: Any) -> bool:
    """Whether ``given`` has the documented blocking methods rather than those of ``aiocoll.store``."""
    return hasattr(given, "delete_key") and hasattr(given, "multi_get")
