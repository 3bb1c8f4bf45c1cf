"""Cases C, D5 and R1: empty, scalar, uneven and different shapes, counts, and what must not fit.

The rule: what differs is either carried as it is or is one error on all ranks, after which the process and, where
nothing was a mismatch, the group go on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aiocoll.distributed as dist
from aiocoll import MAX, SUM, Group, MismatchError, UsageError
from tests.distributed.ranks import ranks as documented
from tests.group.cases import for_every_size, on_every_fabric, outcome, ranks, same, values

EMPTY = [(0,), (2, 0, 3), (0, 4)]


@on_every_fabric
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_c1_arrays_without_elements_pass_through_every_call_and_take_their_turn(fabric: str, size: int) -> None:
    """They keep their shape, and the calls around them still meet: no rank leaves one out."""

    async def main(group: Group) -> None:
        rank = group.rank
        for shape in EMPTY:
            x = np.zeros(shape)
            root = size - 1
            for result in (
                await group.all_reduce(x), await group.scan(x), await group.broadcast(x, root),
                await group.scatter([x] * size if rank == root else None, root),
                await group.all_reduce(x, out=x.copy()),
            ):  # fmt: skip
                same(result, x)
            reduced = await group.reduce(x, MAX, root)
            assert (reduced is None) == (rank != root) and (reduced is None or reduced.shape == shape)
            same(await group.exscan(x), x)
            for each in await group.all_gather(x):
                same(each, x)
            for each in await group.gather(x, root) or ():
                same(each, x)
            for each in await group.all_to_all([x] * size):
                same(each, x)
            same(await group.reduce_scatter(x), np.array_split(x, size)[rank])
            same(await group.all_gather(x, out=np.zeros((size, *shape))), np.zeros((size, *shape)))
            await group.send(x, (rank + 1) % size)
            same(await group.recv((rank - 1) % size), x)
            assert await group.all_reduce(rank) == sum(range(size))  # in step

    ranks(size, main, fabric)


def test_c1_documented_calls_of_no_elements_in_both_forms() -> None:
    """Blocking and with async_op, which had no guard elsewhere."""

    def program(rank: int) -> None:
        for shape in EMPTY:
            for async_op in (False, True):
                x = np.zeros(shape)
                works = [
                    dist.all_reduce(x, async_op=async_op), dist.broadcast(x, 1, async_op=async_op),
                    dist.reduce(x, 0, async_op=async_op),
                    dist.all_gather([np.zeros(shape) for _ in range(3)], x, async_op=async_op),
                    dist.gather(x, [np.zeros(shape) for _ in range(3)] if rank == 0 else None, 0, async_op=async_op),
                    dist.scatter(x, [np.zeros(shape)] * 3 if rank == 0 else None, 0, async_op=async_op),
                    dist.all_to_all([np.zeros(shape)] * 3, [x] * 3, async_op=async_op),
                    dist.reduce_scatter(x, [np.zeros(shape)] * 3, async_op=async_op),
                ]  # fmt: skip
                assert all(work.wait() if async_op else work is None for work in works)
            one = np.ones(1)
            dist.all_reduce(one)
            assert one[0] == 3

    documented(3, program)


@on_every_fabric
def test_c2_equal_counts_in_other_shapes_are_a_mismatch(fabric: str) -> None:
    """(5, 0) and (7, 0) hold equally much; reductions and one output say that they differ, lists take them."""

    def program(what: str) -> Any:
        async def main(group: Group) -> Any:
            x = np.zeros((5 + 2 * (group.rank == 1), 0))
            if what == "all_gather into out":
                return await outcome(group.all_gather(x, out=np.zeros((3, *x.shape))))
            return await outcome(getattr(group, what)(x))

        return main

    for what in ("all_reduce", "reduce_scatter", "scan", "all_gather into out"):
        for result in ranks(3, program(what), fabric):
            # The first rank of a scan is through before anybody can tell it.
            assert isinstance(result, MismatchError) or (what == "scan" and isinstance(result, np.ndarray)), result
    for found in ranks(3, program("all_gather"), fabric):
        assert [each.shape for each in found] == [(5, 0), (7, 0), (5, 0)]


@on_every_fabric
@pytest.mark.parametrize("empty", [0, 2])
def test_c2_one_rank_alone_may_be_empty(fabric: str, empty: int) -> None:
    """In calls whose parts may differ."""

    async def main(group: Group) -> None:
        def given(source: int, target: int = 0) -> Any:
            return values(source + 10 * target, (0 if source == empty else 4 + target,))

        for source, each in enumerate(await group.all_gather(given(group.rank))):
            same(each, given(source))
        parts = [given(group.rank, target) for target in range(3)]
        for source, each in enumerate(await group.all_to_all(parts)):
            same(each, given(source, group.rank))

    ranks(3, main, fabric)


@on_every_fabric
@for_every_size
def test_c3_ragged_all_gather_gives_arrays_as_they_are(fabric: str, size: int) -> None:
    """Rank r gives `arange(r + 1)`: a list of right-sized arrays; into one output a mismatch that names the shapes."""

    async def ragged(group: Group) -> None:
        for source, each in enumerate(await group.all_gather(np.arange(group.rank + 1))):
            same(each, np.arange(source + 1))

    async def into_one(group: Group) -> Any:
        return await outcome(group.all_gather(np.arange(group.rank + 1), out=np.zeros(size * (group.rank + 1), int)))

    ranks(size, ragged, fabric)
    for result in ranks(size, into_one, fabric):
        if size > 1:
            assert isinstance(result, MismatchError) and "(1,)" in str(result) and "(2,)" in str(result), result


def test_c3_uneven_lists_of_outputs() -> None:
    """The documented all_gather: outputs that fit are filled; where they do not, all ranks hear of it and none is."""

    def program(rank: int) -> None:
        outs = [np.zeros(source + 1) for source in range(3)]
        dist.all_gather(outs, np.arange(rank + 1.0))
        for source, out in enumerate(outs):
            same(out, np.arange(source + 1.0))

    def wrong(rank: int) -> str:
        outs = [np.full(rank + 1, 7.0) for _ in range(3)]  # as if all had what I have
        with pytest.raises((MismatchError, RuntimeError)) as caught:
            dist.all_gather(outs, np.arange(rank + 1.0))
        assert all((out == 7.0).all() for out in outs)
        return str(caught.value)

    documented(3, program)
    for text in documented(3, wrong):
        assert "(1,)" in text and "(2,)" in text, text


@on_every_fabric
def test_c5_different_sizes_are_an_exception_that_shows_both(fabric: str) -> None:
    """A million elements against four more: on every rank, with call number, counts and op; the process lives."""

    async def main(group: Group) -> Any:
        return await outcome(group.all_reduce(np.ones(1_000_000 + 4 * group.rank, np.float32)))

    for result in ranks(2, main, fabric):
        assert isinstance(result, MismatchError), result
        assert all(word in str(result) for word in ("all_reduce", "call 0", "1000000", "1000004", "SUM")), result

    async def again(group: Group) -> Any:
        return await group.all_reduce(group.rank)

    assert ranks(2, again, fabric) == [1, 1]


@on_every_fabric
@for_every_size
def test_c7_numbers_go_in_and_come_back_as_values(fabric: str, size: int) -> None:
    """0-d arrays stay arrays, in place too; Python's and NumPy's numbers come back as NumPy scalars."""

    async def main(group: Group) -> None:
        rank = group.rank
        total = 3.0 * size + sum(range(size))
        place = np.array(3.0 + rank)
        result = await group.all_reduce(place)
        assert type(result) is np.ndarray and result.shape == () and result == total
        assert await group.all_reduce(place, out=place) is place and place == total
        for number in (3.0 + rank, np.float64(3.0 + rank)):
            result = await group.all_reduce(number)
            assert type(result) is np.float64 and result == total
        assert type(await group.all_reduce(3 + rank)) is np.int64
        assert type(await group.all_reduce(rank == 0, MAX)) is np.bool_
        flag = await group.broadcast(np.array(True) if rank == 0 else None)
        assert isinstance(flag, np.ndarray) and flag.shape == () and flag
        number = await group.broadcast(7 if rank == size - 1 else None, size - 1)
        assert number == 7 and (rank == size - 1 or type(number) is np.int64)
        refused = await outcome(group.all_reduce(3.0, out=3.0))
        assert isinstance(refused, UsageError) and "out" in str(refused)

    ranks(size, main, fabric)


def test_c7_a_number_is_no_tensor_and_a_0d_tensor_is() -> None:
    """Nothing silent in the documented API: numbers cannot be filled in place and are refused on all ranks."""

    def program(rank: int) -> None:
        for number in (3.0, np.float64(3.0), 3, True):
            with pytest.raises(TypeError, match="tensor"):
                dist.all_reduce(number)
        place = np.array(3.0 + rank)
        dist.all_reduce(place)
        flag = np.array(rank == 1)
        dist.broadcast(flag, 1)
        assert place == 7.0 and flag

    documented(2, program)


@on_every_fabric
def test_d5_counts_that_disagree_write_nothing_beside_an_output(fabric: str) -> None:
    """Rank 2 sends five where three were expected: gather takes it as it is, an `out` says who and how many, and
    nothing is written beside it."""

    async def main(group: Group) -> None:
        sizes = (3, 3, 5)
        x = values(group.rank, (sizes[group.rank],))
        for source, each in enumerate(await group.gather(x) or ()):
            same(each, values(source, (sizes[source],)))

    async def into_one(group: Group) -> Any:
        mine = values(group.rank, (5 if group.rank == 2 else 3,))
        room = np.full(3 * len(mine) + 20, -1.0)
        result = await outcome(group.all_gather(mine, out=room[10:-10]))
        return result, bool((room[:10] == -1.0).all() and (room[-10:] == -1.0).all())

    ranks(3, main, fabric)
    for result, within in ranks(3, into_one, fabric):
        assert isinstance(result, MismatchError) and "(3,)" in str(result) and "(5,)" in str(result), result
        assert within


def test_d5_a_gather_list_that_does_not_fit_is_left_alone() -> None:
    """Root believes 3, 3 and 4: the error names rank 2 and both counts, and its other tensors hold what they held."""

    def program(rank: int) -> str:
        x = np.arange(float((3, 3, 5)[rank]))
        if rank:
            dist.gather(x, dst=0)
            return ""
        outs = [np.full(count, 7.0) for count in (3, 3, 4)]
        with pytest.raises(MismatchError) as caught:
            dist.gather(x, outs, 0)
        assert all((out == 7.0).all() for out in outs)
        return str(caught.value)

    text = documented(3, program)[0]
    assert "rank 2" in text and "5" in text and "4" in text, text


@on_every_fabric
@for_every_size
def test_r1_all_to_all_of_any_parts(fabric: str, size: int) -> None:
    """A shape and a dtype per peer, empty parts, and one array that is cut."""
    kinds = (np.float32, np.int16, np.bool_, "S4", np.complex64)

    def part(source: int, target: int) -> Any:
        return values(source * 7 + target, ((source + target) % 3, target + 1), kinds[(source + 2 * target) % 5])

    async def main(group: Group) -> None:
        rank = group.rank
        for source, one in enumerate(await group.all_to_all([part(rank, target) for target in range(size)])):
            same(one, part(source, rank))
        rows = 2 * size + 1
        for source, one in enumerate(await group.all_to_all(values(rank, (rows, 2)))):
            same(one, np.array_split(values(source, (rows, 2)), size)[rank])
        short = await outcome(group.all_to_all([part(rank, 0)] * (size + 1)))
        assert isinstance(short, UsageError) and str(size) in str(short), short

    ranks(size, main, fabric)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_r1_one_array_with_split_sizes(size: int) -> None:
    """all_to_all_single: split sizes per peer; a sum that is off, a negative one or a peer's other view are errors."""

    def program(rank: int) -> None:
        counts = [[(source + 2 * target) % 3 for target in range(size)] for source in range(size)]
        sends, takes = counts[rank], [counts[source][rank] for source in range(size)]
        x = np.concatenate([np.arange(float(n)) + 100 * rank + 10 * t for t, n in enumerate(sends)] or [np.zeros(0)])
        out = np.full(sum(takes), -1.0)
        dist.all_to_all_single(out, x, takes, sends)
        wanted = [np.arange(float(n)) + 100 * source + 10 * rank for source, n in enumerate(takes)]
        same(out, np.concatenate(wanted))
        even = np.arange(2.0 * size) + rank
        out = np.zeros(2 * size)
        dist.all_to_all_single(out, even)
        same(out, np.concatenate([np.arange(2.0) + 2 * rank + source for source in range(size)]))
        for bad in ([*sends[:-1], sends[-1] + 1], [*sends[:-1], -1]):
            with pytest.raises((UsageError, RuntimeError)):
                dist.all_to_all_single(np.zeros(sum(takes)), x, takes, bad)

    documented(size, program)


