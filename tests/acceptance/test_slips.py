"""Slips that users make, and what they see."""

from __future__ import annotations

import asyncio

import pytest

import aiocoll
from aiocoll import Group
from aiocoll.testing import run

fabrics = pytest.mark.parametrize("fabric", ("inproc", "tcp", "shm"))


@fabrics
def test_a_call_that_is_never_awaited_is_named_on_all_ranks(fabric: str) -> None:
    async def main(group: Group) -> str:
        async with await group.dup() as aside:
            if group.rank == 1:
                with pytest.warns(RuntimeWarning, match="all_reduce was never awaited"):
                    aside.all_reduce(1.0)
            await group.barrier()
            with pytest.raises(aiocoll.GroupBrokenError) as info:
                await aside.all_reduce(1.0)
        return str(info.value)

    for text in run(3, main, fabric):
        assert "rank 1" in text and "never awaited all_reduce (call 0)" in text, text


@fabrics
def test_a_receive_from_anyone_ends_when_everyone_else_has_left(fabric: str) -> None:
    async def main(group: Group) -> None:
        await group.barrier()
        if group.rank == 0:
            for _ in range(2):
                assert await group.recv_object() in (1, 2)
            with pytest.raises(aiocoll.PeerLostError, match="left"):
                await group.recv_object()
        else:
            await group.send_object(group.rank, 0)

    run(3, main, fabric)


@fabrics
def test_a_refusal_that_ends_a_program_is_heard_before_its_end(fabric: str) -> None:
    async def main(group: Group) -> str:
        with pytest.raises(aiocoll.UsageError) as info:
            await group.scatter([1, 2] if group.rank == 0 else None)
        error = ValueError("out of the program")
        group._endpoint.failure.program_failed(group._scope, error, everything=True)  # what leaving with it does
        await asyncio.sleep(0)
        return str(info.value)

    for text in run(4, main, fabric):
        assert "2 parts for 4 ranks" in text, text
