"""Arguments that raise when they are looked at, and other oddities: refused on every rank, and the group goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.distributed import functional
from aiocoll.errors import UsageError
from tests.distributed.ranks import ranks

Call = Callable[[Any], Any]


class Stranger:
    """Raises whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(f"asked for {name}")

    def __index__(self) -> int:
        raise ZeroDivisionError("asked for a number")

    def __iter__(self) -> Any:
        raise ZeroDivisionError("gone through")

    def __bool__(self) -> bool:
        raise ZeroDivisionError("asked for a truth")


class StrangeList(list[Any]):
    """Raises when it is gone through."""

    def __iter__(self) -> Any:
        raise ZeroDivisionError("gone through")


def x(count: int = 2) -> Any:
    return np.arange(float(count)) + dist.get_rank()


def pair() -> list[Any]:
    return [x(), x()]


TENSORS: dict[str, Call] = {
    "all_reduce": dist.all_reduce,
    "reduce": lambda bad: dist.reduce(bad, 0),
    "broadcast": lambda bad: dist.broadcast(bad, 0),
    "all_gather": lambda bad: dist.all_gather(pair(), bad),
    "gather": lambda bad: dist.gather(bad, pair() if dist.get_rank() == 0 else None, 0),
    "scatter": lambda bad: dist.scatter(bad, pair() if dist.get_rank() == 0 else None, 0),
    "reduce_scatter": lambda bad: dist.reduce_scatter(bad, pair()),
    "all_gather_single": lambda bad: dist.all_gather_single(x(4), bad),
    "gather_single": lambda bad: dist.gather_single(bad, x(4), 0),
    "reduce_scatter_single": lambda bad: dist.reduce_scatter_single(bad, x(4)),
    "all_to_all": lambda bad: dist.all_to_all([x(), bad], pair()),
    "all_to_all_single": lambda bad: dist.all_to_all_single(bad, x()),
    "all_reduce_coalesced": lambda bad: dist.all_reduce_coalesced([x(), bad]),
    "all_gather_coalesced": lambda bad: dist.all_gather_coalesced([pair(), pair()], [x(), bad]),
    "all_reduce_multigpu": lambda bad: dist.all_reduce_multigpu([x(), bad]),
    "functional.all_reduce": lambda bad: functional.all_reduce(bad, "sum"),
    "functional.all_reduce_coalesced": lambda bad: functional.all_reduce_coalesced([x(), bad], "sum"),
}
NUMBERS: dict[str, Call] = {
    "broadcast": lambda bad: dist.broadcast(x(), 0 if bad is None else bad),
    "reduce": lambda bad: dist.reduce(x(), 0 if bad is None else bad),
    "all_to_all_single": lambda bad: dist.all_to_all_single(x(), x(), [1, 1], [1, 1 if bad is None else bad]),
    "broadcast_object_list": lambda bad: dist.broadcast_object_list([1], bad),
    "permute_tensor": lambda bad: functional.permute_tensor(x(), [1, 0] if bad is None else bad),
}
LISTS: dict[str, Call] = {
    "all_gather": lambda bad: dist.all_gather(bad or pair(), x()),
    "all_to_all": lambda bad: dist.all_to_all(bad or pair(), pair()),
    "all_reduce_coalesced": lambda bad: dist.all_reduce_coalesced(bad or pair()),
    "functional.all_reduce_coalesced": lambda bad: functional.all_reduce_coalesced(bad or pair(), "sum"),
}


