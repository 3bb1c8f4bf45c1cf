"""Where newcomers to a job that is under way wait until its members let them in.

Each newcomer stands in a line (keys in order of arrival) and takes what members have to say to it from a queue of its
own. A member asks it first whether it is there, and hears of it how it can be reached.

The rule: nobody counts on a newcomer that has not just answered, and whoever is let in, sent away or dead leaves no key
behind.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from aiocoll.errors import RendezvousError, RendezvousTimeoutError
from aiocoll.rendezvous.roster import Claim, Roster
from aiocoll.rendezvous.rounds import Rounds, shortened
from aiocoll.store.base import Store
from aiocoll.store.users import me

_LOOK_SECONDS: Final = 0.25
"""How often one that waits for an answer looks whether the other has died."""


@dataclass(frozen=True, slots=True)
class Guest:
    """One newcomer as the members see it."""

    place: str
    """Its key in the line; the names of its other keys end as this one does."""
    who: Mapping[str, Any]
    """The process, in the terms of `aiocoll.store.users`."""

    @property
    def nonce(self) -> str:
        """What tells it from all others."""
        return self.place.rpartition("/")[2]

    @property
    def is_dead(self) -> bool:
        """Whether this process sees that it has ended."""
        return process_is_dead(self.who)

    def __str__(self) -> str:
        return f"newcomer {self.who.get('host')}:{self.who.get('pid')}"


class Lobby:
    """The line of one job, for those who look at it."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self._at = f"aiocoll.lobby/{shortened(name)}"

    def __repr__(self) -> str:
        return f"<Lobby {self.name!r} of {self.store!r}>"

    def key(self, key: str) -> str:
        """The store's key for `key` of this lobby."""
        return f"{self._at}/{key}"

    async def waiting(self) -> list[Guest]:
        """Those in the line, in order; the dead among them are put out."""
        places = await self.store.list(self.key("line/"))
        guests = []
        for place in places:
            try:
                packed = await self.store.get(place, timeout=0)
            except RendezvousTimeoutError:
                continue  # it has left the line in this very moment
            guest = Guest(place, _mapping(packed))
            if guest.is_dead:
                await self.remove(guest)
            else:
                guests.append(guest)
        return guests

    async def listen(self) -> None:
        """From now on the bell rings for whoever comes."""
        await self.store.delete(self.key("bell"))

    async def bell(self, seconds: float) -> None:
        """Returns when somebody has come since `listen`, or after so many seconds."""
        try:
            await self.store.wait([self.key("bell")], timeout=seconds)
        except RendezvousTimeoutError:
            pass

    async def tell(self, guest: Guest, word: Mapping[str, Any]) -> None:
        """Leaves it a message."""
        await self.store.queue_push(self.key(f"words/{guest.nonce}"), _packed(word))

    async def ask(
        self, guest: Guest, attempt: str, seconds: float, lost: Sequence[Sequence[Any]] = ()
    ) -> dict[str, Any] | None:
        """How the newcomer can be reached; an empty answer: it is busy with other members; None: it says nothing.

        ``lost``: host and pid of members that are gone, for whom it need not wait any more."""
        busy = False
        answer = self.key(f"answer/{guest.nonce}")
        clock = asyncio.get_running_loop().time
        until = clock() + seconds
        asked = False
        while (left := until - clock()) > 0 and not guest.is_dead:
            if not asked:
                await self.store.delete(answer)
                await self.tell(guest, {"t": "ask", "attempt": attempt, "who": me(), "lost": list(lost)})
                asked = True
            try:
                said = _mapping(await self.store.get(answer, timeout=min(left, _LOOK_SECONDS)))
            except RendezvousTimeoutError:
                if not await self.store.check([guest.place]):
                    return None  # it has gone away by itself
                continue
            if said.get("attempt") == attempt and isinstance(said.get("info"), dict):
                info: dict[str, Any] = said["info"]
                return info
            asked, busy = False, True  # an answer to somebody else, or it is busy: perhaps not for long
            await asyncio.sleep(min(left, _LOOK_SECONDS))
        return {} if busy and not guest.is_dead else None

    async def dismiss(self, guest: Guest) -> None:
        """Out of the line; it is told why, and takes away the rest itself."""
        await self.store.delete(guest.place)

    async def remove(self, guest: Guest) -> None:
        """Nothing of it is left."""
        for key in (guest.place, self.key(f"words/{guest.nonce}"), self.key(f"answer/{guest.nonce}")):
            await self.store.delete(key)

    async def members(self) -> str:
        """Who is in the job, in words: for one that has waited in vain."""
        found = []
        suffix = f"aiocoll/{shortened(self.name)}"
        for key in await self.store.list("aiocoll/"):
            path, _, last = key.rpartition("/")
            if last != "current" or path not in (suffix, _without_restart(path, suffix)):
                continue
            rounds = Rounds(self.store, self.name)
            rounds.path = path
            rounds.number = await rounds.current()
            found += _in_words(await rounds.look())
        return ", ".join(found) or "nobody"


class Waiting(Lobby):
    """This process in the line."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(store, name)
        self._nonce = secrets.token_hex(8)
        self._guest: Guest | None = None

    async def enlist(self) -> None:
        """Stands in the line, at its end; nothing where it does already."""
        if self._guest is not None and await self.store.check([self._guest.place]):
            return
        number = await self.store.add(self.key("seq"))
        self._guest = Guest(self.key(f"line/{number:012d}/{self._nonce}"), me())
        await self.store.set(self._guest.place, _packed(self._guest.who))
        await self.store.set(self.key("bell"), b"")

    async def word(self, seconds: float) -> dict[str, Any] | None:
        """What a member has to say, None if nobody says anything for so long."""
        try:
            return _mapping(await self.store.queue_pop(self.key(f"words/{self._nonce}"), timeout=seconds))
        except RendezvousTimeoutError:
            return None

    async def answer(self, attempt: str, info: Mapping[str, Any] | None) -> None:
        """Says how this process can be reached (None: it is busy)."""
        await self.store.set(self.key(f"answer/{self._nonce}"), _packed({"attempt": attempt, "info": info}))

    async def leave(self) -> None:
        """Out of the line."""
        if self._guest is not None:
            await self.remove(self._guest)


def process_is_dead(who: Mapping[str, Any]) -> bool:
    """Whether this process sees that another one has ended."""
    return Claim(b"", None, 1, who).is_dead()


def _in_words(roster: Roster) -> list[str]:
    inside = roster.members if roster.members is not None else tuple(roster.waiting.values())
    return [f"{claim}{_state(roster, claim)}" for claim in inside]


def _state(roster: Roster, claim: Claim) -> str:
    if claim.nonce in roster.left:
        return " who has left"
    if claim.is_dead():
        return " who has died"
    return "" if roster.members is not None else " who waits for others"


def _without_restart(path: str, suffix: str) -> str:
    """The path itself if it is that of a restart of the job, else nothing."""
    head, _, rest = path.removeprefix("aiocoll/").partition("/")
    return path if head.isdecimal() and f"aiocoll/{rest}" == suffix else ""


def _packed(word: Mapping[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(dict(word))
    return packed


def _mapping(packed: bytes) -> dict[str, Any]:
    try:
        found = msgpack.unpackb(packed)
    except (ValueError, msgpack.UnpackException) as error:
        raise RendezvousError(f"the job's lobby in the store holds {packed[:64]!r}; use another name=") from error
    if not isinstance(found, dict):
        raise RendezvousError(f"the job's lobby in the store holds {packed[:64]!r}; use another name=")
    return found
