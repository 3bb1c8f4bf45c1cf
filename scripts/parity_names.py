"""Every name of torch.distributed that our contract lists, early and late, and what a reader must know of ours.

The rule: this is data. ``scripts/parity.py`` compares it with the installed torch and with aiocoll, and a name that is
documented there and is not here, or a ★ name that aiocoll has not, is a failed test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Chapter:
    """Names that belong together; ``stars`` must be there, ``others`` may be."""

    title: str
    stars: tuple[str, ...]
    others: tuple[str, ...] = ()


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


EARLY: Final = (
    Chapter(
        "The early API: joining and state",
        _names(
            "is_available is_initialized init_process_group init_master_worker destroy_process_group get_rank "
            "get_world_size new_group dist_backend.UNDEFINED dist_backend.TCP dist_backend.MPI dist_backend.GLOO "
            "dist_backend.NCCL group.WORLD _clear_group_cache _register_stream _INITIALIZED_PG _INITIALIZED_MW "
            "_initialized _backend _scope _extend_scope"
        ),
    ),
    Chapter(
        "The early API: calls",
        _names(
            "send recv isend irecv broadcast all_reduce reduce all_gather gather scatter barrier broadcast_multigpu "
            "all_reduce_multigpu reduce_multigpu all_gather_multigpu reduce_op.SUM reduce_op.PRODUCT reduce_op.MAX "
            "reduce_op.MIN Request.is_completed Request.wait"
        ),
    ),
)

TODAY: Final = (
    Chapter(
        "Joining and state",
        _names(
            "init_process_group destroy_process_group is_initialized is_available get_rank get_world_size "
            "get_node_local_rank get_pg_count set_timeout get_backend get_backend_config is_backend_available "
            "is_mpi_available is_nccl_available is_gloo_available is_ucc_available is_xccl_available "
            "is_torchelastic_launched register_rendezvous_handler rendezvous default_pg_timeout Backend "
            "Backend.register_backend group.WORLD GroupMember.WORLD GroupMember.NON_GROUP_MEMBER"
        ),
        _names("BackendConfig get_default_backend_for_device supports_complex GroupName"),
    ),
    Chapter(
        "Groups",
        _names(
            "new_group new_subgroups new_subgroups_by_enumeration split_group shrink_group get_group_rank "
            "get_global_rank get_process_group_ranks ProcessGroup.rank ProcessGroup.size ProcessGroup.name "
            "ProcessGroup.abort ProcessGroup.shutdown"
        ),
        _names(
            "ProcessGroup.merge_remote_group ProcessGroup.supports_reconfigure ProcessGroup.get_reconfigure_handle "
            "ProcessGroup.reconfigure ProcessGroup.register_pre_hook ProcessGroup.register_post_hook "
            "ProcessGroup.register_abort_hook new_window ProcessGroupGloo AllreduceCoalescedOptions AllreduceOptions "
            "AllToAllOptions BarrierOptions BroadcastOptions GatherOptions ReduceOptions ReduceScatterOptions "
            "ScatterOptions"
        ),
    ),
    Chapter("Messages", _names("send recv isend irecv batch_isend_irecv P2POp")),
    Chapter(
        "Collectives",
        _names(
            "broadcast all_reduce reduce all_gather all_gather_single all_gather_into_tensor gather scatter "
            "reduce_scatter reduce_scatter_single reduce_scatter_tensor all_to_all all_to_all_single barrier"
        ),
        _names("gather_single gather_into_tensor all_reduce_coalesced all_gather_coalesced"),
    ),
    Chapter(
        "Functional collectives",
        (),
        _names(
            "functional.all_reduce functional.all_gather_tensor functional.reduce_scatter_tensor "
            "functional.all_to_all_single functional.broadcast functional.permute_tensor functional.wait_tensor "
            "functional.AsyncCollectiveTensor"
        ),
    ),
    Chapter(
        "Object collectives",
        _names(
            "all_gather_object gather_object broadcast_object_list scatter_object_list send_object_list "
            "recv_object_list"
        ),
    ),
    Chapter(
        "Work",
        _names(
            "Work Work.wait Work.is_completed Work.is_success Work.exception Work.result Work.source_rank "
            "Work.get_future Work.synchronize"
        ),
        _names("Work.block_current_stream"),
    ),
    Chapter(
        "Reductions",
        _names(
            "ReduceOp ReduceOp.SUM ReduceOp.AVG ReduceOp.PRODUCT ReduceOp.MIN ReduceOp.MAX ReduceOp.BAND ReduceOp.BOR "
            "ReduceOp.BXOR ReduceOp.PREMUL_SUM reduce_op"
        ),
    ),
    Chapter(
        "Stores",
        _names(
            "Store Store.set Store.get Store.add Store.check Store.compare_set Store.delete_key Store.multi_get "
            "Store.multi_set Store.num_keys Store.wait Store.set_timeout Store.append Store.queue_push Store.queue_pop "
            "Store.queue_len Store.list_keys Store.clone Store.timeout TCPStore TCPStore.host TCPStore.port FileStore "
            "FileStore.path HashStore PrefixStore PrefixStore.underlying_store"
        ),
        _names("FakeStore"),
    ),
    Chapter(
        "Watching and debugging",
        _names(
            "monitored_barrier DebugLevel get_debug_level set_debug_level set_debug_level_from_env record_comm "
            "flight_recorder NanCheckHook"
        ),
        _names("debug.start_debug_server Backend.get_error"),
    ),
    Chapter(
        "Meshes",
        _names(
            "init_device_mesh DeviceMesh DeviceMesh.__getitem__ DeviceMesh.get_group DeviceMesh.get_local_rank "
            "DeviceMesh.get_coordinate DeviceMesh.size DeviceMesh.from_group"
        ),
        _names("DeviceMesh.get_rank DeviceMesh.get_all_groups DeviceMesh.ndim DeviceMesh.shape DeviceMesh.mesh"),
    ),
    Chapter(
        "Testing",
        _names("FakeProcessGroup LocalTensorMode MultiThreadedProcessGroup"),
    ),
    Chapter(
        "On top of it",
        (),
        _names("Join ddp_comm_hooks model_averaging symmetric_memory fsdp"),
    ),
)

TORCHRUN: Final = _names(
    "--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --standalone --max-restarts "
    "--monitor-interval --start-method --role -m --no-python --run-path --log-dir -r -t --log-line-prefix-template "
    "--local-ranks-filter --node-rank --master-addr --master-port --local-addr --numa-binding --signals-to-handle "
    "--shutdown-timeout --virtual-local-rank --event-log-handler --print-completion"
)

WITH_ANOTHER_NAME: Final = {
    "flight_recorder": "the last 1,000 facts of every rank are kept and dumped when a group breaks; `aiocoll trace "
    "show` says what the dumps of all ranks say together",
    "NanCheckHook": "`np.isnan(x).any()` before the call: no hook is needed where a call is a Python function",
    "FakeProcessGroup": "`aiocoll.sim`: the real algorithms on real values, many ranks in one process",
    "LocalTensorMode": "`aiocoll.testing.run(size, main)`: many ranks in one process, with real values",
    "MultiThreadedProcessGroup": "`aiocoll.testing.run(size, main, fabric='inproc')`, or one `aiocoll.sync.connect()` "
    "per thread",
    "functional.AsyncCollectiveTensor": "`await group.all_reduce(x)` and `group.start.all_reduce(x)` give a new array; "
    "`wait_tensor` returns what it is given",
    "debug.start_debug_server": "`kill -USR2` and `aiocoll trace dump` ask a running rank",
    "Backend.get_error": "`group.broken` is the error itself, or None",
    "ProcessGroup.merge_remote_group": "`group.grow()` admits processes that come later",
    "ProcessGroup.supports_reconfigure": "`group.shrink()` and `group.grow()` always work",
    "ProcessGroup.get_reconfigure_handle": "`group.shrink()` and `group.grow()` need no handles",
    "ProcessGroup.reconfigure": "`group.shrink()` and `group.grow()`",
    "ProcessGroup.register_pre_hook": "`aiocoll.observe` hears of every call",
    "ProcessGroup.register_post_hook": "`aiocoll.observe` hears of every call",
    "ProcessGroup.register_abort_hook": "`aiocoll.observe` hears of every failure",
    "FakeStore": "`HashStore` does what it says, in one process",
    "Join": "all ranks call `all_reduce` with what they have; `monitored_barrier` names who did not come",
    "model_averaging": "`examples/` has parameter averaging in a few lines",
    "ddp_comm_hooks": "convert before the call: float16 and bfloat16 are summed in float32",
}
"""What has no such name here, and what does the same: shown as "differs"."""

NOT_HERE: Final = {
    "Work.block_current_stream": "a stream of a GPU",
    "new_window": "one-sided access to memory of GPUs; `group.empty()` gives arrays that the ranks of a host share",
    "symmetric_memory": "memory of GPUs",
    "fsdp": "sharding of torch modules",
    "BackendConfig": "a device's backend: there is one device",
    "GroupName": "a type alias of torch's compiler",
    "ProcessGroupGloo": "torch's own class; `init_process_group('gloo')` uses it",
    "supports_complex": "sums of complex numbers always work",
    "get_default_backend_for_device": "there is one device, and `auto` serves it",
    **dict.fromkeys(
        _names(
            "AllreduceCoalescedOptions AllreduceOptions AllToAllOptions BarrierOptions BroadcastOptions GatherOptions "
            "ReduceOptions ReduceScatterOptions ScatterOptions"
        ),
        "an argument of torch's C++ classes; the functions take keywords",
    ),
}
"""What does not apply, and why."""

BEHAVIOUR: Final = {
    "init_process_group": "`init_method` defaults to `env://`, as in the early API; the timeout is 60 s or "
    "`AIOCOLL_TIMEOUT`; backends are `tcp`, `shm`, `auto`, `mpi`, `gloo`, `nccl`",
    "init_master_worker": "raises RuntimeError: the mode was removed upstream",
    "_clear_group_cache": "nothing is cached",
    "_register_stream": "takes CUDA streams and uses none",
    "destroy_process_group": "without a world: NotInitializedError, which is an AssertionError too",
    "split_group": "works on every backend",
    "shrink_group": "works on every backend; ranks that are alive may be left out",
    "get_backend": "gives `shm` and `auto` too",
    "default_pg_timeout": "torch's 30 minutes; calls here have 60 s or `AIOCOLL_TIMEOUT` unless told otherwise",
    "reduce": "the tensors of all ranks but `dst` stay as they are",
    "all_gather": "sizes may differ from rank to rank",
    "recv": "returns the sender; a message that does not fit raises MismatchError and is consumed",
    "isend": "to oneself works",
    "irecv": "from oneself works",
    "all_gather_object": "plain data without pickle unless it is allowed",
    "gather_object": "plain data without pickle unless it is allowed",
    "broadcast_object_list": "plain data without pickle unless it is allowed",
    "scatter_object_list": "plain data without pickle unless it is allowed",
    "send_object_list": "plain data without pickle unless it is allowed",
    "recv_object_list": "plain data without pickle unless it is allowed; without `src` it takes from anyone",
    "Work.wait": "a timeout that is too short raises and leaves the call running",
    "Request.wait": "returns True, where the early API returned None",
    "Work": "the same class as the early Request; it can be awaited",
    "Work.get_future": "a Future of our own with then(), wait(), value() and done()",
    "ReduceOp.PREMUL_SUM": "works on every backend",
    "monitored_barrier": "every rank raises and names who is missing, not only rank 0",
    "init_device_mesh": "the device is the CPU",
    "DeviceMesh": "an array of ranks",
    "Backend.register_backend": "the function gives an object with the methods of "
    "`aiocoll.distributed.carriers.base.Library`",
    "is_ucc_available": "False: there is no such backend",
    "is_xccl_available": "False: there is no such backend",
    "Store.get": "a wait that is too long is a TimeoutError and a RuntimeError",
    "Store.wait": "a wait that is too long is a TimeoutError and a RuntimeError",
    "FileStore": "queues, too",
    "HashStore": "queues, too",
}
"""Where names and arguments are the same and a careful reader would be surprised."""

OPTIONS: Final = {
    "--rdzv-backend": "accepted: the runner serves its own store, and there is one way to meet",
    "--rdzv-conf": "accepted, and not needed",
    "-r": "accepted with --log-dir, which always shows and writes the output",
    "-t": "accepted with --log-dir, which always shows and writes the output",
    "--nproc-per-node": "a number, `auto` or `cpu`; `gpu` is refused",
    "--max-restarts": "with `--on-failure shrink`, how many dead ranks get a replacement",
}
"""What differs in options of torchrun that are taken."""
