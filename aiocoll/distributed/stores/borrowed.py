"""Blocking stores as ``aiocoll.store`` objects, so that a world can meet in them.

The rule: a view never closes what it shows, and keeps it open for as long as it is used itself.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

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

    def __init__(self, owner: Opened, store: CallStore, thread: StoreThread) -> None:
        self._owner, self._store, self._thread = owner, store, thread
        self.timeout = store.timeout

    @property
    def where(self) -> str:
        return self._store.where

    @property
    def local_address(self) -> str:
        """The address of this side of a connection to a server, if there is one."""
        return str(getattr(self._store, "local_address", ""))

    async def _call(self, op: str, args: list[Any], timeout: float | None) -> Any:
        return await asyncio.wrap_future(self._thread.begin(self._store._call(op, args, timeout)))

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

    def __init__(self, store: Any) -> None:
        self._store = store

    @property
    def where(self) -> str:
        return f"store {type(self._store).__name__}"

    async def _call(self, op: str, args: list[Any], timeout: float | None) -> Any:
        if op in _WAITING:
            await self._until_there(op, args, timeout)
        method = getattr(self._store, _NAMES.get(op, op), None)
        if method is None:
            raise RendezvousError(
                f"{self.where} has no method {_NAMES.get(op, op)!r}, which ranks that meet in it need"
            )
        return await self._made(op, method, args)

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

    async def _until_there(self, op: str, args: list[Any], timeout: float | None) -> None:
        started, pause = time.monotonic(), _POLL_SECONDS_MIN
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


def is_documented(store: Any) -> bool:
    """Whether ``store`` has the documented blocking methods rather than those of ``aiocoll.store``."""
    return hasattr(store, "delete_key") and hasattr(store, "multi_get")
