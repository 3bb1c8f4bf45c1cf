"""PrefixStore: another store, seen through a prefix.

The rule: it does what the store beneath does, whosever make that is, and never closes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ..refusals import TypeUsageError
from .base import Store, key_list, key_text, pairs_of
from .borrowed import is_documented


class PrefixStore(Store):
    """Another store, where every key begins with ``prefix`` and a slash, unseen."""

    def __init__(self, prefix: str, store: Store) -> None:
        if not isinstance(prefix, str):
            raise TypeUsageError(f"PrefixStore: prefix must be a str, got {type(prefix).__name__}")
        if not is_documented(store):
            raise TypeUsageError(f"PrefixStore: store must be a Store, got {type(store).__name__}")
        self._prefix, self._store = prefix, store

    @property
    def start(self) -> str:
        """With what every key begins in the store beneath."""
        return f"{self._prefix}/"

    @property
    def underlying_store(self) -> Store:
        """The store without the prefix."""
        return self._store

    @property
    def timeout(self) -> timedelta:
        return self._store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(self._key(key), value)

    def get(self, key: str) -> bytes:
        return self._store.get(self._key(key))

    def add(self, key: str, amount: int) -> int:
        return self._store.add(self._key(key), amount)

    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check(self._keys(keys))

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        return self._store.compare_set(self._key(key), expected_value, desired_value)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(self._key(key))

    def num_keys(self) -> int:
        return self._store.num_keys()

    def list_keys(self) -> list[str]:
        start = self.start
        return [key[len(start) :] for key in self._store.list_keys() if key.startswith(start)]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._store.wait(self._keys(keys), *(() if timeout is None else (timeout,)))

    def append(self, key: str, value: str | bytes) -> None:
        self._store.append(self._key(key), value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._store.multi_get(self._keys(keys))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        names, given = pairs_of(keys, values)
        self._store.multi_set(self._keys(names), given)

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._store.queue_push(self._key(key), value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._store.queue_pop(self._key(key), block)

    def queue_len(self, key: str) -> int:
        return self._store.queue_len(self._key(key))

    def has_extended_api(self) -> bool:
        return self._store.has_extended_api()

    def clone(self) -> PrefixStore:
        return PrefixStore(self._prefix, self._store.clone())

    def _key(self, key: str) -> str:
        return self.start + key_text(key)

    def _keys(self, keys: Sequence[str]) -> list[str]:
        return [self._key(key) for key in key_list(keys)]

    def __repr__(self) -> str:
        return f"<PrefixStore {self._prefix!r} of {self._store!r}>"
