"""What each documented call refuses, in which class, in which words; and that the peers are told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import MismatchError, UsageError
from tests.distributed.fake_group import FakeGroup, Message

Join = Callable[..., FakeGroup]


def refuse(kind: type[Exception], match: str, use: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=match) as caught:
        use()
    assert isinstance(caught.value, UsageError)


def x() -> Any:
    return np.arange(4.0)


# ---------------------------------------------------------------------------------------------- tensors


@pytest.mark.parametrize("bad", [None, 3, 2.5, "text", [1.0, 2.0], np.float64(2), object()])
@pytest.mark.parametrize(
    "use",
    [
        lambda t: dist.all_reduce(t),
        lambda t: dist.broadcast(t, 0),
        lambda t: dist.broadcast(t, 1),
        lambda t: dist.reduce(t, 0),
        lambda t: dist.reduce(t, 1),
        lambda t: dist.gather(t, dst=0),
        lambda t: dist.scatter(t, src=0),
        lambda t: dist.all_gather([x()] * 3, t),
        lambda t: dist.all_gather([x(), x(), t], x()),
        lambda t: dist.send(t, 0),
        lambda t: dist.recv(t, 0),
        lambda t: dist.isend(t, 0),
        lambda t: dist.irecv(t, 0),
        lambda t: dist.all_reduce_multigpu([t]),
    ],
)
def test_not_a_tensor(joined: Join, use: Callable[[Any], Any], bad: Any) -> None:
    joined()
    refuse(TypeError, "expected a tensor.*got", lambda: use(bad))


def test_read_only_overlapping_and_object_tensors(joined: Join) -> None:
    fake = joined()
    frozen = x()
    frozen.flags.writeable = False
    refuse(RuntimeError, "all_reduce on rank 1.*read-only", lambda: dist.all_reduce(frozen))
    doubled = np.lib.stride_tricks.as_strided(np.zeros(4), (3, 2), (8, 8))
    refuse(RuntimeError, "overlap", lambda: dist.all_reduce(doubled))
    refuse(RuntimeError, "objects", lambda: dist.all_reduce(np.array([object()])))
    dist.broadcast(frozen, 1)  # what is only read may be read-only
    dist.send(frozen, 0)
    assert [what for what, _ in fake.refusals] == ["all_reduce"] * 3


def test_buffers_of_other_kinds_are_filled_in_place(joined: Join) -> None:
    import array

    joined()
    buffer = array.array("d", [1.0, 2.0])
    dist.all_reduce(buffer)
    assert list(buffer) == [3.0, 6.0]
    raw = bytearray(4)
    dist.broadcast(raw, 0)
    assert list(raw) == [0, 2, 4, 6]


@pytest.mark.parametrize(
    "view",
    [
        lambda base: base[::2, 1:],
        lambda base: base.T,
        lambda base: base[::-1],
        lambda base: np.asfortranarray(base),
        lambda base: base[1:1],
        lambda base: base[2, 3, ...],
    ],
)
def test_every_layout_is_written_in_place_and_nothing_between(joined: Join, view: Callable[[Any], Any]) -> None:
    joined(0, 2)
    base = np.arange(24.0).reshape(4, 6)
    before = base.copy()
    part = view(base)
    expected = part * 2 + 10
    dist.all_reduce(part)
    assert np.array_equal(part, expected)
    touched = np.zeros(base.shape, bool)
    if np.shares_memory(part, base):
        view(touched)[...] = True
    assert np.array_equal(base[~touched], before[~touched])


def test_big_endian_stays_big_endian(joined: Join) -> None:
    joined(0, 2)
    swapped = np.arange(3, dtype=">i4")
    dist.all_reduce(swapped)
    assert swapped.dtype == ">i4" and swapped.tolist() == [10, 12, 14]


# ---------------------------------------------------------------------------------------------- ops and groups


@pytest.mark.parametrize("bad", [None, "sum", 0, object(), np.add])
def test_op_is_no_constant(joined: Join, bad: Any) -> None:
    fake = joined()
    words = "op should be a constant from torch.distributed.reduce_op"
    refuse(RuntimeError, words, lambda: dist.all_reduce(x(), bad))
    refuse(RuntimeError, words, lambda: dist.reduce(x(), 0, bad))
    refuse(RuntimeError, words, lambda: dist.all_reduce_multigpu([x()], bad))
    assert [what for what, _ in fake.refusals] == ["all_reduce", "reduce", "all_reduce"]


@pytest.mark.parametrize("bad", ["WORLD", 7, 0, object(), True])
def test_group_is_no_group(joined: Join, bad: Any) -> None:
    joined()
    words = "group should be an int or one of the values from torch.distributed.group"
    for use in (
        lambda: dist.all_reduce(x(), group=bad),
        lambda: dist.barrier(bad),
        lambda: dist.send(x(), 0, bad),
        lambda: dist.get_rank(bad),
    ):
        refuse(RuntimeError, words, use)


def test_group_may_be_none_or_world(joined: Join) -> None:
    fake = joined()
    dist.barrier(None)
    dist.barrier(dist.group.WORLD)
    dist.barrier(dist.GroupMember.WORLD)
    assert len(fake.calls) == 3 and dist.group.WORLD.rank() == 1 and dist.group.WORLD.size() == 3


# ---------------------------------------------------------------------------------------------- roots and peers

ROOTED: dict[str, Callable[..., Any]] = {
    "broadcast": lambda **root: dist.broadcast(x(), **_named(root, "src")),
    "reduce": lambda **root: dist.reduce(x(), **_named(root, "dst")),
    "gather": lambda **root: dist.gather(x(), **_named(root, "dst")),
    "scatter": lambda **root: dist.scatter(x(), **_named(root, "src")),
    "send": lambda **root: dist.send(x(), **_named(root, "dst")),
    "recv": lambda **root: dist.recv(x(), **_named(root, "src")),
    "isend": lambda **root: dist.isend(x(), **_named(root, "dst")),
    "irecv": lambda **root: dist.irecv(x(), **_named(root, "src")),
    "broadcast_multigpu": lambda root=0, group_root=None: dist.broadcast_multigpu([x()], root),
    "reduce_multigpu": lambda root=0, group_root=None: dist.reduce_multigpu([x()], root),
}


def _named(root: dict[str, Any], name: str) -> dict[str, Any]:
    return {name if key == "root" else f"group_{name}": value for key, value in root.items()}


@pytest.mark.parametrize("name", ROOTED)
def test_roots_that_are_none(joined: Join, name: str) -> None:
    fake = joined()
    call = ROOTED[name]
    for bad in (99, -1):
        refuse(RuntimeError, rf"rank\({bad}\) is not member of group", lambda bad=bad: call(root=bad))
    for wrong in ("0", 1.0, True, None if name.endswith("gpu") else b""):
        refuse(TypeError, "src|dst", lambda wrong=wrong: call(root=wrong))
    if not name.endswith("gpu"):
        refuse(RuntimeError, r"group rank is invalid, rank should be in range: \[0, 2\]", lambda: call(group_root=3))
        refuse(RuntimeError, "not both", lambda: call(root=0, group_root=0))
    told = {what for what, _ in fake.refusals}
    assert told == (set() if name in ("send", "recv", "isend", "irecv") else {name.removesuffix("_multigpu")})


@pytest.mark.parametrize("name", ["broadcast", "reduce", "send", "isend"])
def test_a_root_is_needed(joined: Join, name: str) -> None:
    joined()
    refuse(TypeError, "needs (src|dst)", ROOTED[name])


def test_numpy_integers_are_ranks(joined: Join) -> None:
    fake = joined()
    dist.broadcast(x(), np.int64(2))
    dist.send(x(), np.uint8(0), tag=np.int16(5))
    assert fake.calls == [("broadcast", 2), ("send", [0, 1, 2, 3], 0, 5)]


def test_roots_are_ranks_of_the_world_in_a_subgroup_too(joined: Join) -> None:
    joined(4, 6)
    handle = dist.new_group([5, 2, 4])
    assert isinstance(handle, dist.ProcessGroup)
    assert (handle.rank(), handle.size()) == (1, 3)
    inner: Any = handle.member().asynchronous
    dist.broadcast(x(), 5, handle)
    dist.broadcast(x(), group_src=0, group=handle)
    dist.reduce(x(), 2, group=handle)
    dist.gather(x(), dst=2, group=handle)
    dist.scatter(x(), src=5, group=handle)
    assert [call[:3] for call in inner.calls] == [
        ("broadcast", 2),
        ("broadcast", 0),
        ("reduce", inner.calls[2][1], 0),
        ("gather", 0),
        ("scatter", 2, None),
    ]
    refuse(RuntimeError, r"rank\(0\) is not member of group.*\(2, 4, 5\)", lambda: dist.broadcast(x(), 0, handle))
    assert [what for what, _ in inner.refusals] == ["broadcast"]
    buffer = x()
    assert dist.recv(buffer, 5, handle) == 5 and buffer[0] == 200
    inner.incoming.append(Message(np.arange(4.0) * 9, 2, 0))
    assert dist.recv(buffer, group=handle) == 5 and buffer[1] == 9
    request = dist.irecv(buffer, 2, handle)
    assert request is not None and request.source_rank() == 2
    assert dist.get_rank(handle) == 1 and dist.get_world_size(handle) == 3 and dist.get_rank() == 4


def test_who_is_not_in_the_group_gets_none_and_keeps_the_tensor(joined: Join) -> None:
    fake = joined(1, 3)
    outsider = dist.new_group([0, 2])
    assert outsider == dist.GroupMember.NON_GROUP_MEMBER
    t = x()
    for use in (
        lambda: dist.broadcast(t, 99, outsider),  # not even the root is looked at
        lambda: dist.all_reduce(t, group=outsider),
        lambda: dist.all_reduce(t, group=outsider, async_op=True),
        lambda: dist.reduce(t, 0, group=outsider),
        lambda: dist.all_gather([], t, outsider),
        lambda: dist.gather(t, dst=0, group=outsider),
        lambda: dist.scatter(t, src=0, group=outsider),
        lambda: dist.barrier(outsider),
        lambda: dist.send(t, 0, outsider),
        lambda: dist.isend(t, 0, outsider),
        lambda: dist.irecv(t, 0, outsider),
        lambda: dist.broadcast_multigpu([t], 0, outsider),
        lambda: dist.all_reduce_multigpu([t], group=outsider),
        lambda: dist.reduce_multigpu([t], 0, group=outsider),
        lambda: dist.all_gather_multigpu([[t]], [t], outsider),
        lambda: dist.all_gather_object([], 1, outsider),
        lambda: dist.broadcast_object_list([1], 0, outsider),
        lambda: dist._clear_group_cache(outsider),
        lambda: dist.destroy_process_group(outsider),
    ):
        assert use() is None
    assert dist.recv(t, 0, outsider) == -1 and dist.get_rank(outsider) == -1 == dist.get_world_size(outsider)
    assert np.array_equal(t, x()) and fake.calls == []


# ---------------------------------------------------------------------------------------------- lists


def test_gather_lists(joined: Join) -> None:
    fake = joined()
    outputs = [np.zeros(4) for _ in range(3)]
    refuse(RuntimeError, "gather_list is a required argument in gather destination", lambda: dist.gather(x(), dst=1))
    refuse(
        RuntimeError,
        "non-empty gather_list can be given only to gather destination",
        lambda: dist.gather(x(), dst=0, gather_list=outputs),
    )
    refuse(
        RuntimeError,
        "gather: number of output tensors and group size does not match",
        lambda: dist.gather(x(), dst=1, gather_list=outputs[:2]),
    )
    refuse(RuntimeError, "does not match", lambda: dist.gather(x(), dst=1, gather_list=[]))
    refuse(TypeError, "gather_list must be a list", lambda: dist.gather(x(), dst=1, gather_list=np.zeros((3, 4))))
    refuse(RuntimeError, "types do not match", lambda: dist.gather(x().astype("f4"), outputs, 1))
    refuse(RuntimeError, "got unexpected kwargs", lambda: dist.gather(x(), dst=1, gathered=outputs))
    assert len(fake.refusals) == 6
    dist.gather(x(), dst=0, gather_list=[])  # an empty list is none
    dist.gather(x())  # neither root nor list: the first rank
    dist.gather(x(), gather_list=outputs)  # a list and no root: me
    dist.gather(x(), outputs, 1)
    assert fake.calls == [("gather", 0), ("gather", 0), ("gather", 1), ("gather", 1)]
    assert [each[0] for each in outputs] == [-10, 0, 10]


def test_scatter_lists(joined: Join) -> None:
    fake = joined()
    parts = [np.arange(4.0) + 100 * i for i in range(3)]
    out = x()
    refuse(RuntimeError, "scatter_list is a required argument in scatter source", lambda: dist.scatter(out, src=1))
    refuse(
        RuntimeError,
        "non-empty can be given only to scatter source",
        lambda: dist.scatter(out, src=0, scatter_list=parts),
    )
    refuse(
        RuntimeError,
        "scatter: number of input tensors and group size does not match",
        lambda: dist.scatter(out, src=1, scatter_list=parts * 2),
    )
    refuse(TypeError, "scatter_list must be a list", lambda: dist.scatter(out, src=1, scatter_list="abc"))
    refuse(RuntimeError, "got unexpected kwargs", lambda: dist.scatter(out, source=1))
    assert len(fake.refusals) == 4
    dist.scatter(out, src=0, scatter_list=[])
    dist.scatter(out)
    assert out[1] == 3
    dist.scatter(out, scatter_list=parts)
    assert out[0] == 100
    dist.scatter(out, parts, 1)
    assert fake.calls == [("scatter", 0, None), ("scatter", 0, None), ("scatter", 1, 3), ("scatter", 1, 3)]


def test_all_gather_lists(joined: Join) -> None:
    fake = joined()
    words = "allGather: number of output tensors and group size does not match"
    refuse(RuntimeError, words, lambda: dist.all_gather([x()] * 2, x()))
    refuse(TypeError, "must be a list", lambda: dist.all_gather(np.zeros((3, 4)), x()))
    refuse(RuntimeError, "types do not match", lambda: dist.all_gather([x(), x(), np.zeros(4, int)], x()))
    refuse(RuntimeError, "sizes do not match", lambda: dist.all_gather([x(), np.zeros(5), x()], x()))
    outputs = [np.zeros((2, 2)), np.zeros(4), np.zeros((4, 2))[:, 0]]
    dist.all_gather(outputs, x())
    assert fake.calls == [("all_gather", True)]
    assert [each.reshape(-1)[1] for each in outputs] == [-9, 1, 11]
    with pytest.raises(MismatchError, match="rank 2 sent 4 elements.*rank 1 has room for 9"):
        dist.all_gather([np.zeros(4), np.zeros(4), np.zeros(9)], x())
    assert fake.calls[-1] == ("all_gather", False) and len(fake.refusals) == 4


def test_local_lists(joined: Join) -> None:
    joined()
    refuse(RuntimeError, "empty", lambda: dist.all_reduce_multigpu([]))
    refuse(TypeError, "list of tensors", lambda: dist.all_reduce_multigpu(x()))
    refuse(RuntimeError, "sizes do not match", lambda: dist.all_reduce_multigpu([x(), np.zeros(3)]))
    refuse(RuntimeError, "types do not match", lambda: dist.broadcast_multigpu([x(), np.zeros(4, "f4")], 0))
    refuse(RuntimeError, "size of the group times", lambda: dist.all_gather_multigpu([[x()] * 5], [x()] * 2))
    refuse(RuntimeError, "sizes do not match", lambda: dist.all_gather_multigpu([[np.zeros(3)] * 3], [x()]))
    refuse(RuntimeError, "empty", lambda: dist.all_gather_multigpu([], [x()]))
    shared = np.zeros(11)
    places = [shared[:4], shared[4:8], shared[7:]]
    refuse(RuntimeError, "1 and 2 of the list overlap", lambda: dist.all_gather_multigpu([places], [np.zeros(4)]))
    refuse(TypeError, "list of lists", lambda: dist.all_gather_multigpu(x(), [x()]))
    refuse(RuntimeError, "src_tensor=2 is no index", lambda: dist.broadcast_multigpu([x()] * 2, 0, src_tensor=2))


def test_multigpu_over_local_tensors(joined: Join) -> None:
    joined(0, 2)
    tensors = [np.arange(3.0), np.arange(3.0) + 5, np.zeros((6, 2))[::2, 0]]
    dist.all_reduce_multigpu(tensors)
    assert all(each.tolist() == [20, 24, 28] for each in tensors)  # 5, 7, 9 here and 15, 17, 19 there
    tensors = [np.array([0, 3]), np.array([1, 7])]
    dist.all_reduce_multigpu(tensors, dist.ReduceOp.AVG)
    assert tensors[0].tolist() == tensors[1].tolist() == [5, 10]  # means 0.5, 5 here and 10.5, 15 there
    dist.broadcast_multigpu(tensors, 1)
    assert tensors[0].tolist() == tensors[1].tolist() == [0, 2]
    tensors = [np.arange(2.0), np.arange(2.0) + 1]
    dist.reduce_multigpu(tensors, 1, dist.reduce_op.MAX)
    assert tensors[0].tolist() == [0, 1]
    dist.reduce_multigpu(tensors, 0, dist.reduce_op.MAX)
    assert tensors[0].tolist() == [11, 12] and tensors[1].tolist() == [1, 2]
    outputs = [[np.zeros(2) for _ in range(4)] for _ in range(3)]
    dist.all_gather_multigpu(outputs, tensors)
    for each in outputs:
        assert [piece.tolist() for piece in each] == [[11, 12], [1, 2], [21, 22], [11, 12]]


def test_object_lists(joined: Join) -> None:
    joined()
    refuse(TypeError, "object_list must be a list", lambda: dist.all_gather_object((None,) * 3, 1))  # type: ignore[arg-type]
    refuse(RuntimeError, "2 places on rank 1.*3 members", lambda: dist.all_gather_object([None] * 2, 1))
    refuse(TypeError, "must be a list", lambda: dist.broadcast_object_list("abc", 0))  # type: ignore[arg-type]
    everyone: list[Any] = [None] * 3
    dist.all_gather_object(everyone, "it")
    assert everyone == ["it of 0", "it of 1", "it of 2"]
    received: list[Any] = [None, None]
    dist.broadcast_object_list(received)
    assert received == ["x", {"y": 1}]
    with pytest.raises(MismatchError, match="rank 0 sent 2 objects, rank 1 has a list of 3"):
        dist.broadcast_object_list([None] * 3, 0)


# ---------------------------------------------------------------------------------------------- messages


def test_messages_to_oneself(joined: Join) -> None:
    joined()
    refuse(RuntimeError, "cannot send tensor to process with same rank", lambda: dist.send(x(), 1))
    refuse(RuntimeError, "cannot receive tensor from process with same rank", lambda: dist.recv(x(), 1))
    assert dist.isend(x(), 1) is not None and dist.irecv(x(), 1) is not None


@pytest.mark.parametrize("bad", [1.5, "1", True, None])
def test_tags(joined: Join, bad: Any) -> None:
    joined()
    refuse(TypeError, "tag must be an int", lambda: dist.send(x(), 0, tag=bad))
    refuse(RuntimeError, "tags count from 0", lambda: dist.recv(x(), 0, tag=-1))


def test_a_message_from_anyone_that_does_not_fit(joined: Join) -> None:
    fake = joined()
    fake.incoming += [Message(np.arange(5.0), 2, 0), Message(np.arange(4), 0, 0), Message(np.arange(4.0), 0, 0)]
    buffer = np.zeros(4)
    with pytest.raises(MismatchError, match="rank 2 sent 5 elements"):
        dist.recv(buffer)
    with pytest.raises(MismatchError, match="rank 0 sent 4 elements of int64"):
        dist.recv(buffer)
    assert not buffer.any()
    assert dist.recv(buffer) == 0 and buffer[3] == 3


def test_requests(joined: Join) -> None:
    joined()
    t = x()
    request = dist.all_reduce(t, async_op=True)
    assert isinstance(request, dist.Request) and isinstance(request, dist.Work)
    assert request.wait() is True and request.is_completed() and request.is_success() and request.exception() is None
    assert t.tolist() == [0, 3, 6, 9] and "Request" in repr(request)
    with pytest.raises(UsageError, match="for receives"):
        request.source_rank()
    view = np.zeros((4, 2))[:, 1]
    received = dist.irecv(view, 2)
    assert received is not None and received.wait(timedelta(seconds=10)) is True
    assert view.tolist() == [200, 201, 202, 203] and received.source_rank() == 2
    assert received.result()[0] is view and request.result()[0] is t
    for timeout, kind in (("1", TypeError), (0, RuntimeError)):
        with pytest.raises(kind, match="timeout"):
            request.wait(timeout)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- groups


def test_new_group_refusals(joined: Join) -> None:
    joined()
    refuse(RuntimeError, "cannot create empty group", lambda: dist.new_group([]))
    words = r"array of ranks contains invalid rank, all ranks should be in range: \[0, 2\]"
    refuse(RuntimeError, words, lambda: dist.new_group([0, 3]))
    refuse(RuntimeError, words, lambda: dist.new_group([-1, 0]))
    refuse(RuntimeError, "ranks should be unique", lambda: dist.new_group([1, 1]))
    refuse(TypeError, "must be an int", lambda: dist.new_group([0, 1.0]))  # type: ignore[list-item]
    refuse(TypeError, "ranks must be a list", lambda: dist.new_group(1))  # type: ignore[arg-type]
    refuse(RuntimeError, "Invalid distributed backend name", lambda: dist.new_group([0], backend="smoke"))


def test_new_group_takes_any_collection_and_both_orders(joined: Join) -> None:
    fake = joined()
    for ranks in ([2, 0, 1], (2, 0, 1), {0, 1, 2}, (rank for rank in (2, 0, 1)), np.array([2, 0, 1]), None):
        dist.new_group(ranks)
    dist.new_group([2, 0, 1], sort_ranks=False, group_desc="odd", timeout=timedelta(seconds=5))
    assert [call[1] for call in fake.calls] == [(0, 1, 2)] * 6 + [(2, 0, 1)]
    assert fake.calls[-1][2] == "odd"


def test_destroying_one_group(joined: Join) -> None:
    joined()
    handle = dist.new_group([0, 1])
    assert isinstance(handle, dist.ProcessGroup)
    inner: Any = handle.member().asynchronous
    dist.destroy_process_group(handle)
    assert inner.closed and dist.is_initialized()
    with pytest.raises(AssertionError, match="destroyed"):
        dist.barrier(handle)


def test_things_for_gpus(joined: Join) -> None:
    joined()
    assert dist._clear_group_cache() is None and dist._clear_group_cache(dist.group.WORLD) is None
    refuse(TypeError, "torch.cuda.Stream", lambda: dist._register_stream(object()))

    class Stream:
        cuda_stream = 0

    assert dist._register_stream(Stream()) is None


def test_barrier_takes_a_timeout(joined: Join) -> None:
    fake = joined()
    dist.barrier(timeout=timedelta(seconds=2), device_ids=[0])
    assert fake.calls == [("barrier", 2.0)]
    refuse(TypeError, "timeout must be", lambda: dist.barrier(timeout="2"))  # type: ignore[arg-type]
    refuse(RuntimeError, "must be positive", lambda: dist.barrier(timeout=-2))
