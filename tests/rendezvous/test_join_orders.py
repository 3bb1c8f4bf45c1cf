"""The protocol of joining under random orders: every interleaving of coming, leaving and coming again ends well."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import defaultdict
from typing import Any

import pytest

from aiocoll.errors import RendezvousError, RendezvousTimeoutError
from aiocoll.rendezvous import join, rounds
from aiocoll.store.memory import MemoryStore

joining = sys.modules["aiocoll.rendezvous.join"]


class Jittery(MemoryStore):
    """Lets others run a random number of times around each operation, as a network would."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    async def _call(self, op: str, args: list[Any], timeout: float | None) -> Any:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        value = await super()._call(op, args, timeout)
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        return value


@pytest.mark.parametrize("seed", range(40))
async def test_worlds_one_after_the_other(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "LOOK_SECONDS", 0.2)
    store = Jittery(seed)
    size, times = store.random.choice([2, 3, 4]), 6
    worlds: dict[int, list[int]] = defaultdict(list)

    async def rank(number: int) -> None:
        for _ in range(times):
            if store.random.random() < 0.3:  # as if another process took over this rank
                for key in [key for key in rounds._last_of_this_process if key[2] == number]:
                    del rounds._last_of_this_process[key]
            while True:
                try:
                    meeting = await join(store, rank=number, size=size, timeout=20)
                    break
                except RendezvousTimeoutError:
                    raise
                except RendezvousError:  # the world before has not been left by all
                    await asyncio.sleep(0)
            worlds[meeting.world].append(meeting.rank)
            await meeting.leave()

    async with asyncio.timeout(30):
        await asyncio.gather(*(rank(number) for number in range(size)))
    assert [sorted(ranks) for ranks in worlds.values()] == [list(range(size))] * times
    assert await store.list() == ["aiocoll/world/current"]
    await store.close()


@pytest.mark.parametrize("seed", range(40))
async def test_some_give_up_and_come_again(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "LOOK_SECONDS", 0.1)
    store = Jittery(seed)
    choose = store.random
    first, second, last = choose.choice([(0, 1, 2), (2, 0, 1), (None, None, None), (None, 1, None), (0, None, None)])
    for _ in range(3):

        async def flap(rank: int | None) -> None:
            for _ in range(choose.randrange(4)):
                attempt = asyncio.ensure_future(join(store, rank=rank, size=3, timeout=choose.choice([0.001, 20])))
                for _ in range(choose.randrange(60)):
                    await asyncio.sleep(0)
                attempt.cancel()
                await asyncio.wait([attempt])
                assert attempt.cancelled() or isinstance(attempt.exception(), RendezvousTimeoutError)

        async with asyncio.timeout(30):
            await asyncio.gather(flap(first), flap(second))  # two of three: no world can be complete
            calls = [join(store, rank=rank, size=3, timeout=20) for rank in (first, second, last)]
            meetings = await asyncio.gather(*calls)
        assert sorted(meeting.rank for meeting in meetings) == [0, 1, 2]
        assert len({meeting.world for meeting in meetings}) == 1
        for meeting in meetings:
            await meeting.leave()
        assert await store.list() == ["aiocoll/world/current"]
    await store.close()
