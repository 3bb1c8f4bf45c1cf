"""`run`: a program on many simulated ranks, in virtual time; the same endpoint, groups and algorithms as on real links.

Rule: equal arguments give equal runs, bit for bit and step for step; nothing reads a real clock or a real socket.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ..config import Settings
from ..endpoint import Endpoint, Member
from ..endpoint.scope import Scope
from ..errors import DeadlockError, UsageError
from ..group import Group
from ..group.ownership import Connection, Lineage
from ..transport.inproc import InprocTransport
from ..world.connecting import Connecting
from .deadlock import explain
from .fabric import PID, Fabric, SimSwitch
from .faults import Crash, Fault, check_faults
from .job import Job
from .loop import SimLoop, rank_running
from .network import Network, Traffic
from .ranks import Ranks
from .trouble import Trouble

_WORLD: Final = 1  # the world's number on the wire; what is real about it elsewhere is that strangers do not guess it

Main = Callable[[Group], Awaitable[Any]]
Newcomer = Callable[[Connecting], Awaitable[Any]]
"""What a newcomer does, given what ``connect(join=True)`` would give it."""


def run(
    size: int,
    main: Main,
    *,
    seed: int = 0,
    latency: float = 0.0,
    bandwidth: float = math.inf,
    crash: Crash | Iterable[Crash] | None = None,
    faults: Fault | Iterable[Fault] | None = None,
    hosts: Sequence[int] | None = None,
    timeout: float = math.inf,
    settings: Settings | None = None,
    **network: Any,
) -> list[Any]:
    """`await main(group)` on each of `size` ranks; the results by rank, CRASHED (FROZEN, CANCELLED) for those that
    `faults` ended for good (see `faults`; `crash` is another name for them).

    `latency` in seconds, `bandwidth` in bytes per second of each host's network card; `hosts` gives each rank's host
    (None: a host each); `network` are the other fields of `Network`: local_latency, local_bandwidth, jitter. `timeout`
    is the group's default deadline in simulated seconds. Raises UsageError for what cannot be simulated, else the first
    failure that is no other's consequence; `DeadlockError` with the wait-for graph as soon as nothing can happen any
    more. With ``newcomers=n``, n more ranks come as by ``connect(join=True)`` and run ``main(group)`` once a ``grow()``
    has let them in; members and newcomers are numbered in this order.
    """
    return Simulation(
        size, seed=seed, latency=latency, bandwidth=bandwidth, crash=crash, faults=faults, hosts=hosts,
        timeout=timeout, settings=settings, **network,
    ).run(main)  # fmt: skip


class Simulation:
    """One run, for those who want its numbers afterwards: `now` (seconds), `sent` (per rank), `steps`, and `struck`
    (the seconds at which a fault struck a rank).

    `lost_seconds` is how long a link over which nothing passes is kept. Without `goodbye` no rank closes its world at
    the end of its program (which may do so itself)."""

    size: int
    newcomers: int
    seed: int
    timeout: float
    goodbye: bool
    now: float
    steps: int

    def __init__(
        self,
        size: int,
        *,
        seed: int = 0,
        crash: Crash | Iterable[Crash] | None = None,
        faults: Fault | Iterable[Fault] | None = None,
        timeout: float = math.inf,
        settings: Settings | None = None,
        lost_seconds: float = 10.0,
        goodbye: bool = True,
        newcomers: int = 0,
        **network: Any,
    ) -> None:
        for what, number, least in (("size", size, 1), ("newcomers", newcomers, 0)):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise UsageError(f"{what}={number!r} of a simulation: an int of at least {least} is needed")
        self.size, self.newcomers, self.seed, self.timeout, self.goodbye = size, newcomers, seed, timeout, goodbye
        everybody = size + newcomers
        self.faults: tuple[Fault, ...] = check_faults(faults if crash is None else crash, everybody)
        given = settings or Settings(stall_seconds=0.0)  # whoever wants reports of calls that wait says so
        self.settings: Settings = replace(given, spin_seconds=0.0, look_seconds=math.inf, breath_seconds=0.0)
        self.network: Network = Network(everybody, generator=random.Random(f"network {seed}"), **network)
        self.now, self.steps = 0.0, 0
        self.endpoints: dict[int, Endpoint] = {}
        assert self.network.hosts is not None
        self._fabric = Fabric(self.network.hosts)
        self._world = SimSwitch(self._fabric, range(size))
        self._trouble = Trouble(self.faults, self.network, self._fabric, lost_seconds, seed)
        self._fabric.delay = self._delay
        if self._trouble.watches_frames:
            self._world.carries(self._delay)
        else:
            self._world.delay = self.network.delay
        self._job: Job | None = None
        if newcomers:
            self._job = Job(self._fabric, self._world, self.settings, timeout, self.network.latency)
            self._trouble.at_crash = self._job.power_cut
        self._ranks: Ranks | None = None
        self._groups: list[Group] = []
        self._scopes: list[Scope] = []

    def __repr__(self) -> str:
        return f"<Simulation of {self.size} ranks, seed {self.seed}, t={self.now:g} s, {self.steps} steps>"

    @property
    def sent(self) -> list[Traffic]:
        """Frames and bytes that each rank has sent, headers included."""
        return self.network.sent

    @property
    def struck(self) -> dict[int, float]:
        """When a fault struck which rank."""
        return self._trouble.struck

    def run(self, main: Main, newcomer: Newcomer | None = None) -> list[Any]:
        """Runs `main(group)` on every rank to the end; once per simulation. Newcomers run it once they are in, or
        `newcomer(connecting)` from their start."""
        if self._ranks is not None:
            raise UsageError("a Simulation runs once; make another for another run")
        if asyncio._get_running_loop() is not None:
            raise UsageError("a simulation has a loop of its own, and one runs here already: asyncio.to_thread(run, …)")
        loop = SimLoop(self.seed, self._on_deadlock)
        self._ranks = Ranks(self.size + self.newcomers, self._fabric.left if self.newcomers else None)
        try:
            loop.run_until_complete(self._all(self._ranks, partial(self._program, main, newcomer), loop))
            loop.run_until_complete(loop.shutdown_asyncgens())
            return self._ranks.results()
        finally:
            self.now, self.steps = loop.now, loop.steps
            opened = self._endpoints()
            for switch in self._fabric.switches:
                switch.ports.clear()  # nobody is left to hear that the others close
            for _, endpoint in opened:
                endpoint.close()
            self._groups.clear()  # not before: those that never closed it would say so
            loop.close()

    def dissolve(self) -> None:
        """Cuts what refers to itself in circles, so that nothing of a run that is over waits for the collector: for
        those who make very many."""
        for scope in self._scopes:
            scope.mailbox.scope = None
        self._scopes.clear()
        for endpoint in self.endpoints.values():
            endpoint.close()
            transport = endpoint.transport
            assert isinstance(transport, InprocTransport)
            transport.made.clear()
            for part in (endpoint.failure, endpoint.inbox, endpoint):
                vars(part).clear()
            endpoint.closed = True
        self.endpoints.clear()
        self._fabric.switches.clear()
        self._fabric.delay = self._world.delay = None
        if self._ranks is not None:
            self._ranks.tasks.clear()

    async def _all(self, ranks: Ranks, program: Callable[[int], Coroutine[Any, Any, Any]], loop: SimLoop) -> None:
        hosts = self.network.hosts
        assert hosts is not None
        members = tuple(
            Member(each, f"host{on}", PID + each, f"host{on}", f"memory{on}")
            for each, on in enumerate(hosts[: self.size])
        )
        contexts = [contextvars.copy_context() for _ in range(ranks.size)]
        for rank, context in enumerate(contexts):
            context.run(rank_running.set, rank)
            if self._job is not None:
                context.run(self._job.enter, rank)
        for rank in range(self.size):  # all have met before anybody runs
            self._groups.append(contexts[rank].run(self._group, rank, members, loop))
        ranks.start(program, contexts)
        self._trouble.begin(loop, ranks)
        await ranks.wait()
        if ranks.still():
            self._trouble.bury()
            await asyncio.wait([ranks.tasks[rank] for rank in ranks.still()])

    async def _program(self, main: Main, newcomer: Newcomer | None, rank: int) -> Any:
        """What one rank does."""
        within = _within if self.goodbye else _as_it_is
        if rank < self.size:
            return await within(self._groups[rank], main)
        connecting = Connecting(partial(self._joined, rank))
        return await (newcomer(connecting) if newcomer is not None else within(await connecting, main))

    async def _joined(self, rank: int) -> Group:
        assert self._job is not None
        group = await self._job.join(rank)
        self._groups.append(group)
        return group

    def _endpoints(self) -> list[tuple[int, Endpoint]]:
        """All that are open, with the rank of each, the first world's first."""
        found = list(self.endpoints.items())
        first = set(map(id, self.endpoints.values()))
        owners: list[tuple[int, Any]] = [(rank, port.owner) for rank, port in self._fabric.ports()]
        return found + [(rank, owner) for rank, owner in owners if owner is not None and id(owner) not in first]

    def _group(self, rank: int, members: tuple[Member, ...], loop: SimLoop) -> Group:
        """The world as `connect` would give it, without the meeting: time begins when everybody has come."""
        transport = InprocTransport(self._world, loop)
        endpoint = self.endpoints[rank] = Endpoint(rank, members, loop, transport, self.settings)
        endpoint.flight.clock = loop.time
        scope = endpoint.enter(_WORLD, tuple(range(self.size)), "world")
        self._scopes.append(scope)

        async def shut() -> None:
            endpoint.failure.closing()
            endpoint.say_bye()
            endpoint.close()

        lineage = Lineage(loop)
        if self._job is not None:
            lineage.admission = self._job.admission(rank, lineage)
        connection = Connection(endpoint, shut, lineage)
        return Group(endpoint, scope, self.settings, timeout=self.timeout, connection=connection, owner=True)

    def _delay(self, switch: SimSwitch, src: int, dst: int, nbytes: int, now: float) -> float:
        passes = self._trouble.passes(switch, src, dst, nbytes)
        arrival = self.network.delay(src, dst, nbytes, now) if passes else math.inf
        if src != dst:
            self._trouble.left(src)
        return arrival

    def _on_deadlock(self) -> None:
        ranks = self._ranks
        if ranks is None or ranks.verdict is not None:
            return
        ended = ranks.ended()
        waits: dict[int, list[tuple[str, int]]] = {}
        for rank, endpoint in sorted(self._endpoints(), key=lambda each: each[0]):
            if rank not in ended:
                pids = [member.pid - PID for member in endpoint.members]
                edges = ((what.partition(" from ")[0], peer) for what, peer in endpoint.waiting_for())
                waits.setdefault(rank, []).extend((what, pids[peer] if peer >= 0 else peer) for what, peer in edges)
        loop = ranks.tasks[0].get_loop()
        ranks.stop(DeadlockError(explain(waits, ended, loop.time())))


async def _within(group: Group, main: Main) -> Any:
    """Leaving ends everything that has grown out of the world, as with `connect`."""
    assert group._connection is not None
    lineage = group._connection.lineage
    lineage.kept = group
    try:
        return await main(group)
    except BaseException as error:
        lineage.program_failed(error)
        raise
    finally:
        await lineage.close()


async def _as_it_is(group: Group, main: Main) -> Any:
    return await main(group)


__all__ = ["Main", "Simulation", "run"]
