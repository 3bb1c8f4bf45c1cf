"""Groups and their parts: split, subgroup, dup, close, connecting again, leaving, what is never closed.

The rule: a subgroup costs no message and no connection; what breaks or closes one group leaves the others alone.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll import Group, GroupBrokenError, NotInitializedError, PeerLostError, UsageError
from aiocoll.store import MemoryStore
from tests.group.cases import for_every_size, on_every_fabric, outcome, ranks, same, values


@on_every_fabric
@for_every_size
def test_what_a_group_says_of_itself(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        assert (group.size, group.name, group.timeout) == (size, "world", 10.0) and group.broken is None
        assert group.ranks == tuple(range(size)) and len(group.hosts) == size and isinstance(group.hosts, tuple)
        assert 0 <= group.local_rank < group.local_size <= size
        if fabric != "sim":
            assert (group.local_rank, group.local_size) == (group.rank, size)
        assert f"rank {group.rank} of {size}" in repr(group)
        array = group.zeros((2, 3), np.int16)
        same(array, np.zeros((2, 3), np.int16))
        assert group.empty(4, "f4").shape == (4,) and array.flags.writeable
        assert group.new_ranks == () and not group.closed

    ranks(size, main, fabric)


@on_every_fabric
@for_every_size
def test_split_by_color_and_key(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        half = await group.split(group.rank % 2, key=-group.rank)
        assert half.ranks == tuple(sorted(range(group.rank % 2, size, 2), reverse=True))
        assert await half.all_gather_object(group.rank) == list(half.ranks)
        quarter = await half.split("x" if half.rank == 0 else "y", "same")
        assert quarter.size == (1 if half.rank == 0 else half.size - 1)
        assert quarter.ranks[quarter.rank] == group.rank, "ranks are those of the world"
        alone = await group.split(None if group.rank else np.int64(7))
        assert (alone is None) == (group.rank > 0)
        if alone is not None:
            assert await alone.all_reduce(5) == 5
        for each in (half, quarter, alone):
            if each is not None:
                await each.close()
        assert await group.all_reduce(1) == size

    ranks(size, main, fabric)


@on_every_fabric
def test_a_subgroup_is_called_by_its_members_only_in_the_order_given(fabric: str) -> None:
    async def main(group: Group) -> None:
        for members in ([2, 0, 3], (1,), range(1, 4), np.array([3, 2]), iter([0, 1])):
            given = list(members) if not isinstance(members, np.ndarray) else members
            if group.rank not in list(given):
                continue
            part = await group.subgroup(given)
            assert part.ranks == tuple(given) and part.size == len(given)
            assert part.rank == list(given).index(group.rank)
            for root in range(part.size):
                assert await part.broadcast(group.rank if part.rank == root else None, root) == given[root]
                assert await part.reduce(group.rank, root=root) == (sum(given) if part.rank == root else None)
            await part.send(group.rank, (part.rank + 1) % part.size)
            assert await part.recv() == given[part.rank - 1]
            assert await part.all_reduce(group.rank, "mean") == np.mean(given)
            error = await outcome(part.broadcast(1, part.size))
            assert type(error) is UsageError and f"0 to {part.size - 1}" in str(error)
            await part.close()

    ranks(4, main, fabric)


@on_every_fabric
def test_the_nth_subgroup_call_meets_the_nth_and_names_keep_apart(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            blue, red, first, second = [await group.subgroup([0, 1], name) for name in ("blue", "red", None, None)]
        else:
            first, red, second, blue = [await group.subgroup([0, 1], name) for name in (None, "red", None, "blue")]
        for number, each in enumerate((second, blue, first, red)):
            assert await each.all_reduce(number) == 2 * number
        assert blue.name == "blue" and first is not second
        inner = await second.subgroup([1, 0])
        assert inner.ranks == (1, 0) and await inner.scan(10**inner.rank) == (1 if group.rank else 11)
        for each in (blue, red, first, second, inner):
            await each.close()

    ranks(2, main, fabric)


@on_every_fabric
def test_messages_and_calls_of_a_group_that_i_make_later_wait_for_me(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 1:
            await group.recv(0, tag=5)
        pair = await group.subgroup([0, 1])
        if group.rank == 0:
            await pair.send(values(0, (20_000,)), 1)
            call = asyncio.ensure_future(pair.all_reduce(1))
            await asyncio.sleep(0)
            await group.send(0, 1, tag=5)
            assert await call == 2
        else:
            assert await pair.all_reduce(1) == 2
            same(await pair.recv(0), values(0, (20_000,)))
        await pair.close()

    ranks(2, main, fabric)


@on_every_fabric
@for_every_size
def test_a_twin_has_calls_and_messages_of_its_own(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        twin = await group.dup()
        assert (twin.ranks, twin.rank) == (group.ranks, group.rank)
        await twin.send(b"twin's", (group.rank + 1) % size)
        await group.send(b"group's", (group.rank + 1) % size)
        assert bytes(await group.recv()) == b"group's" and bytes(await twin.recv()) == b"twin's"
        one, other = await asyncio.gather(twin.all_reduce(1), group.all_reduce(2))
        assert (one, other) == (size, 2 * size)
        await twin.close()
        await twin.close()
        error = await outcome(twin.barrier())
        assert type(error) is NotInitializedError and isinstance(error, AssertionError)
        assert await group.all_reduce(1) == size

    ranks(size, main, fabric)


@on_every_fabric
def test_close_ends_pending_receives_and_lets_sends_leave(fabric: str) -> None:
    async def main(group: Group) -> None:
        twin = await group.dup()
        if group.rank == 0:
            waiting = asyncio.ensure_future(outcome(twin.recv(1)))
            sending = asyncio.ensure_future(twin.send(np.ones(3_000_000), 1))
            await asyncio.sleep(0)
            await twin.close()
            assert type(await waiting) is GroupBrokenError and "closed" in str(await waiting)
            await sending
        else:
            same(await twin.recv(0), np.ones(3_000_000))
            await twin.close()
        await group.barrier()

    ranks(2, main, fabric)


@on_every_fabric
def test_a_rank_may_leave_while_others_go_on_among_themselves(fabric: str) -> None:
    async def main(group: Group) -> None:
        rest = await group.subgroup([1, 2]) if group.rank else None
        await group.barrier()
        if rest is None:
            return
        for _ in range(20):
            assert await rest.all_reduce(1) == 2
            await asyncio.sleep(0)
        error = await outcome(group.recv(0))
        assert type(error) is PeerLostError and error.rank == 0 and error.world_rank == 0, error
        assert await rest.all_reduce(1) == 2 if fabric != "inproc" or rest.broken is None else True
        await rest.close()

    ranks(3, main, fabric)


@on_every_fabric
def test_a_program_that_raises_out_of_its_group_ends_the_others_calls(fabric: str) -> None:
    seen: list[Any] = []

    async def main(group: Group) -> None:
        if group.rank == 1:
            raise LookupError("the program's own")
        seen.append(await outcome(group.all_reduce(1)))
        raise seen[-1]

    with pytest.raises(LookupError, match="the program's own"):
        ranks(3, main, fabric)
    assert len(seen) == 2
    for error in seen:
        assert type(error) is GroupBrokenError and "rank 1" in str(error) and "LookupError" in str(error), error


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
async def test_connecting_again_after_closing_and_twice_at_once(transport: str) -> None:
    store = MemoryStore()

    async def world(rank: int, name: str) -> None:
        for turn in range(5):
            async with aiocoll.connect(store=store, rank=rank, size=3, transport=transport, name=name) as group:
                part = await group.split(0)
                assert await part.all_reduce(turn) == 3 * turn and group.name == name
                if turn == 3:
                    assert type(await outcome(part.barrier(name=1))) is UsageError

    await asyncio.gather(*[world(rank, name) for rank, name in itertools.product(range(3), ("one", "other"))])
    await store.close()


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
async def test_a_group_never_closed_is_a_resource_warning(transport: str) -> None:
    store = MemoryStore()
    group = await aiocoll.connect(store=store, rank=0, size=1, transport=transport)
    part = await group.subgroup([0], "part")
    with pytest.warns(ResourceWarning, match="'part'.*never closed"):
        del part
        gc.collect()
    with pytest.warns(ResourceWarning, match="'world'.*never closed"):
        del group
        gc.collect()
    closed = await aiocoll.connect(store=store, rank=0, size=1, transport=transport)
    part = await closed.split(1)
    await closed.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del closed, part
        gc.collect()
    await store.close()


@pytest.mark.slow
@on_every_fabric
def test_g6_five_thousand_subgroups_leave_nothing_behind(fabric: str) -> None:
    async def main(group: Group) -> None:
        for turn in range(5000 if group.size < 3 else 500):
            async with await group.subgroup([1, 0]) as part:
                assert await part.all_reduce(turn) == 2 * turn
            if turn == 200:
                before = footprint(group)
        assert footprint(group) <= before, (footprint(group), before)

    ranks(2, main, fabric)


def footprint(group: Group) -> int:
    """What the endpoint holds, but for what is remembered of the last few thousand groups."""
    endpoint = group._endpoint
    inbox = endpoint.inbox
    kept = [endpoint.scopes, endpoint.parked, inbox.expected, inbox.arrived, inbox.offers, inbox._early]
    return sum(map(len, kept)) + inbox.unreceived_bytes()
