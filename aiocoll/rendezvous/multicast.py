"""Meeting at a multicast address: every process announces itself, the one with the least number serves the store.

The announcements only find the store (or say early that ranks or sizes clash); who is which rank is settled there, by
`join`. Rule: whoever has been counted into one store is silent, so that the next meeting never counts it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiocoll.errors import RendezvousError, RendezvousTimeoutError
from aiocoll.rendezvous.beacon import Beacon
from aiocoll.rendezvous.hosts import is_loopback, is_multicast, outward
from aiocoll.rendezvous.meeting import Meeting, log
from aiocoll.rendezvous.request import Request
from aiocoll.rendezvous.roster import Claim, why_not
from aiocoll.store.hosted import HostedStore, host_store
from aiocoll.store.users import me

ANNOUNCE_SECONDS = 0.1
FORGET_SECONDS = 3.0
"""A process that has been silent for so long is no longer there."""
FAILURE_STANDS_SECONDS = 1.0
"""How long a failure is announced before it is raised, so that all hear of it."""
PEERS_MAX = 100_000

_served: deque[bytes] = deque(maxlen=256)
"""Leaders whose store this process has already met at: their last announcements are not for the next meeting."""


async def meet(request: Request, addresses: list[tuple[Any, ...]]) -> Meeting:
    """Find or serve the store that the announcements lead to, then meet there."""
    from aiocoll.rendezvous.schemes import tcp  # which sends multicast addresses here

    address = next(address for address in addresses if is_multicast(address[0]))
    search = _Search(request, address)
    try:
        host, port, hosted = await search.run()
        me_outside = outward() if hosted is not None and request.secret else ""
        return await tcp.meet_at(request, host, port, hosted, address=me_outside)
    finally:
        search.close()


@dataclass(slots=True)
class _Peer:
    """A process that has announced itself."""

    claim: Claim
    heard_at: float


class _Search:
    """From the first announcement to the address of the store."""

    def __init__(self, request: Request, address: tuple[Any, ...]) -> None:
        assert request.size is not None
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._claim = Claim(secrets.token_bytes(8), request.rank, request.size, me())
        # Names may be longer than a datagram, and are nobody else's business.
        self._group = hashlib.blake2b(repr((request.job, request.path)).encode(), digest_size=16).digest()
        self._of_old = frozenset(_served)
        self._peers: dict[bytes, _Peer] = {}
        self._news = asyncio.Event()
        self._failure = ""
        self._found: tuple[bytes, str, int] | None = None
        self._serving: int | None = None
        self._silent = False
        self._told_at = time.monotonic()
        self._beacon = Beacon(address, secret=request.secret, job=request.job)
        self._loop.add_reader(self._beacon.ear, self._listen)
        self._timer = self._loop.call_soon(self._announce)

    def __repr__(self) -> str:
        return f"<search for {self._request.url} as {self._claim}, {len(self._peers)} others>"

    def close(self) -> None:
        """Falls silent and deaf."""
        self._timer.cancel()
        self._loop.remove_reader(self._beacon.ear)
        self._beacon.close()

    async def run(self) -> tuple[str, int, HostedStore | None]:
        """Host and port of the store, and the store itself if this process is to serve it."""
        while True:
            if self._failure or (clash := self._clash()):
                await self._fail(self._failure or clash)
            if self._found is not None:
                leader, host, port = self._found
                self._silent = True
                _served.append(leader)
                return host, port, None
            if self._leads():
                return self._serve()
            left = self._request.seconds_left()
            if left <= 0:
                raise RendezvousTimeoutError(self._who_is_there())
            if time.monotonic() - self._told_at > 5.0:
                self._told_at = time.monotonic()
                log.warning("%s", self._who_is_there())
            self._news.clear()
            try:
                async with asyncio.timeout(min(left, 1.0)):
                    await self._news.wait()
            except TimeoutError:
                pass  # no news: announces itself again

    # -- announcing and hearing

    def _announce(self) -> None:
        self._timer = self._loop.call_later(ANNOUNCE_SECONDS, self._announce)
        if self._silent:
            return
        claim = self._claim
        message: dict[str, Any] = {"group": self._group, "uid": claim.nonce, "who": dict(claim.who)}
        message |= {"rank": claim.rank, "size": claim.size}
        if self._serving is not None:
            message |= {"port": self._serving, "at": outward() if self._request.secret else "127.0.0.1"}
        if self._failure:
            message |= {"failure": self._failure[:600]}
        self._beacon.send(message)

    def _listen(self) -> None:
        for source, message in self._beacon.heard():
            if message.get("group") == self._group and message.get("uid") != self._claim.nonce:
                try:
                    self._hear(source, message)
                except (KeyError, TypeError, ValueError, AttributeError):
                    self._beacon.note_stranger(source, "it speaks another version")

    def _hear(self, source: str, message: Mapping[str, Any]) -> None:
        uid, rank, size, who = message["uid"], message["rank"], message["size"], message["who"]
        if uid in self._of_old or not isinstance(uid, bytes) or not isinstance(size, int) or not isinstance(who, dict):
            return
        if "failure" in message:
            self._failure = self._failure or str(message["failure"])
        if uid not in self._peers and len(self._peers) >= PEERS_MAX:
            return
        new = uid not in self._peers
        self._peers[uid] = _Peer(Claim(uid, rank, size, who), time.monotonic())
        if "port" in message and self._found is None and size == self._claim.size:
            # Whence it came is an address that surely reaches us, unless that is loopback; and without a secret
            # whatever anybody says, nothing but loopback is used.
            host = str(message["at"]) if is_loopback(source) else source
            self._found = (uid, host if self._request.secret else "127.0.0.1", int(message["port"]))
        if new or self._failure or self._found:
            self._news.set()

    # -- deciding

    def _claims(self) -> list[Claim]:
        """Everybody who is there, this process included, by number."""
        fresh = time.monotonic() - FORGET_SECONDS
        self._peers = {uid: peer for uid, peer in self._peers.items() if peer.heard_at > fresh}
        return sorted([self._claim, *(peer.claim for peer in self._peers.values())], key=lambda claim: claim.nonce)

    def _clash(self) -> str:
        """Why those who are there cannot be one world; the dead, who may have been heard just before, do not count."""
        claims = self._claims()
        seated: dict[int, Claim] = {}
        for claim in claims:
            rival = seated.setdefault(claim.rank, claim) if claim.rank is not None else claim
            if claim.size != claims[0].size:
                rival = claims[0]
            if rival is claim:
                continue
            dead = [one for one in (rival, claim) if one.is_dead()]
            if not dead:
                return why_not(rival, claim)
            for one in dead:
                self._peers.pop(one.nonce, None)
            return self._clash()
        if len(claims) > claims[0].size:
            return why_not(claims[0], claims[-1])
        return ""

    def _leads(self) -> bool:
        claims = self._claims()
        return len(claims) == self._claim.size and claims[0] is self._claim

    def _serve(self) -> tuple[str, int, HostedStore]:
        request = self._request
        hosted = host_store("" if request.secret else "127.0.0.1", 0, secret=request.secret, job=request.job)
        self._serving = hosted.address[1]
        _served.append(self._claim.nonce)
        self._beacon_now()
        return "127.0.0.1", self._serving, hosted

    def _beacon_now(self) -> None:
        self._timer.cancel()
        self._announce()

    async def _fail(self, text: str) -> None:
        """Tells everybody for a moment, then raises."""
        self._failure = text
        self._beacon_now()
        await asyncio.sleep(min(FAILURE_STANDS_SECONDS, self._request.seconds_left()))
        raise RendezvousError(f"{self._request.url}: {text}")

    def _who_is_there(self) -> str:
        claims = self._claims()
        strangers = "; ".join(f"{source}: {why}" for source, why in self._beacon.strangers.items())
        given = {claim.rank for claim in claims}
        missing = [rank for rank in range(self._claim.size) if rank not in given]
        missing = missing[sum(claim.rank is None for claim in claims) :]
        return (
            f"{self._request.url}: {len(claims)} of {self._claim.size} have come: {', '.join(map(str, claims))}; "
            f"missing ranks {', '.join(map(str, missing[:20]))}{' and more' if len(missing) > 20 else ''}. Look "
            f"whether they were started with the same address, job, secret and group name, on one network segment"
            + (f"; heard from strangers: {strangers}" if strangers else "")
        )
