"""Objects with large arrays: sent from where the arrays are, whole, and changed by nobody afterwards.

The rule: the arrays of an object differ in size, so that their pieces begin and end anywhere in what travels.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from aiocoll import Group
from tests.group.cases import on_every_fabric, ranks, same, values


def things(rank: int, count: int = 300_007) -> dict[str, Any]:
    """Arrays of several layouts among small data."""
    whole = values(rank, (count,))
    return {
        "name": f"of rank {rank}",
        "whole": whole,
        "backwards": whole[::-3],
        "columns": np.asfortranarray(values(rank + 1, (count // 100, 7))),
        "few": values(rank, (5,)),
        "bytes": bytes(range(251)) * (rank + 600),
        "empty": values(rank, (0,)),
        "many": [values(rank + each, (20_000 + each,)) for each in range(12)],
    }


def equal(found: Any, wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys() and found["name"] == wanted["name"] and found["bytes"] == wanted["bytes"]
    for name in ("whole", "backwards", "columns", "few", "empty"):
        same(found[name], wanted[name])
    for one, other in zip(found["many"], wanted["many"], strict=True):
        same(one, other)


@on_every_fabric
@pytest.mark.parametrize("early", [False, True])
def test_they_arrive_as_they_were(fabric: str, early: bool) -> None:
    async def main(group: Group) -> None:
        other = 1 - group.rank
        mine = things(group.rank)
        receive = group.recv_object(other) if early else None
        await group.send_object(mine, other)
        for array in (mine["whole"], mine["columns"], *mine["many"]):
            array[:] = -1  # the send is over
        equal(await (receive or group.recv_object(other)), things(other))
        await group.send_object(things(group.rank), group.rank)
        equal(await group.recv_object(group.rank), things(group.rank))

    ranks(2, main, fabric)


@pytest.mark.parametrize("fabric", ["tcp", "shm"])
def test_more_than_may_lie_unreceived_and_cancelled_on_its_way(fabric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIOCOLL_UNRECEIVED_BYTES", str(1 << 20))

    async def main(group: Group) -> None:
        if group.rank == 0:
            await group.send_object(things(0), 1)
            mine = things(0)
            for tag in (1, 2):  # one that is about to go, and one that has begun
                task = asyncio.ensure_future(group.send_object(mine, 1, tag))
                if tag == 2:
                    await group.recv(1)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            mine["whole"][:] = -1
            await group.send(0, 1, tag=9)
        else:
            equal(await group.recv_object(0), things(0))
            receive = asyncio.ensure_future(group.recv_object(0, tag=2))
            await group.send(1, 0)
            await group.recv(0, tag=9)
            equal(await receive, things(0))
            equal(await group.recv_object(0, tag=1), things(0))

    ranks(2, main, fabric)


@on_every_fabric
def test_buffered_it_may_be_changed_when_the_call_is_made(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            mine = things(0)
            sends = [group.send_object(mine, 1, synchronous=True, buffered=True) for _ in range(2)]
            mine["whole"][:] = -1
            await asyncio.gather(*sends)
        else:
            for _ in range(2):
                equal(await group.recv_object(0), things(0))

    ranks(2, main, fabric)


def test_a_transport_that_knows_no_ropes_gets_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiocoll.transport.inproc import InprocLink

    given, submit = [], InprocLink.submit

    def noting(self: InprocLink, kind: int, group: int, call: int, step: int, meta: bytes, payload: Any) -> Any:
        given.append(type(payload))
        return submit(self, kind, group, call, step, meta, payload)

    monkeypatch.setattr(InprocLink, "submit", noting)
    monkeypatch.setattr(InprocLink, "gathers", False)

    async def main(group: Group) -> None:
        if group.rank == 0:
            await group.send_object(things(0), 1)
        else:
            equal(await group.recv_object(0), things(0))

    ranks(2, main, "inproc")
    assert memoryview in given and {each.__name__ for each in given} <= {"memoryview", "NoneType", "bytes"}
