"""Where the microseconds of one small call go: the time spent below each layer of a blocking all_reduce.

    python3 scripts/bench_where.py [BYTES]     # 4, unless you say otherwise

The rule: one layer is timed at a time, in turns with all others and with none, so that the watches do not add up; a
layer's own time is what lies below it less what lies below the next.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from environment import ROOT, clean_environment, prepare

CALLS, ROUNDS = 2000, 15
WATCHED = (
    ("aiocoll.sync.group", "SyncGroup", "all_reduce_again", "below aiocoll.distributed"),
    ("aiocoll.group.reductions", "Reductions", "all_reduce_again", "of that: finding what is ready, the call number"),
    ("aiocoll.endpoint.channel", "Channel", "combine", "the algorithm's verb: send, wait and fold"),
    ("aiocoll.transport.shm.outlane", "Outlane", "post", "of that: into the slot, fence, does the peer sleep"),
    ("aiocoll.transport.shm.inlane", "Inlane", "fetch", "of that: looking until the peer's slot is there"),
    ("aiocoll.transport.shm.inlane", "Inlane", "took", "of that: giving the slot back"),
)
"""What is watched, from the outside in."""


def main() -> None:
    if "RANK" not in os.environ:
        python = prepare()
        command = [str(python), "-m", "aiocoll", "run", "-n", "2", "--ranks", "0", __file__, *sys.argv[1:]]
        variables = clean_environment() | {"PYTHONPATH": str(ROOT)}
        raise SystemExit(subprocess.run(command, cwd=ROOT, env=variables).returncode)
    import importlib

    import numpy as np

    import aiocoll.distributed as dist

    dist.init_process_group("auto", init_method="env://")
    nbytes = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    x = np.zeros(max(nbytes // 4, 1), np.float32)
    runs: list[tuple[str, Callable[[], tuple[float, float]]]] = [("", lambda: (_loop(dist, x), 0.0))]
    for module, owner, name, what in WATCHED:
        method_of = getattr(importlib.import_module(module), owner)
        runs.append((what, _watch(method_of, name, lambda: _loop(dist, x))))
    found: dict[str, list[tuple[float, float]]] = {what: [] for what, _ in runs}
    for _ in range(ROUNDS):
        for what, run in runs:
            found[what].append(run())
    if dist.get_rank() == 0:
        whole = statistics.median(total for total, _ in found[""])
        how = f"2 ranks, blocking: {whole:.2f} µs a call (median of {ROUNDS} x {CALLS})"
        print(f"all_reduce of {x.nbytes} bytes, {how}")
        for what, times in found.items():
            if what:
                print(f"    {statistics.median(inside for _, inside in times):6.2f} µs  {what}")
    dist.destroy_process_group()


def _loop(dist: Any, x: Any) -> float:
    """Microseconds per call."""
    for _ in range(20):
        dist.all_reduce(x)
    began = time.perf_counter()
    for _ in range(CALLS):
        dist.all_reduce(x)
    return (time.perf_counter() - began) / CALLS * 1e6


def _watch(owner: Any, name: str, run: Callable[[], float]) -> Callable[[], tuple[float, float]]:
    """Runs with a watch on one method: (microseconds per call, those inside the method less the watch's own)."""
    plain = getattr(owner, name)
    inside = 0.0
    clock = time.perf_counter

    def timed(*arguments: Any) -> Any:
        nonlocal inside
        began = clock()
        try:
            return plain(*arguments)
        finally:
            inside += clock() - began

    def watching() -> tuple[float, float]:
        nonlocal inside
        setattr(owner, name, timed)
        try:
            inside = 0.0
            total = run()
        finally:
            setattr(owner, name, plain)
        began = clock()
        for _ in range(CALLS):
            clock()
        return total, (inside - (clock() - began)) / (CALLS + 20) * 1e6

    return watching


if __name__ == "__main__":
    main()
