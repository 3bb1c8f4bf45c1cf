"""Algorithms for several hosts: who speaks for whom, what crosses between hosts, and the group that uses them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aiocoll import Group
from aiocoll.algorithms import Algorithm, find
from aiocoll.algorithms.hosts import Near
from aiocoll.config import Settings
from aiocoll.ops import SUM
from aiocoll.sim import Simulation
from aiocoll.tuning import choose

from .cases import CASES
from .fake import FakeChannel, FakeWorld, Outcome
from .test_matrix import ALGORITHMS

LAYOUTS = [
    [0, 0, 1, 1],
    [0, 1, 0, 1, 0],
    [1, 0, 0, 2, 1, 0, 2],
    [2, 2, 2, 0, 1],
    [0, 0, 0],
    [0, 1, 2],
    [0, 0, 1, 1, 2, 2, 0, 1, 2],
]
OF_HOSTS = [each for each in ALGORITHMS if each.on == "hosts"]


def ids(value: Any) -> str:
    return repr(value) if isinstance(value, Algorithm) else "".join(map(str, value))


@pytest.mark.parametrize("hosts", LAYOUTS, ids=ids)
def test_lanes_serve_everybody_once(hosts: list[int]) -> None:
    world = FakeWorld(len(hosts), 0, late=False, hosts=hosts)
    for one_lane in (True, False):
        near = [Near(channel, one_lane=one_lane) for channel in world.channels]
        first = near[0]
        served = [r for lane in range(first.lanes) for i in range(len(first.islands)) for r in first.carried(lane, i)]
        assert sorted(served) == list(range(len(hosts)))
        assert first.lanes == (1 if one_lane else min(hosts.count(host) for host in hosts))
        for rank, each in enumerate(near):
            assert [hosts[r] for r in each.islands[each.home]] == [hosts[rank]] * hosts.count(hosts[rank])
            assert each.local.rank == each.place and (each.across.rank == each.home) == each.speaks
            assert sum(each.lane_counts(17)) == 17 and len(each.lane_counts(17)) == each.local.size


@pytest.mark.parametrize("hosts", LAYOUTS, ids=ids)
@pytest.mark.parametrize("algorithm", OF_HOSTS, ids=ids)
def test_right_on_every_layout(algorithm: Algorithm, hosts: list[int]) -> None:
    rounds = []

    def fake(size: int, main: Any, seed: int) -> Outcome:
        outcome = FakeWorld(size, seed, late=seed % 2 == 1, hosts=hosts).run(main)
        rounds.append(outcome.rounds)
        return outcome

    size, apart = len(hosts), len(set(hosts))
    for count in (0, 1, size, 24 * size + 5):
        for seed in range(4):
            list(CASES[algorithm.collective](algorithm, size, count, 10 * count + seed, fake))
    crowd = max(hosts.count(host) for host in hosts)
    parts = [(find(part.collective, part.name), crowd if part.among == "local" else apart) for part in algorithm.parts]
    # Ranks without a lane of their own cost one more message at either end.
    assert max(rounds) <= sum(part.rounds(ranks) for part, ranks in parts) + 2 * (algorithm.name == "lanes")


def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiocoll.algorithms import hosts, owner, pace

    for module, name in ((hosts, "SLICE_BYTES"), (pace, "SLICE_BYTES"), (owner, "BLOCK_BYTES")):
        monkeypatch.setattr(module, name, 128)


@pytest.mark.parametrize("algorithm", OF_HOSTS, ids=ids)
def test_right_in_many_slices(algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    small_slices(monkeypatch)
    for hosts in LAYOUTS[:4]:

        def fake(size: int, main: Any, seed: int, hosts: list[int] = hosts) -> Outcome:
            return FakeWorld(size, seed, late=seed % 2 == 1, hosts=hosts).run(main)

        for seed in range(2):
            list(CASES[algorithm.collective](algorithm, len(hosts), 301, seed, fake))


async def program(group: Group) -> dict[str, Any]:
    """Every collective that has a form for several hosts, long and short; results that name what was wrong."""
    rank, size = group.rank, group.size
    results: dict[str, Any] = {}
    for count in (3, 5000):
        x = (np.arange(count) * (rank + 1) + rank).astype(np.int64)
        total = sum((np.arange(count) * (r + 1) + r).astype(np.int64) for r in range(size))
        np.testing.assert_array_equal(await group.all_reduce(x), total)
        np.testing.assert_array_equal(await group.reduce_scatter(x), np.array_split(total, size)[rank])
        for root in (0, size - 1):
            expected = (np.arange(count) * (root + 1) + root).astype(np.int64)
            np.testing.assert_array_equal(await group.broadcast(x if rank == root else None, root), expected)
        gathered = await group.all_gather(x[rank:])
        for source, block in enumerate(gathered):
            np.testing.assert_array_equal(block, (np.arange(count) * (source + 1) + source)[source:])
        floats = np.random.default_rng(rank).standard_normal(count)
        results[f"bits of {count}"] = (await group.all_reduce(floats)).tobytes()
    await group.barrier()
    return results


@pytest.mark.parametrize("name", ["", "leaders", "lanes"])
@pytest.mark.parametrize("hosts", LAYOUTS[:4], ids=ids)
def test_a_group_on_several_hosts(hosts: list[int], name: str) -> None:
    forced = {each.collective: name for each in OF_HOSTS if each.name == name}
    settings = Settings(algorithm=forced)
    results = Simulation(
        len(hosts), seed=3, hosts=hosts, settings=settings, latency=50e-6, local_latency=1e-6, bandwidth=1e9,
        local_bandwidth=2e10,
    ).run(program)  # fmt: skip
    assert all(result == results[0] for result in results), "ranks disagree in bits"


def test_hosts_are_crossed_with_fewer_bytes_and_in_less_time() -> None:
    in_turn, in_rows = [0, 1] * 4, [0] * 4 + [1] * 4

    async def reducing(group: Group) -> float:
        await group.all_reduce(np.full(1 << 18, float(group.rank)))
        return group._endpoint.loop.time()

    def seconds(name: str, hosts: list[int]) -> float:
        simulation = Simulation(
            8, hosts=hosts, latency=50e-6, local_latency=1e-6, bandwidth=1e9, local_bandwidth=2e10,
            settings=Settings(algorithm={"all_reduce": name} if name else {}),
        )  # fmt: skip
        return max(simulation.run(reducing))

    for hosts, worst in ((in_turn, "ring"), (in_rows, "circulant")):
        assert seconds("lanes", hosts) < seconds(worst, hosts) / 1.6
        assert seconds("", hosts) == seconds("lanes", hosts)


def test_choice_among_hosts() -> None:
    facts: dict[str, Any] = {"size": 8, "count": 1 << 20, "op": SUM, "hosts": 2, "shared": True}
    assert choose("all_reduce", nbytes=64, **facts).name == "leaders"
    assert choose("all_reduce", nbytes=1 << 26, **facts).name == "lanes"
    assert choose("reduce_scatter", nbytes=1 << 26, **facts).name == "lanes"
    assert choose("barrier", nbytes=0, size=8, count=0, hosts=2, shared=True).name == "leaders"
    for hosts in (1, 8):
        assert choose("all_reduce", nbytes=1 << 26, **{**facts, "hosts": hosts}).on != "hosts"
    assert math.isfinite(choose("broadcast", nbytes=1 << 20, size=8, count=0, hosts=3, shared=True).rounds(8))


def test_fake_channels_narrow() -> None:
    world = FakeWorld(4, 0, late=False, hosts=[0, 1, 0, 1])
    channel: FakeChannel = world.channels[3].narrow([1, 3])
    assert (channel.rank, channel.size) == (1, 2) and channel.islands == ((0, 1),)
    assert world.channels[0].narrow([1, 3]).rank == -1
