"""The blocking API as its tutorial's readers wrote it: processes, a ring of one's own, averaged gradients.

    python examples/blocking_script.py            # starts three processes itself
    aiocoll run -n 3 examples/blocking_script.py  # or is one of the processes that a runner started

The rule: nothing but the documented functions of ``aiocoll.distributed``, with NumPy arrays as tensors.
"""
# mypy: disable-error-code="union-attr"
# (isend and irecv give None to processes outside their group, and there is only the group of all here)

import multiprocessing
import os
import socket
import sys

import numpy as np
from numpy.typing import NDArray

import aiocoll.distributed as dist

Floats = NDArray[np.float64]
TRUTH = np.array([1.0, -2.0, 0.5, 3.0])  # three weights and a bias


def ring_all_reduce(tensor: Floats) -> Floats:
    """The sum over all ranks, every part of it passed once around the ring."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total, passing, incoming = tensor.copy(), tensor.copy(), np.empty_like(tensor)
    for _ in range(size - 1):
        requests = [dist.isend(passing, (rank + 1) % size), dist.irecv(incoming, (rank - 1) % size)]
        for request in requests:
            request.wait()
        total += incoming
        passing, incoming = incoming, passing
    return total


def run(rank: int, size: int) -> None:
    """What each process does: the ring, then gradient descent on its own partition of the data."""
    mine = np.arange(5.0) + 10 * rank
    ring = ring_all_reduce(mine)
    dist.all_reduce(mine)
    assert np.array_equal(ring, mine), f"rank {rank}: the ring gives {ring}, all_reduce gives {mine}"
    random = np.random.default_rng(1234)
    x = np.array_split(np.column_stack([random.normal(size=(60 * size, 3)), np.ones(60 * size)]), size)[rank]
    weights = np.zeros(4)
    for _ in range(200):
        error = x @ (weights - TRUTH)
        gradient = 2 * x.T @ error / len(error)
        dist.all_reduce(gradient, op=dist.reduce_op.SUM)
        weights -= 0.1 * gradient / size
    losses = [np.zeros(1) for _ in range(size)]
    dist.all_gather(losses, np.array([np.mean(error**2)]))
    if rank == 0:
        print(f"world of {size}, backend {dist.get_backend()}: ring and all_reduce agree on {mine}")
        print(f"fitted weight {weights[:3].round(4)} bias {weights[3:].round(4)}, worst loss {max(losses)[0]:.1e}")
    assert np.allclose(weights, TRUTH, atol=1e-3), f"rank {rank}: the fit ended at {weights}"


def init_processes(rank: int, size: int, backend: str = "tcp") -> None:
    """Joins the distributed environment that MASTER_ADDR and MASTER_PORT describe, and works in it."""
    dist.init_process_group(backend, rank=rank, world_size=size)
    run(rank, size)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "WORLD_SIZE" in os.environ:  # a runner started us, and says who we are
        init_processes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        sys.exit()
    with socket.create_server(("127.0.0.1", 0)) as free:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(free.getsockname()[1])
    size, spawn = int(sys.argv[1]) if len(sys.argv) > 1 else 3, multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=init_processes, args=(rank, size)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))
