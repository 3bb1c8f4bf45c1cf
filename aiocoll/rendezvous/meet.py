"""meet(): settles who says what (arguments over URL over environment), then lets the scheme's file do it.

The rule: what can be refused without a socket or a file is refused before one is opened.
"""

from __future__ import annotations

import asyncio
import importlib
import math
import pkgutil
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from aiocoll.errors import AiocollError, RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.place import Place
from aiocoll.rendezvous.hosts import check_reachable, outward
from aiocoll.rendezvous.join import join
from aiocoll.rendezvous.meeting import Meeting
from aiocoll.rendezvous.request import Info, Request, Scheme
from aiocoll.rendezvous.url import Url, check_rank, check_size, parse
from aiocoll.store.base import Store
from aiocoll.store.memory import MemoryStore
from aiocoll.store.users import me

_SCHEMES = "aiocoll.rendezvous.schemes"
_SILENCE_SECONDS = 3.0
"""How long after the deadline the joining protocol may still say who is missing."""
_LONG_SECONDS = 1e8


async def meet(
    init_method: str | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    job: str = "",
    secret: bytes = b"",
    name: str = "world",
    timeout: float = 60.0,
    info: Info | None = None,
    group_name: str = "",
    place: Place | None = None,
    store: Store | None = None,
    advertise: str = "",
    listener: socket.socket | None = None,
    environ: Mapping[str, str] | None = None,
) -> Meeting:
    """Meet the other ranks at `init_method`, over `store`, or where `place` says; alone if nobody says anything.

    `info` is what the others shall know of me: a mapping, or a function of the address at which they reach this
    process that returns one (or an awaitable of one); host, pid and boot id are added. `advertise` replaces that
    address; `listener` is a bound socket for the store that rank 0 of ``tcp://`` hosts. Under the same name, group
    name and restart of the job, the n-th call of each process meets the n-th call of the others.

    UsageError for malformed arguments; RendezvousError (and RendezvousTimeoutError after `timeout` seconds) says who
    came, who is missing and where; AuthenticationError when job or secret differ.
    """
    place = place or Place()
    request = _settle(init_method, rank, size, place, store)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout) or timeout <= 0:
        raise UsageError(f"timeout={timeout!r}: a number of seconds above 0 is needed")
    full = Request(
        url=request.url,
        rank=request.rank,
        size=request.size,
        job=job,
        secret=secret,
        path="/".join(filter(None, (str(place.restart or ""), group_name, name))),
        timeout=float(timeout),
        info=info or {},
        place=place,
        environ=environ,
        advertise=advertise,
        listener=listener,
        store_is_hosted=request.hosted,
    )
    meeting = await _in_time(full, store)
    meeting.lobby = lobby_of(group_name, name)
    try:
        check_reachable(meeting.where, meeting.members)
    except RendezvousError:
        await meeting.leave()
        raise
    return meeting


def lobby_of(group_name: str, name: str) -> str:
    """Where newcomers wait: the name without the restart, since one that comes later does not know of it."""
    return "/".join(filter(None, (group_name, name)))


async def _in_time(request: Request, store: Store | None) -> Meeting:
    """The meeting, or an error soon after its deadline even if the store has stopped answering."""
    try:
        async with asyncio.timeout(min(request.timeout + _SILENCE_SECONDS, _LONG_SECONDS)):
            if store is not None:
                return await _meet_over(store, request)
            if request.url.scheme == "alone":
                return await _meet_alone(request)
            return await scheme(request.url).meet(request)
    except TimeoutError as error:
        if isinstance(error, AiocollError):
            raise
        rank = "a rank without a number" if request.rank is None else f"rank {request.rank}"
        raise RendezvousTimeoutError(
            f"{rank} of {request.size} met nobody at {request.url} within {request.timeout:g} s: the store there took "
            "the connection and then stopped answering; is its process stopped, or its host overloaded?"
        ) from error


@dataclass(frozen=True, slots=True)
class _Settled:
    """Who this is and where it goes, once arguments, URL and environment have been heard."""

    url: Url
    rank: int | None
    size: int | None
    hosted: bool = False


def _settle(init_method: str | None, rank: int | None, size: int | None, place: Place, store: Store | None) -> _Settled:
    size = check_size(size)
    rank = check_rank(rank, size)
    if store is not None:
        if init_method:
            raise UsageError(f"both init_method={init_method!r} and store= are given: one of them says where to meet")
        if size is None:
            raise UsageError("store= needs size= (and rank=, unless ranks are to be given by arrival)")
        return _Settled(Url("store", "store"), rank, size)
    text = place.init_method if init_method is None or init_method == "" else init_method
    if text == "":
        _check_alone(rank, size)
        return _Settled(Url("alone", "alone"), 0, 1)
    url = parse(text)
    scheme(url)
    size = size if size is not None else url.size
    rank = rank if rank is not None else url.rank
    if url.scheme != "env":  # which asks for RANK and WORLD_SIZE itself
        size = size if size is not None else place.size
        rank = rank if rank is not None else place.rank
    hosted = place.store_is_hosted and text == place.init_method
    return _Settled(url, check_rank(rank, size), size, hosted)


def _check_alone(rank: int | None, size: int | None) -> None:
    if size is not None and size > 1:
        raise UsageError(
            f"size={size}, but nothing says where to meet: give init_method=, or start the ranks with `aiocoll run`"
        )
    check_rank(rank, 1)


async def _meet_alone(request: Request) -> Meeting:
    """A world of one needs no store but has one, so that nobody has to ask."""
    store = MemoryStore()
    facts = {key: me()[key] for key in ("host", "pid", "boot")} | dict(await request.info_at("127.0.0.1"))
    return Meeting(
        rank=0,
        size=1,
        world=secrets.randbits(64),
        members=[facts],
        store=store,
        where="a world of one",
        at_leaving=[store.close],
    )


async def _meet_over(store: Store, request: Request) -> Meeting:
    """Over a store of the user's, which stays open."""
    assert request.size is not None
    address = getattr(store, "local_address", "") or (outward() if request.secret else "127.0.0.1")
    return await join(
        store,
        rank=request.rank,
        size=request.size,
        name=request.path,
        timeout=request.seconds_left(),
        info=await request.info_at(address),
    )


def scheme(url: Url) -> Scheme:
    """The file for a URL's scheme, or a third party's; UsageError that lists what there is."""
    if url.scheme in schemes():
        own: Scheme = importlib.import_module(f"{_SCHEMES}.{url.scheme}")
        return own
    from importlib import metadata  # slow, and needed only by those who use a third party's

    for entry in metadata.entry_points(group="aiocoll.rendezvous"):
        if entry.name == url.scheme:
            theirs: Scheme = entry.load()
            return theirs
    known = ", ".join(f"{name}://" for name in schemes())
    raise UsageError(f"unknown init method: init_method={url.text!r} is malformed: its scheme is none of {known}")


@cache
def schemes() -> tuple[str, ...]:
    """The schemes that have a file."""
    package = importlib.import_module(_SCHEMES)
    return tuple(sorted(item.name for item in pkgutil.iter_modules(package.__path__)))
