"""The simulated loop: time jumps, order within a rank holds, order among ranks is the seed's, deadlock is found."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable

import pytest

from aiocoll.errors import DeadlockError
from aiocoll.sim.loop import SimLoop, rank_running


def simulate(main: Callable[[], Awaitable[object]], seed: int = 0, **options: object) -> tuple[object, SimLoop]:
    loop = SimLoop(seed, **options)
    try:
        return loop.run_until_complete(main()), loop
    finally:
        loop.close()


def as_rank(rank: int, coroutine: Awaitable[object]) -> asyncio.Task[object]:
    context = contextvars.copy_context()
    context.run(rank_running.set, rank)
    return asyncio.get_running_loop().create_task(coroutine, context=context)


def test_time_jumps_and_is_exact() -> None:
    async def main() -> list[float]:
        loop, seen = asyncio.get_running_loop(), []
        for wait in (1e-9, 0.1, 1e6, 0.3):
            await asyncio.sleep(wait)
            seen.append(loop.time())
        return seen

    assert simulate(main)[0] == [1e-9, 1e-9 + 0.1, 1e-9 + 0.1 + 1e6, 1e-9 + 0.1 + 1e6 + 0.3]


def interleaving(seed: int) -> list[tuple[int, int]]:
    async def main() -> list[tuple[int, int]]:
        seen = []

        async def rank(me: int) -> None:
            for step in range(5):
                seen.append((me, step))
                await asyncio.sleep(0)

        await asyncio.gather(*(as_rank(me, rank(me)) for me in range(4)))
        return seen

    return simulate(main, seed)[0]


def test_equal_seeds_give_equal_runs_and_others_differ() -> None:
    assert interleaving(3) == interleaving(3)
    assert len({tuple(interleaving(seed)) for seed in range(20)}) == 20


def test_every_order_of_ranks_comes_up() -> None:
    assert len({tuple(me for me, step in interleaving(seed) if step == 0) for seed in range(400)}) == 24


def test_within_a_rank_callbacks_keep_their_order() -> None:
    async def main() -> dict[int, list[int]]:
        seen: dict[int, list[int]] = {}

        async def rank(me: int) -> None:
            mine = seen.setdefault(me, [])
            for n in range(20):
                asyncio.get_running_loop().call_soon(mine.append, n)
            tasks = [asyncio.create_task(asyncio.sleep(0, mine.append(100 + n))) for n in range(5)]
            await asyncio.gather(*tasks)

        await asyncio.gather(*(as_rank(me, rank(me)) for me in range(3)))
        return seen

    for seed in range(30):
        for mine in simulate(main, seed)[0].values():
            assert [n for n in mine if n < 100] == list(range(20))
            assert [n for n in mine if n >= 100] == list(range(100, 105))


def test_a_deadlock_is_found_at_once() -> None:
    async def main() -> None:
        await asyncio.sleep(5)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match="t=5 s"):
        simulate(main)


def test_a_timer_that_never_fires_hides_no_deadlock() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_at(float("inf"), print)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError):
        simulate(main)


def test_whoever_runs_the_simulation_may_resolve_a_deadlock() -> None:
    stuck: list[asyncio.Future[str]] = []

    async def main() -> str:
        stuck.append(asyncio.get_running_loop().create_future())
        return await stuck[0]

    assert simulate(main, on_deadlock=lambda: stuck[0].set_result("freed"))[0] == "freed"


def test_executors_run_in_place() -> None:
    async def main() -> object:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return await asyncio.to_thread(sum, [1, 2])

    assert simulate(main)[0] == 3


def test_timeouts_work_in_simulated_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().time()

    assert simulate(main)[0] == 3600
