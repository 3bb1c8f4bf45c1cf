"""The documented blocking API: ``import aiocoll.distributed as dist``, with NumPy arrays and torch CPU tensors.

Code written for torch.distributed, early or late, runs on it: in place, in the documented words; the manual's page
``docs/documented_api.md`` lists every name with the test that checks it.

The rule: this package checks arguments and keeps the module state; what a call does is written further down.

- ``membership``: init_process_group, destroy_process_group, new_group, get_rank, get_world_size …
- ``collectives``: broadcast, all_reduce, reduce, all_gather, gather, scatter, barrier, monitored_barrier
- ``messages``: send, recv, isend, irecv
- ``multigpu``: the *_multigpu forms, over lists of local tensors
- ``objects``: all_gather_object, broadcast_object_list
- ``memory``: empty, zeros
- ``request``: the handle of a call on its way
- ``constants``, ``state``, ``backends``, ``environment``, ``arguments``, ``refusals``: what these stand on
"""

from __future__ import annotations

from types import ModuleType

from .backends import (
    is_available,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
)
from .collectives import all_gather, all_reduce, barrier, broadcast, gather, monitored_barrier, reduce, scatter
from .constants import _INITIALIZED_MW, _INITIALIZED_PG, Backend, ReduceOp, dist_backend, reduce_op
from .membership import (
    _clear_group_cache,
    _register_stream,
    destroy_process_group,
    get_backend,
    get_rank,
    get_world_size,
    init_master_worker,
    init_process_group,
    is_initialized,
    new_group,
)
from .memory import empty, zeros
from .messages import irecv, isend, recv, send
from .multigpu import all_gather_multigpu, all_reduce_multigpu, broadcast_multigpu, reduce_multigpu
from .objects import all_gather_object, broadcast_object_list
from .request import Request
from .request import Request as Work
from .state import STATE as _STATE
from .state import GroupMember, ProcessGroup, group

__all__ = [
    "_INITIALIZED_MW",
    "_INITIALIZED_PG",
    "Backend",
    "GroupMember",
    "ProcessGroup",
    "ReduceOp",
    "Request",
    "Work",
    "_clear_group_cache",
    "_extend_scope",
    "_register_stream",
    "_scope",
    "all_gather",
    "all_gather_multigpu",
    "all_gather_object",
    "all_reduce",
    "all_reduce_multigpu",
    "barrier",
    "broadcast",
    "broadcast_multigpu",
    "broadcast_object_list",
    "destroy_process_group",
    "dist_backend",
    "empty",
    "gather",
    "get_backend",
    "get_rank",
    "get_world_size",
    "group",
    "init_master_worker",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "recv",
    "reduce",
    "reduce_multigpu",
    "reduce_op",
    "scatter",
    "send",
    "zeros",
]


_scope: dict[str, object] = globals()


def _extend_scope(module: ModuleType) -> None:
    """Puts the public names of ``module`` into this one, as the early API did."""
    _scope.update({name: getattr(module, name) for name in dir(module) if not name.startswith("_")})


def __getattr__(name: str) -> int:
    """The live module state that users of the early API look at."""
    if name == "_initialized":
        return _STATE.initialized
    if name == "_backend":
        return _STATE.backend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
