"""Joining and leaving: init_process_group, destroy_process_group, and who is who in the world.

The rule: a process joins and leaves the world here; ``groups`` makes what there is within it.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from .. import sync
from ..errors import AiocollError, NotInitializedError, UsageError
from ..rendezvous.url import parse
from ..sync.leaving import before_threads_end
from . import carriers
from .arguments import integer
from .backends import backend_named, transport_of
from .constants import Backend
from .debug import get_debug_level, told
from .environment import from_environment, placed_by_launcher
from .refusals import AssertionUsageError, RuntimeUsageError, TypeUsageError, documented
from .rendezvous import is_registered, registered
from .state import STATE, WORLD, member_of, world
from .stores import meeting_place
from .timeouts import seconds_of


def init_process_group(
    backend: str | None = None,
    init_method: str | None = "env://",
    timeout: float | timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
    _ranks: Any = None,
    enable_reconfigure: bool = False,
    **kwargs: Any,
) -> None:
    """Initializes the distributed package, and blocks until all processes have joined.

    Arguments:
        backend: Name of the backend to use: ``tcp``, ``shm``, ``auto``, ``mpi``, ``gloo`` or ``nccl``, in any case;
            None is ``auto``. With ``mpi``, MPI says who is who, and rank, world_size and init_method are not looked at.
        init_method: URL specifying how to initialize the package: ``env://``, ``tcp://host:port``,
            ``tcp://multicast-address:port``, ``file:///path``, or what register_rendezvous_handler() knows. With
            ``env://`` and neither RANK nor WORLD_SIZE set, a launcher that says it otherwise (mpiexec, srun, an
            indexed job of Kubernetes) is heard as ``aiocoll.connect()`` hears it.
        timeout: Default deadline of every call, a timedelta or seconds; else ``AIOCOLL_TIMEOUT``, else 60 seconds.
        world_size: Number of processes participating in the job.
        rank: Rank of the current process.
        store: A store to meet in instead of an ``init_method``; needs rank and world_size. One of this package
            (TCPStore, FileStore, HashStore, PrefixStore), of ``aiocoll.store``, or with the same methods.
        group_name: Keeps jobs that meet at the same place apart.
        pg_options, device_id: Accepted for code written for GPUs; nothing here depends on them.
        _ranks, enable_reconfigure: Refused: shrink_group() makes a world of some, ``aiocoll``'s grow() a larger one.

    Raises:
        RuntimeError: An argument or a variable is wrong or missing, the backend does not work here, or this process
            has joined already. AssertionError for an unknown keyword, TypeError for a wrong type.
        RendezvousError: The processes did not meet: who came, who is missing, which address was tried.
        AuthenticationError: What answered belongs to another job, or has another secret.
    """
    if kwargs:
        raise AssertionUsageError(f"got unexpected keyword arguments: {','.join(kwargs)}")
    if STATE.world is not None and STATE.world.foreign:
        STATE.leave()  # a forked child of a rank is not in its parent's world, and may join one of its own
    if STATE.initialized:
        raise RuntimeUsageError(
            f"trying to initialize torch.distributed twice! This process is rank {world().rank} of {world().name!r}; "
            "destroy_process_group() leaves it"
        )
    if _ranks is not None or enable_reconfigure:
        raise RuntimeUsageError(
            "init_process_group: _ranks= and enable_reconfigure= are not offered: new_group() and shrink_group() make "
            "groups of some ranks, grow() of aiocoll's own API lets more in"
        )
    get_debug_level()  # refuses a malformed variable before anything is joined
    chosen = backend_named(backend)
    options: dict[str, Any] = {"transport": transport_of(chosen), "group_name": group_name}
    size, place = _count(world_size, "world_size"), _count(rank, "rank")
    if chosen == Backend.MPI:
        size = place = init_method = None  # MPI knows who is who
    elif store is not None:
        if init_method not in (None, "env://"):
            raise RuntimeUsageError("init_process_group: give either a store or an init_method, not both")
        if size is None or place is None:
            raise RuntimeUsageError("init_process_group: a store needs rank and world_size too")
        init_method, options["store"] = None, meeting_place(store)
    elif is_registered(_url(init_method)):
        met, place, size = registered(_url(init_method), place, size, seconds_of(timeout))
        init_method, options["store"] = None, meeting_place(met)
    else:
        init_method = _url(init_method)
        if init_method == "env://" and size is None and place is None and placed_by_launcher():
            init_method = None
        elif init_method.startswith("env://"):
            try:
                size, place = from_environment(size, place, parse(init_method))
            except UsageError as error:
                raise documented(error) from error.__cause__
    if size is not None and place is not None and not 0 <= place < size:
        raise RuntimeUsageError(f"worker's rank({place}) is out of range: [0, {size - 1}] (world_size={size})")
    limit = seconds_of(timeout)
    if limit is not None:
        options["timeout"] = limit
    try:
        if carriers.carries(chosen):
            group = carriers.join(chosen, sync.connect, init_method, {"rank": place, "size": size, **options})
        else:
            group = sync.connect(init_method, rank=place, size=size, **options)
    except UsageError as error:
        raise documented(error) from error.__cause__
    STATE.join(group, str(chosen))
    told("rank %d of %d has joined by %s, backend %s", group.rank, group.size, init_method or "its place", chosen)
    _leave_at_exit()


def destroy_process_group(group: Any = None) -> None:
    """Leaves the world and every group in it; with ``group``, a group that new_group() made, leaves only that one."""
    if group is None or group is WORLD:
        STATE.leave()
        told("left the world")
        return
    member = member_of(group)
    if member is not None:
        STATE.groups.pop(id(group), None)
        member.close()


def is_initialized() -> bool:
    """Has init_process_group() been called, and destroy_process_group() not yet?"""
    return STATE.world is not None


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """Returns this process's rank on its host, as its launcher says in ``LOCAL_RANK``; ``fallback_rank`` without it."""
    said = os.environ.get("LOCAL_RANK", "").strip()
    if not said and fallback_rank is not None:
        return integer(fallback_rank, "get_node_local_rank", "fallback_rank")
    if not said.isdigit():
        raise RuntimeUsageError(
            "LOCAL_RANK is not in the environment. Consider passing fallback_rank to allow `get_node_local_rank` to "
            f"work outside of a launcher (aiocoll run and torchrun set it); it is {said!r}"
        )
    return int(said)


