"""connect and run: from a place to a store, links and the first group, and back in good order.

The rule: whatever was opened here is closed here, also when meeting fails half-way.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import platform
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from .config import Settings
from .endpoint import Endpoint, Member
from .endpoint.snapshot import snapshot
from .errors import AiocollError, UsageError
from .group import Group
from .group.calls import identifier
from .observe import report
from .observe.dumping import Source
from .place import Place, detect
from .rendezvous import Meeting, meet
from .rendezvous.island import Island
from .store.base import Store
from .transport.base import Transport
from .transport.inproc import InprocTransport, Switch
from .transport.local import Routed
from .transport.tcp import TcpTransport
from .transport.tcp_connect import TcpWorld, listen
from .tuning import check_override

if TYPE_CHECKING:
    from .transport.shm.meeting import Shared

T = TypeVar("T")
_TRANSPORTS: Final = ("auto", "shm", "tcp", "inproc")
_LEAVING_SECONDS: Final = 5.0
_LEAVING_BROKEN_SECONDS: Final = 1.0
_INQUEST_SECONDS: Final = (0.05, 1.0)
_DEFAULT_JOB: Final = "aiocoll"
_switches: WeakValueDictionary[int, Switch] = WeakValueDictionary()


class Connecting:
    """What ``connect`` returns: await it for the group, or use it in ``async with``, which closes the group."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Group]]) -> None:
        self._make = make
        self._group: Group | None = None

    def __repr__(self) -> str:
        return f"<Connecting {self._group!r}>"

    def __await__(self) -> Generator[Any, None, Group]:
        return self._make().__await__()

    async def __aenter__(self) -> Group:
        self._group = await self._make()
        return self._group

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._group is not None:
            await self._group.__aexit__(kind, error, trace)


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
) -> Connecting:
    """Joins the world and gives its first group.

    ``init_method``: ``env://``, ``tcp://host:port`` (a multicast address, too), ``file:///path``; without it, and
    without ``store``, the environment says where this process belongs (``aiocoll run``, torchrun), else it is a world
    of one. ``rank`` and ``size`` win over the URL, the URL over the environment. ``store``: meet in this store (see
    ``aiocoll.store``); it wants ``size``, and stays open. ``name``: the group's, equal on all ranks.
    ``timeout``: seconds for the meeting and for every call (default 60, or AIOCOLL_TIMEOUT). ``transport``: "auto"
    (shared memory between ranks of one host where all of those can have it, else TCP), "shm" (the same, and the log
    warns where it is not to be had), "tcp", "inproc" (ranks of one process). ``secret``: what all ranks know and nobody
    else does, text or bytes; without one only loopback is used. ``allow_pickle``: object calls take, and load,
    whatever can be pickled. ``group_name``: keeps jobs apart that share a multicast address. ``listener``: a bound
    socket for the store of rank 0.

    Raises UsageError (malformed arguments), RendezvousError (who came, who is missing, which address),
    AuthenticationError (another job or secret).
    """
    settings = Settings.from_env()
    check_override(settings.algorithm)
    chosen = settings.transport if transport is None else transport
    if not isinstance(chosen, Switch) and chosen not in _TRANSPORTS:
        raise UsageError(f"transport={chosen!r} is none of {', '.join(_TRANSPORTS)}")
    place = detect()
    report.install()
    report.tell("connecting")
    seconds = settings.timeout if timeout is None else timeout
    if not isinstance(name, str):
        raise UsageError(f"name={name!r} must be a str, equal on all ranks")
    if not (store is None or hasattr(store, "compare_set")):
        raise UsageError(f"store={store!r} is no store of aiocoll.store")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise UsageError(f"timeout={timeout!r}: seconds above 0 are needed")
    if allow_pickle and not settings.allow_pickle:
        settings = replace(settings, allow_pickle=True)
    wanted = _Wanted(chosen, settings, place, _secret(secret, place), name, float(seconds))
    meeting = {
        "init_method": init_method, "rank": rank, "size": size, "store": store, "group_name": group_name,
        "listener": listener,
    }  # fmt: skip
    return Connecting(lambda: wanted.join(meeting))


