"""Checks every function of the early documented API against NumPy; run it with `aiocoll run -n 4 THIS [backend]`.

Every check is a function named after what it checks; those of `checks_of_*.py` beside it are run, too. Inputs differ
per rank and per element: `data(rank)` is the same on every rank that asks for it, so each rank can compute what the
others have sent.
"""

from __future__ import annotations

import functools
import importlib
import operator
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from checking import CHECKS, DTYPES, OPS, SHAPE, check, data, everyone, expect, groups, me, raises, reduced
from checks_of_collectives import all_reduce, barrier

import aiocoll.distributed as dist

warnings.simplefilter("error")  # no "experimental" banners


# ------------------------------------------------------------------------------------------------ state


@check
def is_available_is_initialized_and_module_state() -> None:
    assert dist.is_available() and dist.is_initialized()
    assert dist._initialized == dist._INITIALIZED_PG == 1
    assert dist._backend == getattr(dist.dist_backend, dist.get_backend().upper())
    assert 0 <= dist.get_rank() < dist.get_world_size()


@check
def init_process_group_twice() -> None:
    raises(RuntimeError, "trying to initialize torch.distributed twice!", lambda: dist.init_process_group("tcp"))


@check
def init_master_worker() -> None:
    raises(RuntimeError, "removed upstream", lambda: dist.init_master_worker("tcp"))


@check
def clear_group_cache_and_register_stream() -> None:
    assert dist._clear_group_cache() is None
    raises(TypeError, "torch.cuda.Stream", lambda: dist._register_stream(1))


# ------------------------------------------------------------------------------------------------ groups


@check
def new_group() -> None:
    size = dist.get_world_size()
    backwards = dist.new_group(list(everyone())[::-1])
    assert isinstance(backwards, dist.ProcessGroup)
    assert (backwards.rank(), backwards.size()) == (me(), size)  # ranks are sorted
    tensors = [np.zeros(2) for _ in everyone()]
    dist.all_gather(tensors, data(me(), shape=(2,)), backwards)
    for rank, tensor in enumerate(tensors):
        expect(tensor, data(rank, shape=(2,)))
    outside = dist.new_group([(me() + 1) % size])
    if size > 1:
        assert outside == dist.GroupMember.NON_GROUP_MEMBER
    raises(RuntimeError, "cannot create empty group", lambda: dist.new_group([]))
    raises(RuntimeError, "array of ranks contains invalid rank", lambda: dist.new_group([0, size]))
    raises(RuntimeError, "ranks should be unique", lambda: dist.new_group([0, 0]))


# ------------------------------------------------------------------------------------------------ multigpu

DEVICES = 3


def local(rank: int) -> list[Any]:
    return [data(rank, salt=device) for device in range(DEVICES)]


@check
def broadcast_multigpu() -> None:
    for group, members in groups():
        for root in members:
            tensors = local(me())
            assert dist.broadcast_multigpu(tensors, root, group) is None
            for device, tensor in enumerate(tensors):
                expect(tensor, local(root)[0] if me() in members else local(me())[device])


@check
def all_reduce_multigpu() -> None:
    for group, members in groups():
        for op in OPS:
            tensors = local(me())
            assert dist.all_reduce_multigpu(tensors, op, group) is None
            wanted = functools.reduce(OPS[op], [each for rank in members for each in local(rank)])
            for device, tensor in enumerate(tensors):
                expect(tensor, wanted if me() in members else local(me())[device])


@check
def reduce_multigpu() -> None:
    for root in everyone():
        tensors = local(me())
        assert dist.reduce_multigpu(tensors, root) is None
        wanted = functools.reduce(operator.add, [each for rank in everyone() for each in local(rank)])
        expect(tensors[0], wanted if me() == root else local(me())[0])
        for device in range(1, DEVICES):
            expect(tensors[device], local(me())[device])


