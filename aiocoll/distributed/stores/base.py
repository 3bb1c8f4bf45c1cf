"""What every blocking store offers, and how its arguments are judged.

The rule: a method here is said in terms of others, or says that a program's own store lacks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from ...errors import RendezvousError, RendezvousTimeoutError
from ..arguments import integer
from ..refusals import RuntimeUsageError, TypeUsageError


class QueueEmptyError(RendezvousError):
    """``queue_pop(key, block=False)`` found nothing."""


class Store:
    """What every store offers. A program's own store is a subclass with methods of its own."""

    _seconds = 300.0

    @property
    def timeout(self) -> timedelta:
        """How long ``get``, ``wait`` and their kin wait unless they are told otherwise."""
        return timedelta(seconds=self._seconds)

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets that."""
        self._seconds = wait_seconds(timeout, "set_timeout")

    def set(self, key: str, value: str | bytes) -> None:
        """Puts a value, whatever was there."""
        raise self._lacks("set")

    def get(self, key: str) -> bytes:
        """The value, waiting until somebody has set it."""
        raise self._lacks("get")

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter that starts at 0; the new value."""
        raise self._lacks("add")

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there now."""
        raise self._lacks("check")

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Puts the desired value if the expected one is there (or nothing, and "" is expected); what is there now."""
        raise self._lacks("compare_set")

    def delete_key(self, key: str) -> bool:
        """Removes a key; whether it was there."""
        raise self._lacks("delete_key")

    def num_keys(self) -> int:
        """How many keys there are; of a TCPStore one more, by which its workers are counted."""
        raise self._lacks("num_keys")

    def list_keys(self) -> list[str]:
        """All keys."""
        raise self._lacks("list_keys")

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Returns once all keys are there."""
        raise self._lacks("wait")

    def append(self, key: str, value: str | bytes) -> None:
        """Lengthens a value, which starts empty."""
        raise self._lacks("append")

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values in the order of the keys, waiting until all are set."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Puts several values."""
        for key, value in zip(*pairs_of(keys, values), strict=True):
            self.set(key, value)

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Adds to the end of a queue."""
        raise self._lacks("queue_push")

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes from the front of a queue, waiting until there is something; QueueEmptyError if not to ``block``."""
        raise self._lacks("queue_pop")

    def queue_len(self, key: str) -> int:
        """How many items wait in a queue."""
        raise self._lacks("queue_len")

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Blocks until ``world_size`` workers have called it; the same key serves again and again."""
        size = integer(world_size, "store.barrier", "world_size")
        if size < 1:
            raise RuntimeUsageError(f"store.barrier({key!r}): world_size={size}: at least one worker comes")
        members = f"{key}/num_members"
        number = self.add(members, 1)
        last = f"{key}/last_member/{(number - 1) // size}"
        if number % size == 0:
            self.set(last, "1")
        try:
            self.wait([last], timeout)
        except RendezvousTimeoutError as error:
            came = self._withdraw(members, (number - 1) // size * size, size)
            if came == size:
                return  # the last one has come in this very moment
            raise RendezvousTimeoutError(f"store.barrier({key!r}): {came} of {size} workers came: {error}") from error

    def _withdraw(self, members: str, before: int, size: int) -> int:
        """Takes this worker's arrival back, unless all have come; how many had come."""
        while True:
            here = self.add(members, 0)
            if here - before >= size or self.compare_set(members, str(here), str(here - 1)) == str(here - 1).encode():
                return min(here - before, size)

    def has_extended_api(self) -> bool:
        """Whether append, multi_get and multi_set are there."""
        return True

    def clone(self) -> Store:
        """Another handle on the same data."""
        raise self._lacks("clone")

    def close(self) -> None:
        """Lets go of it; again: nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def _lacks(self, method: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} has no method {method}()")


def value_bytes(key: str, value: Any) -> bytes:
    """A value as bytes; text is UTF-8."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise RuntimeUsageError(f"store: the value of {key!r} is not valid Unicode text: {error}") from error
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeUsageError(f"store: the value of {key!r} must be str or bytes, got {type(value).__name__}")


def key_text(key: Any) -> str:
    """A key; bytes are the text that they encode, as torch has it, and what is neither is refused."""
    if isinstance(key, bytes):
        try:
            return key.decode()
        except UnicodeDecodeError as error:
            raise RuntimeUsageError(f"store: the key {key!r} is not valid UTF-8: {error}") from error
    if not isinstance(key, str):
        raise TypeUsageError(f"store: a key must be str, got {type(key).__name__}")
    return key


def key_list(keys: Any) -> list[str]:
    """Keys as a list; one str is taken for a mistake."""
    if isinstance(keys, str | bytes) or not hasattr(keys, "__iter__"):
        raise TypeUsageError(f"store: keys must be a list of str, got {type(keys).__name__}")
    return [key_text(key) for key in keys]


def pairs_of(keys: Any, values: Any) -> tuple[list[str], list[Any]]:
    """As many values as keys."""
    names, given = key_list(keys), list(values)
    if len(names) != len(given):
        raise RuntimeUsageError(f"store.multi_set: {len(names)} keys and {len(given)} values: one value for each key")
    return names, given


def wait_seconds(timeout: Any, what: str) -> float:
    """A store's timeout in seconds, which may be 0."""
    if isinstance(timeout, bool) or not isinstance(timeout, timedelta | int | float):
        raise TypeUsageError(f"{what}: timeout must be a datetime.timedelta or seconds, got {type(timeout).__name__}")
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if not limit >= 0:
        raise RuntimeUsageError(f"{what}: timeout={timeout!r} must not be negative")
    return limit