def _secret(secret: Any, place: Place) -> bytes:
    if secret is None:
        return place.secret
    if isinstance(secret, str):
        return secret.encode()
    if isinstance(secret, (bytes, bytearray)):
        return bytes(secret)
    raise UsageError(f"secret must be str or bytes, not {type(secret).__name__}")


class _Wanted:
    """One connect() whose arguments are in order."""

    def __init__(
        self, transport: str | Switch, settings: Settings, place: Place, secret: bytes, name: str, timeout: float
    ) -> None:
        self.transport, self.settings, self.place = transport, settings, place
        self.secret, self.name, self.timeout = secret, name, timeout
        self._listener: socket.socket | None = None
        self._island = Island(settings, str(transport))

    def __repr__(self) -> str:
        return f"<connect {self.name!r} over {self.transport!r}>"

    @property
    def job(self) -> str:
        """The job's name in every handshake."""
        return self.place.job or _DEFAULT_JOB

    def _info(self, address: str) -> Mapping[str, Any]:
        """What the others learn of me: where I listen."""
        if self.transport == "inproc" or isinstance(self.transport, Switch):
            return {"address": "", "port": 0}
        self._listener = listen(address)
        return {"address": address, "port": self._listener.getsockname()[1], **self._island.info()}

    def _close_listeners(self) -> None:
        self._island.close()
        if self._listener is not None:
            self._listener.close()

    async def join(self, arguments: Mapping[str, Any]) -> Group:
        """Meets the others and opens the endpoint."""
        try:
            meeting = await meet(
                job=self.job, secret=self.secret, name=self.name, timeout=min(self.timeout, 1e9), info=self._info,
                place=self.place, advertise=self.settings.host, **arguments,
            )  # fmt: skip
        except BaseException:
            self._close_listeners()
            raise
        report.tell("met")
        memory: dict[int, str] = {}
        shared: Shared | None = None
        try:
            if self._listener is not None and meeting.size > 1:
                seconds = min(self.settings.shm_seconds, self.timeout)
                memory, shared = await self._island.settle(meeting, self._tcp_world(meeting), seconds)
            return self._open(meeting, memory, shared)
        except BaseException:
            if shared is not None:
                shared.close()
            self._close_listeners()
            await meeting.leave()
            raise

    def _tcp_world(self, meeting: Meeting) -> TcpWorld:
        addresses = tuple((str(info["address"]), int(info["port"])) for info in meeting.members)
        return TcpWorld(meeting.rank, meeting.size, addresses, self.secret, self.job, meeting.world)

    def _open(self, meeting: Meeting, memory: Mapping[int, str], shared: Shared | None) -> Group:
        loop = asyncio.get_running_loop()
        transport = self._transport_of(meeting, loop, shared)
        if isinstance(transport, InprocTransport):
            memory = dict.fromkeys(range(meeting.size), "one process")
        members = tuple(
            Member(
                rank, str(info.get("host", "")), int(info.get("pid", 0)), str(info.get("boot", "")),
                memory.get(rank, ""),
            )  # fmt: skip
            for rank, info in enumerate(meeting.members)
        )
        endpoint = Endpoint(meeting.rank, members, loop, transport, self.settings)
        told = partial(snapshot, endpoint, job=self.place.job, restart=self.place.restart)
        endpoint.trace = Source(told, endpoint.flight, self.settings.trace_dir)
        endpoint.note("connected", rank=meeting.rank, size=meeting.size, name=self.name, transport=repr(transport))
        scope = endpoint.enter(identifier("world", meeting.world), tuple(range(meeting.size)), self.name)
        inquests: set[asyncio.Task[None]] = set()  # a loop holds its tasks only weakly

        def inquest(peer: int, reason: str) -> None:
            task = loop.create_task(_find_out(endpoint, meeting, peer, reason))
            inquests.add(task)
            task.add_done_callback(inquests.discard)

        endpoint.inquest = inquest

        async def shut() -> None:
            await _shut(endpoint, meeting)
            if inquests:
                for task in inquests:
                    task.cancel()
                await asyncio.wait(list(inquests), timeout=_LEAVING_BROKEN_SECONDS)

        return Group(endpoint, scope, self.settings, timeout=self.timeout, shut=shut)

    def _transport_of(self, meeting: Meeting, loop: asyncio.AbstractEventLoop, shared: Shared | None) -> Transport:
        if isinstance(self.transport, Switch):
            return InprocTransport(self.transport, loop)
        if self.transport == "inproc" or meeting.size == 1:
            if any(int(info.get("pid", 0)) != os.getpid() for info in meeting.members):
                raise UsageError("transport='inproc' joins ranks of one process only; use 'auto' or 'tcp'")
            self._close_listeners()
            switch = _switches.get(meeting.world)
            if switch is None:
                switch = _switches[meeting.world] = Switch()
            return InprocTransport(switch, loop)
        assert self._listener is not None
        if shared is not None and len(shared.peers) == meeting.size - 1:
            self._listener.close()  # nobody is left for TCP
            return _shm(loop, meeting.rank, shared)
        far = TcpTransport(loop, self._tcp_world(meeting), self._listener)
        return far if shared is None else Routed(_shm(loop, meeting.rank, shared), far, shared.peers)


