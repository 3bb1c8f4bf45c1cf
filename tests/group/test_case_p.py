"""Objects: situations reported of other systems (P1, P3, P4; the facade's view of P3 is in tests/distributed).

The rule: objects differ per rank in kind and in size, and the group lives after each refusal.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll
import aiocoll.distributed as dist
from aiocoll import Group, SerializationError, UsageError
from aiocoll.sync import SyncGroup, connect
from tests.distributed.ranks import ranks as dist_ranks
from tests.group.cases import FABRICS, on_every_fabric, outcome, ranks, same, values
from tests.traps import SPRUNG, Trap

MEGABYTES = 10 << 20


@dataclass
class Point:
    """What travels by pickle only."""

    x: int


@pytest.fixture(autouse=True)
def _untouched() -> None:
    SPRUNG.clear()


def things(rank: int) -> list[Any]:
    """Objects of which each is another size on each rank: the first rank's are as good as empty."""
    return [
        None,
        {"weights": values(rank, (rank * 40_000, 2)), "step": rank, (rank, "key"): [None] * rank},
        "ä" * (rank * MEGABYTES // 8),
        [] if rank == 0 else [[rank] * 50_000 * rank, {"deep": [{"er": (rank, {rank})}]}],
        bytes([rank]) * (rank * 100_000),
    ]


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and "weights" in one:
        same(one["weights"], other["weights"])
        return {k: v for k, v in one.items() if k != "weights"} == {k: v for k, v in other.items() if k != "weights"}
    return type(one) is type(other) and bool(one == other)


@on_every_fabric
def test_p1_every_awaited_call_takes_every_object_of_every_size(fabric: str) -> None:
    """Any plain object through any call, sizes as they are on each rank."""
    size = 3

    async def main(group: Group) -> None:
        rank = group.rank
        right, left = (rank + 1) % size, (rank - 1) % size
        for number, mine in enumerate(things(rank)):
            theirs = [things(other)[number] for other in range(size)]
            assert all(map(alike, await group.all_gather_object(mine), theirs))
            gathered = await group.gather_object(mine, 1)
            assert gathered is None if rank != 1 else all(map(alike, gathered or [], theirs))
            assert alike(await group.broadcast_object(mine if rank == 2 else None, 2), theirs[2])
            assert alike(await group.scatter_object(theirs if rank == 0 else None), mine)
            assert all(map(alike, await group.all_to_all_object([mine] * size), theirs))
            await group.send_object(mine, right)
            assert alike(await group.recv_object(left), theirs[left])

    ranks(size, main, fabric, timeout=30.0)


def test_p1_ten_megabytes_of_text() -> None:
    """No fixed size: ten megabytes from one rank, nothing from the others."""

    async def main(group: Group) -> None:
        text = "z" * (MEGABYTES if group.rank == 1 else 0)
        assert [len(each) for each in await group.all_gather_object(text)] == [0, MEGABYTES, 0]

    ranks(3, main, "shm", timeout=30.0)


def blocking(size: int, body: Callable[[SyncGroup], None], meeting: Path) -> None:
    """`body(group)` in a thread per rank."""

    def rank(number: int) -> None:
        with connect(f"file://{meeting}", rank=number, size=size, transport="tcp", timeout=30) as group:
            body(group)

    with concurrent.futures.ThreadPoolExecutor(size) as pool:
        list(pool.map(rank, range(size)))


def test_p1_blocking_and_started(tmp_path: Path) -> None:
    """The same calls block, or are started and waited for later, in another order."""
    size = 3

    def body(group: SyncGroup) -> None:
        rank, start = group.rank, group.start
        for number, mine in enumerate(things(rank)):
            theirs = [things(other)[number] for other in range(size)]
            assert all(map(alike, group.all_gather_object(mine), theirs))
            assert alike(group.broadcast_object(mine if rank == 1 else None, 1), theirs[1])
            assert alike(group.scatter_object(theirs if rank == 2 else None, 2), mine)
            group.send_object(mine, (rank + 1) % size)
            assert alike(group.recv_object((rank - 1) % size), theirs[(rank - 1) % size])
            works = [
                start.all_gather_object(mine), start.gather_object(mine, 2), start.all_to_all_object([mine] * size),
            ]  # fmt: skip
            one = start.broadcast_object(mine if rank == 0 else None)
            assert alike(one.result(), theirs[0])
            exchanged, gathered, every = (work.result() for work in reversed(works))
            assert all(map(alike, every, theirs)) and all(map(alike, exchanged, theirs))
            assert gathered is None if rank != 2 else all(map(alike, gathered, theirs))

    blocking(size, body, tmp_path / "meet")


def test_p1_the_documented_lists_and_what_does_not_fit_them() -> None:
    """The documented calls fill lists; one of another length is an error that says so, on all ranks."""

    def program(rank: int) -> None:
        for number, mine in enumerate(things(rank)):
            theirs = [things(other)[number] for other in range(2)]
            every: list[Any] = [None, None]
            dist.all_gather_object(every, mine)
            assert all(map(alike, every, theirs))
            given = [mine]
            dist.broadcast_object_list(given, 1)
            assert alike(given[0], theirs[1])
        for wrong in ([None], [None] * 3, ()):
            error = None
            try:
                dist.all_gather_object(wrong if rank == 1 else [None, None], rank)
            except Exception as raised:
                error = raised
            assert isinstance(error, UsageError) and "object_list" in str(error), error
        every = [None, None]
        dist.all_gather_object(every, rank)
        assert every == [0, 1]

    dist_ranks(2, program)


@pytest.mark.parametrize("fabric", FABRICS[1:])
def test_p1_objects_of_classes_where_every_rank_allows_them(fabric: str) -> None:
    """Objects of one's own classes, arrays beside them, once pickle is allowed."""

    async def main(group: Group) -> None:
        mine = {"point": Point(group.rank), "x": values(group.rank, (30_000,))}
        for rank, each in enumerate(await group.all_gather_object(mine)):
            assert each["point"] == Point(rank) and each["x"].flags.writeable
            same(each["x"], values(rank, (30_000,)))
        assert await group.broadcast_object(Point(5) if group.rank == 1 else None, 1) == Point(5)
        await group.send_object([Point(group.rank)], group.rank)
        assert await group.recv_object() == [Point(group.rank)]

    ranks(3, main, fabric, allow_pickle=True)


@on_every_fabric
@pytest.mark.parametrize("members", [[1, 3], [3, 1], [2, 0, 3]])
def test_p3_roots_are_numbered_alike_in_array_and_object_calls(fabric: str, members: list[int]) -> None:
    """In a subgroup, a root is a rank of that subgroup, in all calls; one beyond it is refused in both."""

    async def main(group: Group) -> None:
        if group.rank not in members:
            return
        async with await group.subgroup(members) as inner:
            for root, world in enumerate(members):
                mine = inner.rank == root
                assert (group.rank == world) == mine
                array = values(world, (3,)) if mine else None
                same(await inner.broadcast(array, root), values(world, (3,)))
                assert await inner.broadcast_object(world if mine else None, root) == world
                gathered = await inner.gather(values(group.rank, (2,)), root)
                objects = await inner.gather_object(group.rank, root)
                assert (gathered is None) == (objects is None) == (not mine)
                if objects is not None:
                    assert objects == members
                    for each, rank in zip(gathered or [], members, strict=True):
                        same(each, values(rank, (2,)))
                parts = [values(world + place, (place,)) for place in range(inner.size)]
                same(await inner.scatter(parts if mine else None, root), parts[inner.rank])
                assert await inner.scatter_object(members if mine else None, root) == group.rank
                await inner.send_object((world, group.rank), root)
                if mine:
                    assert sorted([await inner.recv_object(source) for source in range(inner.size)]) == sorted(
                        (world, rank) for rank in members
                    )
            for wrong in (len(members), -1, 3 if len(members) == 2 else 7):
                for call in (inner.broadcast(None, wrong), inner.broadcast_object(None, wrong),
                             inner.gather(1, wrong), inner.gather_object(1, wrong)):  # fmt: skip
                    error = await outcome(call)
                    assert isinstance(error, UsageError) and f"root={wrong}" in str(error)

    ranks(4, main, fabric)


@pytest.mark.parametrize("fabric", FABRICS[1:])
def test_p4_a_pickle_is_loaded_only_where_that_was_allowed_and_names_its_sender(fabric: str, tmp_path: Path) -> None:
    """Ranks that do not allow pickle refuse what one sends that does, say whose it was, and nothing of it has run."""

    async def one(rank: int, store: Any) -> None:
        where: dict[str, Any] = {"store": store, "rank": rank, "size": 3, "transport": fabric, "timeout": 20}
        async with aiocoll.connect(**where, allow_pickle=rank == 1) as group:
            mine = Trap(rank) if rank == 1 else {"rank": rank}
            for call in (group.all_gather_object(mine), group.broadcast_object(mine, 1)):
                said = await outcome(call)
                if rank != 1:
                    assert isinstance(said, SerializationError), said
                    assert "rank 1" in str(said) and "allow_pickle=True" in str(said) and said.rank == 1
                    assert not isinstance(said.__cause__, RecursionError)
            assert group.broken is None and await group.all_reduce(rank) == 3
            assert await group.broadcast_object({"plain": rank} if rank == 0 else None) == {"plain": 0}

    async def main() -> None:
        store = aiocoll.store.MemoryStore()
        async with asyncio.TaskGroup() as tasks:
            for rank in range(3):
                tasks.create_task(one(rank, store))
        await store.close()

    asyncio.run(main())
    assert set(SPRUNG) <= {1}  # rank 1 has loaded what it made itself; it is the only one that may
    assert len(SPRUNG) <= 2


@pytest.mark.parametrize("fabric", FABRICS[1:])
def test_p4_bytes_in_arrays_are_never_objects(fabric: str) -> None:
    """A pickle inside an array stays bytes in every array call, whatever is allowed, through memory and sockets."""
    trap = np.frombuffer(pickle.dumps(Trap(1)) * 500, np.uint8)

    async def main(group: Group) -> None:
        right = (group.rank + 1) % group.size
        shared = group.empty(trap.size, np.uint8)
        shared[...] = trap
        for x in (trap, shared):
            gathered, exchanged = await group.all_gather(x), await group.all_to_all([x] * 2)
            for each in (await group.broadcast(x), *gathered, *exchanged):
                np.testing.assert_array_equal(each, trap)
            await group.send(x, right)
            np.testing.assert_array_equal(await group.recv(), trap)
        assert await group.all_gather_object(trap.tobytes()) == [trap.tobytes()] * 2

    ranks(2, main, fabric, allow_pickle=True)
    assert SPRUNG == []
