"""How a world's calls go through another library: order, groups, refusals, failures, deadlines."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import aiocoll
import aiocoll.distributed as dist
from aiocoll.distributed import carriers, constants
from aiocoll.distributed.carriers import process_groups
from aiocoll.distributed.carriers.operands import load, spelled, stand_in
from aiocoll.errors import CollectiveTimeoutError, GroupBrokenError, MismatchError, UsageError
from tests.distributed.fake_library import Bus
from tests.distributed.ranks import ranks
from tests.foreign import Foreign


@pytest.fixture
def bus() -> Iterator[Bus]:
    """The backend "fake", registered as programs register theirs."""
    made = Bus()
    dist.Backend.register_backend("Fake", made.make)
    yield made
    for names in (constants.PLUGINS, constants.NUMBER_OF_BACKEND):
        del names["fake"]
    del dist.Backend.FAKE


def test_a_backend_of_the_programs_own(bus: Bus) -> None:
    assert dist.Backend.FAKE == "fake" and dist.is_backend_available("FAKE")
    with pytest.raises(RuntimeError, match="already there"):
        dist.Backend.register_backend("fake", bus.make)
    with pytest.raises(TypeError, match="a function"):
        dist.Backend.register_backend("other", "no function")

    def program(rank: int) -> Any:
        x = np.arange(3.0) + rank
        dist.all_reduce(x)
        return x.tolist(), dist.get_backend(), dist.get_backend_config()

    assert ranks(3, program, "fake") == [([3.0, 6.0, 9.0], "fake", "cpu:fake")] * 3
    assert bus.opened == [(0, 1, 2)] * 3 and bus.freed == bus.closed == 3


def test_what_is_no_library_is_refused(bus: Bus) -> None:
    constants.PLUGINS["fake"] = lambda *_: object()
    with pytest.raises(RuntimeError, match=r"is no carriers\.base\.Library"):
        ranks(1, lambda rank: None, "fake")


def test_a_world_whose_library_cannot_be_made_is_left_again(bus: Bus) -> None:
    said: list[Any] = []

    def broken(store: Any, rank: int, size: int, timeout: Any) -> Any:
        said.append((rank, size, timeout))
        raise LookupError("no such device")

    constants.PLUGINS["fake"] = broken
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LookupError, match="no such device"):
            ranks(1, lambda rank: None, "fake", timeout=float("inf"))
        gc.collect()
    assert said == [(0, 1, timedelta.max)] and not dist.is_initialized()


def test_every_collective(bus: Bus) -> None:
    def program(rank: int) -> Any:
        group = dist.group.WORLD.member()
        said: list[Any] = []
        x = np.arange(4) + rank
        dist.reduce(x, 1)
        said.append(x.tolist())
        big = np.arange(40_000.0) * (rank + 1)
        dist.broadcast(big, 2)
        said.append(big[1])
        for rows in (3, 9000):
            parts = group.all_gather(np.full((rows + rank, 2), rank, "i4"))
            said.append([(part.shape, int(part.sum())) for part in parts])
            table = group.all_gather(np.full((rows, 2), rank), out=np.zeros((3, rows, 2), int))
            said.append(table[:, 0, 0].tolist())
        gathered = group.gather(np.arange(rank, dtype="f4"), 1)
        said.append(None if gathered is None else [each.tolist() for each in gathered])
        said.append(group.scatter([np.arange(each) + 5 for each in range(3)] if rank == 0 else None, 0).tolist())
        said.append(group.reduce_scatter(np.arange(7) + rank).tolist())
        said.append([each.tolist() for each in group.all_to_all([np.full(peer, rank) for peer in range(3)])])
        said.append(group.all_to_all([np.array([b"x%d" % rank])] * 3)[2].tolist())
        said.append(group.scan(np.array([rank + 1]))[0])
        said.append(group.all_gather_object({"rank": rank}))
        group.barrier()
        return said

    plain = ranks(3, program, "auto")
    bus_answers = ranks(3, program, "fake")
    assert bus_answers == plain
    assert len(bus.opened) == 3


def test_calls_that_overlap_enter_the_library_in_one_order(bus: Bus) -> None:
    def program(rank: int) -> Any:
        xs = [np.full(5, float(number + rank)) for number in range(40)]
        works = []
        for number, x in enumerate(xs):
            if number % 4 == 3:
                works.append(dist.broadcast(x, number % 3, async_op=True))
            elif number % 4 == 1:
                works.append(dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True))
            else:
                works.append(dist.all_reduce(x, async_op=True))
        for work in works:
            assert work is not None
            work.wait()
        return [x[0] for x in xs]

    def right(number: int) -> float:
        return number + (number % 3 if number % 4 == 3 else 2 if number % 4 == 1 else 2 * number + 3)

    assert ranks(3, program, "fake") == [[right(number) for number in range(40)]] * 3


def test_a_list_enters_the_library_as_a_whole(bus: Bus) -> None:
    """Calls that were made after a list wait until its last tensor has begun, on every rank."""

    def program(rank: int) -> Any:
        lists = [[np.full(count, float(10 * number + rank)) for count in (3, 1, 5)] for number in range(8)]
        after = [np.full(2, float(number - rank)) for number in range(8)]
        works = []
        for tensors, x in zip(lists, after, strict=True):
            works += [dist.all_reduce_coalesced(tensors, async_op=True), dist.all_reduce(x, async_op=True)]
        for work in works:
            assert work is not None and work.wait()
        assert all(set(each.tolist()) == {30.0 * number + 3} for number, row in enumerate(lists) for each in row)
        return [x.tolist() for x in after]

    assert ranks(3, program, "fake") == [[[3.0 * number - 3] * 2 for number in range(8)]] * 3


def test_groups_open_their_own_and_free_it(bus: Bus) -> None:
    def program(rank: int) -> Any:
        pairs = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([2, 0])]
        said = []
        for pair in pairs:
            x = np.array([rank + 1])
            dist.all_reduce(x, group=pair)
            said.append(int(x[0]))
        last = dist.new_group()
        for pair in [*pairs, last]:
            dist.all_reduce(np.array([1]), group=pair)
            dist.destroy_process_group(pair)
        dist.barrier()
        assert bus.freed == 9  # at once, and not when the next group looks for those that are closed
        dist.barrier()
        return said

    assert ranks(3, program, "fake") == [[3, 1, 4], [3, 5, 2], [3, 5, 4]]
    assert sorted(set(bus.opened)) == [(0, 1), (0, 1, 2), (0, 2), (1, 2)]
    assert bus.freed == 12


def test_what_differs_is_refused_before_the_library_sees_it(bus: Bus) -> None:
    def program(rank: int) -> Any:
        twin = dist.new_group()
        begun = len(bus.operations)
        with pytest.raises(MismatchError, match="rank"):
            dist.all_reduce(np.zeros(3 + rank), group=twin)
        assert len(bus.operations) == begun
        with pytest.raises(UsageError):
            dist.all_reduce(np.zeros(3) if rank else None)
        with pytest.raises(UsageError, match="backend 'fake' .* cannot do aiocoll.SUM of complex256"):
            dist.all_reduce(np.zeros(3, "G"))
        with pytest.raises(UsageError, match="cannot do aiocoll.op"):
            dist.all_reduce(np.zeros(3), aiocoll.op(lambda a, b: a + b))
        dist.barrier()
        assert len(bus.operations) == begun
        x = np.ones(2)
        dist.all_reduce(x)
        return x[0]

    assert ranks(2, program, "fake") == [2.0, 2.0]


def test_calls_by_name_are_refused(bus: Bus) -> None:
    def program(rank: int) -> Any:
        with pytest.raises(UsageError, match="matches calls by their order only"):
            dist.new_group().member().all_reduce(np.zeros(3), name="loss")

    ranks(2, program, "fake")


def test_a_library_that_fails_or_hangs_breaks_the_group_in_its_name(bus: Bus) -> None:
    def program(rank: int) -> Any:
        first = dist.new_group(timeout=0.3)
        dist.barrier()
        bus.hangs = True
        with pytest.raises((CollectiveTimeoutError, GroupBrokenError), match="the fake library was not done") as caught:
            dist.all_reduce(np.zeros(3), group=first)
        late = isinstance(caught.value, CollectiveTimeoutError)  # the rank whose deadline passed first knows the most
        assert not late or "may write to them" in str(caught.value.__notes__)
        dist.barrier()
        bus.hangs = False
        bus.fails = True
        second = dist.new_group()
        with pytest.raises(GroupBrokenError, match="the fake library failed: OSError: the wire is cut"):
            dist.all_reduce(np.zeros(3), group=second)
        dist.barrier()
        return late

    assert any(ranks(2, program, "fake"))


def test_a_library_that_fails_at_once_fails_the_joining(bus: Bus) -> None:
    bus.fails = True
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="does not work here"):
        warnings.simplefilter("ignore", ResourceWarning)
        ranks(2, lambda rank: None, "fake")
    gc.collect()
    assert not dist.is_initialized()


@pytest.mark.parametrize("name", ["SUM", "PROD", "MIN", "MAX", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR"])
def test_reductions_in_fewer_words_have_numpys_values(name: str) -> None:
    """Every dtype through a library that knows four of them, folded here as it would fold."""
    op = getattr(aiocoll, name)
    rng, compared = np.random.default_rng(5), 0
    for kind in "?bhilqBHILQefdFD":
        dtype = np.dtype(kind)
        work = _work(op, dtype)
        if work is None:
            continue
        parts = [_any(rng, work) for _ in range(3)]
        wanted = parts[0].copy()
        for each in parts[1:]:
            op.fold(wanted, each, wanted)
        op.finish(wanted, 3)
        able = spelled(op, work)
        assert able is not None
        native = stand_in(*able, lambda dtype, op: dtype.char in "Bild" and (dtype.kind in "iu" or op[0] in "SPM"))
        if native is None:
            assert work.kind in "fc"
            continue
        loaded = [load(each, op, native, able[1]) for each in parts]
        total = loaded[0][0].copy()
        fold = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "BAND": np.bitwise_and,
                "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}[able[1]]  # fmt: skip
        for each, _ in loaded[1:]:
            total = fold(total, each)
        loaded[0][0][...] = total
        restore = loaded[0][1]
        if restore is not None:
            restore(loaded[0][0])
        op.finish(parts[0], 3)
        compared += 1
        np.testing.assert_array_equal(parts[0], wanted, err_msg=f"{name} of {kind} as {native}")
    assert compared >= 11  # integers and bool, always


class Cuda:
    """The least that a tensor on a GPU offers: it brings itself to the host, and is filled from there."""

    is_cuda = True

    def __init__(self, values: Any) -> None:
        self.values = np.array(values)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def detach(self) -> Cuda:
        return self

    def cpu(self) -> Host:
        return Host(np.ascontiguousarray(self.values.copy()))

    def copy_(self, host: Host) -> None:
        self.values[...] = host.array

    def new_empty(self, shape: Any) -> Cuda:
        return Cuda(np.empty(shape, self.values.dtype))

    def tolist(self) -> Any:
        return self.values.tolist()


class Host(Foreign):
    def contiguous(self) -> Host:
        return self


def test_nccl_takes_tensors_of_a_gpu_and_no_others(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "missing", lambda name: "")
    monkeypatch.setattr(process_groups, "TorchLibrary", bus.make)

    def program(rank: int) -> Any:
        x = Cuda(np.arange(6.0).reshape(2, 3).T + rank)
        dist.all_reduce(x)
        into = [Cuda(np.zeros(2)) for _ in range(2)]
        dist.all_gather(into, Cuda([rank, 5.0]))
        dist.broadcast(x, 1)
        both = [Cuda([1.0 + rank]), Cuda([10.0])]
        dist.all_reduce_multigpu(both)
        part = Cuda([0.0])
        dist.scatter(part, [Cuda([7.0]), Cuda([8.0])] if rank == 0 else None, 0)
        if rank:
            dist.send(part, 0)
        else:
            assert dist.recv(part, 1) == 1
        more = dist.functional.all_reduce(Cuda([2.0]), "sum", dist.group.WORLD)
        table, rows = Cuda(np.zeros((2, 2)).T), Cuda([10.0 * rank, 10.0 * rank + 1])
        dist.gather_single(rows, table if rank == 0 else None, 0)
        turned = Cuda([0.0, 0.0])
        dist.all_to_all_single(turned, rows)
        assert rank or table.tolist() == [[0.0, 1.0], [10.0, 11.0]]
        assert turned.tolist() == [rank, 10.0 + rank]
        for slip in (np.zeros(3), [1.0], None):
            with pytest.raises(TypeError, match="'nccl' wants CUDA tensors"):
                dist.all_reduce(slip)
        assert dist.get_backend_config() == "cuda:nccl"
        return [each.tolist() for each in (x, *into, *both, part, more)]

    x, parts = [[1.0, 7.0], [3.0, 9.0], [5.0, 11.0]], [[0.0, 5.0], [1.0, 5.0]]
    assert ranks(2, program, "nccl") == [[x, *parts, [23.0], [23.0], [8.0], [4.0]]] * 2


def _work(op: Any, dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    try:
        work: np.dtype[Any] = op.work_dtype(dtype)
    except UsageError:
        return None
    return work


def _any(rng: np.random.Generator, dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, 200, dtype, endpoint=True)
    return rng.integers(-3, 4, 200).astype(dtype)