@on_every_fabric
@for_every_size
def test_v_forms_with_and_without_a_buffer(fabric: str, size: int) -> None:
    """gather, scatter and reduce_scatter of blocks of any lengths, into `out` and not, agree with NumPy."""
    counts = [(3 * rank + 1) % 4 for rank in range(size)]

    async def main(group: Group) -> None:
        rank, rows = group.rank, sum(counts)
        mine = values(rank, (counts[rank], 3), np.int32)
        blocks = [values(source, (counts[source], 3), np.int32) for source in range(size)]
        for root in range(size):
            gathered = await group.gather(mine, root)
            if rank == root:
                same(np.concatenate(gathered), np.concatenate(blocks))
            parts = blocks if rank == root else None
            same(await group.scatter(parts, root), mine)
            out = np.zeros((2 * counts[rank], 3), np.int32)[::2]
            await group.scatter(parts, root, out=out)
            same(out, mine)
        x = values(rank, (rows, 3), np.int32)
        total = np.sum([values(source, (rows, 3), np.int32) for source in range(size)], 0, dtype=np.int32)
        start = sum(counts[:rank])
        same(await group.reduce_scatter(x, counts=counts), total[start : start + counts[rank]])
        out = np.zeros((3, counts[rank]), np.int32).T
        await group.reduce_scatter(x, SUM, counts, out)
        same(out, total[start : start + counts[rank]])

    ranks(size, main, fabric)


