"""Every error class of the contract, raised where the contract says, with who, what and the way out in its message."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll import Group, errors
from aiocoll.store import MemoryStore
from aiocoll.testing import run

FABRICS = ("sim", "inproc", "tcp", "shm")
fabrics = pytest.mark.parametrize("fabric", FABRICS)


async def caught(kind: type[BaseException], call: Awaitable[Any]) -> BaseException:
    with pytest.raises(kind) as info:
        await call
    return info.value


@fabrics
def test_usage_error_names_rank_call_and_remedy_on_all_ranks(fabric: str) -> None:
    async def main(group: Group) -> str:
        x = np.arange(3.0) + group.rank
        error = await caught(aiocoll.UsageError, group.all_reduce(x, "sun" if group.rank == 1 else "sum"))
        assert isinstance(error, ValueError)
        assert (await group.all_reduce(x)).tolist() == [3.0, 6.0, 9.0]  # the group goes on
        return str(error)

    texts = run(3, main, fabric)
    assert all("'sun'" in text and "SUM" in text and "aiocoll.op(fn)" in text for text in texts)
    assert "rank 1" in texts[0] and "rank 1" in texts[2]


@fabrics
def test_mismatch_error_shows_both_sides_on_all_ranks(fabric: str) -> None:
    async def main(group: Group) -> str:
        x = np.arange(4.0) + group.rank
        call = group.all_reduce(x) if group.rank != 2 else group.all_reduce(np.arange(5), "max")
        error = await caught(aiocoll.MismatchError, call)
        assert isinstance(error, RuntimeError)
        assert group.broken is not None
        later = await caught(aiocoll.GroupBrokenError, group.barrier())
        assert isinstance(later, errors.GroupBrokenError) and isinstance(later.cause, aiocoll.MismatchError)
        return str(error)

    for text in run(3, main, fabric):
        assert "all_reduce op=SUM dtype=float64 shape=(4,)" in text, text
        assert "all_reduce op=MAX dtype=int64 shape=(5,)" in text, text
        assert "call 0" in text and "rank 2" in text and "name=" in text, text


@fabrics
def test_mismatch_reaches_ranks_that_had_finished_in_a_call_soon_after(fabric: str) -> None:
    async def main(group: Group) -> str:
        with pytest.raises(aiocoll.MismatchError) as info:
            await group.broadcast(np.arange(3.0), root=group.rank % 2)  # a root waits for nobody
            for _ in range(20):
                await group.barrier()
        return str(info.value)

    for text in run(3, main, fabric):
        assert "broadcast root=0" in text and "broadcast root=1" in text, text


@fabrics
def test_timeout_names_operation_and_missing_ranks_and_their_last_call(fabric: str) -> None:
    async def main(group: Group) -> Any:
        async with await group.dup() as aside:
            if group.rank == 1:
                await aside.barrier()
                return await caught(aiocoll.GroupBrokenError, group.all_reduce(1.0))
            error = await caught(aiocoll.CollectiveTimeoutError, group.all_reduce(1.0, timeout=0.2))
            await aside.barrier()
            return error

    outcome = run(3, main, fabric)
    for rank in (0, 2):
        error = outcome[rank]
        assert isinstance(error, TimeoutError) and error.missing == (1,), error
        assert "all_reduce (call 1)" in str(error) and "rank 1" in str(error) and "dup (call 0)" in str(error)
        assert "timeout=" in str(error)


@pytest.mark.parametrize("fabric", ["inproc", "tcp", "shm"])
def test_group_broken_error_names_who_cancelled(fabric: str) -> None:
    async def main(group: Group) -> str:
        async with await group.dup() as aside:
            if group.rank == 0:
                task = asyncio.ensure_future(group.all_reduce(np.arange(3.0)))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
                await aside.barrier()
            else:
                await aside.barrier()
            return str(await caught(aiocoll.GroupBrokenError, group.all_reduce(np.arange(3.0))))

    for text in run(2, main, fabric):
        assert "rank 0" in text and "cancelled all_reduce (call 1)" in text, text


@fabrics
def test_not_initialized_error_is_every_documented_class(fabric: str) -> None:
    async def main(group: Group) -> str:
        await group.close()
        error = await caught(aiocoll.NotInitializedError, _called(group.barrier))
        assert isinstance(error, AssertionError) and isinstance(error, ValueError) and isinstance(error, RuntimeError)
        return str(error)

    assert all("barrier" in text and "closed" in text for text in run(2, main, fabric))


async def _called(call: Callable[[], Awaitable[Any]]) -> None:
    await call()


@dataclasses.dataclass
class Thing:
    size: int


@fabrics
def test_serialization_error_names_rank_type_and_remedy_on_all_ranks(fabric: str) -> None:
    async def main(group: Group) -> str:
        obj: Any = {"a": [1, Thing(3)]} if group.rank == 1 else group.rank
        error = await caught(aiocoll.SerializationError, group.all_gather_object(obj))
        assert isinstance(error, TypeError)
        assert await group.all_gather_object(group.rank) == [0, 1, 2]  # the group goes on
        return str(error)

    for text in run(3, main, fabric):
        assert "Thing" in text and "rank 1" in text and "dataclasses.asdict" in text and "allow_pickle=True" in text


def test_rendezvous_error_says_who_came_and_who_is_missing() -> None:
    async def main() -> list[BaseException]:
        store = MemoryStore()
        come = [aiocoll.connect(rank=rank, size=3, store=store, timeout=0.3) for rank in (0, 2)]
        outcome = await asyncio.gather(*come, return_exceptions=True)
        await store.close()
        return [each for each in outcome if isinstance(each, BaseException)]

    failures = asyncio.run(main())
    assert len(failures) == 2
    for error in failures:
        assert isinstance(error, aiocoll.RendezvousError) and isinstance(error, TimeoutError)
        assert "missing" in str(error) and "1" in str(error)
