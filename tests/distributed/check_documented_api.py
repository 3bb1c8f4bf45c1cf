"""Checks every function of the early documented API against NumPy; run it with `aiocoll run -n 4 THIS [backend]`.

Every check is a function named after what it checks. Inputs differ per rank and per element: `data(rank)` is the same
on every rank that asks for it, so each rank can compute what the others have sent.
"""

from __future__ import annotations

import functools
import operator
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import aiocoll.distributed as dist

warnings.simplefilter("error")  # no "experimental" banners

DTYPES = ("f4", "f8", "f2", "u1", "i1", "i2", "i4", "i8")
SHAPE = (3, 4, 5)
OPS: dict[Any, Callable[[Any, Any], Any]] = {
    dist.reduce_op.SUM: np.add,
    dist.reduce_op.PRODUCT: np.multiply,
    dist.reduce_op.MAX: np.maximum,
    dist.reduce_op.MIN: np.minimum,
}
CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def data(rank: int, dtype: str = "f8", shape: Sequence[int] = SHAPE, salt: int = 0) -> Any:
    """What `rank` puts in: small integers in every dtype, so that sums are exact and products too."""
    random = np.random.default_rng([rank, salt, *shape])
    return random.integers(1, 4, shape).astype(dtype)


def expect(got: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(got, wanted, strict=True)


def reduced(ranks: Sequence[int], op: Any, dtype: str = "f8", **more: Any) -> Any:
    return functools.reduce(OPS[op], [data(rank, dtype, **more) for rank in ranks]).astype(dtype)


def me() -> int:
    return dist.get_rank()


def everyone() -> range:
    return range(dist.get_world_size())


def groups() -> list[tuple[Any, list[int]]]:
    """The world, all but one (given in disorder), a pair, a single rank; with the members in order."""
    size = dist.get_world_size()
    wanted = [list(range(size)), list(range(size))[::-1][:-1] or [0], [size - 1, 0], [size // 2]]
    return [(dist.group.WORLD, wanted[0])] + [(dist.new_group(ranks), sorted(set(ranks))) for ranks in wanted]


def raises(kind: type[BaseException] | tuple[type[BaseException], ...], words: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error!r}"
        return
    raise AssertionError(f"{kind} with {words!r} was not raised")


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
    assert dist._clear_group_cache() is None  # type: ignore[func-returns-value]
    raises(TypeError, "torch.cuda.Stream", lambda: dist._register_stream(1))


# ------------------------------------------------------------------------------------------------ messages


@check
def send_recv() -> None:
    for src in everyone():
        for dtype in DTYPES:
            if src == me():
                for dst in everyone():
                    if dst != src:
                        assert dist.send(data(src, dtype, salt=dst), dst) is None  # type: ignore[func-returns-value]
            else:
                buffer = np.zeros(SHAPE, dtype)
                assert dist.recv(buffer, src) == src
                expect(buffer, data(src, dtype, salt=me()))


@check
def recv_from_anyone() -> None:
    if me() == 0:
        seen = []
        for _ in range(3 * (len(everyone()) - 1)):
            buffer = np.zeros(SHAPE)
            source = dist.recv(buffer)
            expect(buffer, data(source, salt=seen.count(source)))  # in the order in which each of them sent
            seen.append(source)
        assert sorted(seen) == sorted(list(everyone())[1:] * 3)
    else:
        for number in range(3):
            dist.send(data(me(), salt=number), dst=0)
    dist.barrier()


@check
def send_before_recv_on_all_ranks_at_every_size() -> None:
    size = dist.get_world_size()
    for count in (1, 10_000, 1_000_000):
        dist.send(data(me(), "u1", (count,)), (me() + 1) % size)
        buffer = np.zeros(count, "u1")
        dist.recv(buffer, (me() - 1) % size)
        expect(buffer, data((me() - 1) % size, "u1", (count,)))


@check
def isend_irecv() -> None:
    others = [rank for rank in everyone() if rank != me()]
    sends = [dist.isend(data(me(), dtype, salt=dst), dst) for dst in others for dtype in DTYPES]
    buffers = [np.zeros(SHAPE, dtype) for _ in others for dtype in DTYPES]
    places = [(src, dtype) for src in others for dtype in DTYPES]
    receives = [dist.irecv(buffer, src) for buffer, (src, _) in zip(buffers, places, strict=True)]
    for request in reversed(receives):
        assert request is not None and request.wait() is True and request.is_completed()
    for buffer, (src, dtype) in zip(buffers, places, strict=True):
        expect(buffer, data(src, dtype, salt=me()))
    for sent in sends:
        assert sent is not None
        sent.wait()
        assert sent.is_completed()


@check
def requests_progress_without_wait() -> None:
    size = dist.get_world_size()
    buffer = np.zeros(SHAPE)
    receive = dist.irecv(buffer, (me() - 1) % size)
    send = dist.isend(data(me()), (me() + 1) % size)
    assert receive is not None and send is not None
    while not (receive.is_completed() and send.is_completed()):
        pass
    expect(buffer, data((me() - 1) % size))


@check
def isend_irecv_to_oneself() -> None:
    buffer = np.zeros(SHAPE)
    receive, send = dist.irecv(buffer, me()), dist.isend(data(me()), me())
    assert receive is not None and send is not None
    send.wait()
    receive.wait()
    expect(buffer, data(me()))
    raises(RuntimeError, "cannot send tensor to process with same rank", lambda: dist.send(data(me()), me()))
    raises(RuntimeError, "cannot receive tensor from process with same rank", lambda: dist.recv(buffer, me()))


@check
def recv_of_a_message_that_does_not_fit() -> None:
    size = dist.get_world_size()
    right, left = (me() + 1) % size, (me() - 1) % size
    dist.isend(data(me(), shape=(7,)), right)
    dist.isend(data(me(), shape=(5,)), right)
    raises(RuntimeError, "", lambda: dist.recv(np.zeros(5), left))
    buffer = np.zeros(5)
    dist.recv(buffer, left)  # the first was consumed
    expect(buffer, data(left, shape=(5,)))


# ------------------------------------------------------------------------------------------------ collectives


@check
def broadcast() -> None:
    for group, members in groups():
        for root in members:
            for dtype in DTYPES:
                tensor = data(root, dtype) if me() == root else np.full(SHAPE, -1).astype(dtype)
                before = tensor.copy()
                assert dist.broadcast(tensor, root, group) is None
                expect(tensor, data(root, dtype) if me() in members else before)


@check
def all_reduce() -> None:
    for group, members in groups():
        for op in OPS:
            for dtype in DTYPES:
                tensor = data(me(), dtype)
                assert dist.all_reduce(tensor, op, group) is None
                expect(tensor, reduced(members, op, dtype) if me() in members else data(me(), dtype))


@check
def all_reduce_is_bitwise_identical() -> None:
    random = np.random.default_rng(me())
    for count in (1, 17, 10_007):
        tensor = random.standard_normal(count)
        dist.all_reduce(tensor)
        copies = [np.empty(count) for _ in everyone()]
        dist.all_gather(copies, tensor)
        assert len({copy.tobytes() for copy in copies}) == 1


@check
def reduce() -> None:
    for group, members in groups():
        for root in members:
            for op in OPS:
                tensor = data(me(), salt=root)
                assert dist.reduce(tensor, root, op, group) is None
                expect(tensor, reduced(members, op, salt=root) if me() == root else data(me(), salt=root))


@check
def all_gather() -> None:
    for group, members in groups():
        for dtype in DTYPES:
            tensors = [np.full(SHAPE, -1).astype(dtype) for _ in members]
            assert dist.all_gather(tensors, data(me(), dtype), group) is None
            for tensor, rank in zip(tensors, members, strict=True):
                expect(tensor, data(rank, dtype) if me() in members else np.full(SHAPE, -1).astype(dtype))


@check
def all_gather_of_uneven_sizes() -> None:
    tensors = [np.zeros(rank) for rank in everyone()]
    dist.all_gather(tensors, data(me(), shape=(me(),)))
    for rank, tensor in enumerate(tensors):
        expect(tensor, data(rank, shape=(rank,)))


@check
def gather() -> None:
    for group, members in groups():
        for root in members:
            lists: list[Any] = [np.zeros(SHAPE) for _ in members] if me() == root else []
            assert dist.gather(data(me(), salt=root), dst=root, gather_list=lists, group=group) is None
            for tensor, rank in zip(lists, members, strict=False):
                expect(tensor, data(rank, salt=root))
    if me() == 0:  # the later spellings, and the root left out
        lists = [np.zeros(SHAPE) for _ in everyone()]
        dist.gather(data(0), lists, 0)
        dist.gather(data(0), gather_list=lists)
    else:
        dist.gather(data(me()), None, 0)
        dist.gather(data(me()))


@check
def scatter() -> None:
    for group, members in groups():
        for root in members:
            tensor = np.zeros(SHAPE)
            parts = [data(root, salt=rank) for rank in members] if me() == root else []
            assert dist.scatter(tensor, src=root, scatter_list=parts, group=group) is None
            expect(tensor, data(root, salt=me()) if me() in members else np.zeros(SHAPE))
    tensor = np.zeros(SHAPE)
    for call in (
        lambda: dist.scatter(tensor, [data(9, salt=r) for r in everyone()] if me() == 0 else None, 0),
        lambda: dist.scatter(tensor, **({"scatter_list": [data(9, salt=r) for r in everyone()]} if me() == 0 else {})),
    ):
        tensor[...] = 0
        call()
        expect(tensor, data(9, salt=me()))


@check
def barrier() -> None:
    for group, _members in groups():
        assert dist.barrier(group) is None
    assert dist.barrier() is None


@check
def every_layout_in_place() -> None:
    for view in (
        lambda base: base[::2, :, 1],
        lambda base: base.transpose(2, 0, 1),
        lambda base: base[::-1],
        lambda base: base[1, 2, 3:3],
    ):
        base = np.zeros(SHAPE)
        part = view(base)
        part[...] = data(me(), shape=part.shape)
        dist.all_reduce(part)
        wanted = np.zeros(SHAPE)
        view(wanted)[...] = reduced(everyone(), dist.reduce_op.SUM, shape=part.shape)
        expect(base, wanted)  # what lies between the elements too
        dist.broadcast(part if me() else part * 2, 0)
        view(wanted)[...] *= 1 if me() == 0 else 2
        expect(base, wanted)


@check
def every_dtype_moves_and_what_can_be_added_is() -> None:
    for dtype in (">i4", ">f8", "?", "c16", "u8", "f2", "g", "m8[s]"):
        tensor = data(me(), "i4").astype(dtype)
        dist.all_reduce(tensor)
        total = functools.reduce(np.add, [data(rank, "i4").astype(dtype) for rank in everyone()])
        assert tensor.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(tensor, total)
    for dtype in ("M8[D]", "S5", "U3", "V7", [("a", "i4"), ("b", ">f8", (2,))]):
        raw = [data(rank, "u1", (6, np.dtype(dtype).itemsize)) + 64 for rank in everyone()]
        tensors = [each.view(dtype).reshape(6) if dtype != "U3" else np.array(list("abcdef"), "U3") for each in raw]
        tensor = tensors[me()].copy()
        dist.broadcast(tensor, 0)
        assert tensor.tobytes() == tensors[0].tobytes()
        copies = [np.empty_like(tensor) for _ in everyone()]
        dist.all_gather(copies, tensors[me()])
        assert [copy.tobytes() for copy in copies] == [each.tobytes() for each in tensors]


@check
def empty_tensors() -> None:
    for shape in ((0,), (3, 0), (0, 2)):
        tensor = np.zeros(shape)
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        dist.all_gather([np.zeros(shape) for _ in everyone()], tensor)
        dist.scatter(tensor, [np.zeros(shape) for _ in everyone()] if me() == 0 else None, 0)
        dist.gather(tensor, [np.zeros(shape) for _ in everyone()] if me() == 0 else None, 0)


@check
def only_count_and_dtype_must_agree() -> None:
    shapes = [(6, 4), (4, 6), (24,), (2, 3, 4)]
    tensor = data(me(), shape=(24,)).reshape(shapes[me() % 4])
    dist.all_reduce(tensor)
    expect(tensor.reshape(-1), reduced(everyone(), dist.reduce_op.SUM, shape=(24,)))
    tensor = data(0, shape=(24,)).reshape(shapes[me() % 4]) * (me() == 0)
    dist.broadcast(tensor, 0)
    expect(tensor.reshape(-1), data(0, shape=(24,)))


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


# ------------------------------------------------------------------------------------------------ from today's API


@check
def async_op() -> None:
    tensors = [data(me(), salt=number) for number in range(8)]
    requests = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for request in reversed(requests):
        assert request is not None and request.wait() is True
    for number, tensor in enumerate(tensors):
        expect(tensor, reduced(everyone(), dist.reduce_op.SUM, salt=number))
    lists = [np.zeros(SHAPE) for _ in everyone()]
    for request in (
        dist.broadcast(tensors[0], 0, async_op=True),
        dist.reduce(tensors[1], 0, async_op=True),
        dist.all_gather(lists, data(me()), async_op=True),
        dist.gather(data(me()), lists if me() == 0 else None, 0, async_op=True),
        dist.scatter(tensors[2], lists if me() == 0 else None, 0, async_op=True),
        dist.barrier(async_op=True),
    ):
        assert request is not None and request.wait()


@check
def reduce_op_names_of_today() -> None:
    tensor = data(me())
    dist.all_reduce(tensor, dist.ReduceOp.AVG, group=None)
    expect(tensor, reduced(everyone(), dist.reduce_op.SUM) / len(everyone()))
    for op, function in (
        (dist.ReduceOp.BAND, np.bitwise_and),
        (dist.ReduceOp.BOR, np.bitwise_or),
        (dist.ReduceOp.BXOR, np.bitwise_xor),
    ):
        tensor = data(me(), "i4")
        dist.all_reduce(tensor, op)
        expect(tensor, functools.reduce(function, [data(rank, "i4") for rank in everyone()]))


@check
def tags_keep_messages_apart() -> None:
    size = dist.get_world_size()
    right, left = (me() + 1) % size, (me() - 1) % size
    dist.isend(data(me(), salt=1), right, tag=1)
    dist.isend(data(me(), salt=2), right, tag=2)
    for tag in (2, 1):
        buffer = np.zeros(SHAPE)
        dist.recv(buffer, left, tag=tag)
        expect(buffer, data(left, salt=tag))


@check
def all_gather_object_and_broadcast_object_list() -> None:
    found: list[Any] = [None] * len(everyone())
    dist.all_gather_object(found, {"rank": me(), "rows": data(me())})
    for rank, each in enumerate(found):
        assert each["rank"] == rank
        expect(each["rows"], data(rank))
    for root in everyone():
        objects: list[Any] = [me(), (me(), "text"), None] if me() == root else [None] * 3
        dist.broadcast_object_list(objects, root)
        assert objects == [root, (root, "text"), None]


@check
def all_gather_and_reduce_scatter_single_large_and_in_place() -> None:
    size, count = len(everyone()), 300_000  # long enough to be read where it lies
    whole = np.zeros((size, count))
    for turn in range(3):
        whole[me()] = data(me(), "f8", (count,), turn)
        dist.all_gather_single(whole, whole[me()])
        expect(whole, np.stack([data(rank, "f8", (count,), turn) for rank in everyone()]))
        total = whole.sum(0)
        work = dist.reduce_scatter_single(whole[me()], whole.copy(), async_op=True)
        assert work is not None and work.wait()
        expect(whole[me()], data(me(), "f8", (count,), turn) * size)
        part = np.zeros(count)
        dist.reduce_scatter(part, [data(me(), "f8", (count,), turn)] * size)
        expect(part, total)


@check
def all_to_all_of_rows_and_lists() -> None:
    size = len(everyone())
    for count in (1, 40_000):
        x = np.concatenate([data(me(), "i8", (count,), other) for other in everyone()])
        wanted = np.concatenate([data(other, "i8", (count,), me()) for other in everyone()])
        for _ in range(2):
            y = np.zeros_like(x)
            dist.all_to_all_single(y, x)
            expect(y, wanted)
        dist.all_to_all_single(x, x)
        expect(x, wanted)
        outputs = [np.zeros(count * (me() + 1)) for _ in everyone()]
        dist.all_to_all(outputs, [data(me(), "f8", (count * (other + 1),)) for other in everyone()])
        for other, output in enumerate(outputs):
            expect(output, data(other, "f8", (count * (me() + 1),)))
    assert size == dist.get_world_size()


@check
def batches_of_messages_to_everybody() -> None:
    for count in (3, 200_000):
        buffers = [np.zeros(count) for _ in everyone()]
        ops = [dist.P2POp(dist.irecv, buffers[other], other) for other in everyone()]
        ops += [dist.P2POp(dist.isend, data(me(), "f8", (count,), other), other) for other in everyone()]
        for work in dist.batch_isend_irecv(ops):
            assert work.wait()
        for other, buffer in enumerate(buffers):
            expect(buffer, data(other, "f8", (count,), me()))


@check
def lists_of_objects() -> None:
    size = len(everyone())
    found: list[Any] | None = [None] * size if me() == size - 1 else None
    dist.gather_object({"rank": me()}, found, dst=size - 1)
    assert found is None or [each["rank"] for each in found] == list(everyone())
    box: list[Any] = [None]
    dist.scatter_object_list(box, [(me(), other) for other in everyone()], src=0)
    assert box == [(0, me())]
    if me() == 0:
        dist.send_object_list([1, "two", [3.0]], dst=size - 1)
    elif me() == size - 1:
        objects = [None] * 3
        assert dist.recv_object_list(objects) == 0 and objects == [1, "two", [3.0]]


# ------------------------------------------------------------------------------------------------ the end


def destroy_process_group() -> None:
    dist.destroy_process_group()
    assert not dist.is_initialized() and dist._backend == dist.dist_backend.UNDEFINED
    words = "collective only supported in process-group mode"
    for kind in (AssertionError, ValueError, RuntimeError):
        raises(kind, words, lambda: dist.all_reduce(np.zeros(1)))
        raises(kind, words, dist.destroy_process_group)


def main(backend: str) -> int:
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
