"""The contestants of scripts/bench.py: how each library is joined, and how it is asked for a collective.

The rule: each gets the buffers it likes best, made once per size; nothing but the call itself is measured.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from bench_work import Array, Call, Case

JOIN_SECONDS = 20.0
GLOO_PARTS_MIN = 1 << 20  # bytes from which its reduce_scatter is quicker with a list of parts than with one tensor


@dataclass(frozen=True, slots=True)
class Seat:
    """Which rank of how many, where they meet, and over which transport (aiocoll's name of it)."""

    rank: int
    size: int
    port: int
    transport: str


class Library(Protocol):
    """One rank's side of a contestant."""

    rank: int
    size: int

    def call(self, case: Case, dtype: str) -> Call: ...
    def barrier(self) -> None: ...
    def close(self) -> None: ...


def buffers(case: Case, dtype: str) -> tuple[Array, Array]:
    """The input and the output, which are one where the call works in place."""
    array = np.zeros(case.count, dtype)
    return array, array if case.in_place else np.zeros(case.out, dtype)


class Facade:
    """aiocoll.distributed: NumPy arrays, in place."""

    def __init__(self, seat: Seat) -> None:
        import aiocoll.distributed as dist

        dist.init_process_group(
            seat.transport, init_method=f"tcp://127.0.0.1:{seat.port}", rank=seat.rank, world_size=seat.size
        )
        self.dist, self.rank, self.size = dist, seat.rank, seat.size

    def barrier(self) -> None:
        self.dist.barrier()

    def array(self, count: int, dtype: str) -> Array:
        return np.zeros(count, dtype)

    def call(self, case: Case, dtype: str) -> Call:
        array = self.array(case.count, dtype)
        out = array if case.in_place else self.array(case.out, dtype)
        dist = self.dist
        match case.what:
            case "all_reduce":
                make = partial(dist.all_reduce, array)
            case "broadcast":
                make = partial(dist.broadcast, array, 0)
            case "all_gather":
                make = partial(dist.all_gather, list(out.reshape(self.size, -1)), array)
            case "one_way":
                make = partial(dist.send, array, 1) if self.rank == 0 else partial(dist.recv, array, 0)
            case _:
                make = partial(getattr(dist, case.what))
        return Call(case, make, array, out)

    def close(self) -> None:
        self.dist.destroy_process_group()


class Heap(Facade):
    """The same over arrays from ``empty()``, in memory that suits the transport."""

    def array(self, count: int, dtype: str) -> Array:
        made: Array = self.dist.empty(count, np.dtype(dtype))
        return made


class Blocking:
    """aiocoll.sync, for the calls that the documented API of old does not have."""

    def __init__(self, seat: Seat) -> None:
        import aiocoll.sync

        self.group = aiocoll.sync.connect(
            f"tcp://127.0.0.1:{seat.port}", rank=seat.rank, size=seat.size, transport=seat.transport
        )
        self.rank, self.size, self.barrier = seat.rank, seat.size, self.group.barrier

    def call(self, case: Case, dtype: str) -> Call:
        return group_call(self.group, case, dtype)

    def close(self) -> None:
        self.group.close()


def group_call(group: Any, case: Case, dtype: str) -> Call:
    """A method of aiocoll's groups, blocking ones or not."""
    array, out = buffers(case, dtype)
    match case.what:
        case "all_reduce" | "all_gather" | "reduce_scatter":
            return Call(case, partial(getattr(group, case.what), array, out=out), array, out)
        case "broadcast":
            return Call(case, partial(group.broadcast, array, 0, array if case.rank else None), array, array)
        case "all_to_all":
            return Call(case, partial(group.all_to_all, array), array, out, result=True)
        case "one_way":
            make = partial(group.send, array, 1) if case.rank == 0 else partial(group.recv, 0, 0, array)
            return Call(case, make, array, array)
    return Call(case, partial(getattr(group, case.what)), array, out)


class Gloo:
    """torch.distributed with its Gloo backend: tensors, in place. Lists of parts where it is quicker with them."""

    def __init__(self, seat: Seat) -> None:
        import torch
        import torch.distributed as dist

        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{seat.port}", rank=seat.rank, world_size=seat.size
        )
        self.torch, self.dist, self.rank, self.size = torch, dist, seat.rank, seat.size
        self.barrier = dist.barrier

    def call(self, case: Case, dtype: str) -> Call:
        array, out = buffers(case, dtype)
        tensor, whole = self.torch.from_numpy(array), self.torch.from_numpy(out)
        dist = self.dist
        in_one = case.what == "reduce_scatter" and array.nbytes < GLOO_PARTS_MIN
        match case.what:
            case "all_reduce":
                make = partial(dist.all_reduce, tensor)
            case "broadcast":
                make = partial(dist.broadcast, tensor, 0)
            case "all_gather":
                make = partial(dist.all_gather, list(whole.view(self.size, -1)), tensor)
            case "reduce_scatter" if in_one:
                make = partial(dist.reduce_scatter_tensor, whole, tensor)
            case "reduce_scatter":
                make = partial(dist.reduce_scatter, whole, list(tensor.view(self.size, -1)))
            case "all_to_all":
                make = partial(dist.all_to_all_single, whole, tensor)
            case "one_way":
                make = partial(dist.send, tensor, 1) if self.rank == 0 else partial(dist.recv, tensor, 0)
            case _:
                make = partial(dist.barrier)
        return Call(case, make, array, out)

    def close(self) -> None:
        self.dist.destroy_process_group()


