"""connect: joins the world that the arguments and the environment describe, and what keeps it open until its end.

The rule: what can be refused without a socket is refused before one is opened.
"""

from __future__ import annotations

import asyncio
import importlib.metadata  # noqa: F401  detect() needs it, and is not to be held up by it inside a loop that others share
import logging
import socket
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from ..algorithms import registry
from ..config import Settings
from ..errors import UsageError
from ..group import Group
from ..group.calls import true_or_false
from ..group.ownership import Lineage
from ..observe import report
from ..place import Place, detect
from ..rendezvous import meet
from ..rendezvous.url import parse
from ..store.base import Store
from ..transport import kinds
from ..transport.inproc import Switch
from ..tuning import check_override
from .admitting import Admission
from .newcomer import enter
from .opening import Ear, Opened, Wanted

_log = logging.getLogger("aiocoll.world")
registry()  # reads the algorithms' files: 20 ms, which the first call would hold up its loop for


class Connecting:
    """What ``connect`` returns: await it for the group, or use it in ``async with``, which at its end closes everything
    that has grown out of the group."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Group]]) -> None:
        self._make = make
        self._lineage: Lineage | None = None

    def __repr__(self) -> str:
        return f"<Connecting {self._lineage!r}>"

    def __await__(self) -> Generator[Any, None, Group]:
        return self._make().__await__()

    async def __aenter__(self) -> Group:
        group = await self._make()
        assert group._connection is not None
        self._lineage = group._connection.lineage
        self._lineage.kept = group
        return group

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lineage is not None:
            if error is not None:
                self._lineage.program_failed(error)
            await self._lineage.close()


def connect(
    init_method: str | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    store: Store | None = None,
    name: str = "world",
    timeout: float | None = None,
    transport: str | Switch | None = None,
    secret: str | bytes | None = None,
    allow_pickle: bool = False,
    group_name: str = "",
    listener: socket.socket | None = None,
    join: bool | None = None,
) -> Connecting:
    """Joins the world and gives its first group.

    ``init_method``: ``env://``, ``tcp://host:port`` (a multicast address, too), ``file:///path``; without it, and
    without ``store``, the environment says where this process belongs (``aiocoll run``, torchrun, mpiexec, srun, an
    indexed job of Kubernetes), else it is a world of one. ``rank`` and ``size`` win over the URL, the URL over the
    environment. ``store``: meet in this store (see ``aiocoll.store``); it wants ``size``, and stays open. ``name``: the
    group's, equal on all ranks.
    ``timeout``: seconds for the meeting and for every call (default 60, or AIOCOLL_TIMEOUT). ``transport``: "auto"
    (shared memory between ranks of one host where all of those can have it, else TCP), "shm" (the same, and the log
    warns where it is not to be had), "tcp", "inproc" (ranks of one process), or one of your own (see
    ``aiocoll.transport.kinds``). ``secret``: what all ranks know and nobody
    else does, text or bytes; without one only loopback is used. ``allow_pickle``: object calls take, and load,
    whatever can be pickled. ``group_name``: keeps jobs apart that share a multicast address. ``listener``: a bound
    socket for the store of rank 0. ``join``: this process is a newcomer (default AIOCOLL_JOIN, else no): it waits until
    the members of the job that is under way call ``grow()``, and gets the group that this returns; rank and size are
    theirs to give.

    Raises UsageError (malformed arguments), RendezvousError (who came, who is missing, which address),
    AuthenticationError (another job or secret).
    """
    settings = Settings.from_env()
    check_override(settings.algorithm)
    chosen = settings.transport if transport is None else transport
    if not isinstance(chosen, Switch) and chosen not in kinds.SHIPPED:
        kinds.find(str(chosen))
    join = settings.join if join is None else true_or_false(join, "connect", "join")
    place = detect(told=store is not None or (bool(init_method) and (join or _says_who(init_method, rank, size))))
    report.install()
    report.tell("connecting")
    seconds = settings.timeout if timeout is None else timeout
    if not isinstance(name, str):
        raise UsageError(f"name={name!r} must be a str, equal on all ranks")
    if not (store is None or hasattr(store, "compare_set")):
        raise UsageError(f"store={store!r} is no store of aiocoll.store")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise UsageError(f"timeout={timeout!r}: seconds above 0 are needed")
    if true_or_false(allow_pickle, "connect", "allow_pickle") and not settings.allow_pickle:
        settings = replace(settings, allow_pickle=True)
    for contradiction in settings.contradictions(float(seconds)):
        _log.warning(contradiction)
    wanted = Wanted(chosen, settings, place, _secret(secret, place), name, float(seconds))
    meeting: dict[str, Any] = {"init_method": init_method, "store": store, "group_name": group_name}
    if join:
        return Connecting(lambda: enter(wanted, meeting))
    meeting |= {"rank": rank, "size": size, "listener": listener}
    return Connecting(lambda: _first(wanted, meeting))


def _says_who(init_method: object, rank: int | None, size: int | None) -> bool:
    """Whether the arguments say which rank of how many this is, or name a place that says it or gives ranks."""
    url = parse(init_method)
    numbered = (url.rank if rank is None else rank) is not None and (url.size if size is None else size) is not None
    return numbered or url.scheme in ("env", "file")


def _secret(secret: Any, place: Place) -> bytes:
    if secret is None:
        return place.secret
    if isinstance(secret, str):
        return secret.encode()
    if isinstance(secret, (bytes, bytearray)):
        return bytes(secret)
    raise UsageError(f"secret must be str or bytes, not {type(secret).__name__}")


async def _first(wanted: Wanted, arguments: Mapping[str, Any]) -> Group:
    """Meets the others, opens the endpoint, and gives the first group."""
    ear = Ear(wanted)
    try:
        meeting = await meet(
            job=wanted.job, secret=wanted.secret, name=wanted.name, timeout=min(wanted.timeout, 1e9), info=ear.info,
            place=wanted.place, advertise=wanted.settings.host, **arguments,
        )  # fmt: skip
    except BaseException:
        ear.close()
        raise
    report.tell("met")
    if meeting.secret and meeting.secret != wanted.secret:
        wanted = replace(wanted, secret=meeting.secret)
        ear.learn(wanted)
    try:
        endpoint = await ear.connect(meeting)
    except BaseException:
        await meeting.leave()
        raise
    lineage = Lineage(asyncio.get_running_loop(), end=meeting.leave)
    lineage.admission = Admission(
        wanted, lineage, meeting.base, meeting.lobby, where=meeting.where, numbers=meeting.numbers,
        address=str(meeting.members[meeting.rank].get("address", "")),
    )  # fmt: skip
    return Opened(wanted, endpoint, meeting, lineage).group(wanted.name, wanted.timeout)
