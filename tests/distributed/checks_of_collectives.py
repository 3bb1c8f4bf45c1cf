"""Checks of the documented collectives; a part of check_documented_api.py."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from checking import DTYPES, OPS, SHAPE, check, data, everyone, expect, groups, me, reduced

import aiocoll.distributed as dist


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
    """SUM, PRODUCT, MAX and MIN, over all ranks and over some."""
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
