"""One rank of one contestant of scripts/bench.py: does blocks of calls on request and says how long they took.

    bench_rank.py LIBRARY TRANSPORT RANK SIZE PORT CONTROL      (MPI's ranks know RANK and SIZE better)

The rule: between orders a rank sleeps on its control connection, so that it takes nothing from the others.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

import numpy as np
from bench_libraries import LIBRARIES, Library, Seat, group_call
from bench_work import Call, block, block_awaited, case_of


class Orders:
    """The newest size's call is kept: calibration and all blocks of a size use the same buffers."""

    def __init__(self) -> None:
        self.key: tuple[str, int, str] | None = None
        self.held: Call | None = None

    def call(self, order: dict[str, Any], rank: int, size: int, make: Any) -> Call:
        """The call that ``order`` is about."""
        key = order["what"], order["nbytes"], order["dtype"]
        if self.held is None or self.key != key:
            self.held = None  # its memory goes before the new one's comes
            case = case_of(order["what"], rank, size, order["nbytes"], np.dtype(order["dtype"]).itemsize)
            self.key, self.held = key, make(case, order["dtype"])
        return self.held


def obey(library: Library, control: socket.socket) -> None:
    """One JSON line after the other: {"what", "nbytes", "dtype", "calls"}; answers {"seconds"}."""
    orders = Orders()
    with control.makefile("r") as lines:
        for line in lines:
            order = json.loads(line)
            call = orders.call(order, library.rank, library.size, library.call)
            say(control, seconds=block(call, library.barrier, order["calls"]))


async def obey_awaiting(seat: Seat, control: socket.socket) -> None:
    """The same for ``await`` in a running loop."""
    import aiocoll

    async with aiocoll.connect(
        f"tcp://127.0.0.1:{seat.port}", rank=seat.rank, size=seat.size, transport=seat.transport
    ) as group:
        say(control, ready=seat.rank)
        reader, _ = await asyncio.open_connection(sock=control.dup())
        orders = Orders()
        while line := await reader.readline():
            order = json.loads(line)
            call = orders.call(order, seat.rank, seat.size, lambda case, dtype: group_call(group, case, dtype))
            say(control, seconds=await block_awaited(call, group.barrier, order["calls"]))


def say(control: socket.socket, **facts: Any) -> None:
    """One line of JSON to the benchmark."""
    control.sendall((json.dumps(facts) + "\n").encode())


def main() -> None:
    """Joins, then obeys until the control connection ends."""
    name, transport, rank, size, port, control_path = sys.argv[1:]
    seat = Seat(int(rank), int(size), int(port), transport)
    control = socket.socket(socket.AF_UNIX)
    control.connect(control_path)
    if name == "await":
        import uvloop

        uvloop.run(obey_awaiting(seat, control))
        return
    library = LIBRARIES[name](seat)
    say(control, ready=library.rank)
    library.barrier()  # whoever joins lazily does it now
    obey(library, control)
    library.close()


if __name__ == "__main__":
    main()
