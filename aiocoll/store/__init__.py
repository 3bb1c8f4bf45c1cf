"""Stores: the key/value tables by which ranks find each other; any of them serves, and `prefix` decorates any of them.

One file per kind: ``memory`` (one process), ``file`` (one shared directory), ``tcp`` (a server, which ``server`` is
and ``hosted`` runs in a thread); ``base`` is the contract, ``table`` what every operation means.
"""

from aiocoll.store.base import Store
from aiocoll.store.file import FileStore
from aiocoll.store.hosted import HostedStore, host_store
from aiocoll.store.memory import MemoryStore
from aiocoll.store.prefix import PrefixStore, prefix
from aiocoll.store.server import StoreServer
from aiocoll.store.tcp import TCPStore

__all__ = [
    "FileStore",
    "HostedStore",
    "MemoryStore",
    "PrefixStore",
    "Store",
    "StoreServer",
    "TCPStore",
    "host_store",
    "prefix",
]
