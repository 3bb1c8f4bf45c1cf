"""Ranks that die or stand still in the middle of a transfer: situations reported of other systems (J2, K5)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from aiocoll import CollectiveTimeoutError, Group, GroupBrokenError, PeerLostError
from aiocoll.sim import Crash
from aiocoll.testing import run
from tests.group.cases import outcome

VICTIM = 2
COUNT = 8 << 20  # 64 MiB of float64
FEWER = 1 << 20
NEVER = 50.0
"""The harness expects the victim's end, and would bring it about only then."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def values(rank: int, turn: int, count: int = COUNT) -> Any:
    return np.arange(count) + 10.0 * rank + turn


async def in_the_middle(group: Group, how: signal.Signals, count: int = COUNT) -> None:
    """The victim sends itself ``how`` while its second all_reduce is under way."""
    call = asyncio.ensure_future(group.all_reduce(values(group.rank, 1, count)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not call.done()
    os.kill(os.getpid(), how)
    await asyncio.sleep(NEVER)


def is_victim(error: Any, group: Group) -> bool:
    """Whether an error names the victim, as one who is lost."""
    cause = error.cause if isinstance(error, GroupBrokenError) else error
    assert isinstance(cause, PeerLostError), error
    return (cause.rank, cause.pid) == (VICTIM, group._endpoint.members[VICTIM].pid)


@pytest.mark.parametrize(("transport", "algorithm"), [("tcp", "all_reduce:ring"), ("shm", "")])
def test_j2_a_rank_killed_in_the_middle_of_64_mib(
    transport: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those learn its rank at once who have no connection to it: the neighbours in a ring tell them."""
    monkeypatch.setenv("AIOCOLL_ALGORITHM", algorithm)

    async def main(group: Group) -> float:
        assert (await group.all_reduce(values(group.rank, 0)))[1] == 4 * 1 + 60  # 0 + 10 + 20 + 30
        if group.rank == VICTIM:
            await in_the_middle(group, signal.SIGKILL)
        out = np.full(COUNT, -1.0)
        result = await outcome(group.all_reduce(values(group.rank, 1), out=out))
        when = time.monotonic()
        if not isinstance(result, BaseException):  # this rank had all it needed before
            result = await outcome(group.barrier())
            when = time.monotonic()
        assert is_victim(result, group), result
        kept = out.copy()
        assert is_victim(await outcome(group.barrier()), group)
        assert (out == kept).all()
        return when

    results = run(4, main, "process", transport=transport, timeout=30, faults=Crash(VICTIM, at=NEVER))
    heard = [when for rank, when in enumerate(results) if rank != VICTIM]
    assert max(heard) - min(heard) < 10


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_j2_k5_a_rank_stopped_in_the_middle_is_missed_at_the_deadline_and_left_behind(transport: str) -> None:
    """The survivors' call ends at its deadline and says who is missing; they go on in a smaller group, in the same
    process, while the one that stands still keeps its ends of all connections open."""
    seconds = 2.0

    async def main(group: Group) -> tuple[int, ...]:
        await group.barrier()
        if group.rank == VICTIM:
            await in_the_middle(group, signal.SIGSTOP, FEWER)
        began = time.monotonic()
        error = await outcome(group.all_reduce(values(group.rank, 1, FEWER), timeout=seconds))
        cause = error.cause if isinstance(error, GroupBrokenError) else error
        assert isinstance(cause, CollectiveTimeoutError), error
        assert VICTIM in cause.missing and cause.elapsed >= seconds and "rank 2" in str(cause)
        assert time.monotonic() - began < seconds + 20
        smaller = await group.shrink(timeout=20)
        assert smaller.size == 3 and smaller.rank == [0, 1, None, 2][group.rank]
        assert await smaller.all_reduce(group.rank) == 0 + 1 + 3
        await smaller.barrier()
        if smaller.rank == 0:
            os.kill(group._endpoint.members[VICTIM].pid, signal.SIGKILL)
        return smaller.ranks

    results = run(4, main, "process", transport=transport, timeout=60, faults=Crash(VICTIM, at=NEVER))
    assert [each for rank, each in enumerate(results) if rank != VICTIM] == [(0, 1, 3)] * 3


def test_k5_giving_up_a_call_waits_for_nobody() -> None:
    """Cancelling is how a call is aborted: the others' calls end at once and say by whom, closing is quick, and the
    survivors meet again without the one that stands still."""

    async def main(group: Group) -> None:
        await group.barrier()
        if group.rank == VICTIM:
            await in_the_middle(group, signal.SIGSTOP, FEWER)
        calls = [asyncio.ensure_future(group.all_reduce(values(group.rank, turn, FEWER))) for turn in range(2)]
        if group.rank == 0:
            for _ in range(20):
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        if group.rank == 0:
            assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
        else:
            assert all(isinstance(end, GroupBrokenError) and "rank 0" in str(end) for end in ends), ends
        smaller = await group.shrink(timeout=4)
        assert smaller.ranks == (0, 1, 3) and await smaller.all_reduce(group.rank) == 4
        await smaller.barrier()
        began = time.monotonic()
        await smaller.close()
        await group.close()
        assert time.monotonic() - began < 20
        if group.rank == 3:
            os.kill(group._endpoint.members[VICTIM].pid, signal.SIGKILL)

    run(4, main, "process", transport="tcp", timeout=60, faults=Crash(VICTIM, at=NEVER))
