"""One rank of one contestant of scripts/bench.py: does blocks of calls on request and says how long they took.

The rule: every contestant runs this same loop. Buffers change before each call and results are checked after it, inside
the measured time; a wrong result ends the benchmark.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class Contestant(Protocol):
    """What is measured. Tensors are made with ``tensor`` from float32 arrays and share their memory."""

    def tensor(self, array: np.ndarray[Any, Any]) -> Any: ...
    def all_reduce(self, tensor: Any) -> None: ...
    def send(self, tensor: Any) -> None: ...
    def recv(self, tensor: Any) -> None: ...


class Documented:
    """A module in torch.distributed's words."""

    def __init__(self, dist: Any, backend: str, rank: int, port: int) -> None:
        dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        self.dist, self.other = dist, 1 - rank

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        return array

    def all_reduce(self, tensor: Any) -> None:
        self.dist.all_reduce(tensor)

    def send(self, tensor: Any) -> None:
        self.dist.send(tensor, self.other)

    def recv(self, tensor: Any) -> None:
        self.dist.recv(tensor, self.other)


class Aiocoll(Documented):
    """aiocoll's blocking API over TCP."""

    def __init__(self, rank: int, port: int) -> None:
        import aiocoll.distributed as dist

        super().__init__(dist, "tcp", rank, port)


class Gloo(Documented):
    """torch.distributed with its Gloo backend."""

    def __init__(self, rank: int, port: int) -> None:
        import torch
        import torch.distributed as dist

        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        self.torch = torch
        super().__init__(dist, "gloo", rank, port)

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        return self.torch.from_numpy(array)


class Raw:
    """The floor: sendall and recv_into on one TCP connection."""

    def __init__(self, rank: int, port: int) -> None:
        if rank == 0:
            with socket.create_server(("127.0.0.1", port)) as server:
                self.socket = server.accept()[0]
        else:
            self.socket = connected(port)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        return array.data.cast("B")

    def all_reduce(self, tensor: Any) -> None:
        raise TypeError("a raw socket has no all_reduce")

    def send(self, tensor: Any) -> None:
        self.socket.sendall(tensor)

    def recv(self, tensor: Any) -> None:
        have = 0
        while have < len(tensor):
            got = self.socket.recv_into(tensor[have:])
            if not got:
                raise ConnectionError("the other rank of the raw pair is gone")
            have += got


CONTESTANTS: dict[str, Callable[[int, int], Contestant]] = {"aiocoll": Aiocoll, "gloo": Gloo, "raw": Raw}


def connected(port: int) -> socket.socket:
    """A connection to a server that may not listen yet."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class Block:
    """The buffers of one size, and the two loops over them."""

    def __init__(self, contestant: Contestant, rank: int, nbytes: int) -> None:
        self.contestant, self.rank, self.count = contestant, rank, nbytes // 4
        self.array = np.zeros(self.count, dtype=np.float32)
        self.tensor = contestant.tensor(self.array)
        self.ack = contestant.tensor(np.zeros(1, dtype=np.float32))
        self.cells: Any = self.array.data  # writes a float in 40 ns, NumPy takes 100
        self.probes = sorted({0, self.count // 2, self.count - 1})  # changed before, and checked after, every call

    def all_reduce(self, calls: int) -> float:
        """Seconds for ``calls`` calls back to back; afterwards one more, of which every element is checked."""
        self._fill(1.0 - 2.0 * self.rank)  # the sum is 0: repeated in place, it neither grows nor overflows
        call, tensor, cells, probes = self.contestant.all_reduce, self.tensor, self.cells, self.probes
        begun = time.perf_counter()
        for number in range(calls):
            mine = float(number % 1000 + self.rank)
            for probe in probes:
                cells[probe] = mine
            call(tensor)
            want = 2.0 * (number % 1000) + 1.0
            for probe in probes:
                if cells[probe] != want:
                    raise ArithmeticError(f"call {number}: element {probe} is {cells[probe]}, not {want}")
        seconds = time.perf_counter() - begun
        self._fill(1.0 + self.rank)
        call(tensor)
        if not np.array_equal(self.array, np.arange(self.count, dtype=np.float32) % 1021 * 3):
            raise ArithmeticError(f"all_reduce of {4 * self.count} B gave a wrong sum")
        return seconds

    def one_way(self, calls: int) -> float:
        """Seconds for ``calls`` messages from rank 0 to rank 1, and one tiny answer at the end."""
        contestant, cells, probes = self.contestant, self.cells, self.probes
        begun = time.perf_counter()
        for number in range(calls):
            if self.rank == 0:
                for probe in probes:
                    cells[probe] = float(number + probe % 7)
                contestant.send(self.tensor)
            else:
                contestant.recv(self.tensor)
                for probe in probes:
                    if cells[probe] != float(number + probe % 7):
                        raise ArithmeticError(f"message {number}: element {probe} is {cells[probe]}")
        (contestant.recv if self.rank == 0 else contestant.send)(self.ack)
        return time.perf_counter() - begun

    def _fill(self, factor: float) -> None:
        np.copyto(self.array, np.arange(self.count, dtype=np.float32) % 1021 * factor)


def main() -> None:
    """Obeys one JSON line after the other: {"what", "nbytes", "calls"}; answers {"seconds"}."""
    name, rank, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    contestant = CONTESTANTS[name](rank, port)
    blocks: dict[int, Block] = {}
    print(json.dumps({"ready": name}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        nbytes = order["nbytes"]
        if nbytes not in blocks:
            blocks = {nbytes: Block(contestant, rank, nbytes)}
        seconds = getattr(blocks[nbytes], order["what"])(order["calls"])
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
