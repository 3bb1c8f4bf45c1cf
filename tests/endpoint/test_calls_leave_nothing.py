"""Calls and groups that come and go: neither descriptors, nor tables, nor memory grow with them."""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc

import numpy as np
import pytest

from aiocoll.group import Group

from .ranks import numbers, on_every_transport, ranks, results

pytestmark = pytest.mark.timeout(120)


def _state(groups: list[Group]) -> dict[str, int]:
    """Everything of an endpoint that could grow."""
    sizes: dict[str, int] = {}
    for group in groups:
        endpoint = group._endpoint
        inbox, failure = endpoint.inbox, endpoint.failure
        for name, each in {
            "scopes": endpoint.scopes, "parked": endpoint.parked, "parked_at": endpoint._parked_at,
            "expected": inbox.expected, "arrived": inbox.arrived, "offers": inbox.offers, "granted": inbox._granted,
            "early": inbox._early, "news": failure._early, "refusals": failure._early_refusals,
            "inquiries": failure.inquiries, "landing": inbox._landing, "links": endpoint.transport.links(),
        }.items():  # fmt: skip
            sizes[name] = sizes.get(name, 0) + len(each)
    return sizes


@on_every_transport
@pytest.mark.slow
async def test_g6_five_thousand_subgroups_come_and_go(transport: str) -> None:
    """subgroup, all_reduce, close: memory, descriptors and tasks stay what they were."""

    async def main(group: Group, rounds: int) -> None:
        for turn in range(rounds):
            async with await group.subgroup([1, 0]) as inner:
                assert (await inner.all_reduce(np.arange(5.0) + turn))[1] == 2 * (1 + turn)

    async with ranks(2, transport) as groups:
        await results(main(group, 1000) for group in groups)
        gc.collect()
        state, descriptors, tasks = _state(groups), len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        tracemalloc.start()
        try:
            await results(main(group, 500) for group in groups)
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            await asyncio.gather(*(main(group, 3500) for group in groups))
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        # 3,500 rounds on two ranks; what is remembered of closed groups is bounded, and not full before.
        assert grown < 2_500_000, grown
        assert _state(groups) == state
        assert len(os.listdir("/proc/self/fd")) == descriptors and len(asyncio.all_tasks()) == tasks


@pytest.mark.slow
async def test_n5_memory_is_flat_over_calls_of_every_size() -> None:
    rng = np.random.default_rng(1)

    async def main(group: Group, plan: list[int]) -> None:
        for n in plan:
            await group.all_reduce(np.ones(n))
            assert len(await group.all_gather(np.ones(n // (1 + group.rank)))) == 2
            if group.rank:
                await group.send(np.ones(n), 0)
            else:
                await group.recv()

    async with ranks(2) as groups:
        plan = rng.integers(1, 30_000, 250).tolist()
        await results(main(group, plan) for group in groups)
        gc.collect()
        state, tasks = _state(groups), len(asyncio.all_tasks())
        tracemalloc.start()
        try:
            await results(main(group, plan) for group in groups)
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(3):
                await results(main(group, plan) for group in groups)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert grown < 300_000, grown
        assert _state(groups) == state and len(asyncio.all_tasks()) == tasks


async def test_n5_an_array_is_let_go_when_its_call_is_over() -> None:
    import weakref

    async with ranks(2) as groups:
        outs = [np.zeros(100_000) for _ in groups]
        kept = [weakref.ref(out) for out in outs]
        await results(group.all_reduce(numbers(100_000), out=out) for group, out in zip(groups, outs, strict=True))
        await results([groups[0].send(outs[0], 1), groups[1].recv(0)])
        outs.clear()
        gc.collect()
        assert [each() is None for each in kept] == [True, True]
