"""file:///path: ranks meet through a file that all can lock; the rule: the last one to leave removes it.

Ranks that are not given are taken by arrival. After a failure (not a timeout) the file stays, so that those who come
late hear of it at once; the next run under that path takes it over.
"""

from __future__ import annotations

import asyncio
from functools import partial

from aiocoll.errors import RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.rendezvous.hosts import outward
from aiocoll.rendezvous.join import join
from aiocoll.rendezvous.meeting import Meeting
from aiocoll.rendezvous.request import Reached, Request
from aiocoll.store.file import FileStore


async def meet(request: Request) -> Meeting:
    """Meet in the file; ranks tell one another loopback addresses unless they have a secret."""
    url, size = request.url, request.size
    if size is None:
        raise UsageError(
            f"init_method={url.text!r}: world_size is not set - it is required for file:// init methods: "
            f"give size= or ?world_size="
        )
    store = FileStore(url.path)
    try:
        meeting = await join(
            store,
            rank=request.rank,
            size=size,
            name=request.path,
            timeout=request.seconds_left(),
            info=await request.info_at(outward() if request.secret else "127.0.0.1"),
            where=url.text,
        )
    except (Exception, asyncio.CancelledError) as error:
        failed = isinstance(error, RendezvousError) and not isinstance(error, RendezvousTimeoutError)
        await store.close(last_removes=not failed)
        raise
    meeting.at_leaving(partial(store.close, last_removes=True))
    return meeting


async def reach(request: Request) -> Reached:
    """The file, which a newcomer may open before the members do."""
    store = FileStore(request.url.path)
    address = outward() if request.secret else "127.0.0.1"
    return Reached(store, request.url.text, address, partial(store.close, last_removes=True))
