"""Python's -OO takes asserts and docstrings away, and nothing else: the library works without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio
import numpy as np
import aiocoll, aiocoll.distributed, aiocoll.sync
from aiocoll.algorithms import registry
from aiocoll.sim import run

async def main(group):
    x = np.arange(12) + group.rank
    return [
        int((await group.all_reduce(x))[0]),
        int((await group.broadcast(x, 1))[0]),
        len(await group.all_gather(x)),
        len(await group.all_to_all([x] * group.size)),
        int((await group.scan(x))[0]),
        len(await group.reduce_scatter(x)),
        await group.all_gather_object({"rank": group.rank}),
        await group.barrier(),
    ]

results = run(3, main)
[each.idea for siblings in registry().values() for each in siblings.values()]
with aiocoll.sync.connect() as group:
    print(results[2][:6], results[0][6], group.all_reduce(5))
"""


@pytest.mark.parametrize("option", [pytest.param("-O", marks=pytest.mark.slow), "-OO"])
def test_the_collectives_work_without_asserts_and_docstrings(option: str) -> None:
    done = subprocess.run(
        [sys.executable, option, "-W", "error", "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[3, 1, 3, 3, 3, 4] [{'rank': 0}, {'rank': 1}, {'rank': 2}] 5\n"
