"""reach(): to the store of a job that is under way, for a newcomer that is no rank of it yet.

The rule: a newcomer serves no store and claims no rank; what it was told of rank and size is not asked.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from aiocoll.errors import UsageError
from aiocoll.place import Place
from aiocoll.rendezvous.hosts import outward
from aiocoll.rendezvous.meet import scheme
from aiocoll.rendezvous.request import Reached, Request
from aiocoll.rendezvous.url import parse
from aiocoll.store.base import Store


async def reach(
    init_method: str | None, *, store: Store | None, place: Place, job: str, secret: bytes, path: str, timeout: float
) -> Reached:
    """The store at `init_method`, where `place` says, or `store` itself, which stays open; `path` is the lobby's.

    UsageError where nothing says where the job meets, or nobody can join there; RendezvousError where nobody serves it.
    """
    if store is not None:
        if init_method:
            raise UsageError(f"both init_method={init_method!r} and store= are given: one of them says which job it is")
        address = getattr(store, "local_address", "") or (outward() if secret else "127.0.0.1")
        return Reached(store, store.where, address, _nothing)
    text = init_method or place.init_method
    if not text:
        raise UsageError(
            "join: nothing says which job to join: give init_method= (where its ranks have met) or store=, or start "
            "this process as the runner starts a replacement (AIOCOLL_RDZV, AIOCOLL_JOB_ID, AIOCOLL_JOIN)"
        )
    url = parse(text)
    found: Any = scheme(url)
    if not hasattr(found, "reach"):
        raise UsageError(f"init_method={text!r}: newcomers cannot join jobs that meet by {url.scheme}://")
    request = Request(
        url=url, rank=None, size=None, job=job, secret=secret, path=path, timeout=timeout, info={}, place=place,
        store_is_hosted=place.store_is_hosted and text == place.init_method,
    )  # fmt: skip
    reaching: Awaitable[Reached] = found.reach(request)
    return await reaching


async def _nothing() -> None:
    """The store is the caller's."""
