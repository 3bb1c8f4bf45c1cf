"""Datatypes, ops, grids and groups of ranks: what needs no other rank, and what only a few need."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aiocoll.errors import UsageError
from aiocoll.mpi import MPI
from aiocoll.mpi.datatypes import PREDEFINED, datatype_of

same = np.testing.assert_array_equal
Ranks = Callable[..., list[Any]]


# ------------------------------------------------------------------------------------------------ datatypes


def test_datatypes_know_their_sizes() -> None:
    assert (MPI.DOUBLE.Get_size(), MPI.INT.size, MPI.LONG.extent, MPI.BYTE.Get_extent()) == (8, 4, 8, (0, 1))
    assert MPI.DOUBLE.Get_name() == "MPI_DOUBLE" and MPI.DOUBLE.typechar == "d" and MPI.DOUBLE.typestr == "f8"
    assert MPI.Datatype.fromcode("i") is MPI.INT and MPI.DOUBLE.is_predefined and not MPI.DATATYPE_NULL
    vector = MPI.DOUBLE.Create_vector(3, 2, 4)
    assert (vector.size, vector.extent, vector.Get_true_extent()) == (48, 80, (0, 80)) and not vector.is_predefined
    part = MPI.INT.Create_subarray([4, 5], [2, 3], [1, 1])
    assert (part.size, part.extent, part.true_lb, part.true_ub) == (24, 80, 24, 56)
    assert MPI.INT.Create_indexed([2, 1], [3, 0]).Get_extent() == (0, 20)
    assert vector.Create_resized(0, 8).extent == 8 and vector.Dup() == vector and hash(vector.Dup()) == hash(vector)
    assert vector != MPI.DOUBLE and vector.Commit() is vector and "6 of float64" in repr(vector)
    vector.Set_name("column")
    assert vector.name == vector.Get_name() == "column"


@pytest.mark.parametrize("name", sorted(PREDEFINED))
def test_every_datatype_is_there_and_stands_for_a_dtype(name: str) -> None:
    datatype = getattr(MPI, name)
    assert datatype.name == f"MPI_{name}" and datatype.dtype.itemsize == datatype.Get_size() > 0


@pytest.mark.parametrize("dtype", ["?", "b", "B", "h", "H", "i", "I", "l", "L", "e", "f", "d", "g", "F", "D"])
def test_arrays_name_their_datatype(dtype: str) -> None:
    assert datatype_of(np.dtype(dtype)).is_predefined
    assert datatype_of(np.dtype(dtype).newbyteorder()).dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: MPI.INT.Create_indexed([1], [0, 1]), "1 block lengths and 2 displacements"),
        (lambda: MPI.INT.Create_subarray([4], [3], [2]), "is no part of an array"),
        (lambda: MPI.INT.Create_resized(0, 6), "a multiple of 4 bytes"),
        (lambda: MPI.SUM.Reduce_local(np.ones(2), np.ones(3)), "2 elements of float64 do not go into 3"),
        (lambda: MPI.BAND.Reduce_local(np.ones(2), np.ones(2)), "does not work on dtype float64"),
        (lambda: MPI.OP_NULL(1, 2), "OP_NULL folds nothing"),
        (lambda: MPI.SUM.Free(), "MPI's own"),
        (lambda: MPI.Op.Create(3), "is no function"),
        (lambda: MPI.Compute_dims(6, [4, 0]), r"a grid of \[4, 0\] cannot have 6 cells"),
        (lambda: MPI.Compute_dims(6, [2, 2]), "cannot have 6 cells|4 cells, not 6"),
        (lambda: MPI.COMM_WORLD.Free(), "cannot be freed"),
        (lambda: MPI.Group((0, 1), 0).Incl([2]), "2 is no rank of a group of 2"),
        (lambda: MPI.Group((0, 1), 0).Incl([1, 1]), "each rank once"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        make()
    assert isinstance(caught.value, MPI.Exception)


def test_patterns_in_memory_travel_both_ways(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        grid = np.arange(20.0).reshape(4, 5) + 100 * comm.rank
        other = 1 - comm.rank
        theirs = np.arange(20.0).reshape(4, 5) + 100 * other
        column = MPI.DOUBLE.Create_vector(4, 1, 5).Commit()
        box = np.zeros((4, 5))
        comm.Sendrecv([grid, 1, column], other, 0, [box, 1, column], other)
        same(box[:, 0], theirs[:, 0])
        assert not box[:, 1:].any()
        next_column = column.Create_resized(0, 8)
        box[:] = 0
        comm.Sendrecv([grid, 2, next_column], other, 0, [box, (2, 3), next_column], other)  # columns 0 and 1 into 3, 4
        same(box[:, 3:], theirs[:, :2])
        middle = MPI.DOUBLE.Create_subarray([4, 5], [2, 3], [1, 1])
        flat = np.zeros(6)
        comm.Sendrecv([grid, middle], other, 0, flat, other)
        same(flat, theirs[1:3, 1:4].reshape(-1))
        corners = MPI.DOUBLE.Create_indexed_block(1, [0, 4, 15, 19])
        four = np.zeros(20)
        comm.Allgather([grid, corners], np.zeros(8)) if comm.rank > 1 else None
        comm.Allreduce([grid, corners], four[:4])
        same(four[:4], (grid + theirs).reshape(-1)[[0, 4, 15, 19]])
        backwards = np.zeros(40)[::-2].reshape(4, 5)
        comm.Sendrecv([grid, 1, column], other, 0, [backwards, 1, column], other)
        same(backwards[:, 0], theirs[:, 0])
        triple = MPI.INT.Create_contiguous(3)
        numbers = np.zeros(6, "i4")
        comm.Sendrecv([np.arange(6, dtype="i4"), 2, triple], other, 0, [numbers, triple], other)
        same(numbers, np.arange(6))
        column.Free()
        with pytest.raises(UsageError, match="was freed"):
            comm.Send([grid, 1, column], other)
        with pytest.raises(UsageError, match="reach beyond a buffer of 20"):
            comm.Send([grid, 3, MPI.DOUBLE.Create_vector(4, 1, 5)], other)
        for behind in (MPI.DOUBLE.Create_vector(3, 1, -2), MPI.DOUBLE.Create_indexed([2], [-3])):
            with pytest.raises(UsageError, match="reach beyond a buffer of 20 .* from element -"):
                comm.Send([grid, 1, behind], other)
        with pytest.raises(UsageError, match="has gaps"):
            comm.Allgatherv(np.ones(1), [grid, [1, 1], None, next_column])

    ranks(2, body)


def test_dtypes_that_mpi_has_no_name_for_travel_all_the_same(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        for dtype in ("M8[s]", "S5", "U3", [("a", "f4"), ("b", "i8", 2)], "f2", ">i4"):
            mine = np.zeros(3, dtype)
            mine[:] = np.array([comm.rank] * 3).astype(dtype) if not isinstance(dtype, list) else [(1.5, 2)] * 3
            table = np.zeros((2, 3), dtype)
            comm.Allgather(mine, table)
            same(table[comm.rank], mine)
            assert comm.rank or (table[1] == table[0]).all() == isinstance(dtype, list)

    ranks(2, body)


# ------------------------------------------------------------------------------------------------ ops


def test_b7_ops_of_ones_own_fold_in_rank_order(ranks: Ranks) -> None:
    """An op that is not commutative folds from rank 0 to the last, with the same bits everywhere, in every form."""
    size, seen = 4, []

    def after(first: Any, second: Any, datatype: Any) -> None:
        f, g = np.frombuffer(first), np.frombuffer(second)
        seen.append(datatype.name)
        g[0::2], g[1::2] = f[0::2] * g[0::2], f[1::2] * g[0::2] + g[1::2]

    lines = [np.array([rank + 2.0, rank - 0.5, 0.25, rank]) for rank in range(size)]
    wanted = [lines[0]]
    for each in lines[1:]:
        f, g = wanted[-1], each
        wanted.append(np.ravel(np.column_stack([f[0::2] * g[0::2], f[1::2] * g[0::2] + g[1::2]])))

    def body(comm: Any) -> None:
        op = MPI.Op.Create(after)
        assert not op.Is_commutative() and not op.is_commutative and not op.is_predefined and "after" in repr(op)
        mine, out = lines[comm.rank].copy(), np.zeros(4)
        comm.Allreduce(mine, out, op)
        same(out, wanted[-1])
        again = mine.copy()
        comm.Allreduce(MPI.IN_PLACE, again, op)
        same(again, out)
        comm.Iallreduce(mine, again, op).Wait()
        same(again, out)
        comm.Scan(mine, out, op)
        same(out, wanted[comm.rank])
        comm.Reduce(mine, out if comm.rank == 3 else None, op, 3)
        same(out, wanted[comm.rank])
        same(mine, lines[comm.rank])
        op.Free()
        with pytest.raises(UsageError, match="was freed"):
            comm.Allreduce(mine, out, op)

    ranks(size, body)
    assert set(seen) == {"MPI_DOUBLE"}


def test_where_the_least_and_the_largest_are(ranks: Ranks) -> None:
    values = np.array([[3.0, -1.0, 2.0], [3.0, 7.0, -4.0], [1.0, 7.0, 2.5]])

    def body(comm: Any) -> None:
        pairs = np.zeros(3, MPI.DOUBLE_INT.dtype)
        pairs["value"], pairs["index"] = values[comm.rank], comm.rank
        best = np.zeros_like(pairs)
        for op, choose in ((MPI.MAXLOC, np.argmax), (MPI.MINLOC, np.argmin)):
            comm.Allreduce([pairs, MPI.DOUBLE_INT], [best, MPI.DOUBLE_INT], op)
            same(best["index"], choose(values, axis=0))
            same(best["value"], values[best["index"], range(3)])
        flat, out = np.array([comm.rank % 2, comm.rank], "i4"), np.zeros(2, "i4")
        comm.Allreduce([flat, 1, MPI.TWOINT], [out, 1, MPI.TWOINT], MPI.MAXLOC)
        same(out, [1, 1])
        with pytest.raises(UsageError, match="pairs of value and index|MAXLOC"):
            comm.Allreduce(np.ones(2), np.zeros(2), MPI.MAXLOC)

    ranks(3, body)


def test_ops_fold_locally_too() -> None:
    out = np.array([1.0, 5.0])
    MPI.MAX.Reduce_local(np.array([3.0, 2.0]), out)
    same(out, [3, 5])
    flags = np.array([2, 0])
    MPI.LOR.Reduce_local(np.array([0, 0]), flags)
    same(flags, [1, 0])
    assert MPI.SUM(2, 3) == 5 and MPI.MAX("a", "b") == "b" and repr(MPI.SUM) == "MPI.SUM" and not MPI.OP_NULL


# ------------------------------------------------------------------------------------------------ grids and groups


@pytest.mark.parametrize(
    "nodes, axes, dims",
    [
        (12, 3, [3, 2, 2]), (30, 2, [6, 5]), (7, 2, [7, 1]), (16, 3, [4, 2, 2]), (24, [0, 3], [8, 3]),
        (6, [2, 0, 0], [2, 3, 1]), (60, 3, [5, 4, 3]), (1, 2, [1, 1]), (36, 2, [6, 6]), (6, [2, 3], [2, 3]),
    ],
)  # fmt: skip
def test_grids_are_close_to_cubes(nodes: int, axes: Any, dims: list[int]) -> None:
    assert MPI.Compute_dims(nodes, axes) == dims


def test_a_grid_of_ranks(ranks: Ranks) -> None:
    def body(comm: Any) -> None:
        grid = comm.Create_cart([2, 2], periods=[True, False])
        if comm.rank == 4:
            assert grid == MPI.COMM_NULL and not grid and repr(grid) == "MPI.COMM_NULL"
            with pytest.raises(MPI.Exception, match="COMM_NULL"):
                grid.Get_rank()
            return
        rank = grid.rank
        assert rank == comm.rank and (grid.ndim, grid.Get_dim(), grid.dims, grid.periods) == (2, 2, [2, 2], [1, 0])
        assert grid.coords == [rank // 2, rank % 2] and grid.topology == MPI.CART and grid.is_topo
        assert [grid.Get_cart_rank(place) for place in itertools.product(range(2), range(2))] == [0, 1, 2, 3]
        assert grid.Get_cart_rank([-1, 1]) == 3 and grid.Get_topo() == grid.topo == ([2, 2], [1, 0], grid.coords)
        assert grid.Shift(0, 1) == ((rank + 2) % 4, (rank + 2) % 4)
        assert grid.Shift(1, 1) == ((MPI.PROC_NULL, rank + 1) if rank % 2 == 0 else (rank - 1, MPI.PROC_NULL))
        row, column = grid.Sub([False, True]), grid.Sub([True, False])
        assert row.allgather(rank) == [rank // 2 * 2, rank // 2 * 2 + 1] and row.dims == [2] and row.periods == [0]
        assert column.allgather(rank) == [rank % 2, rank % 2 + 2] and column.Shift(0, 1) == (1 - column.rank,) * 2
        twin = grid.Dup()
        assert twin.dims == [2, 2] and twin.allreduce(1) == 4 and twin.Compare(grid) == MPI.CONGRUENT
        for call, words in [
            (lambda: grid.Get_cart_rank([0, 2]), "outside a grid"), (lambda: grid.Get_cart_rank([0]), "no place"),
            (lambda: grid.Get_coords(4), "no rank of this grid"), (lambda: grid.Shift(2, 1), "no axis"),
            (lambda: grid.Sub([True]), "1 flags for 2 axes"), (lambda: comm.Create_cart([3, 2]), "needs 6 ranks"),
            (lambda: comm.Create_cart([2], [True, True]), "2 periods for 1 axes"),
        ]:  # fmt: skip
            with pytest.raises(UsageError, match=words):
                call()

    ranks(5, body)


def test_communicators_of_some_ranks(ranks: Ranks) -> None:
    size = 4

    def body(comm: Any) -> None:
        rank = comm.rank
        halves = comm.Split(rank % 2, -rank)
        assert halves.allgather(rank) == [2 + rank % 2, rank % 2] and halves != comm
        assert (comm.Split(MPI.UNDEFINED) if rank == 1 else comm.Split(7)) == (
            MPI.COMM_NULL if rank == 1 else halves
        ) or rank != 1
        everyone = comm.Get_group()
        odd = everyone.Incl([3, 1])
        chosen = comm.Create(odd)
        assert bool(chosen) == (rank in (1, 3))
        if chosen:
            assert chosen.allgather(rank) == [3, 1] and chosen.Get_group() == odd
            inner = comm.Create_group(odd, tag=5)
            assert inner.allgather(rank) == [3, 1] and inner.Compare(chosen) == MPI.CONGRUENT
            inner.Free()
            assert inner == MPI.COMM_NULL and not inner
        twin = comm.Dup()
        twin.name = "twin"
        assert twin.Get_name() == "twin" and "twin" in repr(twin) and twin.Compare(comm) == MPI.CONGRUENT
        assert comm.Compare(comm) == MPI.IDENT and comm.Compare(halves) == MPI.UNEQUAL
        comm.send("comm", (rank + 1) % size)
        twin.send("twin", (rank + 1) % size)
        assert (twin.recv(), comm.recv()) == ("twin", "comm")
        host = comm.Split_type(MPI.COMM_TYPE_SHARED)
        assert host.size == size
        with pytest.raises(UsageError, match="strangers|not in this communicator"):
            halves.Create(everyone)
        with pytest.raises(UsageError, match="only MPI.COMM_TYPE_SHARED"):
            comm.Split_type(17)
        assert comm.Is_intra() and not comm.Is_inter() and comm.Get_attr(MPI.TAG_UB) and comm.Get_attr(99) is None
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        with pytest.raises(AttributeError, match="always exceptions"):
            comm.Set_errhandler(MPI.ERRORS_ARE_FATAL)

    ranks(size, body)


def test_groups_are_sets_in_order() -> None:
    group = MPI.Group((4, 2, 7, 9), 7)
    assert (group.size, group.rank, group.Get_size(), group.Get_rank()) == (4, 2, 4, 2)
    assert group.Excl([0, 3]).ranks == (2, 7) and group.Range_incl([(3, 1, -2)]).ranks == (9, 2)
    assert group.Range_excl([(0, 2, 1)]).ranks == (9,) and group.Range_excl([(0, 2, 1)]).rank == MPI.UNDEFINED
    other = group.Incl([3, 0])
    assert MPI.Group.Union(other, group).ranks == (9, 4, 2, 7)
    assert MPI.Group.Intersection(group, other).ranks == (4, 9) and MPI.Group.Difference(group, other).ranks == (2, 7)
    assert group.Translate_ranks([0, 1], other) == [1, MPI.UNDEFINED] and group.Dup() == group
    assert MPI.Group.Compare(group, group.Incl([1, 0, 2, 3])) == MPI.SIMILAR and len({group, group.Dup()}) == 1
    assert MPI.Group.Compare(group, other) == MPI.UNEQUAL and MPI.GROUP_EMPTY.size == 0


def test_markers_and_errors_are_copied_as_themselves() -> None:
    assert pickle.loads(pickle.dumps(MPI.IN_PLACE)) is MPI.IN_PLACE and copy.deepcopy(MPI.INFO_NULL) is MPI.INFO_NULL
    error = MPI.Exception("text")
    assert str(pickle.loads(pickle.dumps(error))) == "text" and error.error_class == error.error_code == MPI.ERR_OTHER
    raised = MPI.Exception(MPI.ERR_RANK)
    assert pickle.loads(pickle.dumps(raised)).error_class == raised.error_code == MPI.ERR_RANK
    assert MPI.Get_error_string(MPI.ERR_TRUNCATE) == "MPI_ERR_TRUNCATE" and MPI.Get_error_class(3) == 3


def test_classes_of_the_programs_own(ranks: Ranks) -> None:
    """As mpi4py's demonstrations write them: with ``__new__``, and with an ``__init__`` that knows nothing of ours."""

    class Counting(MPI.Intracomm):
        def __new__(cls, comm: Any = None, *_: Any) -> Any:
            return super().__new__(cls, comm)

        def __init__(self, comm: Any, start: int) -> None:
            self.next = start

        def count(self) -> int:
            self.next += 1
            return self.allreduce(self.next)

    class Grid(MPI.Cartcomm):
        def __new__(cls, comm: Any = None) -> Any:
            return super().__new__(cls, comm)

        def right(self) -> int:
            return self.Shift(0, 1)[1]

    def body(comm: Any) -> None:
        mine = Counting(comm.Dup(), comm.rank)
        assert mine.count() == 6 and isinstance(mine.Dup(), MPI.Intracomm) and mine != comm
        other = Counting(comm, 0)
        assert other == comm and other.Get_group() == comm.Get_group()
        comm.send("seen", (comm.rank + 1) % 3)
        assert comm.iprobe() or comm.probe()
        assert other.recv() == "seen"  # one communicator under two classes
        grid = Grid(comm.Create_cart([3], [True]))
        assert grid.dims == [3] and grid.right() == (comm.rank + 1) % 3
        mine.Free()
        assert mine == MPI.COMM_NULL and not Counting(None, 0)

    ranks(3, body)
