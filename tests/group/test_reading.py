"""Long arrays that are read in the private memory of other ranks: the same bits as by way of shared memory, and never
what lay there afterwards.

The rule: which way is taken is said by the test, not by the clock.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aiocoll import MAX, MEAN, SUM, CollectiveTimeoutError, Group, GroupBrokenError
from aiocoll.algorithms import owner, reading, spread
from aiocoll.endpoint.rivals import Rivals
from aiocoll.transport.shm import private
from aiocoll.transport.shm.private import Private
from tests.group.cases import ranks
from tests.private_reads import private_reads

pytestmark = pytest.mark.timeout(60)
COUNT = 20_011


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of a few KiB go as others of many MiB."""
    monkeypatch.setenv("AIOCOLL_ALGORITHM", "all_reduce:two_shot,reduce:two_shot")
    monkeypatch.setattr(owner, "ASK_BYTES", 8192)
    monkeypatch.setattr(owner, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(spread, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(spread, "READ_BYTES_MIN", 8192)
    monkeypatch.setattr(reading, "STEP_BYTES", 6000)


def choose(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """ "read", "cells", or one after the other."""
    turn = itertools.count()
    monkeypatch.setattr(Rivals, "second", lambda _: way == "read" or (way == "both" and next(turn) % 2 == 1))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return private_reads(monkeypatch)


def of(rank: int, dtype: Any, turn: int = 0, count: int = COUNT) -> Any:
    return (np.random.default_rng([rank, turn]).standard_normal(count) * 100).astype(dtype)


def fold(vectors: list[Any], op: Any) -> Any:
    """From rank 0 on, narrow floats in float32."""
    narrow = vectors[0].dtype.itemsize == 2
    total = vectors[0].astype(np.float32) if narrow else vectors[0].copy()
    for vector in vectors[1:]:
        op.fold(total, vector.astype(total.dtype), total)
    op.finish(total, len(vectors))
    return total.astype(vectors[0].dtype)


@pytest.mark.parametrize(("size", "way"), [(9, "both"), *itertools.product([2, 3, 5], ["read", "cells", "both"])])
def test_the_same_bits_whichever_way(size: int, way: str, reads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, way)

    async def main(group: Group) -> None:
        await group.barrier()  # by now everybody has tried
        for turn, dtype in enumerate([np.float64, np.float16, ml_dtypes.bfloat16, np.complex64]):
            vectors = [of(rank, dtype, turn) for rank in range(size)]
            mine = vectors[group.rank].copy()
            for op in (SUM, MEAN):
                total = fold(vectors, op)
                assert (await group.all_reduce(mine, op)).tobytes() == total.tobytes()
                out = np.empty_like(mine)
                await group.all_reduce(mine, op, out=out)
                assert out.tobytes() == total.tobytes()
                await group.all_reduce(out, op, out=out)
                root = (turn + 1) % size
                found = await group.reduce(mine, op, root)
                assert found is None if group.rank != root else found.tobytes() == total.tobytes()
                block = await group.reduce_scatter(mine, op)
                assert block.tobytes() == np.array_split(total, size)[group.rank].tobytes()
                counts = [0] * (size - 1) + [COUNT]
                block = await group.reduce_scatter(mine, op, counts=counts)
                assert block.tobytes() == (total if group.rank == size - 1 else total[:0]).tobytes()
            assert mine.tobytes() == vectors[group.rank].tobytes()

    ranks(size, main, "shm")
    assert bool(reads) == (way != "cells")


@pytest.mark.parametrize("way", ["read", "in place", "both"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_arrays_in_shared_memory(size: int, way: str, reads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, way)

    async def main(group: Group) -> None:
        await group.barrier()
        count = 20_000 * size
        held = {dtype: group.empty(count, dtype) for dtype in (np.float64, np.float16)}
        for turn in range(6):
            for dtype, mine in held.items():
                vectors = [of(rank, dtype, turn, count) for rank in range(size)]
                total = fold(vectors, SUM)
                mine[:] = vectors[group.rank]
                block = await group.reduce_scatter(mine)
                assert block.tobytes() == np.array_split(total, size)[group.rank].tobytes()
                found = await group.reduce(mine, root=turn % size)
                assert found is None if group.rank != turn % size else found.tobytes() == total.tobytes()
                assert mine.tobytes() == vectors[group.rank].tobytes()
                await group.all_reduce(mine, out=mine)
                assert mine.tobytes() == total.tobytes()
                if turn % 2 and group.rank == 0:  # lies elsewhere on one rank
                    mine = vectors[0].copy()
                else:
                    mine[:] = vectors[group.rank]
                assert (await group.all_reduce(mine)).tobytes() == total.tobytes()

    ranks(size, main, "shm")
    assert bool(reads) == (way != "in place")


@pytest.mark.parametrize("way", ["read", "cells"])
@pytest.mark.parametrize("count", [300, COUNT])
def test_one_rank_has_its_bytes_the_other_way_round(count: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, way)

    async def main(group: Group) -> None:
        await group.barrier()
        for dtype in map(np.dtype, ["f2", "f4", "f8", "c8", "i2", "i8"]):
            vectors = [of(rank, dtype, count=count) for rank in range(2)]
            mine = vectors[group.rank].astype(dtype.newbyteorder()) if group.rank == 0 else vectors[1]
            for op in (SUM, MAX) if dtype.kind != "c" else (SUM,):
                total = fold(vectors, op)
                assert np.array_equal(await group.all_reduce(mine, op), total)
                out = np.empty_like(mine)
                assert np.array_equal(await group.all_reduce(mine, op, out=out), total)
                found = await group.reduce(mine, op)
                assert group.rank or np.array_equal(found, total)
                assert np.array_equal(await group.reduce_scatter(mine, op), np.array_split(total, 2)[group.rank])
                assert np.array_equal(await group.scan(mine, op), total if group.rank else vectors[0])

    ranks(2, main, "shm")


@pytest.mark.parametrize("way", ["read", "cells", "both"])
@pytest.mark.parametrize("size", [2, 4])
def test_moved_whichever_way(size: int, way: str, reads: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, way)

    async def main(group: Group) -> None:
        await group.barrier()
        rank = group.rank
        for turn in range(4):
            sent = [of(each, np.float32, turn, COUNT + 7 * each) for each in range(size)]
            for root in range(size):
                got = await group.broadcast(sent[root] if rank == root else None, root)
                assert got.tobytes() == sent[root].tobytes()
                held = sent[root].copy() if rank == root else np.zeros_like(sent[root])
                await group.broadcast(held, root, out=held)
                assert held.tobytes() == sent[root].tobytes()
            parts = await group.all_gather(sent[rank])
            assert [part.tobytes() for part in parts] == [each.tobytes() for each in sent]
            even = [each[:COUNT] for each in sent]
            table = np.zeros((size, COUNT), np.float32)
            await group.all_gather(even[rank], out=table)
            assert table.tobytes() == np.stack(even).tobytes()
            came = await group.all_to_all([of(rank * size + to, np.float32, turn, COUNT + to) for to in range(size)])
            for source, part in enumerate(came):
                assert part.tobytes() == of(source * size + rank, np.float32, turn, COUNT + rank).tobytes()

    ranks(size, main, "shm")
    assert bool(reads) == (way != "cells")


@pytest.mark.parametrize("size", [2, 3])
def test_calls_that_come_again_now_this_way_and_now_that(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, "both")

    async def main(group: Group) -> None:
        await group.barrier()
        held, table = np.zeros(COUNT), np.zeros((size, COUNT))
        block = np.zeros_like(np.array_split(held, size)[group.rank])
        for turn in range(60):
            whole = [of(rank, np.float64, turn) for rank in range(size)]
            mine, root = whole[group.rank].copy(), turn % size
            held[:] = mine
            await group.broadcast(held, root, out=None if group.rank == root else held)
            assert held.tobytes() == whole[root].tobytes()
            await group.all_gather(mine, out=table)
            assert table.tobytes() == np.stack(whole).tobytes()
            total = fold(whole, SUM)
            await group.reduce_scatter(mine, out=block)
            assert block.tobytes() == np.array_split(total, size)[group.rank].tobytes()
            await group.all_reduce(mine, out=mine)
            assert mine.tobytes() == total.tobytes()

    ranks(size, main, "shm")


@pytest.mark.parametrize("size", [2, 3])
def test_what_is_read_is_counted_as_sent(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(monkeypatch, "read")

    async def main(group: Group) -> Any:
        await group.barrier()
        before = group.statistics()
        x = of(group.rank, np.float64)
        for call in CALLS.values():
            await call(group, x)
        await group.reduce(x, root=1)
        await group.barrier()
        after = group.statistics()
        return [after[way]["shm"] - before[way]["shm"] for way in ("bytes_sent", "bytes_received")]

    moved = np.array(ranks(size, main, "shm"))
    assert abs(int(moved[:, 0].sum() - moved[:, 1].sum())) < 10_000 * size and moved.min() > 3 * 8 * COUNT


CALLS = {
    "all_reduce": lambda group, x: group.all_reduce(x, out=x),
    "reduce_scatter": lambda group, x: group.reduce_scatter(x),
    "broadcast": lambda group, x: group.broadcast(x, 1),
    "all_gather": lambda group, x: group.all_gather(x),
    "all_to_all": lambda group, x: group.all_to_all(x),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("size", [2, 3])
def test_nobody_ends_well_with_what_lay_there_afterwards(call: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 is cancelled at each read that another makes of its memory, which is written over at once: whoever came
    through all the same has what was there before."""
    choose(monkeypatch, "read")
    read, strike, bad = Private.read, {"at": -1, "seen": 0}, float("nan")
    victim: dict[str, Any] = {}

    def struck(self: Private, address: int, into: Any) -> None:
        x = victim.get("x")
        start = 0 if x is None else x.__array_interface__["data"][0]
        if x is not None and start <= address < start + x.nbytes:
            strike["seen"] += 1
            if strike["seen"] == strike["at"]:
                victim["task"].cancel()
                victim["struck"] = True
        read(self, address, into)

    monkeypatch.setattr(Private, "read", struck)

    async def main(group: Group) -> None:
        await group.barrier()
        for at in range(1, 40):
            inner = await group.dup()
            x = of(group.rank, np.float64, at, 6000)
            whole = [of(rank, np.float64, at, 6000) for rank in range(size)]
            if group.rank == 1:
                victim.update(x=x, task=asyncio.current_task(), struck=False)
                strike.update(at=at, seen=0)
            await group.barrier()
            try:
                found = await CALLS[call](inner, x)
            except asyncio.CancelledError:
                assert group.rank == 1
                asyncio.current_task().uncancel()
                x[:] = bad
            except GroupBrokenError as error:
                assert group.rank != 1 and "rank 1" in str(error)
            else:
                check(call, group, found, whole)
            await group.barrier()
            done = not victim["struck"]
            await group.barrier()
            await inner.close()
            if done:
                assert at > 1
                return
        raise AssertionError("a call reads its peers 39 times")

    def check(call: str, group: Group, found: Any, whole: list[Any]) -> None:
        rank, total = group.rank, fold(whole, SUM)
        wanted = {
            "all_reduce": total,
            "reduce_scatter": np.array_split(total, size)[rank],
            "broadcast": whole[1],
            "all_gather": np.concatenate(whole),
            "all_to_all": np.concatenate([np.array_split(each, size)[rank] for each in whole]),
        }[call]
        found = np.concatenate(found) if isinstance(found, list) else found
        assert np.array_equal(found, wanted)

    ranks(size, main, "shm")


def test_memory_that_cannot_be_read_any_more_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose memory is gone has left the call, and is about to say so; if not, there is the deadline."""
    choose(monkeypatch, "read")

    async def main(group: Group) -> None:
        await group.barrier()
        x = of(group.rank, np.float64)
        await group.all_reduce(x)
        await group.barrier()
        if group.rank == 0:
            monkeypatch.setattr(private, "_CALL", refuses)
        await group.barrier()
        with pytest.raises((CollectiveTimeoutError, GroupBrokenError), match="all_reduce"):
            await group.all_reduce(x, timeout=0.3)

    def refuses(*_: object) -> int:
        ctypes.set_errno(errno.EFAULT)
        return -1

    ranks(2, main, "shm")


@pytest.mark.parametrize("nbytes", [8 * COUNT, 2 << 20])
def test_memory_that_the_kernel_gives_nobody_goes_in_cells(
    nbytes: int, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a device maps, or secret memory: its rank reads it like any other, another process cannot."""
    choose(monkeypatch, "read")
    kept = np.frombuffer(bytearray(nbytes), np.float64)
    first, call = private.address_of(kept), private._CALL

    def refuses(pid: int, mine: int, mines: int, theirs: int, others: int, flags: int) -> int:
        spans = (ctypes.c_uint64 * (2 * others)).from_address(theirs)
        if any(first - size < start < first + nbytes for start, size in zip(spans[::2], spans[1::2], strict=True)):
            ctypes.set_errno(errno.EFAULT)
            return -1
        got: int = call(pid, mine, mines, theirs, others, flags)
        return got

    monkeypatch.setattr(private, "_CALL", refuses)

    async def main(group: Group) -> None:
        await group.barrier()
        rank, count = group.rank, len(kept)
        x = kept if rank == 1 else np.empty(count)
        for turn, call in enumerate([*CALLS.values(), lambda group, x: group.gather(x), send]):
            whole = [of(each, np.float64, turn, count) for each in range(2)]
            x[:] = whole[rank]
            found = await call(group, x)
            await group.barrier()
            wanted = [fold(whole, SUM), np.array_split(fold(whole, SUM), 2)[rank], whole[1], np.concatenate(whole)]
            wanted += [np.concatenate([np.array_split(each, 2)[rank] for each in whole]), wanted[3], whole[1]]
            if found is not None:
                assert np.array_equal(np.concatenate(found) if isinstance(found, list) else found, wanted[turn])

    async def send(group: Group, x: Any) -> Any:
        return await group.send(x, 0) if group.rank == 1 else await group.recv(1)

    ranks(2, main, "shm")
    assert reads  # rank 1 reads those of rank 0
