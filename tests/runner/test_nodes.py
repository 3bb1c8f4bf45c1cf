"""How runners meet, leave and come again, as nodes of one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiocoll.errors import RendezvousError
from aiocoll.runner.nodes import Node
from aiocoll.runner.options import Options
from tests.ports import free_port
from tests.turns import until

Opens = Callable[..., Awaitable[Node]]


@asynccontextmanager
async def job() -> AsyncIterator[Opens]:
    """Opens nodes of one job, and closes them in the end, node 0 last."""
    rdzv = f"127.0.0.1:{free_port()}"
    opened: list[Node] = []

    async def one(**options: Any) -> Node:
        node = await Node.open(Options(("script",), rdzv=rdzv, timeout=30.0, **options), lambda text: None)
        opened.append(node)
        return node

    try:
        yield one
    finally:
        for node in reversed(opened):
            await node.close()


async def test_a_runner_that_leaves_before_the_job_begins_can_come_again() -> None:
    async with job() as opens:
        zero, first, other = [await opens(node_rank=rank, nnodes=3, nnodes_min=3) for rank in range(3)]
        begun = asyncio.ensure_future(zero.meet(0))
        waiting = asyncio.ensure_future(first.meet(0))
        await until(lambda: first.rank >= 0)  # it has taken its number
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await first.go("was interrupted")
        while True:
            again = await opens(node_rank=1, nnodes=3, nnodes_min=3, ranks=2)
            coming = asyncio.ensure_future(again.meet(0))
            await asyncio.wait([coming], timeout=0.05)
            if not coming.done():
                break
            assert "is taken" in str(coming.exception())  # its number is not free yet
        layouts = await asyncio.gather(begun, coming, other.meet(0))
        assert [(each.first, each.ranks, each.size) for each in layouts] == [(0, 1, 4), (1, 2, 4), (3, 1, 4)]


async def test_whoever_was_refused_may_come_again_with_the_right_options() -> None:
    async with job() as opens:
        right = {"nnodes_min": 1, "nnodes": 2, "on_failure": "shrink", "last_call": 0.01}
        zero = await opens(node_rank=0, **right)
        await zero.meet(0)
        wrong = await opens(node_rank=None, **{**right, "nnodes": 3})
        with pytest.raises(RendezvousError, match=r"--nnodes 1:2 here, but 1:3 at node 1"):
            await wrong.meet(0)
        late = await opens(node_rank=None, **right)
        layout = await late.meet(0)
        assert (layout.first, layout.join, late.rank) == (1, True, 1)


async def test_the_last_call_counts_only_while_enough_are_there() -> None:
    async with job() as opens:
        options = {"nnodes_min": 2, "nnodes": 3, "on_failure": "shrink", "last_call": 0.3}
        zero, first = await opens(node_rank=0, **options), await opens(node_rank=None, **options)
        begun, waiting = asyncio.ensure_future(zero.meet(0)), asyncio.ensure_future(first.meet(0))
        await until(lambda: first.rank >= 0)  # it has taken its number
        await first.go("was interrupted")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait([begun], timeout=0.6)  # the last call is over, and one is too few
        assert not begun.done()
        second = await opens(node_rank=None, **options)
        layouts = await asyncio.gather(begun, second.meet(0))
        assert [each.size for each in layouts] == [2, 2]
