"""`run`: one spelling for a program on n ranks, simulated, in one loop, over sockets or in processes.

Rule: a test that is written once runs on every fabric, and its failure says how to run it again.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from ..errors import UsageError
from ..group import Group
from ..sim import Crash, Fault
from ..sim.faults import check_faults
from ..sim.ranks import Ranks
from ..sim.run import run as run_simulated
from ..transport.inproc import InprocTransport

FABRICS: Final = ("sim", "inproc", "tcp", "shm", "process")
_GRACE_SECONDS: Final = 10.0

Main = Callable[[Group], Awaitable[Any]]


def run(
    size: int,
    main: Main,
    fabric: str = "sim",
    *,
    seed: int = 0,
    faults: Fault | Iterable[Fault] = (),
    limit: float = 60.0,
    **connect: Any,
) -> list[Any]:
    """`await main(group)` on `size` ranks; the results by rank, CRASHED for those that `faults` stopped.

    - ``sim``: virtual time, order drawn from `seed`, deadlock found at once; takes `latency`, `bandwidth`, `hosts`, ….
    - ``inproc``: tasks of one real loop, joined by an in-process switch.
    - ``tcp``: tasks of one real loop, joined by sockets on loopback.
    - ``shm``: tasks of one real loop, joined by shared memory as processes of one host are.
    - ``process``: a process each (`uvloop=True` for its loop), joined as `connect` joins them.

    `connect` goes to ``aiocoll.connect`` (of the simulator's: `timeout`). Raises the earliest failure that is no other
    rank's consequence, with notes that name the rank and the command that runs it again; ranks that still run after
    `limit` real seconds, or some seconds after a failure, are stopped. Where a loop runs already it is refused:
    ``await asyncio.to_thread(run, …)`` has it in a thread.
    """
    if fabric not in FABRICS:
        raise UsageError(f"fabric={fabric!r}: one of {', '.join(FABRICS)} is needed")
    if fabric != "process" and asyncio._get_running_loop() is not None:
        raise UsageError(f"run() on fabric {fabric!r} has a loop of its own, and another one runs here: use "
                         "await asyncio.to_thread(run, …)")  # fmt: skip
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UsageError(f"size={size!r}: an int of at least 1 is needed")
    troubles = check_faults(faults, size)
    crashes = tuple(fault for fault in troubles if isinstance(fault, Crash))
    if fabric != "sim" and len(crashes) < len(troubles):
        raise UsageError(f"{troubles!r} on fabric {fabric!r}: only 'sim' has other faults than Crash")
    if fabric != "sim" and any(crash.frames is not None or crash.steps is not None for crash in crashes):
        raise UsageError(f"Crash(frames=) on fabric {fabric!r}: only 'sim' counts frames; use Crash(rank, at=seconds)")
    if fabric in ("tcp", "shm") and any(crash.at is not None for crash in crashes):
        raise UsageError(f"Crash(at=) on fabric {fabric!r} would end this process; use 'process', 'inproc' or 'sim'")
    try:
        if fabric == "sim":
            return run_simulated(size, main, seed=seed, faults=troubles, **connect)
        if fabric == "process":
            from .processes import run_processes

            uvloop = connect.pop("uvloop", False)
            return run_processes(size, main, connect, crashes=crashes, limit=limit, uvloop=uvloop)
        return asyncio.run(_run_here(size, main, fabric, crashes, limit, connect))
    except BaseException as error:
        error.add_note(replay(size, main, fabric, seed))
        raise


async def _run_here(
    size: int, main: Main, fabric: str, crashes: tuple[Crash, ...], limit: float, connect: dict[str, Any]
) -> list[Any]:
    """The ranks as tasks of this loop, with a store in memory."""
    import aiocoll

    from ..store import MemoryStore

    store = MemoryStore()
    loop = asyncio.get_running_loop()
    groups: dict[int, Group] = {}
    timers: list[asyncio.TimerHandle] = []

    def begin() -> None:
        timers.extend(loop.call_later(crash.at, cut, crash.rank) for crash in crashes if crash.at is not None)

    async def one(rank: int) -> Any:
        where: dict[str, Any] = {"store": store, "rank": rank, "size": size, "transport": fabric} | connect
        async with aiocoll.connect(**where) as group:
            groups[rank] = group
            if len(groups) == size:  # the time of a crash counts from here on
                begin()
            return await main(group)

    ranks = Ranks(size)

    def cut(rank: int) -> None:
        transport = groups[rank]._endpoint.transport
        assert isinstance(transport, InprocTransport)
        transport.switch.power_cut(rank)
        ranks.crash(rank)

    ranks.start(one)
    try:
        await ranks.wait(limit=limit, grace=_GRACE_SECONDS)
    finally:
        for timer in timers:
            timer.cancel()
        await store.close()
    return ranks.results()


def replay(size: int, main: Main, fabric: str, seed: int) -> str:
    """The command that runs it again: that of the test which pytest is running, else the call."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    call = f"aiocoll.testing.run({size}, {getattr(main, '__qualname__', main)}, {fabric!r}, seed={seed})"
    if test:
        return f"{call}; again: {os.path.basename(sys.executable)} -m pytest '{test}'"
    return f"again: {call}"


__all__ = ["FABRICS", "run"]
