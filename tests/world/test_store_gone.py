"""Rank 0 hosts the store and dies: the others shrink and compute, and are told why they cannot grow."""

from __future__ import annotations

import subprocess
import sys

from tests.ports import free_port

PROGRAM = """
import os, signal, sys
import numpy as np
import aiocoll

async def main(group):
    try:
        await group.barrier()
        if group.rank == 0:  # with it goes what it has not yet sent of the barrier
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            await group.all_reduce(np.arange(3.0))
    except aiocoll.PeerLostError as error:
        assert error.rank == 0
    group = await group.shrink()
    total = await group.all_reduce(np.arange(3.0) * (group.rank + 1))
    try:
        await group.grow(wait=20.0)
    except aiocoll.RendezvousError as error:
        assert group.broken is None
        total += await group.all_reduce(np.arange(3.0) * (group.rank + 1))
        print(group.ranks, total.tolist(), error)

aiocoll.run(main, init_method=sys.argv[1], rank=int(sys.argv[2]), size=3, timeout=30.0)
"""


def test_survivors_go_on_and_cannot_grow() -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", PROGRAM, url]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    said = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [-9, 0, 0], said
    for out, _ in said[1:]:
        assert out.startswith("(1, 2) [0.0, 6.0, 12.0] grow on rank")
        assert "aiocoll run" in out and "file://" in out and url.removeprefix("tcp://") in out