def is_torchelastic_launched() -> bool:
    """Was this process started by torchrun, or by ``aiocoll run``, which sets the same variables?"""
    return "TORCHELASTIC_RUN_ID" in os.environ


def get_rank(group: Any = WORLD) -> int:
    """Returns the rank of current process: a unique identifier from 0 to ``world_size - 1``.

    With ``group``, the rank in that group; -1 when I am not in it.
    """
    member = member_of(group)
    return -1 if member is None else member.rank


def get_world_size(group: Any = WORLD) -> int:
    """Returns the number of processes in the world; with ``group``, in that group, or -1 when I am not in it."""
    member = member_of(group)
    return -1 if member is None else member.size


def get_backend(group: Any = WORLD) -> str:
    """Returns the backend's name in lower case."""
    member_of(group)
    return STATE.backend_name


def get_backend_config(group: Any = WORLD) -> str:
    """Returns which backend serves which device: ``cpu:`` and the backend's name; one backend serves all."""
    device = "cuda" if get_backend(group) == Backend.NCCL else "cpu"
    return f"{device}:{STATE.backend_name}"


def init_master_worker(backend: str | None = None, init_method: str = "env://", **kwargs: Any) -> None:
    """Raises RuntimeError: the experimental master-worker mode was removed upstream and has no successor."""
    raise RuntimeUsageError(
        "init_master_worker: the master-worker mode was removed upstream; start one process per rank "
        "(aiocoll run -n 4 script.py) and use process groups: init_process_group()"
    )


def _clear_group_cache(group: Any = WORLD) -> None:
    """Drops what a GPU backend had cached for the group; the backends here cache nothing."""
    member_of(group)


def _register_stream(stream: Any) -> None:
    """Tells a GPU backend of a CUDA stream; the backends here work on the CPU and take note of nothing."""
    if not STATE.initialized:
        raise NotInitializedError("torch.distributed needs to be initialized first: call init_process_group()")
    if not hasattr(stream, "cuda_stream"):
        raise TypeUsageError(f"_register_stream: expected a torch.cuda.Stream, got {type(stream).__name__}")


# ------------------------------------------------------------------------------------------------ checks


def _count(value: Any, name: str) -> int | None:
    """-1 and None say "not given"."""
    if value is None:
        return None
    number = integer(value, "init_process_group", name)
    return None if number == -1 else number


def _url(init_method: Any) -> str:
    if init_method is None:
        return "env://"
    if not isinstance(init_method, str):
        raise TypeUsageError(
            f"init_process_group: init_method must be a URL in a string, got {type(init_method).__name__}"
        )
    return init_method


# ------------------------------------------------------------------------------------------------ the end


_registered_in: int | None = None


def _leave_at_exit() -> None:
    global _registered_in
    if _registered_in != os.getpid():
        _registered_in = os.getpid()
        before_threads_end(_at_exit)


def _at_exit() -> None:
    if STATE.world is None or _registered_in != os.getpid():
        return
    try:
        destroy_process_group()
    except AiocollError:
        pass  # the program is over; what broke the group has been told where it happened
