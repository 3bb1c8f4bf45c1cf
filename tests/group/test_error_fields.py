"""What every error says beside its text, where it is raised out of a call: of whom, which call, who is missing, why.

The rule: the same questions have the same answers on every fabric, and on every rank that raises.
"""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import numpy as np
import pytest

from aiocoll import (
    CollectiveTimeoutError,
    Group,
    GroupBrokenError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    SerializationError,
    UsageError,
)
from aiocoll.errors import AiocollError
from aiocoll.sim import Crash
from tests.group.cases import on_every_fabric, outcome, ranks


def says(error: Any, kind: type[AiocollError], collective: str, call: int | None, **more: Any) -> bool:
    """Whether an error answers as it should; and goes on doing so elsewhere."""
    for each in (error, pickle.loads(pickle.dumps(error))):
        found = {"collective": each.collective, "call": each.call} | {name: getattr(each, name) for name in more}
        assert type(each) is kind and found == {"collective": collective, "call": call} | more, (repr(each), found)
    return True


@on_every_fabric
def test_a_refused_call_names_the_rank_that_refused_on_all_ranks(fabric: str) -> None:
    async def main(group: Group) -> None:
        await group.barrier()
        error = await outcome(group.all_reduce(1, "sun" if group.rank == 1 else "sum"))
        assert says(error, UsageError, "all_reduce", 1, rank=1, world_rank=1, group="world", missing=())
        named = await outcome(group.broadcast(1, root=7 if group.rank == 2 else 0, name="n"))
        if group.rank == 2 or isinstance(named, UsageError):  # the root waits for nobody, rank 1 perhaps for the root
            assert says(named, UsageError, "broadcast", None, rank=2)
        error = await outcome(group.all_gather_object(object() if group.rank == 2 else 1))
        assert says(error, SerializationError, "all_gather_object", 2, rank=2, world_rank=2)
        late = await outcome(group.barrier(timeout=-1 if group.rank == 0 else 1.0))
        assert says(late, UsageError, "barrier", 3, rank=0)
        assert await group.all_reduce(1) == 3

    ranks(3, main, fabric)


@on_every_fabric
def test_a_function_that_raises_is_the_cause_where_it_raised(fabric: str) -> None:
    import aiocoll

    async def main(group: Group) -> None:
        def fold(left: Any, right: Any) -> Any:
            raise KeyError("mine")

        error = await outcome(group.all_reduce(np.arange(3.0), aiocoll.op(fold)))
        assert says(error, UsageError, "all_reduce", 0, group="world") and "KeyError" in str(error)
        assert error.rank in (0, 1)
        if error.rank == group.rank:
            assert isinstance(error.cause, KeyError) and error.__cause__ is error.cause

    ranks(2, main, fabric)


@on_every_fabric
def test_messages_name_the_call_and_have_no_number(fabric: str) -> None:
    async def main(group: Group) -> None:
        me = group.rank
        other = 1 - me
        assert says(await outcome(group.send(1, 9)), UsageError, "send", None, rank=me, group="world")
        assert says(await outcome(group.subgroup([])), UsageError, "subgroup", None, rank=me, group="world")
        late = await outcome(group.recv(other, tag=5, timeout=0.01))
        assert says(late, CollectiveTimeoutError, "recv", None, missing=(other,), rank=other, world_rank=other)
        late = await outcome(group.recv_object(timeout=0.01))
        assert says(late, CollectiveTimeoutError, "recv_object", None, missing=(), rank=None, group="world")
        await group.send(np.arange(3.0), other)
        small = await outcome(group.recv(other, out=np.zeros(2)))
        assert says(small, MismatchError, "recv", None, rank=other, world_rank=other, group="world")
        assert says(await outcome(group.send_object(object(), other)), SerializationError, "send_object", None, rank=me)
        assert says(await outcome(group.recv_object(other)), SerializationError, "recv_object", None, rank=other)
        assert group.broken is None

    ranks(2, main, fabric)


