"""HashStore and FileStore, and what all stores that this process has opened have in common.

The rule: a store is closed when it is dropped, wherever that is noticed.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final, NoReturn, TypeVar

from ... import store
from ...errors import AiocollError, RendezvousError, RendezvousTimeoutError, UsageError
from ...store.base import CallStore
from ..arguments import integer, switch
from ..refusals import TypeUsageError, documented
from .base import QueueEmptyError, Store, key_list, key_text, pairs_of, value_bytes, wait_seconds
from .thread import StoreThread, enter

T = TypeVar("T")

WORKERS: Final = "init/"
"""The key that counts the workers of a TCPStore."""

_CLOSING_SECONDS: Final = 5.0

Close = Callable[[], Coroutine[Any, Any, None]]


class Opened(Store):
    """A store of ``aiocoll.store``, which lives on the stores' thread."""

    def __init__(self, thread: StoreThread, opened: CallStore, release: Callable[[], None]) -> None:
        self._thread, self._opened = thread, opened
        self._finalizer = weakref.finalize(self, release)
        self._finalizer.atexit = False  # a process that ends lets go of everything

    def set(self, key: str, value: str | bytes) -> None:
        self._run(self._opened.set(key_text(key), value_bytes(key, value)))

    def get(self, key: str) -> bytes:
        return self._run(self._opened.get(key_text(key), timeout=self._seconds))

    def add(self, key: str, amount: int) -> int:
        number = integer(amount, "store.add", "amount")
        if not -(1 << 63) <= number < 1 << 63:
            raise TypeUsageError(f"store.add({key!r}): amount must be an int of 64 bits, not {number}")
        return self._run(self._opened.add(key_text(key), number))

    def check(self, keys: Sequence[str]) -> bool:
        return self._run(self._opened.check(key_list(keys)))

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        expected, desired = value_bytes(key, expected_value), value_bytes(key, desired_value)
        return self._run(self._opened.compare_set(key_text(key), expected, desired))

    def delete_key(self, key: str) -> bool:
        return self._run(self._opened.delete(key_text(key)))

    def num_keys(self) -> int:
        return self._run(self._opened.num_keys())

    def list_keys(self) -> list[str]:
        return [key for key in self._run(self._opened.list()) if key != WORKERS]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        limit = self._seconds if timeout is None else wait_seconds(timeout, "wait")
        self._run(self._opened.wait(key_list(keys), timeout=limit))

    def append(self, key: str, value: str | bytes) -> None:
        self._run(self._opened.append(key_text(key), value_bytes(key, value)))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._run(self._opened.multi_get(key_list(keys), timeout=self._seconds))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        names, given = pairs_of(keys, values)
        self._run(self._opened.multi_set({key: value_bytes(key, each) for key, each in zip(names, given, strict=True)}))

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._run(self._opened.queue_push(key_text(key), value_bytes(key, value)))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        if switch(block, "store.queue_pop", "block"):
            return self._run(self._opened.queue_pop(key_text(key), timeout=self._seconds))
        try:
            return self._run(self._opened.queue_pop(key_text(key), timeout=0))
        except RendezvousTimeoutError as error:
            raise QueueEmptyError(f"{self._opened.where}: queue {key!r} is empty") from error

    def queue_len(self, key: str) -> int:
        return self._run(self._opened.queue_len(key_text(key)))

    def close(self) -> None:
        self._finalizer()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"cannot pickle or copy {self!r}: it is this process's; clone() gives another handle on it")

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        if not self._finalizer.alive:
            call.close()
            raise RendezvousError(f"{self._opened.where}: it is closed")
        try:
            return self._thread.run(call)
        except UsageError as error:
            raise documented(error) from error.__cause__

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._opened!r}>"


class HashStore(Opened):
    """A store within this process, for any of its threads."""

    def __init__(self, _of: store.MemoryStore | None = None) -> None:
        opened = store.MemoryStore() if _of is None else _of
        super().__init__(*kept(opened, opened.close))

    def clone(self) -> HashStore:
        assert isinstance(self._opened, store.MemoryStore)
        twin = HashStore(self._opened.clone())
        twin._seconds = self._seconds
        return twin


class FileStore(Opened):
    """A store in the file ``file_name``, which goes when nobody has it open any more.

    ``world_size`` says how many processes there are; any number may open it.
    """

    def __init__(self, file_name: str, world_size: int = -1) -> None:
        if not isinstance(file_name, str | os.PathLike):
            raise TypeUsageError(f"FileStore: file_name must be a path, got {type(file_name).__name__}")
        self._world_size = integer(world_size, "FileStore", "world_size")
        opened = store.FileStore(file_name)
        super().__init__(*kept(opened, lambda: opened.close(last_removes=True)))

    @property
    def path(self) -> str:
        """The file."""
        assert isinstance(self._opened, store.FileStore)
        return str(self._opened.path)

    def clone(self) -> FileStore:
        twin = FileStore(self.path, self._world_size)
        twin._seconds = self._seconds
        return twin


def kept(opened: CallStore, close: Close) -> tuple[StoreThread, CallStore, Callable[[], None]]:
    """What Opened takes for a store that needs no loop to be opened."""
    thread = enter()
    return thread, opened, lambda: release(thread, close, None)


def release(thread: StoreThread, close: Close, hosted: store.HostedStore | None) -> None:
    """Closes a store whose last user has gone: by hand, or because the collector came by, in whatever thread."""

    def over() -> None:
        if hosted is not None:
            hosted.release()
        thread.leave()

    try:
        closing = thread.begin(close())
    except AiocollError:  # a forked child, or a process that ends
        over()
        return
    if thread.is_current:
        closing.add_done_callback(lambda _: over())
        return
    try:
        closing.result(_CLOSING_SECONDS)
    except (AiocollError, TimeoutError, OSError):
        pass  # a store that cannot be reached any more needs no goodbye
    finally:
        over()
