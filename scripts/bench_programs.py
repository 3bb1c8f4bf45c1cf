"""Ranks of the benchmark's rows that are not about calls back to back: waiting, stalls, memory.

    bench_programs.py WHAT RANK SIZE PORT SECONDS          each rank prints a line of JSON

The rule: a program measures itself, and nothing else runs in the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MIB = 1 << 20
LATE_SECONDS = 0.02
LATE_TIMES = 20


class Program:
    """One rank: where it joins, and what it prints."""

    def __init__(self, rank: int, size: int, port: int, seconds: float) -> None:
        self.rank, self.size, self.seconds, self.url = rank, size, seconds, f"tcp://127.0.0.1:{port}"

    def connected(self) -> Any:
        """aiocoll's blocking group."""
        import aiocoll.sync

        return aiocoll.sync.connect(self.url, rank=self.rank, size=self.size)

    def waiting(self, call: Callable[[], Any], late: Callable[[], Any]) -> dict[str, float]:
        """Rank 0 comes ``seconds`` late; the others say what share of a core they used until then."""
        if self.rank == 0:
            time.sleep(self.seconds)
            late()
            return {}
        wall, used = time.perf_counter(), time.process_time()
        call()
        return {"share": (time.process_time() - used) / (time.perf_counter() - wall)}

    def wait_recv(self) -> dict[str, float]:
        """Blocking recv."""
        with self.connected() as group:
            group.barrier()
            x = np.arange(4.0)
            return self.waiting(lambda: group.recv(0), lambda: [group.send(x, n) for n in range(1, self.size)])

    def wait_barrier(self) -> dict[str, float]:
        """Blocking barrier."""
        with self.connected() as group:
            group.barrier()
            return self.waiting(group.barrier, group.barrier)

    def wait_facade(self) -> dict[str, float]:
        """all_reduce of the documented API."""
        import aiocoll.distributed as dist

        dist.init_process_group(None, init_method=self.url, rank=self.rank, world_size=self.size)
        x = np.arange(4.0)
        dist.barrier()
        facts = self.waiting(lambda: dist.all_reduce(x), lambda: dist.all_reduce(x))
        dist.destroy_process_group()
        return facts

    def wait_await(self) -> dict[str, float]:
        """await recv, in a loop that has nothing else to do."""
        return self._run(self._wait_await)

    async def _wait_await(self, group: Any) -> dict[str, float]:
        await group.barrier()
        if self.rank == 0:
            await asyncio.sleep(self.seconds)
            await group.send(np.arange(4.0), 1)
            return {}
        wall, used = time.perf_counter(), time.process_time()
        await group.recv(0)
        return {"share": (time.process_time() - used) / (time.perf_counter() - wall)}

    def stall(self) -> dict[str, float]:
        """How long the loop is kept from another task while a late peer is awaited, next to the same without a peer."""
        return self._run(self._stall)

    async def _stall(self, group: Any) -> dict[str, float]:
        x = np.arange(4.0)
        waits, whole, floors = [], [], []
        for _ in range(LATE_TIMES):
            await group.barrier()
            if self.rank == 0:
                await asyncio.sleep(3 * LATE_SECONDS)
                await group.all_reduce(x)
                continue
            floors.append(await longest_gap(asyncio.sleep(LATE_SECONDS)))
            gap = await longest_gap(group.all_reduce(x))
            waits.append(gap[0])
            whole.append(gap[1])
        if self.rank == 0:
            return {}
        facts = {"longest": max(waits), "median": statistics.median(waits), "by_the_clock": max(whole)}
        return facts | {"idle": max(net for net, _ in floors), "idle_by_the_clock": max(clock for _, clock in floors)}

    def memory(self) -> dict[str, float]:
        """Peak memory of a 1 GiB all_reduce in place, beyond what there was before; and seconds, next to 64 MiB."""
        import aiocoll.distributed as dist
        import aiocoll.sync  # noqa: F401  loaded before memory is measured

        x = np.empty(256 * MIB, dtype=np.float32)
        x.reshape(-1, 256)[:] = np.arange(256) * (self.rank + 1)
        before = memory_kib("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        dist.init_process_group(None, init_method=self.url, rank=self.rank, world_size=self.size)
        dist.all_reduce(x)
        peak = memory_kib("VmHWM")
        share = self.size * (self.size + 1) // 2
        if x[12345] != 12345 % 256 * share or x[-1] != 255 * share:
            raise ArithmeticError("a wrong sum")
        small, large = [], []
        for _ in range(3):
            x[:] = 1
            dist.barrier()
            small += [seconds_of(lambda: dist.all_reduce(x[: 16 * MIB])) for _ in range(8)]
            large.append(seconds_of(lambda: dist.all_reduce(x)))
        dist.destroy_process_group()
        return {"mib": (peak - before) / 1024, "small": statistics.median(small), "large": statistics.median(large)}

    def _run(self, main: Any) -> dict[str, float]:
        import aiocoll

        facts: dict[str, float] = aiocoll.run(main, init_method=self.url, rank=self.rank, size=self.size)
        return facts


async def longest_gap(wait: Any) -> tuple[float, float]:
    """Seconds of the longest gap between two turns of another task while ``wait`` is awaited: without the time in
    which this thread was ready and the kernel let another process run, and by the clock."""
    net, clock = [0.0], [0.0]
    over = False

    async def watch(schedule: int) -> None:
        last, kept = time.perf_counter(), delayed(schedule)
        while not over:
            await asyncio.sleep(0)
            now, later = time.perf_counter(), delayed(schedule)
            clock.append(now - last)
            net.append(now - last - (later - kept))
            last, kept = now, later

    schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    try:
        watcher = asyncio.ensure_future(watch(schedule))
        await asyncio.sleep(0)
        await wait
        over = True
        await watcher
    finally:
        os.close(schedule)
    return max(net), max(clock)


def delayed(schedule: int) -> float:
    """Seconds that this thread has been ready and waiting for a core."""
    return int(os.pread(schedule, 100, 0).split()[1]) * 1e-9


def seconds_of(call: Callable[[], Any]) -> float:
    """Seconds of one call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def memory_kib(name: str) -> int:
    """A line of /proc/self/status; VmRSS and VmHWM count shared pages, too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise KeyError(name)


def main() -> None:
    """Runs one rank."""
    what, rank, size, port, seconds = sys.argv[1:]
    program = Program(int(rank), int(size), int(port), float(seconds))
    print(json.dumps(getattr(program, what)()), flush=True)


if __name__ == "__main__":
    main()
