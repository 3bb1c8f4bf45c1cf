"""Before init_process_group and after destroy_process_group: documented words, in all documented classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import NotInitializedError, UsageError

X = np.arange(3.0)
CALLS: dict[str, Callable[[], Any]] = {
    "broadcast": lambda: dist.broadcast(X, 0),
    "all_reduce": lambda: dist.all_reduce(X),
    "reduce": lambda: dist.reduce(X, 0),
    "all_gather": lambda: dist.all_gather([X], X),
    "gather": lambda: dist.gather(X, dst=0),
    "scatter": lambda: dist.scatter(X, src=0),
    "barrier": lambda: dist.barrier(),
    "send": lambda: dist.send(X, 0),
    "recv": lambda: dist.recv(X),
    "isend": lambda: dist.isend(X, 0),
    "irecv": lambda: dist.irecv(X, 0),
    "new_group": lambda: dist.new_group([0]),
    "broadcast_multigpu": lambda: dist.broadcast_multigpu([X], 0),
    "all_reduce_multigpu": lambda: dist.all_reduce_multigpu([X]),
    "reduce_multigpu": lambda: dist.reduce_multigpu([X], 0),
    "all_gather_multigpu": lambda: dist.all_gather_multigpu([[X]], [X]),
    "all_gather_object": lambda: dist.all_gather_object([None], 1),
    "broadcast_object_list": lambda: dist.broadcast_object_list([1], 0),
    "gather_object": lambda: dist.gather_object(1),
    "scatter_object_list": lambda: dist.scatter_object_list([None]),
    "send_object_list": lambda: dist.send_object_list([1], 0),
    "recv_object_list": lambda: dist.recv_object_list([1]),
    "P2POp": lambda: dist.P2POp(dist.isend, X, 0),
    "all_gather_single": lambda: dist.all_gather_single(X, X),
    "gather_single": lambda: dist.gather_single(X),
    "reduce_scatter": lambda: dist.reduce_scatter(X, [X]),
    "reduce_scatter_single": lambda: dist.reduce_scatter_single(X, X),
    "all_to_all": lambda: dist.all_to_all([X], [X]),
    "all_to_all_single": lambda: dist.all_to_all_single(X, X),
    "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([X]),
    "all_gather_coalesced": lambda: dist.all_gather_coalesced([[X]], [X]),
    "_coalescing_manager": lambda: dist._coalescing_manager().__enter__(),
    "functional.all_reduce": lambda: dist.functional.all_reduce(X, "sum"),
    "functional.broadcast": lambda: dist.functional.broadcast(X, 0),
    "new_subgroups": lambda: dist.new_subgroups(1),
    "new_subgroups_by_enumeration": lambda: dist.new_subgroups_by_enumeration([[0]]),
    "split_group": lambda: dist.split_group(None, [[0]]),
    "shrink_group": lambda: dist.shrink_group([0]),
    "set_timeout": lambda: dist.set_timeout(3),
    "get_group_rank": lambda: dist.get_group_rank(None, 0),
    "get_global_rank": lambda: dist.get_global_rank(None, 0),
    "get_process_group_ranks": lambda: dist.get_process_group_ranks(None),
    "group.WORLD.abort": lambda: dist.group.WORLD.abort(),
    "group.WORLD.shutdown": lambda: dist.group.WORLD.shutdown(),
    "get_rank": dist.get_rank,
    "get_world_size": dist.get_world_size,
    "get_backend": dist.get_backend,
    "destroy_process_group": dist.destroy_process_group,
    "_clear_group_cache": dist._clear_group_cache,
    "group.WORLD.rank": lambda: dist.group.WORLD.rank(),
}


@pytest.mark.parametrize("name", CALLS)
def test_use_without_init(name: str) -> None:
    for kind in (AssertionError, ValueError, RuntimeError, NotInitializedError):
        with pytest.raises(kind, match="collective only supported in process-group mode"):
            CALLS[name]()


def test_register_stream_without_init() -> None:
    with pytest.raises(RuntimeError, match="torch.distributed needs to be initialized first") as caught:
        dist._register_stream(object())
    assert isinstance(caught.value, NotInitializedError)


def test_module_state() -> None:
    assert dist._initialized == 0 != dist._INITIALIZED_PG and not dist.is_initialized()
    assert dist._backend == dist.dist_backend.UNDEFINED
    assert "not initialized" in repr(dist.group.WORLD)
    with pytest.raises(AttributeError, match="_nothing"):
        _ = dist._nothing


def test_use_after_destroy(joined: Callable[..., Any]) -> None:
    fake = joined()
    handle = dist.new_group([0, 1])
    assert dist.is_initialized() and dist._initialized == dist._INITIALIZED_PG
    dist.destroy_process_group()
    assert fake.closed and not dist.is_initialized() and dist._backend == dist.dist_backend.UNDEFINED
    for use in (
        lambda: dist.barrier(),
        lambda: handle.size(),
        dist.destroy_process_group,
        lambda: dist.barrier(handle),
    ):
        with pytest.raises(NotInitializedError):
            use()


def test_init_master_worker() -> None:
    with pytest.raises(RuntimeError, match="removed upstream.*process groups") as caught:
        dist.init_master_worker("tcp", "env://", world_size=2)
    assert isinstance(caught.value, UsageError)