def _shm(loop: asyncio.AbstractEventLoop, rank: int, shared: Shared) -> Transport:
    from .transport.shm.transport import ShmTransport  # loads only where there can be shared memory

    return ShmTransport(loop, rank, shared)


async def _find_out(endpoint: Endpoint, meeting: Meeting, peer: int, reason: str) -> None:
    """Whether a rank that was not reached has left, and others go on among themselves, or died and breaks its groups.

    Only what is certain counts: a process that is seen to have ended, and has not said that it leaves."""
    pause, pause_max = _INQUEST_SECONDS
    try:
        while not endpoint.closed and (died := await meeting.died(peer)) is not False:
            if died:
                endpoint.failure.died(peer, f"its process ended ({reason})")
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, pause_max)
    except (AiocollError, OSError):
        pass  # a store that is gone knows nothing


async def _shut(endpoint: Endpoint, meeting: Meeting) -> None:
    """Says goodbye, lets what was sent leave (bounded), and cuts the links."""
    if endpoint.closed:
        return
    seconds = _LEAVING_BROKEN_SECONDS if endpoint.failure.bad_news else _LEAVING_SECONDS
    endpoint.failure.closing()
    endpoint.say_bye()
    until, pause = endpoint.loop.time() + seconds, 0.0005
    while not endpoint.transport.drained() and endpoint.loop.time() < until:
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    for link in endpoint.transport.links():
        link.progress()  # unread bytes at close would turn the end of the connection into a reset
    endpoint.close()
    await meeting.leave()


def run(
    main: Callable[[Group], Awaitable[T]], *, uvloop: bool = True, **connect_arguments: Any
) -> T:
    """Joins the world, runs ``main(group)`` to its end, closes the group and returns what ``main`` returned.

    ``uvloop``: use it where it is installed; the other keywords are those of ``connect``.
    """
    if not callable(main):
        raise UsageError(f"run(main) takes an async function of a group, not {main!r}")
    if asyncio._get_running_loop() is not None:
        raise UsageError("run() cannot be called from a running event loop: use 'async with aiocoll.connect()'")

    async def program() -> T:
        async with connect(**connect_arguments) as group:
            result = main(group)
            if not inspect.isawaitable(result):
                raise UsageError(f"run(main): {getattr(main, '__name__', main)!r} must be an async function")
            return await result

    with asyncio.Runner(loop_factory=new_event_loop if uvloop else None) as runner:
        return runner.run(program())


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop where there is one, else asyncio's own."""
    if platform.python_implementation() == "CPython" and sys.platform != "win32":
        try:
            import uvloop
        except ImportError:
            pass  # an optional speed-up where it is not installed
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()
