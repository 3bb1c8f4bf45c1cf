"""tcp://host:port: rank 0 serves the store there and all ranks are its clients, unless the runner serves it.

Rule: without a secret nothing but loopback is used. The store lives until the last rank has left, whoever serves it;
after a failure it lives two seconds more, so that those who come late hear of it at once.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import Any

from aiocoll.errors import AiocollError, RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.rendezvous import multicast
from aiocoll.rendezvous.hosts import is_local, is_loopback, is_multicast, outward, require_secret
from aiocoll.rendezvous.join import join
from aiocoll.rendezvous.meeting import Meeting, log
from aiocoll.rendezvous.request import Reached, Request
from aiocoll.rendezvous.url import tcp_url
from aiocoll.store.dial import resolve
from aiocoll.store.hosted import HostedStore, host_store
from aiocoll.store.tcp import TCPStore

FAILURE_STANDS_SECONDS = 2.0
PORT_TAKEN_SECONDS = 3.0
NAME_AGAIN_SECONDS = 0.5


async def meet(request: Request) -> Meeting:
    """Meet at the URL's host and port; a multicast address is not a place but a way to find one."""
    url, rank, size = request.url, request.rank, request.size
    if size is None:
        raise UsageError(
            f"init_method={url.text!r}: world_size is not set - it is required for tcp:// init methods: "
            f"give size=, ?world_size= or start the ranks with `aiocoll run`"
        )
    addresses = await _addresses(request)
    if any(is_multicast(address[0]) for address in addresses):
        return await multicast.meet(request, addresses)
    if rank is None:
        raise UsageError(
            f"init_method={url.text!r} requires manual rank assignment: give rank= (0 serves the store), or use a "
            f"multicast address or file://, where ranks are given by arrival"
        )
    if not request.secret and not any(is_loopback(address[0]) for address in addresses):
        raise require_secret(f"init_method={url.text!r}")
    bind_host = _bind_host(request, addresses)
    hosted = None
    if rank == 0 and not request.store_is_hosted:
        hosted = await _host(request, bind_host)
    # A server on every interface is reached here by loopback, which is not what the others may be told.
    dial_host = url.host if bind_host else "localhost"
    return await meet_at(request, dial_host, url.port, hosted, address="" if bind_host else outward())


async def reach(request: Request) -> Reached:
    """The store as a client, waiting for somebody to serve it."""
    url = request.url
    addresses = [address for _, address in await resolve(url.host, url.port)]
    if any(is_multicast(address[0]) for address in addresses):
        raise UsageError(
            f"init_method={url.text!r}: a newcomer finds no job at a multicast address, where nobody announces itself "
            "any more once all have met; let the members meet at tcp://host:port, file:// or under `aiocoll run`"
        )
    if not request.secret and not any(is_loopback(address[0]) for address in addresses):
        raise require_secret(f"init_method={url.text!r}")
    store = await TCPStore.connect(
        url.host, url.port, secret=request.secret, job=request.job, timeout=request.seconds_left()
    )
    return Reached(store, url.text, store.local_address, store.close)


async def meet_at(
    request: Request, host: str, port: int, hosted: HostedStore | None, *, address: str = "", wait: float | None = None
) -> Meeting:
    """Meet on the server at host:port; `hosted` is it, if this process serves it, and is released in the end."""
    assert request.size is not None
    where = request.url.text if request.url.host == host else f"{request.url.text} at {tcp_url(host, port)}"
    store: TCPStore | None = None

    async def strangers() -> str:
        assert store is not None
        refused = hosted.refused if hosted is not None else await store.refused()
        return "; ".join(refused[-5:])

    async def release() -> None:
        assert hosted is not None
        hosted.release()  # returns at once; the server lives until the others have left

    try:
        store = await _connect(request, host, port, request.seconds_left() if wait is None else wait)
        meeting = await join(
            store,
            rank=request.rank,
            size=request.size,
            name=request.path,
            timeout=request.seconds_left(),
            info=await request.info_at(address or store.local_address),
            where=where,
            strangers=strangers,
        )
    except (Exception, asyncio.CancelledError) as error:
        if store is not None:
            await store.close()
        if hosted is not None:
            _release_after(hosted, error)
        raise
    meeting.at_leaving(store.close)
    if hosted is not None:
        meeting.at_leaving(release)
    return meeting


async def _addresses(request: Request) -> list[tuple[Any, ...]]:
    """Where the URL's host is; a name that may come late is asked for again until the deadline."""
    while True:
        try:
            return [address for _, address in await resolve(request.url.host, request.url.port)]
        except RendezvousError as error:
            late = request.place.names_come_late and request.url.text == request.place.init_method
            if not late:
                raise
            if request.seconds_left() <= 0:
                raise RendezvousTimeoutError(
                    f"{request.url.text}: rank {request.rank} of {request.size} has waited {request.timeout:g} s for "
                    f"that name: {error}",
                    missing=(0,) if request.rank else (),
                ) from error
        await asyncio.sleep(min(NAME_AGAIN_SECONDS, request.seconds_left()))


async def _connect(request: Request, host: str, port: int, timeout: float) -> TCPStore:
    try:
        return await TCPStore.connect(host, port, secret=request.secret, job=request.job, timeout=timeout)
    except RendezvousTimeoutError as error:
        if request.store_is_hosted:
            raise
        raise RendezvousTimeoutError(
            f"{request.url.text}: rank {request.rank} of {request.size} has met nobody; missing rank 0, which serves "
            f"the store: {error}",
            missing=(0,),
        ) from error


async def _host(request: Request, host: str) -> HostedStore | None:
    """Serves the store; None if another rank 0 of this job does, who must hear of it."""
    port = request.url.port
    try:
        return host_store(host, port, secret=request.secret, job=request.job, sock=request.listener)
    except RendezvousError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
            raise
        try:
            timeout = min(PORT_TAKEN_SECONDS, request.seconds_left())
            probe = await TCPStore.connect(
                request.url.host, port, secret=request.secret, job=request.job, timeout=timeout
            )
        except (AiocollError, OSError):
            raise error from error.__cause__
        await probe.close()
        return None


def _bind_host(request: Request, addresses: list[tuple[Any, ...]]) -> str:
    """Where rank 0 listens: what the URL says, and every interface ("") where that would not do.

    A machine's own name often means 127.0.1.1 at home; and in a cluster a name may be a service's, not an interface's.
    Both need the secret, which whoever means other hosts has.
    """
    host = request.url.host
    if request.rank != 0 or request.store_is_hosted or request.listener is not None or not request.secret:
        return host
    named = host.lower() != "localhost" and all(not _same(address[0], host) for address in addresses)
    at_home = all(is_loopback(address[0]) for address in addresses)
    if (named and at_home) or not any(is_local(address) for address in addresses):
        log.info("%s: rank 0 serves the store on every interface, since %r is no interface of it", request.url, host)
        return ""
    return host


def _same(address: str, host: str) -> bool:
    return address.partition("%")[0] == host.partition("%")[0].lower()


def _release_after(hosted: HostedStore, error: BaseException) -> None:
    """Lets go of the store after a failed meeting: at once, or a little later if others may yet come to hear of it."""
    if not isinstance(error, RendezvousError) or isinstance(error, RendezvousTimeoutError):
        hosted.release()
        return
    # No daemon: a process that ends with this very error must not take the news with it.
    timer = threading.Timer(FAILURE_STANDS_SECONDS, hosted.release)
    timer.name = "aiocoll-store-release"
    timer.start()
