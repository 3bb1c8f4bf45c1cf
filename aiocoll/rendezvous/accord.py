"""How some ranks of a world agree whether something that takes all of them has worked, so that all know the answer.

The rule: the first answer that reaches the store stands, and nobody believes anything else: one that gives up waiting
puts its no there and takes what it finds, so no two ranks ever go by different answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from aiocoll.errors import RendezvousTimeoutError
from aiocoll.store.base import Store

_YES = b"+"
_NO = b"-"
_NO_BYTES_MAX = 500
_GRACE_SECONDS = 1.0
"""How much longer those wait who only want to know the answer."""


async def agree(
    store: Store,
    parties: Mapping[str, int],
    *,
    mine: str | None,
    work: Callable[[], Awaitable[str]] | None,
    seconds: float,
) -> dict[str, str]:
    """The answers of all ``parties``, given by name and size: empty where all of its ranks have succeeded, else one
    rank's reason.

    ``mine``: the party of this rank, if any; ``work`` does its part and gives "" or a reason in about ``seconds``; it
    is cancelled when another rank has failed. RendezvousError when the store is gone.
    """
    answers: dict[str, str] = {}
    if mine is not None and work is not None:
        answers[mine] = await _take_part(store, mine, parties[mine], work, seconds)
    until = time.monotonic() + seconds
    for party in parties:
        if party not in answers:
            answers[party] = await _hear(store, party, max(0.0, until - time.monotonic()))
    return {party: answers[party] for party in parties}


async def _take_part(store: Store, party: str, size: int, work: Callable[[], Awaitable[str]], seconds: float) -> str:
    working = asyncio.ensure_future(work())
    hearing = asyncio.ensure_future(_hear(store, party, seconds))
    try:
        await asyncio.wait((working, hearing), return_when=asyncio.FIRST_COMPLETED)
        if hearing.done():
            return hearing.result()
        if reason := working.result():
            return await _settle(store, party, reason)
        if await store.add(f"{party}/done") == size:
            return await _settle(store, party, "")
        return await hearing
    finally:
        for each in (working, hearing):
            each.cancel()
        await asyncio.gather(working, hearing, return_exceptions=True)


async def _hear(store: Store, party: str, seconds: float) -> str:
    """The party's answer, once there is one."""
    try:
        return _read(await store.get(party, timeout=seconds + _GRACE_SECONDS))
    except RendezvousTimeoutError:
        return await _settle(store, party, "not all of its ranks were done in time")


async def _settle(store: Store, party: str, reason: str) -> str:
    """Gives the answer, unless somebody was first; the one that stands."""
    answer = _NO + reason.encode(errors="replace")[:_NO_BYTES_MAX] if reason else _YES
    return _read(await store.compare_set(party, b"", answer))


def _read(answer: bytes) -> str:
    return "" if answer == _YES else answer[len(_NO) :].decode(errors="replace") or "no reason was given"


__all__ = ["agree"]