@check
def all_gather_multigpu() -> None:
    size = dist.get_world_size()
    outputs = [[np.zeros(SHAPE) for _ in range(size * DEVICES)] for _ in range(DEVICES)]
    assert dist.all_gather_multigpu(outputs, local(me())) is None
    for tensors in outputs:
        for place, tensor in enumerate(tensors):
            expect(tensor, local(place // DEVICES)[place % DEVICES])


# ------------------------------------------------------------------------------------------------ errors


@check
def refused_arguments_are_refused_for_all_and_the_group_goes_on() -> None:
    """One rank gives a wrong argument: it gets the documented error, the others learn of it, nobody hangs."""
    root = dist.get_world_size() - 1
    if me() == root:
        words = "scatter_list is a required argument in scatter source"
        raises(RuntimeError, words, lambda: dist.scatter(np.zeros(3), src=root))
        raises(RuntimeError, "op should be a constant", lambda: dist.all_reduce(np.zeros(3), "sum"))
        raises(TypeError, "expected a tensor", lambda: dist.all_reduce(None))
    else:
        raises((RuntimeError, ValueError), f"{root}", lambda: dist.scatter(np.zeros(3), src=root))
        raises((RuntimeError, ValueError), f"{root}", lambda: dist.all_reduce(np.zeros(3)))
        raises((RuntimeError, ValueError), f"{root}", lambda: dist.all_reduce(np.zeros(3)))
    barrier()
    all_reduce()


@check
def different_calls_meet() -> None:
    """Rank 0 makes another call than the others, each time on a fresh group: all ranks learn of it, none hangs."""
    first, size = me() == 0, dist.get_world_size()
    pairs: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
        (lambda g: dist.all_reduce(np.zeros(4), group=g), lambda g: dist.all_reduce(np.zeros(5), group=g)),
        (lambda g: dist.all_reduce(np.zeros(4), group=g), lambda g: dist.all_reduce(np.zeros(4, "f4"), group=g)),
        (
            lambda g: dist.all_reduce(np.zeros(4), dist.reduce_op.MAX, g),
            lambda g: dist.all_reduce(np.zeros(4), group=g),
        ),
        (lambda g: dist.broadcast(np.zeros(4), 0, g), lambda g: dist.all_reduce(np.zeros(4), group=g)),
        (lambda g: dist.broadcast(np.zeros(4), 0, g), lambda g: dist.broadcast(np.zeros(3), 0, g)),
        (lambda g: dist.broadcast(np.zeros(4), 0, g), lambda g: dist.broadcast(np.zeros(4, "i8"), 0, g)),
        (lambda g: dist.broadcast(np.zeros(4), 0, g), lambda g: dist.broadcast(np.zeros(4), size - 1, g)),
        (lambda g: dist.barrier(g), lambda g: dist.all_gather([np.zeros(2)] * size, np.zeros(2), g)),
        (
            lambda g: dist.all_gather([np.zeros(3) for _ in range(size)], np.zeros(3), g),
            lambda g: dist.all_gather([np.zeros(2) for _ in range(size)], np.zeros(2), g),
        ),
        (
            lambda g: dist.scatter(np.zeros(2), [np.zeros(2 + rank) for rank in range(size)], 0, g),
            lambda g: dist.scatter(np.zeros(2), src=0, group=g),
        ),
    ]
    for mine, theirs in pairs:
        twin = dist.new_group()
        call = mine if first else theirs

        def use(call: Callable[[Any], Any] = call, twin: Any = twin) -> None:
            call(twin)
            dist.barrier(twin)  # a root whose part was over learns of it in its next call

        raises(RuntimeError, "", use)
    barrier()  # the world is not broken


@check
def a_list_that_does_not_fit_concerns_only_its_rank() -> None:
    if me() == 0:
        outputs = [np.zeros(3 + rank) for rank in everyone()]
        words = "sizes do not match"
        raises(RuntimeError, words, lambda: dist.gather(np.zeros(3), outputs, 0))
        raises(RuntimeError, words, lambda: dist.all_gather(outputs, np.zeros(3)))
        assert not any(output.any() for output in outputs)
    else:
        dist.gather(np.ones(3), dst=0)
        dist.all_gather([np.zeros(3) for _ in everyone()], np.ones(3))
    dist.barrier()


@check
def a_random_program() -> None:
    """The same 150 random calls on every rank, most of them started; finished in another order on each rank."""
    program, order = np.random.default_rng(7), np.random.default_rng(me())
    known, pending = groups(), []
    for number in range(150):
        group, members = known[program.integers(len(known))]
        root, dtype = int(program.choice(members)), str(program.choice(DTYPES))
        shape = tuple(program.integers(0, 6, 2))
        name = program.choice(["broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter"])
        later = bool(program.integers(4))
        tensor = data(me(), dtype, shape[::-1], number).T  # not contiguous
        wanted, lists = tensor.copy(), None
        if name == "broadcast":
            request = dist.broadcast(tensor, root, group, later)
            wanted = data(root, dtype, shape[::-1], number).T
        elif name in ("all_reduce", "reduce"):
            call = dist.all_reduce if name == "all_reduce" else functools.partial(dist.reduce, dst=root)
            request = call(tensor, op=dist.reduce_op.SUM, group=group, async_op=later)
            if name == "all_reduce" or root == me():
                wanted = reduced(members, dist.reduce_op.SUM, dtype, shape=shape[::-1], salt=number).T
        elif name == "scatter":
            parts = [data(root, dtype, shape, 1000 * number + rank) for rank in members] if root == me() else None
            request = dist.scatter(tensor, parts, root, group, later)
            wanted = data(root, dtype, shape, 1000 * number + me())
        else:
            lists = [np.zeros(shape, dtype) for _ in members] if name == "all_gather" or root == me() else None
            request = (
                dist.all_gather(lists, tensor, group, later)
                if lists is not None and name == "all_gather"
                else dist.gather(tensor, lists, root, group, later)
            )
        if me() in members:
            pending.append((request, tensor, wanted, lists, members, number, name))
        else:
            assert request is None
    for place in order.permutation(len(pending)):
        request, tensor, wanted, lists, members, number, name = pending[place]
        if request is not None:
            request.wait(60)
        expect(tensor, wanted)
        for rank, part in zip(members, lists or [], strict=False):
            expect(part, data(rank, str(part.dtype), part.shape[::-1], number).T)


# ------------------------------------------------------------------------------------------------ the end


def destroy_process_group() -> None:
    dist.destroy_process_group()
    assert not dist.is_initialized() and dist._backend == dist.dist_backend.UNDEFINED
    words = "collective only supported in process-group mode"
    for kind in (AssertionError, ValueError, RuntimeError):
        raises(kind, words, lambda: dist.all_reduce(np.zeros(1)))
        raises(kind, words, dist.destroy_process_group)


def main(backend: str) -> int:
    for part in sorted(Path(__file__).parent.glob("checks_of_*.py")):
        importlib.import_module(part.stem)
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    for function in CHECKS:
        try:
            function()
        except Exception:
            print(f"rank {rank} of {size}: {function.__name__} failed\n{traceback.format_exc()}", flush=True)
            return 1
    destroy_process_group()
    print(f"rank {rank} of {size}: {len(CHECKS) + 1} checks passed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "tcp"))