class Mpi:
    """mpi4py over the MPI of its environment: NumPy arrays with their type told, which is quickest, in place."""

    def __init__(self, seat: Seat) -> None:
        from mpi4py import MPI

        self.mpi, self.world = MPI, MPI.COMM_WORLD
        self.rank, self.size, self.barrier = self.world.rank, self.world.size, self.world.Barrier

    def call(self, case: Case, dtype: str) -> Call:
        array, out = buffers(case, dtype)
        world, inside = self.world, self.mpi.IN_PLACE
        kind = self.mpi.Datatype.fromcode(array.dtype.char)
        source, target = [array, kind], [out, kind]
        match case.what:
            case "all_reduce":
                make = partial(world.Allreduce, inside, source)
            case "broadcast":
                make = partial(world.Bcast, source, 0)
            case "all_gather":
                make = partial(world.Allgather, source, target)
            case "reduce_scatter":
                make = partial(world.Reduce_scatter_block, source, target)
            case "all_to_all":
                make = partial(world.Alltoall, source, target)
            case "one_way":
                make = partial(world.Send, source, 1) if self.rank == 0 else partial(world.Recv, source, 0)
            case _:
                make = partial(world.Barrier)
        return Call(case, make, array, out)

    def close(self) -> None:
        self.mpi.Finalize()


class Raw:
    """The floor of one_way: sendall and recv_into on one TCP connection."""

    def __init__(self, seat: Seat) -> None:
        self.rank, self.size = seat.rank, seat.size
        if seat.rank == 0:
            with socket.create_server(("127.0.0.1", seat.port)) as server:
                self.socket = server.accept()[0]
        else:
            self.socket = connected(seat.port)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, case: Case, dtype: str) -> Call:
        if case.what != "one_way":
            raise TypeError(f"a raw socket has no {case.what}")
        array, out = buffers(case, dtype)
        data = array.data.cast("B")
        return Call(case, partial(self.socket.sendall if self.rank == 0 else self._recv, data), array, out)

    def barrier(self) -> None:
        if self.rank == 0:
            self.socket.sendall(b"?")
        if not self.socket.recv(1):
            raise ConnectionError("the other rank of the raw pair is gone")
        if self.rank == 1:
            self.socket.sendall(b"!")

    def close(self) -> None:
        self.socket.close()

    def _recv(self, data: memoryview) -> None:
        have = 0
        while have < len(data):
            got = self.socket.recv_into(data[have:])
            if not got:
                raise ConnectionError("the other rank of the raw pair is gone")
            have += got


def connected(port: int) -> socket.socket:
    """A connection to a server that may not listen yet."""
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


LIBRARIES: dict[str, Callable[[Seat], Library]] = {
    "facade": Facade,
    "heap": Heap,
    "blocking": Blocking,
    "gloo": Gloo,
    "mpi": Mpi,
    "raw": Raw,
}
