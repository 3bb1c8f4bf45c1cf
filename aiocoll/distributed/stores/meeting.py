"""Stores as places to meet: what ``init_process_group(store=)`` takes.

The rule: whatever kind of store is given, a world sees one of ``aiocoll.store``.
"""

from __future__ import annotations

from typing import Any

from ...store.prefix import prefix
from ..refusals import TypeUsageError
from .borrowed import InThreads, OnThread, is_documented
from .opened import Opened
from .prefix import PrefixStore


def meeting_place(store: Any) -> Any:
    """What ``connect(store=)`` takes for a store of either kind; TypeError for what is none."""
    if isinstance(store, PrefixStore):
        return prefix(meeting_place(store.underlying_store), store.start)
    if isinstance(store, Opened):
        return OnThread(store, store._opened, store._thread)
    if is_documented(store):
        return InThreads(store)
    if not hasattr(store, "compare_set"):
        raise TypeUsageError(
            f"store={store!r} is no store: give one of aiocoll.distributed (TCPStore, FileStore, HashStore, "
            "PrefixStore) or of aiocoll.store"
        )
    return store
