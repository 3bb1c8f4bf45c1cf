"""Cancelling and deadlines: a collective breaks its group and says who, when and who is missing.

The rule: after an error nothing is written to an output any more, and closing is quick.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from aiocoll import CollectiveTimeoutError, Group, GroupBrokenError, UsageError
from tests.group.cases import on_every_fabric, outcome, ranks


@on_every_fabric
@pytest.mark.parametrize("how", ["task", "timeout", "before it ran", "never awaited"])
def test_cancelling_a_collective_breaks_the_group_and_names_who(fabric: str, how: str) -> None:
    async def main(group: Group) -> None:
        twin = await group.dup()
        x = np.ones(3)
        if group.rank == 1:
            task = asyncio.ensure_future(twin.all_reduce(x)) if how in ("task", "before it ran") else None
            if task is not None:
                if how == "task":
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            elif how == "timeout":
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.001):
                        await twin.all_reduce(x)
            else:
                twin.all_reduce(x).close()
            await group.send(1, 2)
        else:
            if group.rank == 2:  # rank 0 is in the call already, rank 2 makes it later
                await group.recv(1)
            error = await outcome(twin.all_reduce(x))
            assert type(error) is GroupBrokenError, error
            assert "rank 1" in str(error) and "cancelled" in str(error) and "all_reduce" in str(error)
        after = await outcome(twin.barrier())
        assert type(after) is GroupBrokenError and after.cause is twin.broken and "cancelled" in str(after)
        assert type(await outcome(twin.send(1, 0))) is GroupBrokenError
        assert await group.all_reduce(1) == 3 and group.broken is None, "the parent lives on"
        await twin.close()

    ranks(3, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("steps", range(8))
def test_cancelled_at_any_moment_all_ranks_end_and_outputs_stay(fabric: str, steps: int) -> None:
    async def main(group: Group) -> None:
        out = np.zeros(100_000)
        call = asyncio.ensure_future(group.all_reduce(np.full(100_000, group.rank + 1.0), out=out))
        if group.rank == 2:
            for _ in range(steps):
                await asyncio.sleep(0)
            call.cancel()
        await asyncio.wait([call])
        if not call.cancelled() and call.exception() is None:
            assert (out == 6.0).all()
        left = out.copy()
        if call.cancelled():
            assert type(group.broken) is GroupBrokenError
        for _ in range(20):
            await asyncio.sleep(0)
        assert (out == left).all()

    ranks(3, main, fabric)


@on_every_fabric
def test_cancelling_a_call_that_a_peer_has_refused_breaks_nothing(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            assert type(await outcome(group.all_reduce(1, "?"))) is UsageError
            await group.send(1, 1)
        else:
            await group.recv(0)
            group.all_reduce(1).close()
        assert await group.all_reduce(1) == 2

    ranks(2, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_late_call_names_the_missing_and_their_last_call(fabric: str, size: int) -> None:
    missing = (1,) if size < 5 else (1, 3)

    async def main(group: Group) -> None:
        twin, control = await group.dup(), await group.dup()
        assert await twin.all_reduce(1) == size
        if group.rank not in missing:
            error = await outcome(twin.barrier(timeout=0.2))
            await control.barrier()
            assert type(error) is CollectiveTimeoutError and error.missing == missing, error
        else:
            await control.barrier()
            error = await outcome(twin.barrier())
        cause = twin.broken
        assert type(cause) is CollectiveTimeoutError and isinstance(cause, TimeoutError)
        assert cause.missing == missing and isinstance(cause.missing, tuple), cause
        assert "barrier (call 1)" in str(cause) and "timed out after" in str(cause)
        for rank in missing:
            assert f"rank {rank}" in str(cause) and "all_reduce (call 0)" in str(cause)
        assert type(await outcome(twin.barrier())) is GroupBrokenError
        for each in (twin, control):
            await each.close()

    ranks(size, main, fabric)


@on_every_fabric
def test_one_stuck_in_an_earlier_call_is_missing_in_the_later(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 2:
            error = await outcome(group.recv(0))  # stuck elsewhere
        else:
            error = await outcome(group.barrier(timeout=0.1))
            assert type(error) is CollectiveTimeoutError and error.missing == (2,), error
            assert "recv" in str(error) or "no call yet" in str(error)

    ranks(3, main, fabric)


@on_every_fabric
def test_j1_the_calls_timeout_wins_over_the_groups_either_way(fabric: str) -> None:
    async def main(group: Group) -> None:
        twin = await group.dup()
        assert twin.timeout == group.timeout == 30.0
        twin.timeout = 0.05
        if group.rank == 0:
            error = await outcome(group.barrier(timeout=0.05))
            assert type(error) is CollectiveTimeoutError and "timeout 0.05 s" in str(error)
            waiting = asyncio.ensure_future(twin.barrier(timeout=math.inf))
            assert type(await outcome(twin.recv(1, tag=1))) is CollectiveTimeoutError  # the group's own
            await twin.send(1, 1, timeout=30)
            await waiting
        else:
            await twin.recv(0, timeout=30)
            await twin.barrier(timeout=30)
        await twin.close()

    ranks(2, main, fabric, timeout=30.0)


@on_every_fabric
def test_f8_closing_after_a_timeout_is_quick_and_writes_nothing(fabric: str) -> None:
    outs: list[Any] = []

    async def main(group: Group) -> None:
        out = np.full(200_000, 7.0)
        if group.rank == 0:
            error = await outcome(group.all_reduce(np.ones(200_000), out=out, timeout=0.05))
            assert type(error) is CollectiveTimeoutError
            outs.extend([out, out.copy()])
        else:
            await outcome(group.recv(0, timeout=0.2))
            error = await outcome(group.all_reduce(np.ones(200_000), out=out))
            assert isinstance(error, GroupBrokenError | CollectiveTimeoutError), error

    ranks(2, main, fabric)
    assert (outs[0] == outs[1]).all()


@pytest.mark.parametrize("fabric", ["inproc", "tcp", "shm"])  # no looking around in simulations
def test_a_call_on_a_group_that_a_member_has_closed_does_not_wait_for_its_deadline(fabric: str) -> None:
    async def main(group: Group) -> None:
        twin = await group.dup()
        assert await twin.all_reduce(group.rank) == 3
        if group.rank == 1:
            await twin.close()
            await group.recv(0)
        else:
            async with asyncio.timeout(30):
                error = await outcome(twin.all_reduce(1, timeout=1000))
            assert type(error) is GroupBrokenError and "rank 1" in str(error) and "closed" in str(error), error
            assert error.rank == error.world_rank == 1 and error.collective == "all_reduce" and error.call == 1
            if group.rank == 0:
                await group.send(1, 1)
        assert await group.all_reduce(1) == 3
        await twin.close()

    ranks(3, main, fabric)
