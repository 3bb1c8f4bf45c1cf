"""The blocking API as its tutorial's readers wrote it: processes, a ring of one's own, averaged gradients.

    python examples/blocking_script.py            # starts three processes itself
    aiocoll run -n 3 examples/blocking_script.py  # or is one of the processes that a runner started

The rule: nothing but the documented functions of ``aiocoll.distributed``, with NumPy arrays as tensors.
"""
# mypy: disable-error-code="union-attr"
# (isend and irecv give None to processes outside their group, and there is only the group of all here)

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import aiocoll.distributed as dist

Floats = NDArray[np.float64]


def ring_all_reduce(tensor: Floats) -> Floats:
    """The sum over all ranks, every part of it passed once around the ring."""
    rank, size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    total, passing, incoming = tensor.copy(), tensor.copy(), np.empty_like(tensor)
    for _ in range(size - 1):
        sending = dist.isend(passing, right)
        receiving = dist.irecv(incoming, left)
        sending.wait()
        receiving.wait()
        total += incoming
        passing, incoming = incoming, passing
    return total


class Line:
    """A straight line to be fitted, y = weight * x + bias, with its gradient."""

    def __init__(self) -> None:
        self.parameters = [np.zeros(3), np.zeros(1)]
        self.gradients = [np.zeros(3), np.zeros(1)]

    def differentiate(self, x: Floats, y: Floats) -> float:
        """Fills the gradients of the mean squared error on my rows; gives that error."""
        weight, bias = self.parameters
        error = x @ weight + bias - y
        self.gradients[0][:] = 2 * x.T @ error / len(y)
        self.gradients[1][:] = 2 * error.mean()
        return float(np.mean(error**2))


def average_gradients(model: Line) -> None:
    """Every rank leaves with the mean of all ranks' gradients."""
    size = float(dist.get_world_size())
    for gradient in model.gradients:
        dist.all_reduce(gradient, op=dist.reduce_op.SUM)
        gradient /= size


def run(rank: int, size: int) -> None:
    """What each process does: the ring, then gradient descent on its own partition of the data."""
    mine = np.arange(5.0) + 10 * rank
    ring = ring_all_reduce(mine)
    library = mine.copy()
    dist.all_reduce(library)
    if not np.array_equal(ring, library):
        raise AssertionError(f"rank {rank}: the ring gives {ring}, all_reduce gives {library}")

    random = np.random.default_rng(1234)
    x = random.normal(size=(60 * size, 3))
    y = x @ np.array([1.0, -2.0, 0.5]) + 3.0
    partition = np.array_split(np.arange(len(y)), size)[rank]
    model = Line()
    for _ in range(200):
        loss = model.differentiate(x[partition], y[partition])
        average_gradients(model)
        for parameter, gradient in zip(model.parameters, model.gradients, strict=True):
            parameter -= 0.1 * gradient
    losses = [np.zeros(1) for _ in range(size)]
    dist.all_gather(losses, np.array([loss]))
    if rank == 0:
        weight, bias = model.parameters
        print(f"{size} ranks, backend {dist.get_backend()}: ring and all_reduce agree on {library}")
        print(f"fitted weight {weight.round(4)} bias {bias.round(4)}, worst loss {max(losses)[0]:.1e}", flush=True)
    if not np.allclose(model.parameters[0], [1.0, -2.0, 0.5], atol=1e-3):
        raise AssertionError(f"rank {rank}: the fit ended at {model.parameters}")


def init_processes(rank: int, size: int, fn: Callable[[int, int], None], backend: str = "tcp") -> None:
    """Joins the distributed environment that MASTER_ADDR and MASTER_PORT describe, and runs ``fn`` in it."""
    dist.init_process_group(backend, rank=rank, world_size=size)
    fn(rank, size)
    dist.destroy_process_group()


def start(size: int) -> int:
    """Starts ``size`` processes on this machine; gives 0 when all of them succeeded."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=init_processes, args=(rank, size, run)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return max(abs(process.exitcode or 0) for process in processes)


if __name__ == "__main__":
    if "WORLD_SIZE" in os.environ:  # a runner started us, and says who we are
        init_processes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), run)
    else:
        sys.exit(start(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
