"""Payloads that a peer reads where they lie: which arenas it has been given, and which were given to us.

A reference is one number: arena and offset. The arena's descriptor goes over the pair's connection before the first
reference to it is posted, so whoever meets an unknown arena finds it there without waiting.

The rule: nothing here waits, and a payload that cannot be lent just now is copied instead.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...errors import WireError
from .arena import Arena
from .heap import Heap
from .peer_heap import PeerHeap
from .slot import OFFSET_BITS

_NOTE: Final = struct.Struct("<QQ")
"""What comes with a descriptor: the arena's number and size."""
_OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1


class Loans:
    """Between one rank's heap and its peers'; in the thread of the loop."""

    __slots__ = ("_heap", "_peers")

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._peers: dict[int, PeerHeap] = {}

    def __repr__(self) -> str:
        return f"<Loans out of {self._heap}; {self._peers}>"

    def place_of(self, payload: Any, peer: int, connection: socket.socket) -> int | None:
        """The reference by which ``peer`` finds ``payload`` (contiguous, and kept until it was read); None: copy it."""
        found = self._heap.find(payload)
        if found is None:
            return None
        arena, offset = found
        if peer not in arena.known_to and not _give(arena, connection):
            return None
        arena.known_to.add(peer)
        return arena.id << OFFSET_BITS | offset

    def view(self, place: int, nbytes: int, peer: int, connection: socket.socket) -> NDArray[np.uint8]:
        """What a reference of ``peer`` names, not writable. WireError if it names nothing."""
        number = place >> OFFSET_BITS
        heap = self._peers.get(peer)
        while heap is None or number not in heap:
            try:
                more = self.hear(peer, connection)
            except BlockingIOError:
                more = False
            if not more:
                raise WireError(f"a reference into arena {number}, which never came")
            heap = self._peers.get(peer)
        return heap.view(number, place & _OFFSET_MASK, nbytes)

    def hear(self, peer: int, connection: socket.socket) -> bool:
        """Takes one arena that ``peer`` sent; False at the end of the connection. BlockingIOError if there is nothing,
        other OSErrors if the connection failed or no descriptor is left; WireError if something else came."""
        data, files, flags, _ = socket.recv_fds(connection, _NOTE.size, 1, socket.MSG_CMSG_CLOEXEC)
        if not data and not files:
            return False
        if len(data) != _NOTE.size or len(files) != 1:
            for fd in files:
                os.close(fd)
            if flags & socket.MSG_CTRUNC and not files:
                raise OSError("the descriptor of its arrays' memory could not be taken: this process has too many open")
            raise WireError(f"{len(data)} bytes and {len(files)} descriptors came on a connection for arenas")
        number, nbytes = _NOTE.unpack(data)
        self._peers.setdefault(peer, PeerHeap()).add(number, files[0], nbytes)
        return True

    def forget(self, peer: int) -> None:
        """The link to ``peer`` has ended."""
        self._heap.forget(peer)
        heap = self._peers.pop(peer, None)
        if heap is not None:
            heap.close()

    def close(self) -> None:
        """Forgets all peers; what is being read stays readable. The heap is its owner's to close."""
        for peer in list(self._peers):
            self.forget(peer)


def _give(arena: Arena, connection: socket.socket) -> bool:
    """Sends an arena to a peer; False if that must be tried again some other time."""
    try:
        return socket.send_fds(connection, [_NOTE.pack(arena.id, arena.nbytes)], [arena.fd]) == _NOTE.size
    except OSError:  # full, or gone (which is noticed elsewhere), or too many descriptors under way
        return False
