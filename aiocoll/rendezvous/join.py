"""How ranks meet over any store; the rule: whoever waits can say who has come, who is missing and where.

Each rank appends its claim to the log of the current round (see ``rounds``) and replays it (see ``roster``). Whoever
sees the log decided writes the list of members, then the one key ``verdict`` that all wait for.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgpack

from aiocoll.errors import AiocollError, RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.observe import emit
from aiocoll.rendezvous.meeting import Meeting, log
from aiocoll.rendezvous.roster import (
    Claim,
    Roster,
    claim_entry,
    fail_entry,
    left_entry,
    parted_entry,
    why_not,
    withdraw_entry,
)
from aiocoll.rendezvous.rounds import Rounds
from aiocoll.store.base import Store
from aiocoll.store.prefix import prefix
from aiocoll.store.users import me

LOOK_SECONDS = 5.0
"""How often one that waits looks at the log itself: to say who is missing, and to decide for one that died deciding."""
FAILURE_STANDS_SECONDS = 5.0
"""How long a failed round refuses ranks that come late; after that a process is taken for a new attempt."""
MEMBERS_PER_KEY = 256
INFO_BYTES_MAX = 4000
Info = Mapping[str, Any] | Callable[[], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]


async def join(
    store: Store,
    *,
    rank: int | None,
    size: int,
    name: str = "world",
    timeout: float = 60.0,
    info: Info | None = None,
    where: str = "",
    strangers: Callable[[], Awaitable[str]] | None = None,
) -> Meeting:
    """Meet `size` ranks on `store` under `name`; `rank` None takes a free one.

    `info` is what the others shall know of me, or makes it. Raises RendezvousTimeoutError that names the missing
    ranks, RendezvousError for a duplicate rank or another size: for all that wait, or, once the world is complete,
    for the newcomer alone. Cancelling withdraws. The store stays open and the caller's, also after `leave`.
    """
    facts = info() if callable(info) else (info or {})
    if inspect.isawaitable(facts):
        facts = await facts
    who = me()
    mine = {key: who[key] for key in ("host", "pid", "boot")} | dict(facts)
    return await _Joining(store, rank, size, name, timeout, mine, where or store.where, strangers).run()


class _Joining:
    """One call of `join`."""

    def __init__(
        self,
        store: Store,
        rank: int | None,
        size: int,
        name: str,
        timeout: float,
        info: dict[str, Any],
        where: str,
        strangers: Callable[[], Awaitable[str]] | None,
    ) -> None:
        self.store, self.rank, self.size, self.name = store, rank, size, name
        self.timeout, self.info, self.where, self.strangers = timeout, info, where, strangers
        self.rounds = Rounds(store, name)
        self.claim = Claim(secrets.token_bytes(8), rank, size, me())
        self.started = time.monotonic()
        self.told_missing = self.started
        self.inside = False
        """Whether the others may count on me."""

    def __repr__(self) -> str:
        return f"<joining {self.name!r} as {self.claim} at {self.where}, round {self.rounds.number}>"

    async def run(self) -> Meeting:
        try:
            await self.rounds.find(self.rank)
            await self._until_decided(await self._enter())
            return await self._conclude()
        except (Exception, asyncio.CancelledError):
            if self.inside:
                await self._step_back()
            raise

    # ------------------------------------------------------------------------------------- coming in

    async def _enter(self) -> Roster:
        """Puts my claim into a round that is not over."""
        while True:
            self.inside = True
            await self._bring_info()
            await self._make_room()
            roster = await self.rounds.append(claim_entry(self.claim))
            if not await self._is_past(roster):
                return roster
            self.claim = Claim(secrets.token_bytes(8), self.rank, self.size, me())

    async def _make_room(self) -> None:
        """Those who died while they waited go first: my claim must not complete a world with one of them."""
        await self._withdraw_dead(await self.rounds.look())

    async def _withdraw_dead(self, roster: Roster) -> Roster | None:
        """The roster without those who died while they waited; None if there are none."""
        after: Roster | None = None
        for claim in [] if roster.decided else [each for each in roster.waiting.values() if each.is_dead()]:
            after = await self.rounds.append(withdraw_entry(claim.nonce, "died while waiting"))
        return after

    async def _is_past(self, roster: Roster) -> bool:
        """Whether my claim came to a round that is over; then it is gone from there, and `rounds` is at the next."""
        rounds = self.rounds
        current = await rounds.current()
        mine = roster.members is not None and self.claim in roster.members
        if current > rounds.number and not mine:
            if roster.decided:
                await self._take_back_info()
            else:  # it was over and cleared away, and late ones like me have made it anew
                await rounds.clear()
            rounds.number = current
            return True
        if mine or not roster.decided or not self._is_over(roster):
            return False
        await rounds.end()
        rounds.number += 1
        return True

    def _is_over(self, roster: Roster) -> bool:
        """Whether a decided round without me has nobody in it any more."""
        if not roster.is_deserted(but=self.claim.nonce):
            return False
        if roster.members is not None:
            return True
        others = [claim for claim in roster.claims.values() if claim.nonce != self.claim.nonce]
        # A rank that comes late to a failure must hear of it; one that has heard of it begins anew.
        old = time.time() - roster.failed_at > FAILURE_STANDS_SECONDS
        known = any(claim.rank == self.rank for claim in others) and not (self.rank is None and len(others) < self.size)
        return old or known

    async def _bring_info(self) -> None:
        packed: bytes = msgpack.packb(self.info)
        if len(packed) > INFO_BYTES_MAX:
            raise UsageError(f"join: info has {len(packed)} bytes, the limit is {INFO_BYTES_MAX}")
        await self.store.set(self.rounds.key(f"info/{self.claim.nonce.hex()}"), packed)

    async def _take_back_info(self) -> None:
        """I am in no list of members."""
        await self.store.delete(self.rounds.key(f"info/{self.claim.nonce.hex()}"))

    # ------------------------------------------------------------------------------------- waiting

    async def _until_decided(self, roster: Roster) -> None:
        """Returns once the verdict is in the store."""
        roster = await self._resolve(roster)
        while not roster.decided:
            left = self.started + self.timeout - time.monotonic()
            if left <= 0:
                roster = await self._give_up()
                break
            try:
                await self.store.wait([self.rounds.key("verdict")], timeout=min(left, LOOK_SECONDS))
                return
            except RendezvousTimeoutError:
                pass  # looks who is there
            except RendezvousError as error:
                raise RendezvousError(f"{error}; that was while waiting: {self._who_is_there(roster)}") from error
            roster = await self.rounds.look()
            if self.claim.nonce not in roster.claims:  # the last one that gave up cleared up just when I came
                roster = await self._enter()
            if not roster.decided and time.monotonic() - self.told_missing >= LOOK_SECONDS:
                self.told_missing = time.monotonic()
                log.warning("%s", self._who_is_there(roster))
                roster = await self._resolve(roster, anybodys=True)
        await self._publish(roster)

    async def _resolve(self, roster: Roster, *, anybodys: bool = False) -> Roster:
        """Settles conflicts: the dead make room; where none is dead, the meeting fails for all.

        The later of two rivals settles it; everybody else only after a while, in case that one has died.
        """
        while not roster.decided:
            conflicts = [pair for pair in roster.conflicts() if anybodys or pair[1].nonce == self.claim.nonce]
            if not conflicts:
                break
            after = await self._withdraw_dead(roster)
            if after is None:
                after = await self.rounds.append(fail_entry(why_not(*conflicts[0]), time.time()))
            roster = after
        return roster

    # ------------------------------------------------------------------------------------- how it ends

    async def _publish(self, roster: Roster) -> None:
        """Makes the decision known, if nobody has; several may do so at once, and the first one's number counts."""
        if await self.store.check([self.rounds.key("verdict")]):
            return
        verdict: bytes
        if roster.members is None:
            verdict = msgpack.packb({"failed": roster.failure})
        else:
            nonces = [claim.nonce for claim in roster.members]
            infos = await self.store.multi_get(
                [self.rounds.key(f"info/{n.hex()}") for n in nonces], timeout=LOOK_SECONDS
            )
            pairs = list(zip(nonces, infos, strict=True))
            for start in range(0, len(pairs), MEMBERS_PER_KEY):
                packed: bytes = msgpack.packb(pairs[start : start + MEMBERS_PER_KEY])
                await self.store.set(self.rounds.key(f"members/{start}"), packed)
            verdict = msgpack.packb({"world": secrets.randbits(64), "size": len(nonces)})
        await self.store.compare_set(self.rounds.key("verdict"), b"", verdict)

    async def _conclude(self) -> Meeting:
        verdict = self._read("verdict", await self.store.get(self.rounds.key("verdict"), timeout=LOOK_SECONDS))
        if "failed" in verdict:
            self.rounds.remember(self.rank)
            raise RendezvousError(f"{self.where}: {verdict['failed']}")
        if not isinstance(verdict.get("size"), int) or not isinstance(verdict.get("world"), int):
            raise self._damaged("verdict")
        nonces, members = await self._fetch_members(verdict["size"])
        if self.claim.nonce not in nonces:
            self.inside = False
            await self._take_back_info()
            raise RendezvousError(f"{self.where}: {self._why_refused((await self.rounds.look()).members or ())}")
        self.rounds.remember(self.rank)
        rank, world = nonces.index(self.claim.nonce), verdict["world"]
        log.info("%s: rank %d of %d met the others", self.where, rank, self.size)
        emit("world_met", rank=rank, size=self.size, name=self.name, where=self.where, world=world)
        return Meeting(
            rank=rank,
            size=self.size,
            world=world,
            members=members,
            store=prefix(self.store, self.rounds.key("kv/")),
            where=self.where,
            at_leaving=[self._leave],
            at_parting=self._part,
            died=self._died,
            base=self.store,
            numbers=self.rounds.key("kv/numbers"),
        )

    def _why_refused(self, members: tuple[Claim, ...]) -> str:
        """What is wrong with me, who came to a world that is complete."""
        if not members:
            return "the world under this name is complete, and goes on without this process; use another name="
        rival = members[self.rank if self.rank is not None and self.rank < len(members) else 0]
        return f"{why_not(rival, self.claim)} (that world has been complete for a while, and goes on without this one)"

    async def _fetch_members(self, size: int) -> tuple[list[bytes], list[dict[str, Any]]]:
        keys = [self.rounds.key(f"members/{start}") for start in range(0, size, MEMBERS_PER_KEY)]
        pieces = await self.store.multi_get(keys, timeout=LOOK_SECONDS)
        try:
            pairs = [(nonce, info) for piece in pieces for nonce, info in msgpack.unpackb(piece)]
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise self._damaged("list of members") from error
        return [nonce for nonce, _ in pairs], [self._read("entry of a member", info) for _, info in pairs]

    def _read(self, what: str, packed: bytes) -> dict[str, Any]:
        try:
            found = msgpack.unpackb(packed)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise self._damaged(what) from error
        if not isinstance(found, dict):
            raise self._damaged(what)
        return found

    def _damaged(self, what: str) -> RendezvousError:
        return RendezvousError(f"{self.where}: the meeting's {what} in the store is damaged; use another name=")

    async def _leave(self) -> None:
        await self.store.append(self.rounds.key("log"), left_entry(self.claim.nonce))
        # The counter spares all but the last one reading the log; where somebody has died, the next round clears up.
        if await self.store.add(self.rounds.key("left")) == self.size:
            await self.rounds.end()

    async def _part(self) -> None:
        await self.store.append(self.rounds.key("log"), parted_entry(self.claim.nonce))

    async def _died(self, rank: int) -> bool | None:
        members = (await self.rounds.look()).members
        if members is None:
            return None
        claim = members[rank]
        dead = claim.is_dead()  # asked first: what a process says, it says before it ends
        roster = await self.rounds.look()
        if claim.nonce in roster.left or claim.nonce in roster.parted:
            return False
        return True if dead else None

    # ------------------------------------------------------------------------------------- giving up

    async def _give_up(self) -> Roster:
        """Withdraws at the deadline; a roster comes back only if the world was completed in that very moment."""
        roster = await self.rounds.append(withdraw_entry(self.claim.nonce, f"gave up after {self.timeout:g} s"))
        if roster.decided:
            return roster
        self.inside = False
        if not roster.waiting:
            await self.rounds.clear()
        text = self._who_is_there(roster)
        if self.strangers is not None:
            refused = await self.strangers()
            text += f"; refused meanwhile: {refused}" if refused else ""
        raise RendezvousTimeoutError(
            f"{text}. Look whether the missing ranks were started, reach this address, and have the same name and job; "
            f"timeout= gives them longer",
            missing=tuple(roster.missing(self.size)),
        )

    async def _step_back(self) -> None:
        """Something went wrong: the others must not count on me. Short, and whatever the store does."""
        try:
            async with asyncio.timeout(1.0):
                roster = await self.rounds.append(withdraw_entry(self.claim.nonce, "went away"))
                if roster.decided:
                    self.rounds.remember(self.rank)
                if roster.members is not None:
                    await self._leave()
                elif roster.failure is not None:
                    await self.store.append(self.rounds.key("log"), left_entry(self.claim.nonce))
                elif not roster.waiting:
                    await self.rounds.clear()
        except (AiocollError, OSError, TimeoutError):
            pass  # a store that is gone has forgotten me, too

    def _who_is_there(self, roster: Roster) -> str:
        here = sorted(roster.waiting.values(), key=lambda claim: (claim.rank is None, claim.rank or 0))
        if all(claim.nonce != self.claim.nonce for claim in here):
            here.insert(0, self.claim)
        gone = [
            f"{claim} {roster.withdrawn[nonce]}"
            for nonce, claim in roster.claims.items()
            if nonce in roster.withdrawn and nonce != self.claim.nonce
        ]
        missing = roster.missing(self.size)
        ranks = "rank" if len(missing) == 1 else "ranks"
        waited = time.monotonic() - self.started
        return (
            f"{self.where}: {self.claim} has waited {waited:.1f} s for the world {self.name!r} of {self.size}: "
            f"arrived {', '.join(map(str, here))}; "
            + (f"missing {ranks} {_ranks_text(missing)}" if missing else "all have been there")
            + (f"; no longer waiting: {', '.join(gone)}" if gone else "")
        )


def _ranks_text(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:20]))
    return shown if len(ranks) <= 20 else f"{shown} and {len(ranks) - 20} more"
