"""What a store is: a small key/value table by which ranks find each other; the rule: every wait has a deadline.

Keys are text of at most 512 bytes in UTF-8, values bytes of at most 1 MiB: a store is for addresses, not for arrays.
A queue that is not empty counts as a key: `check`, `wait`, `list`, `num_keys` and `delete` see it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from aiocoll.errors import RendezvousTimeoutError, UsageError

KEY_BYTES_MAX = 512
VALUE_BYTES_MAX = 1 << 20
KEYS_PER_CALL_MAX = 65536
TIMEOUT_SECONDS = 300.0

Bytes = bytes | bytearray | memoryview
# Inside the classes below, `list` is a method.
Keys = list[str]
Values = list[bytes]
Args = list[Any]


@runtime_checkable
class Store(Protocol):
    """The interface. ``where`` names it in messages; ``timeout`` (seconds) holds for waits that give none.

    Every method raises UsageError for a key, value or timeout out of bounds (before anything is sent), and
    RendezvousError when the store is closed, full or gone. Those that wait raise RendezvousTimeoutError when late;
    cancelling them withdraws them.
    """

    timeout: float

    @property
    def where(self) -> str: ...

    async def set(self, key: str, value: Bytes) -> None:
        """Put a value, whatever was there."""

    async def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """The value, waiting until somebody has set it."""

    async def add(self, key: str, amount: int = 1) -> int:
        """Add to a decimal counter that starts at 0; the new value. UsageError if the key holds something else."""

    async def wait(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        """Return once all keys exist."""

    async def check(self, keys: Iterable[str]) -> bool:
        """Whether all keys exist now."""

    async def compare_set(self, key: str, expected: Bytes, desired: Bytes) -> bytes:
        """Put ``desired`` if the value is ``expected``, or missing and ``expected`` empty; the value now there.

        A key that is missing when it should not be stays so, and ``expected`` comes back (as in torch).
        """

    async def delete(self, key: str) -> bool:
        """Remove a value and a queue of that name; whether there was one."""

    async def list(self, prefix: str = "") -> Keys:
        """The keys that begin so, sorted."""

    async def append(self, key: str, value: Bytes) -> None:
        """Lengthen a value, which starts empty."""

    async def multi_get(self, keys: Iterable[str], *, timeout: float | None = None) -> Values:
        """The values in order of the keys, waiting until all are set."""

    async def multi_set(self, items: Mapping[str, Bytes]) -> None:
        """Put several values."""

    async def queue_push(self, key: str, value: Bytes) -> None:
        """Add to the end of a queue."""

    async def queue_pop(self, key: str, *, timeout: float | None = None) -> bytes:
        """Take from the front of a queue, waiting until there is something; each item goes to one taker."""

    async def queue_len(self, key: str) -> int:
        """How many items wait in a queue."""

    async def num_keys(self) -> int:
        """How many keys there are."""

    async def close(self) -> None:
        """Let go: pending waits raise RendezvousError, nothing stays open; closing again does nothing."""


class CallStore(ABC):
    """A Store whose methods all check their arguments here and end in one `_call(operation, arguments, timeout)`."""

    timeout: float = TIMEOUT_SECONDS

    @property
    @abstractmethod
    def where(self) -> str: ...

    @abstractmethod
    async def _call(self, op: str, args: Args, timeout: float | None) -> Any:
        """Do one operation of `table.Table`; ``timeout`` is None for those that never wait, else seconds."""

    @abstractmethod
    async def close(self) -> None: ...

    async def set(self, key: str, value: Bytes) -> None:
        await self._call("set", [check_key(key), check_value(key, value)], None)

    async def get(self, key: str, *, timeout: float | None = None) -> bytes:
        value: bytes = await self._call("get", [check_key(key)], self._seconds(timeout))
        return value

    async def add(self, key: str, amount: int = 1) -> int:
        if isinstance(amount, bool) or not isinstance(amount, int) or not -(1 << 63) <= amount < 1 << 63:
            raise UsageError(f"store.add({key!r}): amount must be an int of at most 64 bits, not {amount!r}")
        total: int = await self._call("add", [check_key(key), amount], None)
        return total

    async def wait(self, keys: Iterable[str], *, timeout: float | None = None) -> None:
        await self._call("wait", check_keys(keys), self._seconds(timeout))

    async def check(self, keys: Iterable[str]) -> bool:
        there: bool = await self._call("check", check_keys(keys), None)
        return there

    async def compare_set(self, key: str, expected: Bytes, desired: Bytes) -> bytes:
        args = [check_key(key), check_value(key, expected), check_value(key, desired)]
        value: bytes = await self._call("compare_set", args, None)
        return value

    async def delete(self, key: str) -> bool:
        existed: bool = await self._call("delete", [check_key(key)], None)
        return existed

    async def list(self, prefix: str = "") -> Keys:
        keys: Keys = await self._call("list", [check_key(prefix)], None)
        return keys

    async def append(self, key: str, value: Bytes) -> None:
        await self._call("append", [check_key(key), check_value(key, value)], None)

    async def multi_get(self, keys: Iterable[str], *, timeout: float | None = None) -> Values:
        values: Values = await self._call("multi_get", check_keys(keys), self._seconds(timeout))
        return values

    async def multi_set(self, items: Mapping[str, Bytes]) -> None:
        args: Args = []
        for key in check_keys(items):
            args += [key, check_value(key, items[key])]
        await self._call("multi_set", args, None)

    async def queue_push(self, key: str, value: Bytes) -> None:
        await self._call("queue_push", [check_key(key), check_value(key, value)], None)

    async def queue_pop(self, key: str, *, timeout: float | None = None) -> bytes:
        value: bytes = await self._call("queue_pop", [check_key(key)], self._seconds(timeout))
        return value

    async def queue_len(self, key: str) -> int:
        length: int = await self._call("queue_len", [check_key(key)], None)
        return length

    async def num_keys(self) -> int:
        count: int = await self._call("num_keys", [], None)
        return count

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _seconds(self, timeout: float | None) -> float:
        return check_timeout(self.timeout if timeout is None else timeout)

    def _late(self, op: str, args: Iterable[Any], elapsed: float, note: str = "") -> RendezvousTimeoutError:
        """The error of a wait that took too long."""
        keys = list(args)
        shown = ", ".join(repr(key) for key in keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
        what = "nobody has set" if len(keys) == 1 else "nobody has set all of"
        if op == "queue_pop":
            what = "nothing was pushed to queue"
        return RendezvousTimeoutError(f"{self.where}: {what} {shown} within {elapsed:.1f} s{note}")


class StoreTypeError(UsageError, TypeError):
    """A key of the wrong type."""


def check_key(key: str) -> str:
    """The key itself, or UsageError."""
    if not isinstance(key, str):
        raise StoreTypeError(f"store: a key must be str, not {type(key).__name__}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"store: key {key!r} is not valid Unicode text") from error
    if size > KEY_BYTES_MAX:
        raise UsageError(f"store: key {key[:40]!r}... has {size} bytes, the limit is {KEY_BYTES_MAX}")
    return key


def check_keys(keys: Iterable[str]) -> list[str]:
    """The keys as a list, or UsageError; one str is taken for a mistake, not for its letters."""
    if isinstance(keys, str | bytes):
        raise StoreTypeError(f"store: keys must be a list of str, not the one {type(keys).__name__} {keys!r}")
    checked = [check_key(key) for key in keys]
    if len(checked) > KEYS_PER_CALL_MAX:
        raise UsageError(f"store: {len(checked)} keys in one call, the limit is {KEYS_PER_CALL_MAX}")
    return checked


def check_value(key: str, value: Bytes) -> bytes:
    """The value as bytes, or UsageError."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise UsageError(f"store: the value of {key!r} must be bytes, not {type(value).__name__}: encode it first")
    size = value.nbytes if isinstance(value, memoryview) else len(value)
    if size > VALUE_BYTES_MAX:
        raise UsageError(
            f"store: the value of {key!r} has {size} bytes, the limit is {VALUE_BYTES_MAX}: send arrays between ranks"
        )
    return bytes(value)


def check_timeout(timeout: float) -> float:
    """Seconds, math.inf for no limit, or UsageError."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout) or timeout < 0:
        raise UsageError(f"store: timeout must be a number of seconds >= 0 (math.inf for none), not {timeout!r}")
    return float(timeout)
