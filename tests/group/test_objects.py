"""Collectives of plain data: exact types, any sizes, refusals for all, what cannot be loaded, pickle by name only.

The rule: data has the same types on arrival, and nothing that a peer sends is run unless both sides allow pickle.
"""

from __future__ import annotations

import datetime
import decimal
import pathlib
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aiocoll import Group, SerializationError, UsageError
from tests.group.cases import FABRICS, for_every_size, on_every_fabric, outcome, ranks, same, values


@dataclass
class Point:
    x: float


class Bomb:
    """Pickles well, and cannot be loaded."""

    def __reduce__(self) -> Any:
        return (explode, ())


def explode() -> None:
    raise RuntimeError("no such class here")


def thing(rank: int) -> dict[Any, Any]:
    """One of everything, different on each rank."""
    return {
        "none": None, "true": rank % 2 == 0, "int": 10 ** (30 * rank) - rank, "float": rank / 3, "text": "ä" * rank,
        "bytes": bytes([rank]) * 5000 * rank, (1, rank): (rank, [rank], {rank, -1}, frozenset({rank})),
        "complex": complex(rank, -1), "when": datetime.datetime(2024, 1, 1 + rank, tzinfo=datetime.UTC),
        "day": datetime.date(2024, 1, 1 + rank), "span": datetime.timedelta(seconds=rank),
        "dec": decimal.Decimal(rank) / 8, "id": uuid.UUID(int=rank), "path": pathlib.PurePosixPath("/a") / str(rank),
        "scalar": np.float32(rank),
    }  # fmt: skip


def alike(one: Any, other: Any) -> None:
    assert one == other
    assert [type(value) for value in one.values()] == [type(value) for value in other.values()]


@on_every_fabric
@for_every_size
def test_every_object_collective_keeps_values_and_types(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        rank, mine = group.rank, thing(group.rank)
        for root in {0, size - 1}:
            came = await group.broadcast_object(mine if rank == root else None, root)
            alike(came, thing(root))
            assert (came is mine) == (rank == root)
            gathered = await group.gather_object(mine, root)
            assert (gathered is None) == (rank != root)
            for source, one in enumerate(gathered or ()):
                alike(one, thing(source))
            parts = [thing(target + root) for target in range(size)]
            alike(await group.scatter_object(parts if rank == root else None, root), thing(rank + root))
        for source, one in enumerate(await group.all_gather_object(mine)):
            alike(one, thing(source))
        for source, one in enumerate(await group.all_to_all_object([thing((rank + t) % 6) for t in range(size)])):
            alike(one, thing((source + rank) % 6))
        await group.send_object(mine, (rank + 1) % size)
        alike(await group.recv_object((rank - 1) % size), thing((rank - 1) % size))

    ranks(size, main, fabric)


@on_every_fabric
def test_sizes_from_nothing_to_megabytes_and_arrays_inside(fabric: str) -> None:
    async def main(group: Group) -> None:
        rank = group.rank
        x = values(rank, (rank * 100_000,))
        for source, (text, array) in enumerate(await group.all_gather_object(["x" * 10**6 * rank, x])):
            assert text == "x" * 10**6 * source
            same(array, values(source, (source * 100_000,)))
            assert array.flags.writeable
        for one in await group.gather_object(None, 2) or ():
            assert one is None
        await group.send_object("y" * 10**7, (rank + 1) % 3)
        assert len(await group.recv_object()) == 10**7

    ranks(3, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_an_object_that_cannot_be_serialised_is_refused_on_all_ranks(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        bad = {"a": [1, Point(2.0)]}
        for culprit in range(size):
            mine = bad if group.rank == culprit else {"a": 1}
            for call in (
                group.all_gather_object(mine), group.gather_object(mine, 0), group.gather_object(mine, size - 1),
                group.broadcast_object(mine, culprit), group.scatter_object([mine] * size, culprit),
                group.all_to_all_object([mine] * size),
            ):  # fmt: skip
                error = await outcome(call)
                assert type(error) is SerializationError and isinstance(error, TypeError), error
                text = str(error)
                for word in (f"rank {culprit}", "Point", "['a'][1]", "dataclasses.asdict", "allow_pickle=True"):
                    assert word in text, text
                assert group.broken is None
        assert await group.all_gather_object(group.rank) == list(range(size))

    ranks(size, main, fabric)


@pytest.mark.parametrize("fabric", [fabric for fabric in FABRICS if fabric != "sim"])  # which has no allow_pickle=
@pytest.mark.parametrize("fabric_pickle", [True, False])
def test_pickle_only_where_it_is_allowed(fabric: str, fabric_pickle: bool) -> None:
    async def main(group: Group) -> None:
        everything = await outcome(group.all_gather_object((Point(group.rank), np.arange(3.0))))
        if fabric_pickle:
            assert [point for point, _ in everything] == [Point(0), Point(1), Point(2)]
            assert all(array.flags.writeable for _, array in everything)
            for call in (
                group.all_gather_object(Bomb() if group.rank == 1 else 5), group.broadcast_object(Bomb(), 1),
                group.all_to_all_object([Bomb() if group.rank == 1 else 5] * 3),
            ):  # fmt: skip
                error = await outcome(call)
                if isinstance(error, Bomb):
                    assert group.rank == 1
                    continue
                assert type(error) is SerializationError and "rank 1" in str(error) and "no such class" in str(error)
            refused = await outcome(group.all_gather_object(lambda: 1))
            assert type(refused) is SerializationError
        else:
            assert type(everything) is SerializationError
        assert await group.all_reduce(1) == 3 and group.broken is None

    ranks(3, main, fabric, allow_pickle=fabric_pickle)


@on_every_fabric
def test_lists_of_the_wrong_length_are_refused(fabric: str) -> None:
    async def main(group: Group) -> None:
        for call in (
            group.all_to_all_object([1] if group.rank == 1 else [1, 2, 3]),
            group.scatter_object([1] if group.rank == 1 else None, 1),
            group.scatter_object("abc" if group.rank == 1 else None, 1),
        ):
            error = await outcome(call)
            assert type(error) is UsageError and "rank 1" in str(error), error
        assert await group.all_reduce(1) == 3

    ranks(3, main, fabric)
