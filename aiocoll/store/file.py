"""A store in one file of a shared directory: a log of operations; the rule: under the lock all is seen, all is whole.

Every operation locks the file, replays what others have added, does its work on the table and appends a record:
length, checksum, msgpack. A record that a killed process left half-written is cut off by the next one. Users put their
name into the log, so that the file of a run whose processes are all dead is recognised and begun anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from aiocoll.errors import RendezvousError, UsageError
from aiocoll.observe import emit
from aiocoll.store.base import CallStore
from aiocoll.store.table import CHANGING, OPERATIONS, NotYet, Table
from aiocoll.store.users import is_dead, me

MAGIC = b"aiocoll store 1\n"
FILE_BYTES_MAX = 1 << 30
LOCK_SECONDS_MAX = 30.0
POLL_SECONDS_MIN = 0.01
POLL_SECONDS_MAX = 0.05

_HEAD = struct.Struct("!II")


class FileStore(CallStore):
    """A handle on the file at ``path``, which is made if it is missing; several processes and handles share it.

    RendezvousError at once when the file cannot be opened there or belongs to another user.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path).absolute()
        self._fd = -1
        self._pid = 0
        self._closed = False
        self._open()

    def __repr__(self) -> str:
        return f"<FileStore {self.path}{' closed' if self._closed else ''}, {self._table!r}>"

    @property
    def where(self) -> str:
        return f"store in {self.path}"

    async def _call(self, op: str, args: list[Any], timeout: float | None) -> Any:
        started = time.monotonic()
        pause = POLL_SECONDS_MIN
        while True:
            # What another handle adds is seen by looking. Operations that never wait still wait for the lock.
            locked = self._lock()
            if locked:
                try:
                    return self._do(op, args)
                except NotYet:
                    pass  # looks again, after a pause
                finally:
                    self._unlock()
            elapsed = time.monotonic() - started
            if locked and timeout is not None and elapsed >= timeout:
                raise self._late(op, args, elapsed)
            if not locked and elapsed > LOCK_SECONDS_MAX:
                raise RendezvousError(
                    f"{self.where}: another process has held the file's lock for {elapsed:.0f} s: is one stopped?"
                )
            await asyncio.sleep(pause if timeout is None else max(0.001, min(pause, timeout - elapsed)))
            pause = min(pause * 1.2, POLL_SECONDS_MAX)

    async def users(self) -> list[dict[str, Any]]:
        """The processes that have opened the file and not closed it, dead ones included."""
        await self.num_keys()
        return list(self._users.values())

    async def close(self, *, last_removes: bool = False) -> None:
        """Let go; with ``last_removes`` the file goes too if nobody alive has it open any more."""
        if self._closed:
            return
        if os.getpid() != self._pid:
            self._shut()
            return
        started = time.monotonic()
        while not self._closed and time.monotonic() - started < LOCK_SECONDS_MAX:
            try:
                locked = self._lock()
            except RendezvousError:
                break  # removed or unreadable: there is nobody to tell
            if locked:
                try:
                    with contextlib.suppress(OSError, RendezvousError):  # nobody is left to tell
                        self._catch_up()
                        if self._name:
                            self._write(["left", self._name])
                        if last_removes and all(is_dead(u) for name, u in self._users.items() if name != self._name):
                            self._unlink()  # under the lock: who opens it in this moment follows the name
                finally:
                    self._unlock()
                break
            await asyncio.sleep(POLL_SECONDS_MIN)
        self._shut()

    async def remove(self) -> None:
        """Close, and delete the file: later openers begin a new one, those that have it open get RendezvousError."""
        await self.close()
        self._unlink()

    def _unlink(self) -> None:
        # Only the file that this handle used: a new run may have begun its own under the same name.
        with contextlib.suppress(OSError):  # somebody else has removed it
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)

    # -- opening

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise RendezvousError(f"{self.where}: the file cannot be opened: {error.strerror}") from error
        status = os.fstat(self._fd)
        if status.st_uid != os.geteuid():
            os.close(self._fd)
            raise RendezvousError(
                f"{self.where}: the file belongs to user {status.st_uid}, not to this one: use another path"
            )
        self._pid = os.getpid()
        self._inode = status.st_ino
        self._name = ""
        self._forget()

    def _forget(self) -> None:
        self._table = Table()
        self._users: dict[str, dict[str, Any]] = {}
        self._seen = 0

    def _shut(self) -> None:
        self._closed = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self) -> bool:
        """Try to lock; False when another has it. Follows the name when the file was replaced before its first use."""
        if self._closed:
            raise RendezvousError(f"{self.where}: it is closed")
        if os.getpid() != self._pid:
            # A forked child shares the parent's lock, which would exclude nobody: it needs its own description.
            os.close(self._fd)
            self._open()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise RendezvousError(
                f"{self.where}: the file cannot be locked: {error.strerror}; use a file system that has locks"
            ) from error
        if os.fstat(self._fd).st_nlink == 0:
            self._unlock()
            if self._name:
                raise RendezvousError(f"{self.where}: the file was removed while in use: its job is over")
            os.close(self._fd)
            self._open()
            return False
        return True

    def _unlock(self) -> None:
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    # -- under the lock

    def _do(self, op: str, args: list[Any]) -> Any:
        self._catch_up()
        if not self._name:
            self._enter()
        if op in CHANGING and self._seen > FILE_BYTES_MAX:
            raise RendezvousError(f"{self.where}: the file has reached {FILE_BYTES_MAX} bytes: begin with a new one")
        before = self._seen
        try:
            result = self._table.apply(op, args)
            if op in CHANGING:
                self._write([op, *args])
        except (UsageError, RendezvousError):
            if op == "multi_set":
                self._forget()  # it may have been half done, which no log says
            raise
        except OSError as error:
            # The table is ahead of the file now: read it anew, next time, from the start.
            self._cut(before)
            self._forget()
            raise RendezvousError(f"{self.where}: the file cannot be written: {error.strerror}") from error
        return result

    def _enter(self) -> None:
        """Begin the log, or begin it anew when everybody who used it is dead, and put our name into it."""
        dead = {name: user for name, user in self._users.items() if is_dead(user)}
        if dead and len(dead) == len(self._users):
            emit("store.stale", path=str(self.path), users=list(dead))
            self._cut(0)
            self._forget()
        if self._seen == 0:
            os.write(self._fd, MAGIC)
            self._seen = len(MAGIC)
        user = me()
        name = f"{user['host']}:{user['pid']}:{os.urandom(4).hex()}"
        self._write(["user", name, user])
        self._users[name] = user
        self._name = name

    def _catch_up(self) -> None:
        """Replay what others have appended; what a killed writer left incomplete is cut off."""
        size = os.fstat(self._fd).st_size
        if size < self._seen:
            raise RendezvousError(
                f"{self.where}: the file was begun anew by another run while in use: use another path"
            )
        if size == self._seen:
            return
        if self._seen == 0:
            magic = os.pread(self._fd, len(MAGIC), 0)
            if size < len(MAGIC) and MAGIC.startswith(magic):
                self._cut(0)
                return
            if magic != MAGIC or size > 2 * FILE_BYTES_MAX:
                raise RendezvousError(f"{self.where}: the file is no aiocoll store (it begins with {magic!r})")
            self._seen = len(MAGIC)
        data = os.pread(self._fd, size - self._seen, self._seen)
        for record, length in self._records(data):
            self._replay(record)
            self._seen += length
        if self._seen < size:
            self._cut(self._seen)

    def _records(self, data: bytes) -> Iterator[tuple[list[Any], int]]:
        start = 0
        while start + _HEAD.size <= len(data):
            length, checksum = _HEAD.unpack_from(data, start)
            end = start + _HEAD.size + length
            if end > len(data):
                return
            payload = data[start + _HEAD.size : end]
            if zlib.crc32(payload) != checksum:
                raise RendezvousError(f"{self.where}: the file is damaged at byte {self._seen}: delete it")
            try:
                record = msgpack.unpackb(payload, raw=False, use_list=True, max_ext_len=0)
            except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
                raise RendezvousError(f"{self.where}: the file is damaged at byte {self._seen}: delete it") from error
            yield record, end - start
            start = end

    def _replay(self, record: Any) -> None:
        try:
            op, *args = record
            if op == "user":
                self._users[args[0]] = args[1]
            elif op == "left":
                self._users.pop(args[0], None)
            elif op in OPERATIONS:
                self._table.apply(op, args)
            else:
                raise ValueError(op)
        except (ValueError, TypeError, IndexError, NotYet, UsageError) as error:
            raise RendezvousError(f"{self.where}: the file is damaged at byte {self._seen}: delete it") from error

    def _write(self, record: list[Any]) -> None:
        payload = msgpack.packb(record, use_bin_type=True)
        data = _HEAD.pack(len(payload), zlib.crc32(payload)) + payload
        written = 0
        while written < len(data):
            written += os.write(self._fd, data[written:])
        self._seen += len(data)

    def _cut(self, size: int) -> None:
        with contextlib.suppress(OSError):  # readers take a half record for one that is still being written
            os.ftruncate(self._fd, size)
