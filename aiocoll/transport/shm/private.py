"""A peer's private memory, read where it lies: one copy instead of two, where the kernel lets one process do that.

Whether it does depends on users, containers and security modules. So each segment names a place in its owner's private
memory that holds the segment's nonce, and whoever makes a link tries to read it, and says in its own segment whether
that gave the nonce.

The rule: an address that comes from a peer is only ever read through the kernel, which answers with an error where
nothing is; and what was read counts only if its owner's connection was still there afterwards.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...buffers import address_of
from .segment import NONCE_AT, NONCE_BYTES, PROOF_AT, Mapped

STEP_BYTES: Final = 1 << 20
"""So much is read in one go where others need the loop."""


class Unreadable(OSError):
    """A peer's private memory could not be read."""


class Ended(Unreadable):
    """It could not, since its process has ended."""


class _Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_uint64), ("nbytes", ctypes.c_uint64))


_Probe: Final = ctypes.c_uint64 * 7
"""Three spans, the first one of which names the last bytes of all: that is where two others are read to."""


class Span(NamedTuple):
    """What is left of a piece in a peer's private memory."""

    address: int
    nbytes: int

    def after(self, nbytes: int) -> Span | None:
        """What is left when so much has been read."""
        return Span(self.address + nbytes, self.nbytes - nbytes) if nbytes < self.nbytes else None


def _find() -> Any:
    """The kernel's call, or None where there is none."""
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (OSError, AttributeError):
        return None
    spans = (ctypes.c_void_p, ctypes.c_ulong)
    call.argtypes, call.restype = (ctypes.c_int, *spans, *spans, ctypes.c_ulong), ctypes.c_ssize_t
    return call


_CALL: Final = _find()


def is_shown(data: NDArray[Any]) -> bool:
    """Whether the kernel lets others read a contiguous array of one byte at least: what NumPy has allocated, and what
    it gives both ends of to this process. It does not give secret memory and much of what devices map."""
    owner = data
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if owner.flags.owndata:
        return True
    if _CALL is None:
        return False
    spans, first = _Probe(), address_of(data)
    at = ctypes.addressof(spans)
    spans[:] = [at + ctypes.sizeof(spans) - 2, 2, first, 1, first + data.nbytes - 1, 1, 0]
    got: int = _CALL(os.getpid(), at, 1, at + ctypes.sizeof(_Span), 2, 0)
    return got == 2


class Private:
    """The private memory of one peer."""

    __slots__ = ("_pid", "_line", "_mine", "_mine_at", "_theirs", "_theirs_at", "refusal")

    def __init__(self, mapped: Mapped, connection: socket.socket, wanted: bool) -> None:
        self._pid, self._mine, self._theirs = mapped.words[PROOF_AT], _Span(), _Span()
        self._mine_at, self._theirs_at = ctypes.addressof(self._mine), ctypes.addressof(self._theirs)
        self._line = select.poll()
        self._line.register(connection, select.POLLRDHUP)
        self.refusal: str = self._probe(mapped) if wanted else "it is switched off"
        """Why it cannot be read; empty if it can."""

    def __repr__(self) -> str:
        return f"<Private memory of process {self._pid}: {self.refusal or 'readable'}>"

    def _probe(self, mapped: Mapped) -> str:
        if _CALL is None:
            return "this system has no process_vm_readv"
        if not 0 < self._pid < 1 << 31:
            return f"process {self._pid}"
        found = np.zeros(NONCE_BYTES, np.uint8)
        try:
            self.read(mapped.words[PROOF_AT + 1], found)
        except Unreadable as error:
            return str(error)
        if found.tobytes() != bytes(mapped.bytes[NONCE_AT : NONCE_AT + NONCE_BYTES]):
            return f"process {self._pid} is another one here"
        return ""

    def read(self, address: int, into: NDArray[Any]) -> None:
        """Fills ``into`` (contiguous) with what lies there; Unreadable if that is not all to be had."""
        mine, theirs = self._mine, self._theirs
        mine.base, theirs.base = address_of(into), address
        mine.nbytes = theirs.nbytes = into.nbytes
        got = _CALL(self._pid, self._mine_at, 1, self._theirs_at, 1, 0)
        number = ctypes.get_errno()
        if self._line.poll(0) or (got < 0 and number == errno.ESRCH):
            raise Ended("its process ended")  # and its number may be another one's by now
        if got != into.nbytes:
            why = os.strerror(number) if got < 0 else f"{got} of {into.nbytes} bytes came"
            raise Unreadable(f"its memory could not be read: {why}")
