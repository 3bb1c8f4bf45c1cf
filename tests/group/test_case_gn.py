"""Groups in a burst, and memory that the ranks of a host share: situations reported of other systems (G3, N10).

The rule: what is counted (descriptors, links, bytes by transport) is counted on the way of the calls themselves.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll import Group
from aiocoll.transport.shm import meeting
from tests.group.cases import FABRICS, outcome, ranks


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("fabric", FABRICS)
def test_g3_many_small_groups_in_a_burst_cost_no_connection(fabric: str) -> None:
    """Eight ranks make a group of each of them alone and of each pair, all at once, and twice over."""
    size = 8

    async def main(group: Group) -> None:
        rank = group.rank
        await group.all_to_all([np.full(2, rank)] * size)  # whoever ever speaks to another has a link to it now
        await group.barrier()
        links, before = group.statistics()["links"], descriptors()
        for turn in range(2):
            alone = [await group.subgroup([rank], name=f"{turn}.{number}") for number in range(size)]
            pairs = [await group.subgroup(sorted({rank, other})) for other in range(size) if other != rank]
            for number, one in enumerate(alone):
                assert await one.all_reduce(rank + number) == rank + number
            works = [pair.all_reduce(np.array([rank, turn])) for pair in pairs]
            for pair, work in zip(pairs, works, strict=True):
                assert (await work).tolist() == [sum(pair.ranks), 2 * turn]
            await group.barrier()
            assert descriptors() <= before and group.statistics()["links"] == links
            for each in (*alone, *pairs):
                await each.close()

    ranks(size, main, fabric, timeout=30.0)


def wide(rank: int, count: int) -> Any:
    """Numbers whose sum depends on the order in which they are added."""
    rng = np.random.default_rng(rank)
    return (rng.standard_normal(count) * 10.0 ** rng.integers(-12, 12, count)).astype(np.float32)


@pytest.mark.parametrize("count", [1000, 100_003])
@pytest.mark.parametrize("size", [3, 8])
def test_n10_the_bits_are_those_of_every_transport(size: int, count: int) -> None:
    """Through memory or through sockets: one result, to the last bit, on every rank."""

    async def main(group: Group) -> bytes:
        x = wide(group.rank, count)
        shared = group.empty(count, np.float32)
        shared[...] = x
        results = [await group.all_reduce(x), await group.all_reduce(shared)]
        assert results[0].tobytes() == results[1].tobytes()
        return bytes(results[0].tobytes())

    one_host = [fabric for fabric in FABRICS if fabric != "sim"]  # where each rank has a host of its own
    found = {fabric: ranks(size, main, fabric, timeout=30.0) for fabric in one_host}
    assert len({each for results in found.values() for each in results}) == 1, list(found)


def test_n10_memory_is_used_where_it_can_be() -> None:
    """The way that a transport of "auto" takes on one host is memory, and sockets where that cannot be had."""

    async def main(group: Group) -> list[str]:
        total = await group.all_reduce(wide(group.rank, 20_000))
        assert total.shape == (20_000,)
        return sorted(kind for kind, sent in group.statistics()["bytes_sent"].items() if sent)

    assert ranks(3, main, "shm", transport="auto") == [["shm"]] * 3


def test_n10_without_memory_ranks_talk_over_sockets_and_say_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a host that has none left, ranks that want it get sockets, and a warning that says why."""
    monkeypatch.setattr(meeting, "available_bytes", lambda: 1)

    async def main(group: Group) -> list[str]:
        assert await group.all_reduce(group.rank) == 3
        return sorted(kind for kind, sent in group.statistics()["bytes_sent"].items() if sent)

    with caplog.at_level("INFO", "aiocoll.transport"):
        for transport in ("auto", "shm"):
            caplog.clear()
            assert ranks(3, main, "tcp", transport=transport) == [["tcp"]] * 3
            warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
            assert len(warnings) == 3 and all("bytes of shared memory, and 1 are free" in each for each in warnings)


async def test_n10_a_world_of_one_needs_none() -> None:
    async with aiocoll.connect(rank=0, size=1, store=aiocoll.store.MemoryStore(), transport="auto") as group:
        assert await outcome(group.all_reduce(5)) == 5
