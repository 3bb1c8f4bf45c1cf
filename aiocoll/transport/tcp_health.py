"""Whether the host at the other end of a TCP connection is still there, asked of this host's kernel.

The rule: only silence that should have been broken counts. A process that computes, or is stopped, is not lost: its
kernel goes on answering, also while its window is shut. So TCP_USER_TIMEOUT is not used, which counts a shut window as
silence and would end the connection to a rank that computes for longer than that while data for it queue up.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

LOST_SECONDS: Final = 10.0
_LOST_ERRORS: Final = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
_LOOKS: Final = 20
"""How often in the time after which a host is lost the kernel is asked."""
_SLACK: Final = 0.9
"""What part of that time may pass in silence, so that with the looks it is not exceeded."""
_PROBES: Final = 3
_KEEPALIVE_SECONDS_MAX: Final = 32767
_TCP_RTO_MAX_MS: Final = 44  # Linux 6.15; no constant of it in the socket module yet
_RTO_MAX_MS: Final = 1000, 120_000
_TCP_INFO: Final = struct.Struct("8B24I")  # the beginning of Linux's struct tcp_info
_RETRANSMITS, _PROBES_OUT, _LAST_DATA_RECEIVED, _LAST_ACK_RECEIVED = 2, 3, 19, 20
_SYN_SENT: Final = 2
_IS_LINUX: Final = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class Silence:
    """For how long nothing has come from the other host, and whether it was asked meanwhile, in vain so far."""

    seconds: float
    unanswered: bool


def silence(connection: socket.socket) -> Silence | None:
    """What the kernel knows; None where it does not tell."""
    if not _IS_LINUX:
        return None
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        info = _TCP_INFO.unpack(raw)
    except (OSError, struct.error):
        return None
    heard = min(info[_LAST_DATA_RECEIVED], info[_LAST_ACK_RECEIVED]) / 1e3
    return Silence(heard, info[_RETRANSMITS] > 0 or info[_PROBES_OUT] > 0)


def is_dialling(connection: socket.socket) -> bool:
    """Whether the other host has not answered at all yet (True where the kernel does not tell)."""
    if not _IS_LINUX:
        return True
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _SYN_SENT
    except OSError:
        return False


def tune(connection: socket.socket, lost_seconds: float) -> None:
    """No delay for small frames, and questions to a host that is silent, so that its silence means something.

    An idle connection asks after 0.3 of ``lost_seconds`` and then every fifth of it; data that nobody acknowledges, and
    a window that stays shut, are asked about at least as often where the kernel allows that (Linux 6.15).
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = min(lost_seconds, _KEEPALIVE_SECONDS_MAX)
    idle, interval = max(int(0.3 * seconds), 1), max(int(0.2 * seconds), 1)
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", _PROBES)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if _IS_LINUX:
        least, most = _RTO_MAX_MS
        try:
            value = int(min(max(0.3e3 * seconds, least), most))
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, value)
        except OSError:
            pass  # an older kernel: a host lost while its window is shut is noticed at the next probe, within 2 minutes


def says_lost(error: OSError) -> bool:
    """Whether an error of a connection says that the host is gone, rather than the process on it."""
    return error.errno in _LOST_ERRORS


def no_answer(code: int) -> str:
    """Why a rank is given up whose host or network is gone."""
    return f"its host does not answer ({os.strerror(code)}): it is down, or the network between is"


class Watched(Protocol):
    """A link, or an attempt to make one, as whoever watches it sees it."""

    @property
    def connection(self) -> socket.socket | None: ...

    def silent(self, reason: str) -> None:
        """The other host is given up."""


class Watch:
    """Looks at the connections of one rank from time to time, as long as there are any."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, lost_seconds: float, watched: Callable[[], Iterable[Watched]]
    ) -> None:
        self._loop, self._watched = loop, watched
        self._limit = _SLACK * lost_seconds
        self._pause = max(lost_seconds / _LOOKS, 0.05)
        self._doubted: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Watch: lost after {self._limit:g} s of silence, {len(self._doubted)} in doubt>"

    def begin(self) -> None:
        """There is something to watch."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._pause, self._look)

    def doubts(self, watched: Watched) -> bool:
        """Whether the other host has been asked lately and has not answered: what ends such a connection says little
        about the process there."""
        connection = watched.connection
        heard = None if connection is None else silence(connection)
        return watched in self._doubted or (heard is not None and heard.unanswered)

    def _look(self) -> None:
        self._timer = None
        before, self._doubted = self._doubted, set()
        anybody = False
        for each in list(self._watched()):
            connection = each.connection
            heard = None if connection is None else silence(connection)
            anybody = anybody or connection is not None
            if heard is None or not heard.unanswered or heard.seconds < self._limit / 2:
                continue
            self._doubted.add(each)
            # Twice in doubt: a host that was stopped as a whole, this one say, is asked once more after it wakes.
            if each in before and heard.seconds >= self._limit:
                each.silent(f"nothing has come from its host for {heard.seconds:.1f} s, though it was asked: it is "
                            "down, or the network between is")  # fmt: skip
        if anybody:
            self.begin()

    def end(self) -> None:
        """Looks no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._doubted.clear()