def refused_for_all(calls: dict[str, Call], good: Callable[[], Any], bad: Any) -> None:
    def program(rank: int) -> dict[str, Any]:
        raised: dict[str, Any] = {}
        for name, call in calls.items():
            try:
                call(bad if rank == 1 else good())
            except UsageError as error:
                raised[name] = str(error)
            except Exception as error:
                pytest.fail(f"{name} on rank {rank}: {error!r}")
            total = np.array([rank + 1.0])
            dist.all_reduce(total)
            assert total[0] == 3, name
        return raised

    first, second = ranks(2, program)
    assert set(second) == set(calls)
    assert all(("asked for" in said or "gone through" in said) and "rank 1" in said for said in second.values()), second
    rootless = set(calls) - {"broadcast", "broadcast_object_list"}  # their root has sent, and is done
    assert rootless <= set(first), rootless - set(first)
    unnamed = {name: said for name, said in first.items() if "rank 1" not in said}
    assert not unnamed, unnamed


def test_a_tensor_that_raises_when_it_is_looked_at_is_refused_on_all_ranks() -> None:
    refused_for_all(TENSORS, x, Stranger())


def test_a_number_that_raises_when_it_is_asked_for_is_refused_on_all_ranks() -> None:
    refused_for_all(NUMBERS, lambda: None, Stranger())


def test_a_list_that_raises_when_it_is_gone_through_is_refused_on_all_ranks() -> None:
    refused_for_all(LISTS, lambda: None, StrangeList([np.zeros(2), np.zeros(2)]))


SWITCHES: dict[str, Call] = {
    "all_reduce": lambda bad: dist.all_reduce(x(), async_op=bad),
    "reduce": lambda bad: dist.reduce(x(), 0, async_op=bad),
    "broadcast": lambda bad: dist.broadcast(x(), 1, async_op=bad),
    "all_gather": lambda bad: dist.all_gather(pair(), x(), async_op=bad),
    "all_gather_single": lambda bad: dist.all_gather_single(x(4), x(), async_op=bad),
    "reduce_scatter_single": lambda bad: dist.reduce_scatter_single(x(), x(4), async_op=bad),
    "all_to_all_single": lambda bad: dist.all_to_all_single(x(), x(), async_op=bad),
    "all_reduce_coalesced": lambda bad: dist.all_reduce_coalesced(pair(), async_op=bad),
    "barrier": lambda bad: dist.barrier(async_op=bad),
    "monitored_barrier": lambda bad: dist.monitored_barrier(wait_all_ranks=bad),
}


@pytest.mark.parametrize("bad", ["async", 2, 0.0, np.zeros(2), Stranger()], ids=lambda bad: type(bad).__name__)
def test_what_is_neither_true_nor_false_is_refused_on_all_ranks(bad: Any) -> None:
    def program(rank: int) -> None:
        for name, call in SWITCHES.items():
            with pytest.raises(UsageError, match="rank 1.*must be True or False") as refused:
                call(bad if rank == 1 else False)
            assert rank == 0 or isinstance(refused.value, TypeError), name
            total = np.array([rank + 1.0])
            dist.all_reduce(total)
            assert total[0] == 3, name
        for given in (0, None, np.False_):
            assert dist.all_reduce(x(), async_op=given) is None
        for given in (1, np.True_):
            work = dist.all_reduce(x(), async_op=given)
            assert work is not None and work.wait()
        with pytest.raises(TypeError, match="sort_ranks=.* must be True or False"):
            dist.new_group([0, 1], sort_ranks=bad)

    ranks(2, program)


def test_lists_of_local_tensors_that_are_only_read_may_be_read_only_and_strided() -> None:
    def program(rank: int) -> None:
        mine = (np.arange(4.0) + 10 * rank)[::-2]
        mine.flags.writeable = False
        outputs = [np.zeros(2) for _ in range(4)]
        dist.all_gather_multigpu([outputs], [mine, mine.copy()])
        assert [each.tolist() for each in outputs] == [[3, 1], [3, 1], [13, 11], [13, 11]]
        first, second = np.full(2, rank + 1.0), np.full(2, rank + 3.0)
        dist.broadcast_multigpu([first, second], 1, src_tensor=np.int64(1))
        assert first.tolist() == second.tolist() == [4, 4]

    ranks(2, program)
