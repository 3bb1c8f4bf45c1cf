"""Store, TCPStore, FileStore, HashStore, PrefixStore: blocking key/value stores under torch's names.

The rule: a store here is one of ``aiocoll.store`` seen by blocking code, so every operation means what it means there;
queues are on all of them, and what waits too long raises an error that is a TimeoutError and a RuntimeError and names
the key.

- ``base``: Store, what all of them offer; ``opened``: HashStore, FileStore; ``tcp``: TCPStore; ``prefix``: PrefixStore
- ``thread``: the event loop on which they live; ``borrowed``, ``meeting``: the same stores for a world to meet in
"""

from .base import QueueEmptyError, Store
from .meeting import meeting_place
from .opened import FileStore, HashStore
from .prefix import PrefixStore
from .tcp import TCPStore

__all__ = ["FileStore", "HashStore", "PrefixStore", "QueueEmptyError", "Store", "TCPStore", "meeting_place"]
