"""How long the event loop is kept away from others while arrays are reduced; run it under ``aiocoll run -n 2``.

    aiocoll run -n 2 scripts/bench_loop.py [--mebibytes 256] [--rounds 3] [--asyncio]

A task that only yields measures the time between its turns. The rule: nothing but the loop's own rounds is in between.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import numpy as np

import aiocoll

BOUND_MS = 20.0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Longest gap between two rounds of the event loop during all_reduce.")
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--asyncio", action="store_true", help="asyncio's own loop instead of uvloop")
    return parser.parse_args()


async def main(group: aiocoll.Group) -> None:
    """Measures, and says it on rank 0 for the rank that was worst."""
    options = arguments()
    x = np.arange(options.mebibytes << 18, dtype=np.float32) % 1009 * (group.rank + 1)
    share = sum(range(1, group.size + 1))
    for number in range(options.rounds):
        gaps: list[float] = []
        over = asyncio.Event()

        async def watch(gaps: list[float] = gaps, over: asyncio.Event = over) -> None:
            last = time.perf_counter()
            while not over.is_set():
                await asyncio.sleep(0)
                now = time.perf_counter()
                gaps.append(now - last)
                last = now

        await group.barrier()
        watcher = asyncio.ensure_future(watch())
        await asyncio.sleep(0)
        begun = time.perf_counter()
        total = await group.all_reduce(x)
        seconds = time.perf_counter() - begun
        over.set()
        await watcher
        if total[1008] != 1008 * share or total[-1] != x[-1] // (group.rank + 1) * share:
            raise SystemExit(f"rank {group.rank}: a wrong sum")
        worst = await group.all_reduce(max(gaps) * 1e3, aiocoll.MAX)
        if group.rank == 0:
            verdict = "met" if worst <= BOUND_MS else "MISSED"
            print(
                f"round {number}: {options.mebibytes} MiB in {seconds:.3f} s, longest gap on any of {group.size} ranks "
                f"{worst:.1f} ms (<= {BOUND_MS:g} ms {verdict})"
            )


if __name__ == "__main__":
    aiocoll.run(main, uvloop=not arguments().asyncio)
