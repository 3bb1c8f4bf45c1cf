"""Synchronous sends: over when a receive has taken the message, not before.

The rule: that the receive came first is told by a message that its rank sent just before.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aiocoll import CollectiveTimeoutError, Group, PeerLostError
from aiocoll.testing import CRASHED, Crash, run
from tests.group.cases import on_every_fabric, outcome, ranks, same, values


@on_every_fabric
@pytest.mark.parametrize("count", [0, 5, 70_000])
def test_it_returns_when_a_receive_has_taken_it(fabric: str, count: int) -> None:
    async def main(group: Group) -> None:
        x = values(group.rank, (count,))
        if group.rank == 0:
            note = asyncio.ensure_future(group.recv(1, tag=1))
            await group.send(x, 1, synchronous=True)
            assert note.done() and await note == 7
            await group.send_object({"of": group.rank, "x": x}, 1, synchronous=True)
            assert await group.recv(1, tag=1) == 8
        else:
            await group.send(7, 0, tag=1)
            same(await group.recv(0), values(0, (count,)))
            await group.send(8, 0, tag=1)
            found = await group.recv_object(0)
            assert found["of"] == 0
            same(found["x"], values(0, (count,)))

    ranks(2, main, fabric)


@on_every_fabric
def test_to_oneself_and_in_order_among_others(fabric: str) -> None:
    async def main(group: Group) -> None:
        receive = group.recv(group.rank)
        await group.send(3, group.rank, synchronous=True)
        assert await receive == 3
        other = 1 - group.rank
        sends = [group.send(10 * group.rank + each, other, synchronous=each % 2 == 0) for each in range(6)]
        came = [int(await group.recv(other)) for _ in range(6)]
        await asyncio.gather(*sends)
        assert came == [10 * other + each for each in range(6)]

    ranks(2, main, fabric)


@on_every_fabric
def test_nobody_takes_it(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            with pytest.raises(CollectiveTimeoutError, match="send to rank 1 with tag 4") as caught:
                await group.send(values(0, (3,)), 1, tag=4, timeout=0.05, synchronous=True)
            assert caught.value.missing == (1,) and "no receive has taken it" in str(caught.value)
            await group.send(1, 1)  # which broke nothing
        else:
            assert await group.recv(0) == 1

    ranks(2, main, fabric)


@on_every_fabric
def test_cancelled_it_arrives_all_the_same_from_a_copy(fabric: str) -> None:
    async def main(group: Group) -> None:
        x = values(group.rank, (3_000,))
        if group.rank == 0:
            task = asyncio.ensure_future(group.send(x, 1, synchronous=True))
            await group.recv(1, tag=1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            x[:] = -1
            await group.send(0, 1, tag=2)
        else:
            await group.send(0, 0, tag=1)
            await group.recv(0, tag=2)
            same(await group.recv(0), values(0, (3_000,)))

    ranks(2, main, fabric)


@pytest.mark.parametrize("frames", range(1, 5))
def test_a_receiver_that_dies(frames: int) -> None:
    async def main(group: Group) -> Any:
        if group.rank == 0:
            return await outcome(group.send(np.arange(9.0), 1, synchronous=True))
        await group.send(1, 2)
        await group.recv(2)
        return await group.recv(0)

    async def program(group: Group) -> Any:
        if group.rank == 2:
            await outcome(group.recv(1))
            return await outcome(group.send(2, 1))
        return await main(group)

    found = run(3, program, "sim", faults=Crash(1, frames=frames), timeout=30.0)
    assert found[1] is CRASHED or frames > 2
    error = found[0]
    assert error is None or (isinstance(error, PeerLostError) and error.rank == 1)
