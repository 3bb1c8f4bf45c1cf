"""Lists of tensors and of objects: what each documented call refuses, and where it puts what it got."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import MismatchError
from tests.distributed.refusing import Join, refuse, x


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
    refuse(TypeError, "object_list must be a list", lambda: dist.all_gather_object((None,) * 3, 1))
    refuse(RuntimeError, "2 places on rank 1.*3 members", lambda: dist.all_gather_object([None] * 2, 1))
    refuse(TypeError, "must be a list", lambda: dist.broadcast_object_list("abc", 0))
    everyone: list[Any] = [None] * 3
    dist.all_gather_object(everyone, "it")
    assert everyone == ["it of 0", "it of 1", "it of 2"]
    received: list[Any] = [None, None]
    dist.broadcast_object_list(received)
    assert received == ["x", {"y": 1}]
    with pytest.raises(MismatchError, match="rank 0 sent 2 objects, rank 1 has a list of 3"):
        dist.broadcast_object_list([None] * 3, 0)
