"""What each documented call refuses, in which class, in which words; and that the peers are told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.errors import MismatchError, UsageError
from tests.distributed.fake_group import Message
from tests.distributed.refusing import Join, refuse, x

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


# ---------------------------------------------------------------------------------------------- ops


@pytest.mark.parametrize("bad", [None, "sum", 0, object(), np.add])
def test_op_is_no_constant(joined: Join, bad: Any) -> None:
    fake = joined()
    words = "op should be a constant from torch.distributed.reduce_op"
    refuse(RuntimeError, words, lambda: dist.all_reduce(x(), bad))
    refuse(RuntimeError, words, lambda: dist.reduce(x(), 0, bad))
    refuse(RuntimeError, words, lambda: dist.all_reduce_multigpu([x()], bad))
    assert [what for what, _ in fake.refusals] == ["all_reduce", "reduce", "all_reduce"]


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
            request.wait(timeout)
