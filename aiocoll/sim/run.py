"""`run`: a program on many simulated ranks, in virtual time; the same endpoint, groups and algorithms as on real links.

Rule: equal arguments give equal runs, bit for bit and step for step; nothing reads a real clock or a real socket.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from ..config import Settings
from ..endpoint import Endpoint, Member
from ..errors import DeadlockError, UsageError
from ..group import Group
from ..group.ownership import Connection
from ..transport.inproc import InprocTransport, Switch
from .deadlock import explain
from .faults import Crash, Fault, check_faults
from .loop import SimLoop, rank_running
from .network import Network, Traffic
from .ranks import Ranks
from .trouble import Trouble

_WORLD: Final = 1  # the world's number on the wire; what is real about it elsewhere is that strangers do not guess it

Main = Callable[[Group], Awaitable[Any]]


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
    more.
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
        **network: Any,
    ) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"size={size!r} of a simulation: an int of at least 1 is needed")
        self.size, self.seed, self.timeout, self.goodbye = size, seed, timeout, goodbye
        self.faults: tuple[Fault, ...] = check_faults(faults if crash is None else crash, size)
        given = settings or Settings(stall_seconds=0.0)  # whoever wants reports of calls that wait says so
        self.settings: Settings = replace(given, spin_seconds=0.0, look_seconds=math.inf, breath_seconds=0.0)
        self.network: Network = Network(size, generator=random.Random(f"network {seed}"), **network)
        self.now, self.steps = 0.0, 0
        self.endpoints: dict[int, Endpoint] = {}
        self._switch = Switch()
        self._trouble = Trouble(self.faults, self.network, self._switch, lost_seconds, seed)
        self._switch.delay = self._delay if self._trouble.watches_frames else self.network.delay
        self._ranks: Ranks | None = None
        self._groups: list[Group] = []

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

    def run(self, main: Main) -> list[Any]:
        """Runs `main(group)` on every rank to the end; once per simulation."""
        if self._ranks is not None:
            raise UsageError("a Simulation runs once; make another for another run")
        if asyncio._get_running_loop() is not None:
            raise UsageError("a simulation has a loop of its own, and one runs here already: asyncio.to_thread(run, …)")
        loop = SimLoop(self.seed, self._on_deadlock)
        self._ranks = Ranks(self.size)
        try:
            loop.run_until_complete(self._all(self._ranks, main, loop))
            loop.run_until_complete(loop.shutdown_asyncgens())
            return self._ranks.results()
        finally:
            self.now, self.steps = loop.now, loop.steps
            self._switch.ports.clear()  # nobody is left to hear that the others close
            for endpoint in self.endpoints.values():
                endpoint.close()
            self._groups.clear()  # not before: those that never closed it would say so
            loop.close()

    def dissolve(self) -> None:
        """Cuts what refers to itself in circles, so that nothing of a run that is over waits for the collector: for
        those who make very many."""
        for endpoint in self.endpoints.values():
            endpoint.close()
            endpoint.transport.made.clear()  # type: ignore[attr-defined]
            for part in (endpoint.failure, endpoint.inbox, endpoint):
                vars(part).clear()
            endpoint.closed = True
        self.endpoints.clear()
        if self._ranks is not None:
            self._ranks.tasks.clear()

    async def _all(self, ranks: Ranks, main: Main, loop: SimLoop) -> None:
        hosts = self.network.hosts
        assert hosts is not None
        members = tuple(
            Member(each, f"host{on}", 10_000 + each, f"host{on}", f"memory{on}") for each, on in enumerate(hosts)
        )
        groups = self._groups  # all have met before anybody runs
        for rank in range(self.size):
            context = contextvars.copy_context()
            context.run(rank_running.set, rank)
            groups.append(context.run(self._group, rank, members, loop))
        ranks.start(lambda rank: _within(groups[rank], main) if self.goodbye else _as_it_is(groups[rank], main))
        self._trouble.begin(loop, ranks)
        await ranks.wait()
        if ranks.still():
            self._trouble.bury()
            await asyncio.wait([ranks.tasks[rank] for rank in ranks.still()])

    def _group(self, rank: int, members: tuple[Member, ...], loop: SimLoop) -> Group:
        """The world as `connect` would give it, without the meeting: time begins when everybody has come."""
        transport = InprocTransport(self._switch, loop)
        endpoint = self.endpoints[rank] = Endpoint(rank, members, loop, transport, self.settings)
        endpoint.flight.clock = loop.time
        scope = endpoint.enter(_WORLD, tuple(range(self.size)), "world")

        async def shut() -> None:
            endpoint.failure.closing()
            endpoint.say_bye()
            endpoint.close()

        connection = Connection(endpoint, shut)
        return Group(endpoint, scope, self.settings, timeout=self.timeout, connection=connection, owner=True)

    def _delay(self, src: int, dst: int, nbytes: int, now: float) -> float:
        arrival = self.network.delay(src, dst, nbytes, now) if self._trouble.passes(src, dst, nbytes) else math.inf
        if src != dst:
            self._trouble.left(src)
        return arrival

    def _on_deadlock(self) -> None:
        ranks = self._ranks
        if ranks is None or ranks.verdict is not None:
            return
        ended = ranks.ended()
        waits = {
            rank: [(what.partition(" from ")[0], peer) for what, peer in endpoint.waiting_for()]
            for rank, endpoint in sorted(self.endpoints.items())
            if rank not in ended
        }
        loop = ranks.tasks[0].get_loop()
        ranks.stop(DeadlockError(explain(waits, ended, loop.time())))


async def _within(group: Group, main: Main) -> Any:
    """Leaving ends everything that has grown out of the world, as with `connect`."""
    assert group._connection is not None
    lineage = group._connection.lineage
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
