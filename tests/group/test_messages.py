"""Point to point: order, tags, any source, oneself, buffers that may be changed, withdrawal, what does not fit.

The rule: messages of one (source, tag) arrive in the order of the sends; nothing depends on their size.
"""

from __future__ import annotations

import asyncio
import gc
import math
from typing import Any

import numpy as np
import pytest

from aiocoll import CollectiveTimeoutError, Group, MismatchError, SerializationError
from tests.group.cases import MOVABLE, for_every_size, layouts, on_every_fabric, outcome, ranks, same, values

BIG = 80 << 20  # more than may lie unreceived


@on_every_fabric
@for_every_size
def test_every_dtype_and_layout_round_the_ring_and_to_oneself(fabric: str, size: int) -> None:
    async def main(group: Group) -> None:
        ahead, behind = (group.rank + 1) % size, (group.rank - 1) % size
        for dtype in MOVABLE:
            await group.send(values(group.rank, (2, 3), dtype), ahead)
            await group.send(values(group.rank, (), dtype), group.rank, tag=-5)
            same(await group.recv(behind), values(behind, (2, 3), dtype))
            same(await group.recv(group.rank, tag=-5), values(group.rank, (), dtype))
        for x in layouts(values(group.rank, (3, 4))).values():
            await group.send(x, ahead)
            same(await group.recv(behind), values(behind, (3, 4)))
        big = values(group.rank, (400_000,))[::-2]
        await group.send(big, ahead)
        same(await group.recv(behind), values(behind, (400_000,))[::-2])

    ranks(size, main, fabric)


