"""Backends whose arrays another library moves: "mpi" (mpi4py), "gloo" and "nccl" (torch).

Such a world is a world of aiocoll all the same: it finds the ranks, checks and numbers the calls, says who is dead or
late or called something else, and sends messages and small descriptions. Where a group would choose an algorithm, it
gets one that goes through the library.

The rule: a library is imported when its backend is asked for, and by nobody else.

- ``base``: what a library must be able to do, in one screen
- ``carried``: a library as the carrier of a world's groups; ``lane``: its way of doing one group's collectives
- ``operands``: NumPy's reductions in the words of libraries that know fewer
- ``mpi``, ``process_groups``: the libraries
"""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from ...config import Settings
from ...errors import AiocollError, UsageError
from ...place import detect
from ..constants import PLUGINS
from ..refusals import RuntimeUsageError
from .carried import Carried

if TYPE_CHECKING:
    from ...sync import SyncGroup
    from .base import Library
    from .mpi import MpiLibrary

NAMES = ("mpi", "gloo", "nccl")
"""Ours; programs may register others."""
_EXTRA_OF = {"mpi": ("mpi", "mpi4py and an MPI"), "gloo": ("torch", "PyTorch"), "nccl": ("torch", "PyTorch, and GPUs")}


def carries(name: str) -> bool:
    """Whether the arrays of this backend are moved by a library."""
    return name in NAMES or name in PLUGINS


def missing(name: str) -> str:
    """Why this backend cannot work in this installation; empty if it can. Imports torch, and initialises no MPI."""
    if name in PLUGINS:
        return ""
    extra, needs = _EXTRA_OF[name]
    remedy = f"backend {name!r} runs on {needs} (extra aiocoll[{extra}], installed by pip install 'aiocoll[{extra}]')"
    try:
        if name == "mpi":
            found = importlib.util.find_spec("mpi4py") is not None and importlib.util.find_spec("mpi4py.MPI")
            return "" if found else f"mpi4py is not installed: {remedy}"
        if importlib.util.find_spec("torch") is None:
            return f"torch is not installed: {remedy}"
        import torch
        import torch.distributed
    except (ImportError, RuntimeError, OSError) as error:  # it is there, and what it stands on is not
        return f"{(str(error).strip() or type(error).__name__).splitlines()[0]}: {remedy}"
    if not torch.distributed.is_available() or not getattr(torch.distributed, f"is_{name}_available")():
        return f"torch {torch.__version__} was built without {name}: {remedy}"
    if name == "nccl" and not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU on this host: {remedy}"
    return ""


def join(name: str, connect: Callable[..., SyncGroup], init_method: str | None, options: dict[str, Any]) -> SyncGroup:
    """The world, joined by ``connect``, with the library as its carrier; of MPI's ranks if the library is MPI.

    RuntimeError where the library cannot be had, or fails when the world opens it.
    """
    reason = missing(name)
    if reason:
        raise RuntimeUsageError(f"backend {name!r} is not available: {reason}; 'tcp', 'shm' and 'auto' work everywhere")
    if name in PLUGINS:
        store = options.get("store")
        return _carried(
            connect(init_method, **options),
            lambda world: PLUGINS[name](store, world.rank, world.size, _timedelta(world.timeout)),
        )
    if name != "mpi":
        from .process_groups import TorchLibrary

        here = detect(told=True)  # what it lacks, connect() says
        by_pmi = here.init_method == "pmi://" and not init_method and options.get("store") is None
        secret = bool(here.secret) or by_pmi  # PMI's ranks are told one when they meet
        return _carried(connect(init_method, **options), lambda world: TorchLibrary(name, secret=secret))
    from .mpi import MpiLibrary

    mpi = MpiLibrary()
    with _meeting_place(mpi, options.get("timeout", Settings.from_env().timeout)) as place:
        unasked = ("rank", "size", "store")  # MPI knows, and the documents have it so
        kept = {each: value for each, value in options.items() if each not in unasked}
        return _carried(connect(**place, **kept), lambda world: mpi)


def _carried(world: SyncGroup, made: Callable[[SyncGroup], Library]) -> SyncGroup:
    """The world with ``made(world)`` as its carrier; left again where that does not work."""
    try:
        library = made(world)
        if not all(hasattr(library, each) for each in ("name", "title", "reduces", "open", "invite", "close")):
            raise RuntimeUsageError(f"init_process_group: {library!r} is no carriers.base.Library")
        group = world.asynchronous
        assert group._connection is not None
        group._connection.lineage.carrier = Carried(library)
        try:
            world.all_reduce(np.zeros(1))  # opens the library's half of the world, so that it fails here or works
        except UsageError:
            raise
        except AiocollError as error:
            raise RuntimeUsageError(f"init_process_group: {library.title} does not work here: {error}") from error
    except BaseException:
        world.disconnect()
        raise
    return world


def _timedelta(seconds: float) -> timedelta:
    """A timeout as torch's backends take it; the longest that there is for one without end."""
    return timedelta.max if seconds >= timedelta.max.total_seconds() else timedelta(seconds=seconds)


@contextlib.contextmanager
def _meeting_place(mpi: MpiLibrary, seconds: float) -> Iterator[dict[str, Any]]:
    """What ``connect`` takes to meet the ranks of MPI's world: rank 0 listens, and MPI tells the others where."""
    with contextlib.ExitStack() as kept:
        listeners: list[socket.socket] = []

        def place(hosts: list[str]) -> tuple[str, bytes]:
            near = all(host == hosts[0] for host in hosts)
            listeners.append(kept.enter_context(socket.create_server(("127.0.0.1" if near else "", 0))))
            address = f"tcp://{'127.0.0.1' if near else hosts[0]}:{listeners[0].getsockname()[1]}"
            return address, secrets.token_bytes(32)

        address, secret = mpi.met(mpi.host, place, seconds)
        listener = listeners[0] if listeners else None
        yield {
            "init_method": address, "rank": mpi.rank, "size": mpi.size, "listener": listener, "secret": secret
        }  # fmt: skip