@on_every_fabric
def test_what_v_forms_do_not_take_is_refused_on_all_ranks(fabric: str) -> None:
    """Counts that do not add up, outputs of another shape or dtype: the group lives on after each."""

    async def main(group: Group) -> None:
        rank = group.rank
        x = values(rank, (6, 2))
        for call in (
            lambda: group.reduce_scatter(x, counts=[1, 2, 4]),
            lambda: group.reduce_scatter(x, counts=[7, 0, -1]),
            lambda: group.reduce_scatter(x, counts=[3, 3]),
            lambda: group.reduce_scatter([x, x]),
            lambda: group.reduce_scatter([x, x.astype("f4"), x]),
            lambda: group.reduce_scatter(x, out=np.zeros((2, 3)) if rank == 1 else np.zeros((2, 2))),
            lambda: group.all_gather(x, out=np.zeros((17, 2))),
            lambda: group.all_gather(x, out=np.zeros((18, 2), np.int64)),
            lambda: group.scatter([x, x] if rank == 0 else None),
            lambda: group.all_to_all([x, x]),
        ):
            result = await outcome(call())
            assert isinstance(result, UsageError), result
        assert await group.all_reduce(rank) == 3

    ranks(3, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("what", ["shape", "dtype", "counts"])
def test_reductions_whose_inputs_differ_are_mismatches_that_show_both(fabric: str, what: str) -> None:
    """On all ranks, with both sides."""

    async def main(group: Group) -> Any:
        odd = group.rank == 1
        if what == "counts":
            return await outcome(group.reduce_scatter(np.ones(6), counts=[1, 2, 3] if odd else [2, 2, 2]))
        x = np.ones((3, 2) if odd and what == "shape" else (2, 3), np.float32 if odd and what == "dtype" else float)
        return await outcome(group.reduce_scatter(x))

    for result in ranks(3, main, fabric):
        assert isinstance(result, MismatchError), result
        sides = {
            "shape": ("(3, 2)", "(2, 3)"), "dtype": ("float32", "float64"),
            "counts": ("shape=(6,) blocks=[1, 2, 3]", "shape=(6,) ("),
        }[what]  # fmt: skip
        assert all(side in str(result) for side in sides), result