@on_every_fabric
def test_messages_of_one_tag_stay_in_order_and_tags_do_not_block_each_other(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            for number in range(30):
                await group.send(np.full(1 + 5000 * (number % 3), number), 1, tag=number % 2)
        else:
            odd = [await group.recv(0, tag=1) for _ in range(15)]
            even = await asyncio.gather(*[group.recv(0, tag=0) for _ in range(15)])
            assert [one[0] for one in odd] == list(range(1, 30, 2))
            assert [one[0] for one in even] == list(range(0, 30, 2))

    ranks(2, main, fabric)


@on_every_fabric
def test_a_send_is_made_when_it_is_called_whoever_awaits_first(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            first, second = group.send(1, 1), group.send(2, 1)
            await second
            await first
        else:
            first, second = group.recv(0), group.recv(0)
            assert await second == 2
            assert await first == 1

    ranks(2, main, fabric)


@on_every_fabric
def test_receive_from_anyone_says_who_in_ranks_of_the_group(fabric: str) -> None:
    async def main(group: Group) -> None:
        pair = await group.subgroup([3, 1, 2]) if group.rank else None
        for each in (group, pair):
            if each is None:
                continue
            if each.rank == 0:
                messages = await asyncio.gather(*[each.recv_message() for _ in range(2 * (each.size - 1))])
                assert sorted(message.source for message in messages) == sorted([*range(1, each.size)] * 2)
                for message in messages:
                    assert message.data == 10 * message.source + message.tag
                    assert message._fields == ("data", "source", "tag")
                await each.barrier()
                assert await each.recv(None, tag=7) == 7
                with pytest.raises(CollectiveTimeoutError):
                    await each.recv_message(tag=3, timeout=0)
            else:
                for tag in (1, 2):
                    await each.send(10 * each.rank + tag, 0, tag)
                await each.barrier()
                if each.rank == 1:
                    await each.send(7, 0, tag=7)
            await each.barrier()
        if pair is not None:
            await pair.close()

    ranks(4, main, fabric)


@on_every_fabric
def test_objects_from_anyone_say_who_and_which_tag(fabric: str) -> None:
    async def main(group: Group) -> None:
        pair = await group.subgroup([2, 0, 1])
        if pair.rank == 0:
            await pair.send(np.arange(3.0), 0, 4)  # arrays are matched apart
            await pair.send_object("mine", 0, 9)
            await pair.send_object((1, 2), 0, 3)
            assert await pair.recv_object_message(0, 3) == ((1, 2), 0, 3)
            messages = [await pair.recv_object_message() for _ in range(3)]
            assert sorted(messages, key=lambda each: each.tag) == [
                ({"of": 1}, 1, 1), ({"of": 2}, 2, 2), ("mine", 0, 9),
            ]  # fmt: skip
            assert (await pair.recv_message()).tag == 4
        else:
            await pair.send_object({"of": pair.rank}, 0, pair.rank)
        await pair.close()

    ranks(3, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("count", [1, 100_000, pytest.param(BIG // 8, marks=pytest.mark.slow)])
def test_everybody_sends_first(fabric: str, size: int, count: int) -> None:
    if count * 8 == BIG and (fabric == "sim" or size > 2):
        count = 1_000_000

    async def main(group: Group) -> None:
        x = np.full(count, float(group.rank))
        sending = asyncio.ensure_future(group.send(x, (group.rank + 1) % size))
        if count * 8 < 64 << 20:
            await sending  # never waits for the receiver's call
            x[:] = -1.0  # and this is the caller's again
        got = await group.recv((group.rank - 1) % size)
        assert got.shape == (count,) and (got == (group.rank - 1) % size).all()
        await sending

    ranks(size, main, fabric)


@on_every_fabric
def test_beyond_the_bound_a_send_waits_and_a_timeout_names_who_waits_for_whom(fabric: str) -> None:
    async def main(group: Group) -> None:
        other = 1 - group.rank
        x = np.zeros(BIG // 8)
        error = await outcome(group.send(x, other, timeout=0.2))
        assert type(error) is CollectiveTimeoutError
        assert f"rank {group.rank} waits for rank {other}" in str(error), error
        if fabric == "sim":  # on a busy machine an answer may come too late
            assert "rank 0 waits for rank 1" in str(error) and "rank 1 waits for rank 0" in str(error), error
        assert error.missing == (other,) and group.broken is None
        await group.barrier()
        await group.send(5, other)
        assert await group.recv(other) == 5

    ranks(2, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("count", [4, 300_000])
def test_a_cancelled_receive_leaves_its_out_and_the_message_for_the_next(fabric: str, count: int) -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            await group.recv(1, tag=1)
            await group.send(values(0, (count,)), 1)
            return
        out = np.full(count, 7.0)
        first = asyncio.ensure_future(group.recv(0, out=out))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await group.recv(out=out)
        group.recv(0, out=out).close()  # made and never awaited
        await group.send(0, 0, tag=1)
        same(await group.recv(0), values(0, (count,)))
        assert (out == 7.0).all() and group.broken is None

    ranks(2, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("steps", range(12))
def test_cancelled_at_any_moment_a_receive_gives_back_the_message_whole(fabric: str, steps: int) -> None:
    async def main(group: Group) -> None:
        count = 500_000
        if group.rank == 0:
            await group.send(values(0, (count,)), 1)
            await group.send(-1.0, 1)
            await group.barrier()
            return
        out = np.full(2 * count, 7.0)
        receive = asyncio.ensure_future(group.recv(0, out=out[::2]))
        for _ in range(steps):
            await asyncio.sleep(0)
        receive.cancel()
        if isinstance(await outcome_of_task(receive), asyncio.CancelledError):
            assert (out == 7.0).all()
            same(await group.recv(0), values(0, (count,)))
        else:
            np.testing.assert_array_equal(out[::2], values(0, (count,)))
        assert await group.recv(0) == -1.0
        await group.barrier()

    ranks(2, main, fabric)


async def outcome_of_task(task: asyncio.Future[Any]) -> Any:
    await asyncio.wait([task])
    return asyncio.CancelledError() if task.cancelled() else task.exception()


@on_every_fabric
@pytest.mark.parametrize("count", [10, 500_000, pytest.param(BIG // 8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_cancelled_send_arrives_whole_or_not_at_all(fabric: str, count: int, steps: int) -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            x = values(0, (count,))
            sending = asyncio.ensure_future(group.send(x, 1))
            for _ in range(steps):
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait([sending])
            x[:] = -1.0
            await group.send(5.0, 1)
        else:
            first = await group.recv(0)
            if first.shape:
                same(first, values(0, (count,)))
                first = await group.recv(0)
            assert first == 5.0
        await group.barrier()

    ranks(2, main, fabric)


@on_every_fabric
@pytest.mark.parametrize("count", [4, BIG // 8])
def test_a_message_that_does_not_fit_is_consumed(fabric: str, count: int) -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            error = await outcome(group.send(np.zeros(count), 1))
            await group.send(np.ones(3), 1)
            await group.send(np.ones(3), 1)
            assert count == 4 or type(error) is MismatchError, error
        else:
            out = np.zeros((3, 1))
            for wrong in (out, np.zeros(3, np.int64)):
                error = await outcome(group.recv(0, out=wrong))
                assert type(error) is MismatchError and "shape" in str(error) and not wrong.any()
            same(await group.recv(0, out=out[:, 0]), np.ones(3))
        assert await group.all_reduce(1) == 2 and group.broken is None

    ranks(2, main, fabric)


@on_every_fabric
def test_a_late_receive_is_withdrawn_and_breaks_nothing(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 1:
            out = np.full(2, 7.0)
            late = (group.recv(0, out=out, timeout=0.05), group.recv_object(0, timeout=0.05), group.recv(timeout=0))
            for call in late:
                error = await outcome(call)
                assert type(error) is CollectiveTimeoutError and isinstance(error, TimeoutError)
                assert "recv from" in str(error) and "withdrawn" in str(error)
            assert error.missing == () and (out == 7.0).all()
            error = await outcome(group.recv(0, tag=4, timeout=0.01))
            assert error.missing == (0,) and "tag 4" in str(error)
        await group.barrier()
        if group.rank == 0:
            await group.send(np.ones(2), 1)
        else:
            same(await group.recv(0, timeout=math.inf), np.ones(2))
        assert group.broken is None

    ranks(2, main, fabric)


@on_every_fabric
def test_arrays_and_objects_are_matched_apart(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            await group.send_object({"a": (1, None)}, 1)
            await group.send(1.5, 1)
            error = await outcome(group.send_object([object()], 1))
            assert type(error) is SerializationError and "asdict" in str(error)
            await group.send_object(np.arange(3), 1)
        else:
            assert await group.recv(0) == 1.5
            assert await group.recv_object(0) == {"a": (1, None)}
            error = await outcome(group.recv_object())
            assert type(error) is SerializationError and "rank 0" in str(error)
            same(await group.recv_object(0), np.arange(3))
        assert group.broken is None

    ranks(2, main, fabric)


@on_every_fabric
def test_f10_a_started_receive_survives_without_a_reference(fabric: str) -> None:
    async def main(group: Group) -> None:
        out = np.zeros(3)
        if group.rank == 1:
            tasks = {asyncio.ensure_future(group.recv(0, out=out))}
            gc.collect()
            await group.barrier()
            await tasks.pop()
            same(out, np.arange(3.0))
        else:
            await group.barrier()
            await group.send(np.arange(3.0), 1)

    ranks(2, main, fabric)


@on_every_fabric
def test_unreceived_messages_are_counted_and_many_small_ones_come_all(fabric: str) -> None:
    async def main(group: Group) -> None:
        if group.rank == 0:
            for number in range(2000):
                await group.send(number, 1)
        await group.barrier()
        if group.rank == 1:
            assert group.statistics()["unreceived_bytes"] > 2000 * 8
            assert [int(await group.recv(0)) for _ in range(2000)] == list(range(2000))
            assert group.statistics()["unreceived_bytes"] == 0

    ranks(2, main, fabric)


@on_every_fabric
def test_64_mib_go_out_without_a_receive_again_and_again_and_no_more(fabric: str) -> None:
    piece = values(3, (1 << 20,), np.uint8)

    async def main(group: Group) -> None:
        for _ in range(3):
            if group.rank == 0:
                for _ in range(64):
                    await group.send(piece, 1, timeout=20)
                with pytest.raises(CollectiveTimeoutError, match="rank 0 waits for rank 1"):
                    await group.send(piece, 1, timeout=0.01)
            await group.barrier()
            if group.rank == 1:
                for _ in range(64):
                    same(await group.recv(0), piece)
            await group.barrier()

    ranks(2, main, fabric)