@on_every_fabric
def test_a_mismatch_speaks_of_the_call_in_which_ranks_differed(fabric: str) -> None:
    async def main(group: Group) -> None:
        await group.barrier()
        part = await group.split(0, key=-group.rank)
        assert part is not None
        mine = "all_gather" if group.rank == 2 else "all_reduce"
        error = await outcome(getattr(part, mine)(1.5))
        assert says(error, MismatchError, mine, 0, group=part.name, missing=())
        assert error.rank in range(3) and error.world_rank == part.ranks[error.rank]
        later = await outcome(part.barrier())
        assert says(later, GroupBrokenError, "barrier", later.call, rank=error.rank, world_rank=error.world_rank)
        assert says(later.cause, MismatchError, mine, 0) and later.cause is part.broken
        await part.close()

    ranks(3, main, fabric)


@on_every_fabric
def test_a_timeout_names_the_missing_and_what_follows_has_it_as_its_cause(fabric: str) -> None:
    async def main(group: Group) -> None:
        async with await group.dup() as aside:
            if group.rank == 1:
                await aside.barrier()
            else:
                error = await outcome(group.all_gather(1, timeout=0.05))
                kinds = CollectiveTimeoutError, GroupBrokenError  # of two deadlines one is the first
                assert isinstance(error, kinds)
                assert says(error, type(error), "all_gather", 1, group="world", missing=(1,), rank=1, world_rank=1)
                await aside.barrier()
            later = await outcome(group.all_reduce(1))
            assert says(later, GroupBrokenError, "all_reduce", later.call, missing=(1,), rank=1)
            assert says(later.cause, CollectiveTimeoutError, "all_gather", 1, missing=(1,), group="world")
            assert later.cause is group.broken and later.cause.elapsed >= 0.05

    ranks(3, main, fabric)


@pytest.mark.parametrize("fabric", ["inproc", "tcp", "shm"])
def test_a_cancelled_call_names_who_cancelled_it(fabric: str) -> None:
    async def main(group: Group) -> None:
        async with await group.dup() as aside:
            if group.rank == 1:
                task = asyncio.ensure_future(group.barrier())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            await aside.barrier()
            error = await outcome(group.all_reduce(1))
            assert says(error, GroupBrokenError, "all_reduce", error.call, rank=1, world_rank=1, group="world")
            assert says(error.cause, GroupBrokenError, "barrier", 1, rank=1, world_rank=1, cause=None)

    ranks(3, main, fabric)


@pytest.mark.parametrize("fabric", ["inproc", "tcp", "shm"])
def test_one_whose_program_raised_is_named(fabric: str) -> None:
    async def main(group: Group) -> None:
        part = await group.dup()
        if group.rank == 1:
            with pytest.raises(LookupError):
                async with part:
                    raise LookupError("nothing there")
            cause = part.broken.cause if isinstance(part.broken, GroupBrokenError) else None
            assert isinstance(cause, LookupError)
        else:
            error = await outcome(part.barrier())
            assert says(error, GroupBrokenError, "barrier", 0, rank=1, world_rank=1, group=part.name)
            assert "nothing there" in str(error)
        await part.close()
        closed = await outcome(part.barrier())
        assert says(closed, NotInitializedError, "barrier", closed.call, group=part.name)

    ranks(2, main, fabric)


@pytest.mark.parametrize("frames", [3, 9, 27])
def test_a_loss_names_the_dead_in_the_group_and_in_the_world(frames: int) -> None:
    async def main(group: Group) -> None:
        some = await group.subgroup([3, 2, 0]) if group.rank != 1 else None
        number = 0
        while not isinstance(error := await outcome(group.all_reduce(np.ones(3))), Exception):
            number += 1
        where = {"rank": 2, "world_rank": 2, "group": "world", "missing": (), "host": error.host, "pid": error.pid}
        assert says(error, PeerLostError, "all_reduce", number, operation=f"all_reduce (call {number})", **where)
        later = await outcome(group.recv(0))
        assert says(later, GroupBrokenError, "recv", None, rank=2, world_rank=2, group="world")
        assert says(later.cause, PeerLostError, "", None, **where)
        if some is not None:
            first = await outcome(some.all_gather(1))
            assert says(first, PeerLostError, "all_gather", 0, rank=1, world_rank=2, group=some.name)
            await some.close()

    ranks(4, main, "sim", faults=Crash(2, frames=frames))
