"""Sockets are not for forked children: as long as one holds a copy, the peer does not learn that the rank ended.

The rule: a child only lets go of its copies; what the parent has, and what its event loop watches, stays as it is.
"""

from __future__ import annotations

import os
import socket
from typing import Final
from weakref import WeakSet

_connections: Final[WeakSet[socket.socket]] = WeakSet()


def not_for_children(connection: socket.socket) -> None:
    """A child that is forked from now on closes its copy of ``connection``."""
    _connections.add(connection)


def _let_go() -> None:
    for connection in list(_connections):
        if connection.fileno() >= 0:
            os.close(connection.detach())
    _connections.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
