"""One rank of scripts/tune.py: does what it is told on standard input, answers with seconds.

    python scripts/tune_rank.py RANK SIZE PORT TRANSPORT

The rule: public API only. An algorithm is forced as users force it, by AIOCOLL_ALGORITHM, in a world of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import aiocoll.sync


def call(group: Any, collective: str, nbytes: int) -> Callable[[], object]:
    """One call of ``nbytes`` as aiocoll.algorithms.MEASURES counts them, in place where the collective can be."""
    rank, size = group.rank, group.size
    x = np.full(max(nbytes // 4, 1), rank + 1, np.float32)
    if collective == "barrier":
        return lambda: group.barrier()
    if collective == "all_reduce":
        return lambda: group.all_reduce(x, out=x)
    if collective == "reduce":
        return lambda: group.reduce(x)
    if collective in ("scan", "exscan"):
        return lambda: getattr(group, collective)(x)
    if collective == "broadcast":
        return lambda: group.broadcast(x, 0, out=None if rank == 0 else x)
    if collective == "all_gather":
        mine, everything = x[: len(x) // size].copy(), np.empty(len(x) // size * size, np.float32)
        return lambda: group.all_gather(mine, out=everything)
    if collective == "reduce_scatter":
        block = np.empty_like(np.array_split(x, size)[rank])
        return lambda: group.reduce_scatter(x, out=block)
    raise SystemExit(f"tune_rank.py knows no {collective!r}")


def main(rank: int, size: int, port: int, transport: str) -> None:
    """Serves orders until standard input ends: open a world, run a block, close all worlds."""
    worlds: dict[str, Any] = {}
    for line in sys.stdin:
        order = json.loads(line)
        if "close" in order:
            for world in worlds.values():
                world.close()
            worlds.clear()
            print(json.dumps(0.0), flush=True)
            continue
        forced = order["algorithm"]
        if forced not in worlds:
            os.environ["AIOCOLL_ALGORITHM"] = forced
            where = f"tcp://127.0.0.1:{port}"
            name = forced.replace(":", "-")
            worlds[forced] = aiocoll.sync.connect(where, rank=rank, size=size, transport=transport, group_name=name)
        group = worlds[forced]
        run = call(group, forced.partition(":")[0], order["nbytes"])
        for _ in range(order["warm"]):
            run()
        group.barrier()
        start = time.perf_counter()
        for _ in range(order["calls"]):
            run()
        print(json.dumps((time.perf_counter() - start) / order["calls"]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
