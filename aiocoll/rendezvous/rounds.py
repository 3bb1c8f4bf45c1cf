"""Which meeting under a name is the current one; the rule: a store that lives on holds one small key per name.

A meeting is a numbered *round*. ``<name>/current`` says which is current on this store, and when the store was born (so
that a process that remembers its last round does not take a new store for the old one); ``<name>/<number>/...`` are the
keys of a round. A round is over when it was decided and all its members have left; who has been in it goes to the next
one at once.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict

from aiocoll.errors import RendezvousError, RendezvousTimeoutError
from aiocoll.rendezvous.roster import Roster
from aiocoll.store.base import Store

ANSWER_SECONDS = 5.0
"""For what is known to be there."""
NAME_BYTES_MAX = 128
MEMORY_MAX = 1024

_last_of_this_process: OrderedDict[tuple[str, str, int | None], int] = OrderedDict()
"""(birth of the store, path, rank asked for) -> the last decided round that this process was in."""


class Rounds:
    """The rounds of one name on one store, and the one (`number`) that this process takes part in."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.path: str = f"aiocoll/{shortened(name)}"
        self.number: int = 0
        self._birth = ""

    def __repr__(self) -> str:
        return f"<Rounds {self.path} of {self.store!r}, now {self.number}>"

    def key(self, key: str) -> str:
        """The store's key for `key` of this round."""
        return f"{self.path}/{self.number}/{key}"

    async def find(self, rank: int | None) -> None:
        """Goes to the store's current round, or the one after the last in which this process was `rank`."""
        fresh = f"{secrets.token_hex(8)}:0".encode()
        self._birth, now = _parse(await self.store.compare_set(f"{self.path}/current", b"", fresh))
        been = _last_of_this_process.get((self._birth, self.path, rank), -1)
        self.number = max(now, been + 1)
        if self.number > now:
            await self.advance(now, self.number)
            await self._sweep(self.number - 1)

    async def current(self) -> int:
        """The number of the store's current round."""
        return _parse(await self.store.get(f"{self.path}/current", timeout=ANSWER_SECONDS))[1]

    async def advance(self, old: int, new: int) -> None:
        """Makes `new` the current round, unless somebody has gone further."""
        while old < new:
            expected, wanted = (f"{self._birth}:{number}".encode() for number in (old, new))
            old = _parse(await self.store.compare_set(f"{self.path}/current", expected, wanted))[1]

    async def end(self) -> None:
        """Makes the next round current, then removes this one's keys.

        In this order: whoever comes in between must not begin a new meeting in a round that is being cleared.
        """
        await self.advance(self.number, self.number + 1)
        await self.clear()

    async def clear(self) -> None:
        """Removes all keys of this round."""
        await self._clear(self.number)

    async def append(self, entry: bytes) -> Roster:
        """Writes into the round's log; what it then says."""
        await self.store.append(self.key("log"), entry)
        return await self.look()

    async def look(self) -> Roster:
        """What the round's log says."""
        return await self._look(self.number)

    def remember(self, rank: int | None) -> None:
        """This process has been `rank` in this round: the next time it goes to the next one."""
        _last_of_this_process[self._birth, self.path, rank] = self.number
        while len(_last_of_this_process) > MEMORY_MAX:
            _last_of_this_process.popitem(last=False)

    async def _sweep(self, number: int) -> None:
        """Removes what an earlier round has left, once nobody is in it and all who failed there know it."""
        roster = await self._look(number)
        if roster.decided and roster.is_deserted():
            await self._clear(number)

    async def _look(self, number: int) -> Roster:
        try:  # without waiting: the log of a round that was cleared up comes never, and nobody misses it
            return Roster.replay(await self.store.get(f"{self.path}/{number}/log", timeout=0))
        except RendezvousTimeoutError:
            return Roster()

    async def _clear(self, number: int) -> None:
        for key in await self.store.list(f"{self.path}/{number}/"):
            await self.store.delete(key)


def forget() -> None:
    """Makes this process as one that has met nobody."""
    _last_of_this_process.clear()


def shortened(name: str) -> str:
    encoded = name.encode()
    return name if len(encoded) <= NAME_BYTES_MAX else hashlib.blake2b(encoded, digest_size=32).hexdigest()


def _parse(value: bytes) -> tuple[str, int]:
    birth, _, number = value.decode("ascii", "replace").partition(":")
    if not number.isdecimal():
        raise RendezvousError(f"the store's key for the current round holds {value[:64]!r}; use another name=")
    return birth, int(number)
