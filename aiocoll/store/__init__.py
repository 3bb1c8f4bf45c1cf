"""Stores: the key/value tables by which ranks find each other; any of them serves, and `prefix` decorates any of them.

One file per kind: ``memory`` (one process), ``file`` (one shared directory), ``tcp`` (a server); ``base`` is the contract.
"""

from aiocoll.store.base import Store

__all__ = ["Store"]
