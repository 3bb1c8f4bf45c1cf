"""Who keeps a connection open: the groups that connect, shrink and grow gave are its owners.

The rule: a connection is closed with the last of its owners, and what all of them share (the store) with the last
connection that grew out of one connect(). A group that another one followed may be dropped without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import re
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ..endpoint import Endpoint
    from .carrier import Carrier
    from .group import Group
    from .growing import Admission

Shut = Callable[[], Awaitable[None]]
_PILED_UP_MAX: Final = 2
"""Where more connections than these are open and one more comes, the collector is asked about them first."""


class Lineage:
    """Everything that grew out of one connect(): its connections, the groups that own them, and what outlives each."""

    loop: asyncio.AbstractEventLoop
    admission: Admission | None

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, end: Shut | None = None, admission: Admission | None = None
    ) -> None:
        self.loop, self.admission = loop, admission
        self.over: bool = False
        """Whether nothing of it is open any more."""
        self.kept: Group | None = None
        """The first group, or what followed it last, for an ``async with`` that closes it whoever has dropped it."""
        self.carrier: Carrier | None = None
        """The library that moves the arrays of all these groups, where it is not aiocoll itself."""
        self._end = end
        self._count = itertools.count()
        self._connections: weakref.WeakValueDictionary[int, Connection] = weakref.WeakValueDictionary()
        self._owners: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()
        self._open = 0
        self._tasks: set[asyncio.Task[Any]] = set()  # a loop holds its tasks only weakly

    def __repr__(self) -> str:
        return f"<Lineage of {self._open} connections and {len(self._owners)} owners>"

    def opened(self, connection: Connection) -> None:
        """One more connection."""
        if self._open > _PILED_UP_MAX:
            # Whoever drops a group after an error leaves it to the collector, since the error's frames hold it; and
            # the collector knows nothing of descriptors and shared memory.
            gc.collect()
        self._open += 1
        self._connections[next(self._count)] = connection

    def owned_by(self, group: Group) -> None:
        """``group`` is one of those that keep a connection open."""
        self._owners[next(self._count)] = group

    def owners(self) -> list[Group]:
        """Those that are not closed, the oldest first."""
        return [group for _, group in sorted(self._owners.items()) if not group.closed]

    def endpoints(self) -> list[Endpoint]:
        """Those of the connections that are open."""
        found = [connection.endpoint for _, connection in sorted(self._connections.items())]
        return [endpoint for endpoint in found if not endpoint.closed]

    def later(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Runs ``coroutine`` in the background; the end of it all waits for it."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def program_failed(self, error: BaseException) -> None:
        """This rank's program raised out of everything: nobody shall wait for it in any of the groups."""
        for endpoint in self.endpoints():
            for scope in list(endpoint.scopes.values())[:1]:
                endpoint.failure.program_failed(scope, error, everything=True)

    async def closed(self, part: Shut | None) -> None:
        """One connection is closed; with the last one everything ends, else ``part`` says what is to be said."""
        self._open -= 1
        if self._open > 0:
            if part is not None:
                await part()
            return
        self.over, end, self._end = True, self._end, None
        if self.carrier is not None:
            self.carrier.close()
        if end is not None:
            await end()

    async def close(self) -> None:
        """Closes everything that grew out of one connect(), the oldest first."""
        owners = self.owners()  # before the first group is let go: dropped, it would cut its links without a goodbye
        self.kept = None
        for group in owners:
            await group.close()
        for connection in [each for _, each in sorted(self._connections.items())]:
            await connection.close()
        while self._tasks:
            await asyncio.wait(list(self._tasks))


class Connection:
    """One endpoint, and what it takes to close it: ``shut`` cuts its links, ``part`` tells the store."""

    endpoint: Endpoint

    def __init__(
        self, endpoint: Endpoint, shut: Shut, lineage: Lineage | None = None, *, part: Shut | None = None
    ) -> None:
        self.endpoint, self._shut, self._part = endpoint, shut, part
        self.lineage: Lineage = Lineage(endpoint.loop) if lineage is None else lineage
        self._owners = 0
        self._closed = False
        self._pid = os.getpid()
        self.lineage.opened(self)

    def __repr__(self) -> str:
        return f"<Connection of {self.endpoint!r}, {self._owners} owners>"

    def own(self, group: Group) -> None:
        """``group`` keeps this connection open from now on."""
        self._owners += 1
        self.lineage.owned_by(group)

    @property
    def ends(self) -> bool:
        """Whether the next owner that is closed is the last one."""
        return self._owners == 1

    async def release(self) -> None:
        """One of the owners was closed; after the last one the connection is closed."""
        self._owners -= 1
        if self._owners == 0:
            await self.close()

    def dropped(self, *, followed: bool) -> None:
        """One of the owners was dropped and not closed: the last one cuts the links, unless something followed it."""
        self._owners -= 1
        if self._owners == 0 and not followed:
            in_loop(self.endpoint.loop, self.endpoint.close)  # its sockets and callbacks would outlive it

    async def close(self) -> None:
        """Says goodbye and cuts the links; again: nothing."""
        if not self._closed:
            self._closed = True
            await _closing(self._shut, self._part, self.lineage)

    def __del__(self) -> None:
        """No group has it any more: what is still open ends in the background, with a goodbye if something followed."""
        if self._closed or self._pid != os.getpid():
            return
        lineage, closing = self.lineage, (self._shut, self._part)
        if lineage.loop.is_closed():
            self.endpoint.close()
        else:
            with contextlib.suppress(RuntimeError):  # that loop was closed in this very moment
                lineage.loop.call_soon_threadsafe(lambda: lineage.later(_closing(*closing, lineage)))


async def _closing(shut: Shut, part: Shut | None, lineage: Lineage) -> None:
    try:
        await shut()
    finally:
        await lineage.closed(part)


def in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Calls ``call`` now where that is safe: in the loop itself, or while nobody runs it; else soon, in the loop."""
    if asyncio._get_running_loop() is loop or not loop.is_running():
        call()
    else:
        loop.call_soon_threadsafe(call)


_NUMBERED = re.compile(r"(.*)\.(\d+)\Z", re.DOTALL)


def successor(name: str) -> str:
    """What the group is called that follows the one called ``name``: "world", "world.1", "world.2", …"""
    numbered = _NUMBERED.match(name)
    return f"{name}.1" if numbered is None else f"{numbered[1]}.{int(numbered[2]) + 1}"
