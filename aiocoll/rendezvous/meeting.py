"""What a completed rendezvous hands over; the rule: leaving never fails and never waits for anybody's program."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiocoll.errors import AiocollError
from aiocoll.observe import emit
from aiocoll.store.base import Store

LEAVE_SECONDS_MAX = 5.0

log: logging.Logger = logging.getLogger("aiocoll.rendezvous")

Cleanup = Callable[[], Awaitable[None]]
Inquest = Callable[[int], Awaitable[bool | None]]


class Meeting:
    """All ranks have come.

    ``rank`` is mine of ``size``; ``world`` a random number that only this world has; ``members`` what each rank said
    of itself, in rank order; ``store`` a place for keys of this world alone, until `leave`; ``where`` the
    address, for messages. ``died`` tells what is known of a rank that cannot be reached: True, its process has
    certainly ended and never said that it leaves; False, it left; None, neither. ``grown``: it is no meeting of the
    scheme's, but grew out of one, whose store it uses.
    """

    rank: int
    size: int
    world: int
    members: list[dict[str, Any]]
    store: Store
    where: str
    grown: bool

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        world: int,
        members: list[dict[str, Any]],
        store: Store,
        where: str,
        at_leaving: list[Cleanup] | None = None,
        at_parting: Cleanup | None = None,
        died: Inquest | None = None,
        base: Store | None = None,
        numbers: str = "numbers",
        grown: bool = False,
    ) -> None:
        self.rank, self.size, self.world, self.members = rank, size, world, members
        self.store, self.where, self.grown = store, where, grown
        self.base: Store = store if base is None else base
        """The whole store, in which newcomers wait."""
        self.lobby = ""
        """The name under which they do."""
        self.numbers = numbers
        """The key there that counts the ranks' numbers that were given to newcomers."""
        self.secret = b""
        """The job's, where the ranks were told one on their way here; else it is the caller's."""
        self._at_leaving: list[Cleanup] = list(at_leaving or ())
        self._at_parting = at_parting
        self.died: Inquest = died or _unknown

    def __repr__(self) -> str:
        return f"<Meeting rank {self.rank} of {self.size} at {self.where}, world {self.world:016x}>"

    def at_leaving(self, cleanup: Cleanup) -> None:
        """Have `cleanup()` awaited by `leave`, after those that were given before it."""
        self._at_leaving.append(cleanup)

    async def part(self) -> None:
        """Tell the store that this rank has closed its links, while what has grown out of this world goes on; `leave`
        follows. Again, or after that: nothing. Raises nothing."""
        parting, self._at_parting = self._at_parting, None
        if parting is not None:
            await clean_up([parting])

    async def leave(self) -> None:
        """Tell the store that this rank has left; the last one clears up. Again: nothing. Raises nothing."""
        cleanups, self._at_leaving, self._at_parting = self._at_leaving, [], None
        if not cleanups:
            return
        emit("meeting_left", rank=self.rank, size=self.size, world=self.world)
        await clean_up(cleanups)


async def _unknown(rank: int) -> bool | None:
    return None


async def clean_up(cleanups: list[Cleanup]) -> None:
    """Awaits all of them, each within bounds and whatever the others raise."""
    for cleanup in cleanups:
        # A store that is gone needs no goodbye, and one that hangs gets none.
        with contextlib.suppress(AiocollError, OSError, TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS_MAX):
                await cleanup()
