"""Three plain processes over tcp://: rank 0 ends its program without leaving, and rank 2 still waits for it."""

from __future__ import annotations

import sys

import numpy as np

import aiocoll
import aiocoll.distributed as dist

rank, port = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("tcp", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=3)
x = np.full(4, float(rank))
if rank == 0:
    dist.send(x, 1)
elif rank == 1:
    dist.recv(x, 0)
    dist.send(x, 2)
else:
    dist.recv(x, 1)
    try:
        dist.recv(x, 0)
    except aiocoll.PeerLostError as error:
        print("rank 0 is gone:", error)
