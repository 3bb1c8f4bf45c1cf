"""What can be set and asked: the algorithm of every collective, statistics, and how long the loop is held.

The rule: a choice is the same on all ranks and changes no result.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll import Group, UsageError
from aiocoll.algorithms import all_of, registry
from aiocoll.group import calls as group_calls
from aiocoll.store import MemoryStore
from tests.group.cases import for_every_size, on_every_fabric, outcome, ranks, same, values

CHOICES = [
    (collective, each.name)
    for collective in sorted(registry())
    for each in all_of(collective)
    if collective not in ("announce", "share", "show", "spread")
]


@pytest.mark.parametrize(("collective", "name"), CHOICES, ids=lambda value: value)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_algorithm_can_be_chosen_by_name(
    collective: str, name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIOCOLL_ALGORITHM", f"{collective}:{name}")
    chosen: set[tuple[str, str]] = set()
    refused: list[int] = []
    choose = group_calls.choose

    def watched(*arguments: Any, **facts: Any) -> Any:
        algorithm = choose(*arguments, **facts)
        chosen.add((algorithm.collective, algorithm.name))
        return algorithm

    monkeypatch.setattr(group_calls, "choose", watched)

    async def main(group: Group) -> None:
        rank = group.rank
        calls: dict[str, Any] = {
            "all_reduce": lambda n: group.all_reduce(values(rank, (n,))),
            "reduce": lambda n: group.reduce(values(rank, (n,))),
            "reduce_scatter": lambda n: group.reduce_scatter(values(rank, (n,))),
            "scan": lambda n: group.scan(values(rank, (n,))), "exscan": lambda n: group.exscan(values(rank, (n,))),
            "broadcast": lambda n: group.broadcast(values(rank, (n,))), "barrier": lambda n: group.barrier(),
            "gather": lambda n: group.gather(values(rank, (n,))),
            "all_gather": lambda n: group.all_gather(values(rank, (n,))),
            "scatter": lambda n: group.scatter([values(rank, (n,))] * size),
            "all_to_all": lambda n: group.all_to_all([values(rank, (n,))] * size),
            "exchange_all": lambda n: group.all_to_all([values(rank, (n,))] * size),
        }  # fmt: skip

        def each(n: int) -> list[Any]:
            return [values(r, (n,)) for r in range(size)]

        oracle: dict[str, Any] = {
            "all_reduce": lambda n: sum(each(n)), "reduce": lambda n: sum(each(n)) if rank == 0 else None,
            "reduce_scatter": lambda n: np.array_split(sum(each(n)), size)[rank],
            "scan": lambda n: sum(each(n)[: rank + 1]), "exscan": lambda n: sum(each(n)[:rank], np.zeros(n)),
            "broadcast": lambda n: each(n)[0], "barrier": lambda n: None, "scatter": lambda n: each(n)[0],
            "gather": lambda n: each(n) if rank == 0 else None, "all_gather": each,
            "all_to_all": each, "exchange_all": each,
        }  # fmt: skip
        for count in (0, 1, 7, 9000):
            result, wanted = await outcome(calls[collective](count)), oracle[collective](count)
            if isinstance(result, UsageError):  # it cannot serve this size, says so, and on all ranks
                assert f"{collective}:{name}" in str(result) and "it needs" in str(result)
                refused.append(count)
            elif isinstance(wanted, list):
                for one, other in zip(result, wanted, strict=True):
                    same(one, other)
            elif wanted is None:
                assert result is None
            else:
                same(result, wanted)

    ranks(size, main, "inproc")
    if size > 1 and len(refused) < 4 * size:
        there = {(collective, name), ("exchange_all", name)} if collective == "all_to_all" else {(collective, name)}
        assert chosen & there, chosen


async def test_an_unknown_algorithm_is_refused_at_once_by_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    for text in ("all_reduce:magic", "juggle:ring", "all_reduce"):
        monkeypatch.setenv("AIOCOLL_ALGORITHM", text)
        with pytest.raises(UsageError, match="ring|juggle|collective:algorithm"):
            await aiocoll.connect(store=store, rank=0, size=1)
    await store.close()


@pytest.mark.parametrize("wrong", [{"name": 5}, {"name": b"world"}, {"store": object()}])
async def test_a_name_that_is_no_text_and_a_store_that_is_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="|".join(wrong)):
        await aiocoll.connect(**{"rank": 0, "size": 1} | wrong)


@on_every_fabric
@for_every_size
def test_statistics(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        for _ in range(3):
            await group.all_reduce(np.ones(1000))
        await group.send(np.ones(10), group.rank)
        await group.recv(group.rank)
        await group.barrier()
        stats = group.statistics()
        assert stats["calls"] == {"all_reduce": 3, "send": 1, "recv": 1, "barrier": 1}
        for direction in ("bytes_sent", "bytes_received"):
            assert set(stats[direction]) <= {"inproc" if fabric == "sim" else fabric}
            assert (sum(stats[direction].values()) > 8000) == (size > 1), stats
        assert stats["seconds_waited"] >= 0 and stats["unreceived_bytes"] == 0 and stats["descriptors"] > 0

    ranks(size, main, fabric)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["all_reduce", "in place", "strided", "broadcast", "all_gather", "all_to_all", "message"]
)
def test_the_loop_breathes_while_megabytes_move(what: str, record_property: Any) -> None:
    """Two ranks share this one loop and its core with whatever else runs: the bound here only catches what is grossly
    wrong; the numbers themselves go into the report."""
    gaps: list[float] = []

    async def main(group: Group) -> None:
        x = np.full((4 << 20, 2), float(group.rank))
        calls: dict[str, Any] = {
            "all_reduce": lambda: group.all_reduce(x), "in place": lambda: group.all_reduce(x, out=x),
            "strided": lambda: group.all_reduce(x[:, ::-1]), "broadcast": lambda: group.broadcast(x[:, ::-1]),
            "all_gather": lambda: group.all_gather(x[:, ::-1]),
            "all_to_all": lambda: group.all_to_all([x, x[:, ::-1]]),
            "message": lambda: group.send(x, 1) if group.rank == 0 else group.recv(0, out=np.empty_like(x)[:, ::-1]),
        }  # fmt: skip
        done = asyncio.Event()

        async def watch() -> None:
            last = time.perf_counter()
            while not done.is_set():
                await asyncio.sleep(0)
                now = time.perf_counter()
                gaps.append(now - last)
                last = now

        watching = asyncio.ensure_future(watch())
        result = await calls[what]()
        done.set()
        await watching
        del result  # giving so much memory back takes a while, too, and is the caller's doing

    ranks(2, main, "tcp")
    record_property("longest_gap_seconds", max(gaps))
    print(what, f"{max(gaps) * 1e3:.1f} ms", f"{sorted(gaps)[-10] * 1e3:.1f} ms")
    assert max(gaps) < 1.0
