"""Rooted collectives: inputs that stay, lists on the wrong rank, counts on which ranks disagree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll.algorithms import all_of
from aiocoll.errors import MismatchError, UsageError
from tests.distributed.ranks import ranks


@pytest.mark.parametrize("backend", ["tcp", "shm"])
@pytest.mark.parametrize("size", [2, 5])
def test_d1_reduce_leaves_the_inputs_of_the_others(size: int, backend: str) -> None:
    """After reduce the tensors of all ranks but dst are as they were, small and large, whatever the layout."""

    def program(rank: int) -> None:
        for shape, async_op in (((2, 2), False), ((2, 2), True), ((1000, 1000 // size**2), size == 5)):
            given = [np.arange(float(np.prod(shape))).reshape(shape) * (each + 1) for each in range(size)]
            for x in (given[rank].copy(), given[rank].T.copy().T):
                work = dist.reduce(x, 0, async_op=async_op)
                assert work is None if not async_op else work is not None and work.wait()
                np.testing.assert_array_equal(x, given[rank] if rank else sum(given))

    ranks(size, program, backend)


@pytest.mark.parametrize("name", [each.name for each in all_of("reduce")])
def test_d1_whatever_the_algorithm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same under each algorithm for reduce that there is."""
    monkeypatch.setenv("AIOCOLL_ALGORITHM", f"reduce:{name}")

    def program(rank: int) -> None:
        for root in range(3):
            x = np.arange(5000.0) * (rank + 1)
            before = x.copy()
            dist.reduce(x, root, dist.ReduceOp.SUM)
            np.testing.assert_array_equal(x, np.arange(5000.0) * 6 if rank == root else before)

    ranks(3, program, "shm")


def test_d3_lists_and_roots_that_are_wrong_on_one_rank() -> None:
    """Each slip is a ValueError where it is made, names what would be right, and no peer hangs: it raises, too, or is
    through; the group goes on. A root may be a NumPy integer."""

    def program(rank: int) -> None:
        x, box = np.arange(3.0) + rank, [np.zeros(3) for _ in range(3)]
        slips: list[tuple[int, str, Callable[[], Any], Callable[[], Any]]] = [
            (1, "only to gather destination", lambda: dist.gather(x, box, 0), lambda: _gather(x, rank)),
            (
                1,
                "only to scatter source|only be given|only to",
                lambda: dist.scatter(x, box, 0),
                lambda: _scatter(x, rank),
            ),
            (0, "gather_list is a required argument", lambda: dist.gather(x, None, 0), lambda: _gather(x, rank)),
            (0, "scatter_list is a required argument", lambda: dist.scatter(x, None, 0), lambda: _scatter(x, rank)),
            (0, "rank 0 gave 2 in gather_list", lambda: dist.gather(x, box[:2], 0), lambda: _gather(x, rank)),
            (0, "rank 0 gave 4 in scatter_list", lambda: dist.scatter(x, [*box, x], 0), lambda: _scatter(x, rank)),
            (2, "rank 2 gave 1 in tensor_list", lambda: dist.all_gather(box[:1], x), lambda: dist.all_gather(box, x)),
            (
                0,
                "tensor types do not match: number 1 of the list is float32",
                lambda: dist.gather(x, [box[0], np.zeros(3, "f4"), box[2]], 0),
                lambda: _gather(x, rank),
            ),
            (2, "not member of group", lambda: dist.broadcast(x, -1), lambda: dist.broadcast(x, 0)),
            (2, "not member of group", lambda: dist.reduce(x, 3), lambda: dist.reduce(x, 0)),
            (1, "not member of group", lambda: dist.gather(x, None, 99), lambda: _gather(x, rank)),
            (1, "should be in range", lambda: dist.scatter(x, group_src=-1), lambda: _scatter(x, rank)),
            (1, "must be an int", lambda: dist.broadcast(x, 0.0), lambda: dist.broadcast(x, 0)),
            (1, "must be an int", lambda: dist.reduce(x, "0"), lambda: dist.reduce(x, 0)),
        ]
        for wrong, words, slip, right in slips:
            if rank == wrong:
                with pytest.raises(ValueError, match=words):
                    slip()
            else:
                try:
                    right()
                except UsageError as error:
                    assert f"rank {wrong}" in str(error), error
            total = np.arange(3.0) + rank
            dist.all_reduce(total)
            assert total.tolist() == [3, 6, 9], words
        y = np.zeros(3) + rank
        dist.broadcast(y, np.int64(2))
        dist.reduce(y, np.uint8(1))
        assert y.tolist() == ([6] * 3 if rank == 1 else [2] * 3)

    def _gather(x: Any, rank: int) -> None:
        dist.gather(x, [np.zeros(3) for _ in range(3)] if rank == 0 else None, 0)

    def _scatter(x: Any, rank: int) -> None:
        dist.scatter(x.copy(), [np.zeros(3) for _ in range(3)] if rank == 0 else None, 0)

    ranks(3, program)


def test_d5_counts_on_which_root_and_leaf_disagree() -> None:
    """The root expects 3, 3 and 4 elements and rank 2 sends 5: an error that names rank and both counts, none of the
    root's tensors is touched, also not beyond their ends, and the group goes on. all_gather and scatter likewise."""

    def program(rank: int) -> None:
        counts, memory = (3, 3, 5), np.full(12, -1.0)
        x = np.arange(float(counts[rank]))
        outputs = [memory[0:3], memory[3:6], memory[6:10]]
        if rank == 0:
            with pytest.raises(MismatchError, match="rank 2 sent 5 elements.*rank 0 has room for 4"):
                dist.gather(x, outputs, 0)
        else:
            dist.gather(x, None, 0)
        assert (memory == -1).all()
        outputs = [memory[0:3], memory[3:6], memory[6 : 6 + counts[rank] if rank == 2 else 10]]
        if rank == 2:
            dist.all_gather(outputs, x)
            assert memory[6:11].tolist() == [0, 1, 2, 3, 4] and memory[11] == -1
        else:
            with pytest.raises(MismatchError, match=f"rank 2 sent 5 elements.*rank {rank} has room for 4"):
                dist.all_gather(outputs, x)
            assert (memory == -1).all()
        total = np.arange(3.0) + rank
        dist.all_reduce(total)
        assert total.tolist() == [3, 6, 9]

    ranks(3, program)
