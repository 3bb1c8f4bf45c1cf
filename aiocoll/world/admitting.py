"""How a group that grows finds newcomers, summons them and gives them numbers: what rank 0 does with the job's store.

The rule: what cannot be done because the store is gone is said to all members, and breaks nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from typing import Any, Final

from ..errors import AiocollError, RendezvousError
from ..group.growing import Plan
from ..group.ownership import Lineage
from ..rendezvous.lobby import Guest, Lobby
from ..store.base import Store
from .opening import Opening, Wanted

_log = logging.getLogger("aiocoll.rendezvous")
_ASK_SECONDS: Final = 5.0
"""A newcomer that says nothing for so long is put out of the line, where it stands again when it wakes up."""
_LOOK_SECONDS: Final = 1.0
_TRIES_MAX: Final = 2
"""So often a newcomer is summoned before it is sent away."""
_GONE: Final = (
    "newcomers wait in the store in which the ranks have met, and that is gone: start the job with `aiocoll run`, or "
    "let it meet at file://, where the store outlives rank 0"
)


class Admission:
    """The newcomers of one lineage, as its members see them."""

    def __init__(
        self, wanted: Wanted, lineage: Lineage, store: Store, lobby: str, *, where: str, numbers: str, address: str
    ) -> None:
        """``numbers``: the store's key that counts numbers; ``address``: where others reach this rank."""
        self._wanted, self._lineage, self._store = wanted, lineage, store
        self._lobby = Lobby(store, lobby)
        self._where, self._numbers, self._address = where, numbers, address
        self._tries: Counter[str] = Counter()
        self._refused = ""

    def __repr__(self) -> str:
        return f"<Admission to {self._where} by {self._lobby!r}>"

    def opening(self) -> Opening:
        """A new endpoint of this rank."""
        return Opening(self._wanted, self._lineage, self._store, self._where, self._address)

    async def invite(self, most: int | None, until: float, numbers: tuple[int, ...], seconds: float) -> Plan:
        """A plan for those who wait; see ``group.growing.Admission``."""
        try:
            guests = await self._present(most, until, min(_ASK_SECONDS, seconds))
            plan: Plan = {"refused": self._refused, "guests": []}
            self._refused = ""
            if guests:
                world, top = secrets.randbits(64), 1 + max(self._known(numbers))
                fresh = await self._fresh_numbers(top, len(guests))
                plan |= {
                    "attempt": guests[0]["attempt"], "world": world, "at": f"aiocoll.grown/{world:016x}",
                    "numbers": [*numbers, *fresh], "guests": guests,
                }  # fmt: skip
            return plan
        except (AiocollError, OSError) as error:
            _log.warning("%s: %s", self._where, error)
            return {"failed": f"{error}; {_GONE}"}

    def _known(self, numbers: tuple[int, ...]) -> set[int]:
        """Numbers that ranks are known to have had."""
        had = {member.number for endpoint in self._lineage.endpoints() for member in endpoint.members}
        return had.union(numbers)

    def _lost(self) -> list[tuple[str, int]]:
        """Members that this rank has seen go, by host and pid: a newcomer may still be busy with what one of them
        began, and sees nothing of that from another host."""
        return [
            (endpoint.members[world].host, endpoint.members[world].pid)
            for endpoint in self._lineage.endpoints()
            for world in endpoint.failure.absent
        ]

    async def _present(self, most: int | None, until: float, seconds: float) -> list[dict[str, Any]]:
        """Those who have answered, first come first."""
        loop = asyncio.get_running_loop()
        while True:
            line = (await self._line(most, until))[:most]
            if not line:
                return []
            attempt = secrets.token_hex(8)
            lost = self._lost()
            infos = await asyncio.gather(*(self._lobby.ask(guest, attempt, seconds, lost) for guest in line))
            here, silent = [], []
            for guest, info in zip(line, infos, strict=True):
                if info is None:
                    silent.append(guest)
                elif info:
                    here.append({"attempt": attempt, "place": guest.place, "who": dict(guest.who), "info": info})
            for guest in silent:
                _log.warning("%s: %s waits no longer, or says nothing", self._where, guest)
                await self._lobby.remove(guest)
            if not silent or loop.time() >= until:
                return here

    async def _line(self, most: int | None, until: float) -> list[Guest]:
        """The line, once there are enough in it, or at the latest time."""
        loop = asyncio.get_running_loop()
        while True:
            await self._lobby.listen()
            line = await self._lobby.waiting()
            left = until - loop.time()
            if len(line) >= (most or 1) or left <= 0:
                return line
            await self._lobby.bell(min(left, _LOOK_SECONDS))

    async def _fresh_numbers(self, top: int, count: int) -> list[int]:
        """Numbers that nobody else gives to anybody, from ``top`` on."""
        end = await self._store.add(self._numbers, count)
        if end - count < top:
            end = await self._store.add(self._numbers, top - (end - count))
        return list(range(end - count, end))

    async def summon(self, plan: Plan, infos: list[dict[str, Any]]) -> None:
        """The newcomers of the plan are to open their links."""
        size = len(infos) - len(plan["guests"])
        told = {key: plan[key] for key in ("attempt", "world", "at", "numbers", "name")}
        for place, guest in enumerate(_guests(plan)):
            word = {"t": "meet", "plan": told, "infos": infos, "rank": size + place, "members": size}
            await self._lobby.tell(guest, word | {"counter": self._numbers, "lobby": self._lobby.name})

    async def settled(self, plan: Plan, reasons: list[str]) -> None:
        """They are in, or not, for ``reasons``."""
        text = "; ".join(reasons)
        try:
            for key in await self._store.list(f"{plan['at']}/"):
                await self._store.delete(key)
            for guest in _guests(plan):
                self._tries[guest.nonce] += 1
                if not reasons:
                    await self._lobby.remove(guest)
                    del self._tries[guest.nonce]
                elif guest.is_dead:
                    await self._lobby.remove(guest)
                elif self._tries[guest.nonce] >= _TRIES_MAX:
                    await self._lobby.tell(guest, {"t": "refused", "text": text})
                    await self._lobby.dismiss(guest)
        except (RendezvousError, OSError) as error:
            _log.warning("%s: %s", self._where, error)
        if reasons:
            names = ", ".join(str(guest) for guest in _guests(plan))
            self._refused = f"{names} could not be admitted: {text}"


def _guests(plan: Plan) -> list[Guest]:
    return [Guest(each["place"], each["who"]) for each in plan["guests"]]
