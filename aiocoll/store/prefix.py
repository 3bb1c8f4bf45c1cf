"""A store seen through a prefix; the rule: the store beneath belongs to whoever opened it, and stays open.

Closing the view only shuts the view; a wait that runs through it ends with the store beneath, or at its deadline.
"""

from __future__ import annotations

from typing import Any

from aiocoll.errors import RendezvousError
from aiocoll.store.base import CallStore, Store


class PrefixStore(CallStore):
    """Every key gets the prefix on its way down and loses it on its way up."""

    def __init__(self, store: Store, text: str) -> None:
        self._store = store
        self._text = text
        self._closed = False
        self.timeout: Any = store.timeout

    def __repr__(self) -> str:
        return f"<PrefixStore {self._text!r} of {self._store!r}>"

    @property
    def where(self) -> str:
        return self._store.where

    async def _call(self, op: str, args: list[Any], timeout: float | None) -> Any:
        if self._closed:
            raise RendezvousError(f"{self.where}: it is closed")
        waits = {} if timeout is None else {"timeout": timeout}
        if op in ("wait", "check", "multi_get"):
            return await getattr(self._store, op)([self._text + key for key in args], **waits)
        if op == "multi_set":
            pairs = zip(args[::2], args[1::2], strict=True)
            return await self._store.multi_set({self._text + key: value for key, value in pairs})
        if op == "num_keys":
            return len(await self._store.list(self._text))
        if op == "list":
            return [key[len(self._text) :] for key in await self._store.list(self._text + args[0])]
        return await getattr(self._store, op)(self._text + args[0], *args[1:], **waits)

    async def close(self) -> None:
        self._closed = True


def prefix(store: Store, text: str) -> PrefixStore:
    """The same store, where every key begins with ``text`` unseen."""
    return PrefixStore(store, text)
