"""The documented blocking API: ``import aiocoll.distributed as dist``, with NumPy arrays and torch CPU tensors.

Code written for torch.distributed, early or late, runs on it: in place, in the documented words; the manual's page
``docs/documented_api.md`` lists every name with the test that checks it.

The rule: this package checks arguments and keeps the module state; what a call does is written further down.

- ``membership``: init_process_group, destroy_process_group, get_rank, get_world_size …; ``rendezvous``: how URLs
  become stores; ``stores``: TCPStore, FileStore, HashStore, PrefixStore
- ``groups``: new_group, new_subgroups, split_group, shrink_group, whose rank is whose; ``device_mesh``: DeviceMesh
- ``debug``: debug levels, record_comm; ``failures``: torch's names of what may go wrong
- ``collectives``: broadcast, all_reduce, reduce, all_gather, gather, scatter; ``barriers``: barrier, monitored_barrier
- ``singles``: all_gather_single, reduce_scatter, all_to_all_single and their kin; ``coalesced``: several at once
- ``messages``: send, recv, isend, irecv; ``batch``: batch_isend_irecv
- ``multigpu``: the *_multigpu forms, over lists of local tensors
- ``objects``: the object collectives, send_object_list, recv_object_list
- ``memory``: empty, zeros
- ``functional``: the collectives out of place; ``_functional_collectives``: the same under torch's name
- ``request``: the handle of a call on its way; ``futures``: what its ``get_future()`` gives
- ``carriers``: the backends whose arrays another library moves; ``on_device``: tensors of a GPU, for one of them
- ``constants``, ``state``, ``backends``, ``environment``, ``arguments``, ``timeouts``, ``filling``, ``refusals``: what
  these stand on
"""

from __future__ import annotations

from types import ModuleType

from . import _functional_collectives, functional
from .backends import (
    is_available,
    is_backend_available,
    is_gloo_available,
    is_mpi_available,
    is_nccl_available,
    is_ucc_available,
    is_xccl_available,
)
from .barriers import barrier, monitored_barrier
from .batch import P2POp, batch_isend_irecv
from .coalesced import _coalescing_manager, all_gather_coalesced, all_reduce_coalesced
from .collectives import all_gather, all_reduce, broadcast, gather, reduce, scatter
from .constants import (
    _INITIALIZED_MW,
    _INITIALIZED_PG,
    Backend,
    ReduceOp,
    _make_nccl_premul_sum,
    dist_backend,
    reduce_op,
)
from .debug import DebugLevel, get_debug_level, record_comm, set_debug_level, set_debug_level_from_env
from .device_mesh import DeviceMesh, init_device_mesh
from .failures import DistBackendError, DistError, DistNetworkError, DistStoreError
from .futures import Future
from .groups import (
    SHRINK_ABORT,
    SHRINK_DEFAULT,
    get_global_rank,
    get_group_rank,
    get_pg_count,
    get_process_group_ranks,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    set_timeout,
    shrink_group,
    split_group,
)
from .membership import (
    _clear_group_cache,
    _register_stream,
    destroy_process_group,
    get_backend,
    get_backend_config,
    get_node_local_rank,
    get_rank,
    get_world_size,
    init_master_worker,
    init_process_group,
    is_initialized,
    is_torchelastic_launched,
)
from .memory import empty, zeros
from .messages import irecv, isend, recv, send
from .multigpu import all_gather_multigpu, all_reduce_multigpu, broadcast_multigpu, reduce_multigpu
from .objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from .rendezvous import register_rendezvous_handler, rendezvous
from .request import Request
from .request import Request as Work
from .singles import (
    _all_gather_base,
    _reduce_scatter_base,
    all_gather_into_tensor,
    all_gather_single,
    all_to_all,
    all_to_all_single,
    gather_into_tensor,
    gather_single,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
)
from .state import STATE as _STATE
from .state import GroupMember, ProcessGroup, group
from .stores import FileStore, HashStore, PrefixStore, QueueEmptyError, Store, TCPStore
from .timeouts import default_pg_timeout

__all__ = [
    "Backend",
    "DebugLevel",
    "DeviceMesh",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "FileStore",
    "Future",
    "GroupMember",
    "HashStore",
    "P2POp",
    "PrefixStore",
    "ProcessGroup",
    "QueueEmptyError",
    "ReduceOp",
    "Request",
    "SHRINK_ABORT",
    "SHRINK_DEFAULT",
    "Store",
    "TCPStore",
    "Work",
    "_INITIALIZED_MW",
    "_INITIALIZED_PG",
    "_all_gather_base",
    "_clear_group_cache",
    "_coalescing_manager",
    "_extend_scope",
    "_functional_collectives",
    "_make_nccl_premul_sum",
    "_reduce_scatter_base",
    "_register_stream",
    "_scope",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_multigpu",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_reduce_multigpu",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_multigpu",
    "broadcast_object_list",
    "default_pg_timeout",
    "destroy_process_group",
    "dist_backend",
    "empty",
    "functional",
    "gather",
    "gather_into_tensor",
    "gather_object",
    "gather_single",
    "get_backend",
    "get_backend_config",
    "get_debug_level",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_device_mesh",
    "init_master_worker",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "record_comm",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_multigpu",
    "reduce_op",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "register_rendezvous_handler",
    "rendezvous",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "set_debug_level",
    "set_debug_level_from_env",
    "set_timeout",
    "shrink_group",
    "split_group",
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
