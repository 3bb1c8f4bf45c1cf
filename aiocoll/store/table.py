"""What every store operation means, as one plain table; the rule: no I/O, no clock, and a bound on everything held.

`MemoryStore` and `StoreServer` keep a table each, `FileStore` replays a log into one: they cannot disagree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from aiocoll.errors import RendezvousError, UsageError
from aiocoll.store.base import VALUE_BYTES_MAX

KEYS_MAX = 1_000_000
HELD_BYTES_MAX = 256 << 20
ANSWER_BYTES_MAX = 256 << 20
WAITERS_MAX = 100_000

# What a key, a queue or an item costs beside its text, so that a million empty values count too.
_OVERHEAD_BYTES = 100

WAITING = frozenset({"get", "wait", "multi_get", "queue_pop"})
CHANGING = frozenset({"set", "add", "compare_set", "delete", "append", "multi_set", "queue_push", "queue_pop"})


# Control flow between a table and its owner, never an error that anybody sees.
class NotYet(Exception):
    """The operation must wait until ``key`` is there."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class Waiter:
    """An operation that waits; ``done(value)`` is called once, from within the operation that ends the wait."""

    __slots__ = ("alive", "args", "done", "key", "op")
    op: str
    args: Sequence[Any]
    done: Callable[[Any], None]

    def __init__(self, op: str, args: Sequence[Any], done: Callable[[Any], None]) -> None:
        self.op, self.args, self.done = op, args, done
        self.key: str = ""
        self.alive: bool = True


