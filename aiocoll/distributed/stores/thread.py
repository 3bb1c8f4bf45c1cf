"""The event loop on which this process's blocking stores live, in one thread for all of them.

The rule: the thread is there while a store is open, and a forked child has none: its parent's stores say so.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ...errors import RendezvousError
from ...sync.quiet import QuietLoop

T = TypeVar("T")

_ENDING_SECONDS = 5.0

_lock = threading.Lock()
_current: StoreThread | None = None


class StoreThread:
    """The loop and its thread; ``enter`` gives the one that runs, and each who has it calls ``leave`` once."""

    loop: QuietLoop
    users: int
    """How many stores are open."""

    def __init__(self) -> None:
        self.loop = QuietLoop()
        self.users = 0
        self._home = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="aiocoll-stores", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Blocks for ``coroutine``, which runs on the loop; Ctrl-C withdraws it."""
        future = self.begin(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            del future  # its error's frames would hold it, and with it the store, until the collector comes

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts ``coroutine`` on the loop; RendezvousError in a forked child, or when the loop has ended."""
        try:
            if os.getpid() != self._home:
                raise RendezvousError(
                    f"this store was opened in process {self._home} and works only there; this is process "
                    f"{os.getpid()}, a forked child of it: open one here"
                )
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except BaseException as error:
            coroutine.close()
            if isinstance(error, RuntimeError) and not isinstance(error, RendezvousError):
                raise RendezvousError("this store's process is ending: nothing serves it any more") from error
            raise

    def leave(self) -> None:
        """One user less; the last one ends the thread."""
        global _current
        with _lock:
            self.users -= 1
            if self.users or self._home != os.getpid():
                return
            if _current is self:
                _current = None
        with contextlib.suppress(RuntimeError):  # a loop that is closed already
            self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current:
            self._thread.join(_ENDING_SECONDS)

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def _serve(self) -> None:
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=_ENDING_SECONDS))
        self.loop.close()

    def __repr__(self) -> str:
        return f"<StoreThread of {self.users} stores>"


def enter() -> StoreThread:
    """The thread that runs, or a new one; it lives until everybody who entered has left."""
    global _current
    with _lock:
        if _current is None:
            _current = StoreThread()
        _current.users += 1
        return _current


def _forget_in_child() -> None:
    global _current, _lock
    _lock = threading.Lock()
    _current = None


os.register_at_fork(after_in_child=_forget_in_child)
