"""QuietLoop: the event loop of a driver.

The rule: a forked child cannot disturb its parent's.
"""

from __future__ import annotations

import asyncio
import os
import socket

from ..transport.forked import not_for_children


class QuietLoop(asyncio.SelectorEventLoop):
    """An event loop that a forked child leaves alone.

    Closing a copy would take the parent's descriptors out of the epoll set that both processes share.
    """

    _ssock: socket.socket
    _csock: socket.socket

    _home: int = 0

    def __init__(self) -> None:
        super().__init__()
        try:
            self._home = os.getpid()
            for wakes in (self._ssock, self._csock):
                not_for_children(wakes)
        except BaseException:  # Ctrl-C
            super().close()
            raise

    def close(self) -> None:
        if os.getpid() == self._home:
            super().close()

    def __del__(self) -> None:
        if os.getpid() == self._home:
            super().__del__()