class Table:
    """The data. ``apply`` does one operation now or raises NotYet; ``apply_or_wait`` parks it instead."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._queues: dict[str, deque[bytes]] = {}
        # Every waiter stands under the first key that it misses, and moves on when that one comes.
        self._waiters: dict[str, dict[Waiter, None]] = {}
        self._waiting = 0
        self._held_bytes = 0

    def __repr__(self) -> str:
        return (
            f"<Table {len(self._values)} values, {len(self._queues)} queues, {self._held_bytes} bytes, "
            f"{self._waiting} waiting>"
        )

    @property
    def waiting(self) -> int:
        """How many waiters are parked."""
        return self._waiting

    def apply(self, op: str, args: Sequence[Any]) -> Any:
        """Do one operation with arguments of the right types; NotYet if it must wait, UsageError, RendezvousError."""
        try:
            return self._do(op, args)
        finally:  # also when the store fills up in the middle of a multi_set
            if self._waiters and op in CHANGING:
                for key in args[::2] if op == "multi_set" else args[:1]:
                    self._wake(key)

    def apply_or_wait(self, op: str, args: Sequence[Any], done: Callable[[Any], None]) -> Waiter | None:
        """Do one operation; ``done`` gets the result at once (None comes back) or later (the waiter comes back)."""
        try:
            result = self.apply(op, args)
        except NotYet as missing:
            if self._waiting >= WAITERS_MAX:
                raise RendezvousError(f"store: {WAITERS_MAX} calls wait already, the limit") from None
            waiter = Waiter(op, args, done)
            self._park(waiter, missing.key)
            return waiter
        done(result)
        return None

    def forget(self, waiter: Waiter) -> None:
        """Withdraw a waiter; one that was served already is left alone."""
        if waiter.alive:
            waiter.alive = False
            self._unpark(waiter)

    def give_back(self, key: str, value: bytes) -> None:
        """Return an item to the front of its queue: whoever popped it was gone before it arrived."""
        self._reserve(len(value) + _OVERHEAD_BYTES)
        self._queues.setdefault(key, deque()).appendleft(value)
        self._wake(key)

    def _do(self, op: str, args: Sequence[Any]) -> Any:
        do = getattr(self, "_" + op)
        return do(*args) if op in _FIXED else do(args)

    # -- waiting

    def _park(self, waiter: Waiter, key: str) -> None:
        waiter.key = key
        self._waiters.setdefault(key, {})[waiter] = None
        self._waiting += 1

    def _unpark(self, waiter: Waiter) -> None:
        line = self._waiters[waiter.key]
        del line[waiter]
        self._waiting -= 1
        if not line:
            del self._waiters[waiter.key]

    def _wake(self, key: str) -> None:
        for waiter in list(self._waiters.get(key, ())):
            if not waiter.alive:
                continue
            try:
                result = self._do(waiter.op, waiter.args)
            except NotYet as missing:
                if missing.key != key:
                    self._unpark(waiter)
                    self._park(waiter, missing.key)
                continue
            except UsageError as error:
                result = error
            waiter.alive = False
            self._unpark(waiter)
            waiter.done(result)

    # -- the operations, named as in `base.Store`

    def _set(self, key: str, value: bytes) -> None:
        old = self._values.get(key)
        if old is None:
            self._new_key(key, len(value))
        else:
            self._reserve(len(value) - len(old))
        self._values[key] = value

    def _get(self, key: str) -> bytes:
        value = self._values.get(key)
        if value is None:
            raise NotYet(key)
        return value

    def _add(self, key: str, amount: int) -> int:
        old = self._values.get(key, b"0")
        try:
            total = int(old) + amount if len(old) <= 20 else None
        except ValueError:
            total = None
        if total is None:
            raise UsageError(f"store.add({key!r}): the key holds {old[:32]!r}, which is not a counter")
        if not -(1 << 63) <= total < 1 << 63:
            raise UsageError(f"store.add({key!r}, {amount}): the sum does not fit 64 bits")
        self._set(key, b"%d" % total)
        return total

    def _wait(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key not in self._values and key not in self._queues:
                raise NotYet(key)

    def _check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values or key in self._queues for key in keys)

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        current = self._values.get(key)
        if current == expected or (current is None and not expected):
            self._set(key, desired)
            return desired
        return expected if current is None else current

    def _delete(self, key: str) -> bool:
        value = self._values.pop(key, None)
        queue = self._queues.pop(key, None)
        if value is not None:
            self._held_bytes -= len(value) + self._key_bytes(key)
        if queue is not None:
            self._held_bytes -= sum(map(len, queue)) + len(queue) * _OVERHEAD_BYTES + self._key_bytes(key)
        return value is not None or queue is not None

    def _list(self, prefix: str) -> list[str]:
        return sorted(key for key in self._values.keys() | self._queues.keys() if key.startswith(prefix))

    def _append(self, key: str, value: bytes) -> None:
        old = self._values.get(key, b"")
        if len(old) + len(value) > VALUE_BYTES_MAX:
            raise UsageError(f"store.append({key!r}): the value would grow beyond {VALUE_BYTES_MAX} bytes")
        self._set(key, old + value)

    def _multi_get(self, keys: Sequence[str]) -> list[bytes]:
        values = [self._get(key) for key in keys]
        if sum(map(len, values)) > ANSWER_BYTES_MAX:
            raise UsageError(f"store.multi_get: the values are more than {ANSWER_BYTES_MAX} bytes: ask for fewer keys")
        return values

    def _multi_set(self, pairs: Sequence[Any]) -> None:
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            self._set(key, value)

    def _queue_push(self, key: str, value: bytes) -> None:
        queue = self._queues.get(key)
        if queue is None:
            self._new_key(key, len(value) + _OVERHEAD_BYTES)
            queue = self._queues[key] = deque()
        else:
            self._reserve(len(value) + _OVERHEAD_BYTES)
        queue.append(value)

    def _queue_pop(self, key: str) -> bytes:
        queue = self._queues.get(key)
        if not queue:
            raise NotYet(key)
        value = queue.popleft()
        self._held_bytes -= len(value) + _OVERHEAD_BYTES
        if not queue:
            del self._queues[key]
            self._held_bytes -= self._key_bytes(key)
        return value

    def _queue_len(self, key: str) -> int:
        return len(self._queues.get(key, ()))

    def _num_keys(self) -> int:
        return len(self._values.keys() | self._queues.keys())

    # -- bounds

    @staticmethod
    def _key_bytes(key: str) -> int:
        return len(key) + _OVERHEAD_BYTES

    def _new_key(self, key: str, size: int) -> None:
        if len(self._values) + len(self._queues) >= KEYS_MAX:
            raise RendezvousError(f"store: it holds {KEYS_MAX} keys already, the limit: delete those no longer used")
        self._reserve(size + self._key_bytes(key))

    def _reserve(self, size: int) -> None:
        if size > 0 and self._held_bytes + size > HELD_BYTES_MAX:
            raise RendezvousError(f"store: it is full ({HELD_BYTES_MAX} bytes): delete keys that are no longer used")
        self._held_bytes += size


# Operations that take their arguments one by one; the others take the whole list.
_FIXED = frozenset(
    {"set", "get", "add", "compare_set", "delete", "list", "append", "queue_push", "queue_pop", "queue_len", "num_keys"}
)
OPERATIONS = _FIXED | {"wait", "check", "multi_get", "multi_set"}
