"""Pipes from the runner to its ranks, for those that are told what to do while they run (`aiocoll.notebook`).

Rule: what a rank has not read yet waits here and never blocks the loop. Ranks trust these pipes, as they trust their
own program: nobody but the process that started them holds the other end.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

VARIABLE = "AIOCOLL_ORDERS_FD"


class Orders:
    """The writing ends, by rank; `send` and `close` belong to the loop's thread."""

    def __init__(self) -> None:
        self._pipes: dict[int, int] = {}
        self._unsent: dict[int, bytearray] = {}

    def __repr__(self) -> str:
        unsent = {rank: len(data) for rank, data in self._unsent.items()}
        return f"Orders(ranks={sorted(self._pipes)}, unsent={unsent})"

    def pipe(self, rank: int) -> int:
        """The reading end for a rank that is about to be started; whoever starts it closes our copy."""
        read, self._pipes[rank] = os.pipe()
        os.set_blocking(self._pipes[rank], False)
        return read

    def send(self, loop: asyncio.AbstractEventLoop, rank: int, data: bytes) -> None:
        """Bytes for a rank, in order; nothing for one that is gone."""
        if rank in self._pipes:
            self._unsent.setdefault(rank, bytearray()).extend(data)
            self._write(loop, rank)

    def _write(self, loop: asyncio.AbstractEventLoop, rank: int) -> None:
        fd, unsent = self._pipes[rank], self._unsent[rank]
        try:
            del unsent[: os.write(fd, unsent)]
        except BlockingIOError:
            pass  # the pipe is full: the loop says when there is room
        except OSError:  # it has ended, which its warden tells better
            unsent.clear()
        if unsent:
            loop.add_writer(fd, self._write, loop, rank)
        else:
            del self._unsent[rank]
            loop.remove_writer(fd)

    def close(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """No more orders: the ranks read the end of their pipes."""
        for rank, fd in list(self._pipes.items()):
            if loop is not None and rank in self._unsent:
                loop.remove_writer(fd)
            os.close(fd)
        self._pipes.clear()
        self._unsent.clear()
