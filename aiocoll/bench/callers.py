"""The three ways to call: ``aiocoll.distributed`` where it has the call, a blocking group, or ``await`` on a group.

The rule: the program that measures is written once, as a coroutine; for blocking calls it is stepped by hand and never
suspends, so no event loop stands between the clock and the call.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..distributed.state import STATE
from ..errors import AiocollError
from ..group import Group
from ..sync import SyncGroup
from .cases import Case

T = TypeVar("T")
Seconds = NDArray[np.float64]


class Caller(Protocol):
    """What the measuring program needs of a group."""

    group: Any
    facade: Any
    awaited: bool

    async def once(self, case: Case) -> Any:
        """One call and its result."""

    async def timed(self, case: Case, first: int, calls: int) -> tuple[Seconds, int]:
        """The seconds of each of so many calls back to back, and how many of the elements looked at were wrong."""

    async def told(self, value: T) -> T:
        """Rank 0's value, on all ranks."""

    async def collected(self, value: NDArray[Any]) -> list[NDArray[Any]] | None:
        """Every rank's array on rank 0."""

    async def together(self) -> None:
        """Returns when all ranks are here."""

    async def forcing(self, override: str) -> Caller:
        """The same ranks in a group whose calls use ``collective:algorithm``; to be closed."""

    async def close(self) -> None:
        """Closes a group that ``forcing`` has made."""


class Blocking:
    """Calls that block: those of the facade where it is given and has the form, else the blocking group's."""

    group: SyncGroup
    facade: Any

    awaited = False

    def __init__(self, group: SyncGroup, facade: Any = None) -> None:
        self.group, self.facade = group, facade
        self._before = STATE.world
        if facade is not None:
            STATE.join(group, "auto")  # the facade's calls without group= are calls on this group

    def __repr__(self) -> str:
        return f"Blocking({self.group!r}, facade={self.facade is not None})"

    async def once(self, case: Case) -> Any:
        return case.call()

    async def timed(self, case: Case, first: int, calls: int) -> tuple[Seconds, int]:
        seconds, wrong = np.zeros(calls), 0
        call, arm, look, clock = case.call, case.arm, case.look, perf_counter
        for number in range(calls):
            arm(first + number)
            begun = clock()
            value = call()
            seconds[number] = clock() - begun
            wrong += look(value, first + number)
        return seconds, wrong

    async def told(self, value: T) -> T:
        told: T = self.group.broadcast_object(value)
        return told

    async def collected(self, value: NDArray[Any]) -> list[NDArray[Any]] | None:
        gathered: list[NDArray[Any]] | None = self.group.gather(value)
        return gathered

    async def together(self) -> None:
        self.group.barrier()

    async def forcing(self, override: str) -> Caller:
        twin = self.group.dup()
        _force(twin.asynchronous, override)
        return Blocking(twin, self.facade)

    async def close(self) -> None:
        self.restore()
        self.group.close()

    def restore(self) -> None:
        """The facade's calls go where they went before."""
        if self.facade is not None:
            STATE.world = self._before


class Awaited:
    """Calls that are awaited in a running loop."""

    awaited = True
    facade = None

    def __init__(self, group: Group) -> None:
        self.group = group

    def __repr__(self) -> str:
        return f"Awaited({self.group!r})"

    async def once(self, case: Case) -> Any:
        return await case.call()

    async def timed(self, case: Case, first: int, calls: int) -> tuple[Seconds, int]:
        seconds, wrong = np.zeros(calls), 0
        call, arm, look, clock = case.call, case.arm, case.look, perf_counter
        for number in range(calls):
            arm(first + number)
            begun = clock()
            value = await call()
            seconds[number] = clock() - begun
            wrong += look(value, first + number)
        return seconds, wrong

    async def told(self, value: T) -> T:
        told: T = await self.group.broadcast_object(value)
        return told

    async def collected(self, value: NDArray[Any]) -> list[NDArray[Any]] | None:
        gathered: list[NDArray[Any]] | None = await self.group.gather(value)
        return gathered

    async def together(self) -> None:
        await self.group.barrier()

    async def forcing(self, override: str) -> Caller:
        twin = await self.group.dup()
        _force(twin, override)
        return Awaited(twin)

    async def close(self) -> None:
        await self.group.close()


def _force(group: Group, override: str) -> None:
    """What AIOCOLL_ALGORITHM does for all groups of a process, for one that has made no call yet."""
    collective, _, name = override.partition(":")
    settings = group._settings
    group._settings = replace(settings, algorithm={**settings.algorithm, collective: name})


def stepped(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine that never waits for anything but blocking calls."""
    coroutine = make()
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise AiocollError("the measuring program waited for an event loop where there is none")
