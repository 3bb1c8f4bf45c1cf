"""Memory that ranks share: situations reported of other systems (Q1, Q3)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aiocoll
from aiocoll.testing import run
from tests.group.cases import FABRICS, values

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(120)

EARLY = """
import numpy as np, aiocoll

async def main(group):
    lent = group.empty(100_000)
    lent[...] = np.arange(100_000) + group.rank
    assert ((await group.all_reduce(lent)) == 3 * np.arange(100_000) + 3).all()
    few = await group.subgroup([0, 2]) if group.rank != 1 else None
    if group.rank == 1:
        return  # it has mapped the memory of the others, and ends first
    if group.rank == 0:
        try:
            await group.recv(1)
        except aiocoll.PeerLostError:
            await few.send(1, 1)
    else:
        await few.recv(0)
    later = group.empty(3_000_000)  # memory that nobody has mapped before rank 1 ended
    later[...] = np.arange(3_000_000) * (group.rank + 1)
    assert ((await few.all_reduce(later)) == 4.0 * np.arange(3_000_000)).all()
    assert group.statistics()["bytes_sent"]["shm"] > 0
    await few.close()
    print("right", flush=True)

aiocoll.run(main, transport="shm")
"""

LIMITED = """
import numpy as np, os, aiocoll

async def main(group):
    room = os.statvfs("/dev/shm")
    assert room.f_bavail * room.f_frsize <= 1 << 20
    for count in (0, 10, 1_000_000, 4_000_000):
        total = (await group.all_reduce(np.arange(float(count)) + group.rank))
        assert (total == 2 * np.arange(float(count)) + 1).all()
        lent = group.empty(count)
        lent[...] = group.rank + 1
        assert ((await group.all_reduce(lent)) == 3).all()
    assert group.statistics()["bytes_sent"]["shm"] > 0
    print("right", flush=True)

aiocoll.run(main, transport="shm")
"""


def job(tmp_path: Path, program: str, size: int, *before: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(program)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    command = [*before, sys.executable, "-m", "aiocoll", "run", "-n", str(size), str(script)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)


@pytest.mark.slow
def test_q1_memory_lives_as_long_as_its_owner_whoever_has_mapped_it(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    done = job(tmp_path, EARLY, 3)
    assert done.returncode == 0 and done.stdout.count("right") == 2, done.stdout + done.stderr
    assert done.stderr == "", "a rank that ended first warned of leaks, or ended others"
    mine = {name for name in set(os.listdir("/dev/shm")) - before if "aiocoll" in name}
    assert mine == set()


@pytest.mark.slow
def test_q3_a_small_file_system_for_shared_memory_is_no_limit(tmp_path: Path) -> None:
    """Ranks share anonymous files, which do not lie there."""
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    tried = subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"/dev/shm cannot be made small here: {tried.stderr.strip()}")
    done = job(tmp_path, LIMITED, 2, "unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh")
    assert done.returncode == 0 and done.stdout.count("right") == 2, done.stdout + done.stderr


def same(one: Any, other: Any) -> bool:
    """Equal in shape, dtype and bytes: NumPy does not compare what has none."""
    return (one.shape, one.dtype, one.tobytes()) == (other.shape, other.dtype, other.tobytes())


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("dtype", ["f8", "?", "S3", "V5"])
def test_q3_arrays_without_bytes_pass_as_others_do(fabric: str, dtype: str) -> None:
    """Of every shape, alone and among others, in private memory and in that of the group."""
    shapes: list[tuple[int, ...]] = [(0,), (1, 0), (0, 7), (2, 0, 3), (5,), (1, 4)]

    async def main(group: aiocoll.Group) -> None:
        for turn, shape in enumerate(shapes):
            mine = values(group.rank + turn, shape, dtype)
            lent = group.empty(shape, np.dtype(dtype))
            lent[...] = mine
            for x in (mine, lent):
                for rank, each in enumerate(await group.all_gather(x)):
                    assert same(each, values(rank + turn, shape, dtype))
                assert (await group.broadcast(x if group.rank == 1 else None, 1)).shape == shape
        ragged = [values(group.rank, shapes[(group.rank + peer) % len(shapes)], dtype) for peer in range(group.size)]
        for rank, each in enumerate(await group.all_to_all(ragged)):
            shape = shapes[(rank + group.rank) % len(shapes)]
            assert same(each, values(rank, shape, dtype))
        for peer in range(group.size):
            if peer != group.rank:
                await group.send(ragged[peer], peer)
        for peer in range(group.size):
            if peer != group.rank:
                assert (await group.recv(peer)).shape == shapes[(peer + group.rank) % len(shapes)]
        if dtype == "f8":
            for shape in shapes:
                total = sum(values(rank, shape) for rank in range(group.size))
                assert ((await group.all_reduce(values(group.rank, shape))) == total).all()
                lent = group.zeros(shape)
                assert (await group.all_reduce(lent, out=lent)) is lent

    run(3, main, fabric)
