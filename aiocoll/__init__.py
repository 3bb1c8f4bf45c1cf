"""Awaitable message passing and collectives on NumPy arrays, for ranks that are plain Python processes.

The map of this tree, top to bottom; what stands higher may import what stands lower:

    __main__ cli    the program ``aiocoll``: run, trace, bench, doctor
    doctor          ``aiocoll doctor``: what aiocoll finds on this machine
    testing/        conformance suites, and ``run``: one test on every fabric
    notebook/       ``%load_ext aiocoll``: ranks that live as long as a notebook
    bench/          ``aiocoll bench``: the collectives timed and checked, next to what the machine can do
    distributed/    the documented blocking API, a thin skin over sync
    mpi/            mpi4py's names over sync, for programs that are written for MPI
    runner/         spawn N of me: ``aiocoll run`` and ``aiocoll.launch``
    trace/          ``aiocoll trace``: what the dumps of several ranks say together
    sim/            many ranks in one process, virtual time, one seed
    sync/           blocking groups and Work handles over the drivers Inline and Threaded
    world/          connect() and run(): a place -> store + links -> the first Group, and how newcomers get in
    rendezvous/     how ranks meet: one file per scheme of init_method, and the joining protocol
    place/          where am I: one file per environment, detect()
    group/          Group: arguments, call numbers, choice, results, subgroups
    tuning/         choose(): override > table > cost model
    algorithms/     one file per collective, one decorated coroutine per algorithm
    endpoint/       all my links, matching, the verbs, how failures travel
    transport/      frames <-> one peer, in order: shm, tcp, inproc
    store/          rendezvous key/value: memory, file, tcp; prefix() decorates any of them
    wire/           frames, codecs, handshake: bytes only, a limit on everything
    patterns        who talks to whom: pure arithmetic
    ops             reductions
    buffers/        what is an array, how it lies in memory, moving it piece by piece
    observe/        facts out, never control in
    config          one frozen Settings
    cpus            how many CPUs this process may really use
    errors          every exception, cut by whose fault it is
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors
from .errors import (
    AiocollError,
    AuthenticationError,
    CollectiveTimeoutError,
    GroupBrokenError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    RendezvousError,
    SerializationError,
    UsageError,
)

if TYPE_CHECKING:
    from . import distributed, sync
    from .group import Group, Message
    from .ops import BAND, BOR, BXOR, LAND, LOR, LXOR, MAX, MEAN, MIN, PROD, SUM, Op, op
    from .runner.functions import launch
    from .world import connect, run

__version__ = "0.1.0"

__all__ = [
    "BAND",
    "BOR",
    "BXOR",
    "LAND",
    "LOR",
    "LXOR",
    "MAX",
    "MEAN",
    "MIN",
    "PROD",
    "SUM",
    "AiocollError",
    "AuthenticationError",
    "CollectiveTimeoutError",
    "Group",
    "GroupBrokenError",
    "MismatchError",
    "Message",
    "NotInitializedError",
    "Op",
    "PeerLostError",
    "RendezvousError",
    "SerializationError",
    "UsageError",
    "connect",
    "distributed",
    "errors",
    "launch",
    "op",
    "run",
    "sync",
]


# Imported when they are asked for: the program ``aiocoll run`` starts ranks before it needs NumPy, and never does.
_MODULES = ("distributed", "mpi", "sync", "sim", "store", "testing")
_HOMES = {
    "group": ("Group", "Message"),
    "notebook": ("load_ipython_extension", "unload_ipython_extension"),
    "ops": ("BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR", "MAX", "MEAN", "MIN", "PROD", "SUM", "Op", "op"),
    "runner.functions": ("launch",),
    "world": ("connect", "run"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOME_OF:
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
