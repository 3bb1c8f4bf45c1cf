"""Starts the ranks of one attempt on this host, before any event loop exists.

Rule: imports nothing heavy; asyncio and the store are loaded while the ranks already start.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aiocoll.runner.orders import Orders
from aiocoll.runner.plan import Layout, rank_environment
from aiocoll.runner.processes import Processes
from aiocoll.runner.traces import Traces

SECRET_BYTES = 32


@dataclass(slots=True)
class Started:
    """Ranks that are starting, and the bound socket on which their store will be served (None: it is elsewhere)."""

    layout: Layout
    processes: Processes
    listener: socket.socket | None
    secret: bytes

    def close(self) -> None:
        self.processes.close()
        if self.listener is not None:
            self.listener.close()


@dataclass(frozen=True, slots=True)
class Recipe:
    """What does not change from attempt to attempt."""

    argv: Sequence[str]
    env: Mapping[str, str]
    piped: bool
    stdin_rank: int | None = None
    payload: bytes | None = None
    orders: Orders | None = None
    traces: Traces | None = None
    """Where the ranks' dumps go; None: nowhere."""

    def _processes(self, places: Mapping[int, Mapping[str, str]], secret: bytes) -> Processes:
        return Processes(
            places,
            self.argv,
            self.env,
            secret=secret,
            stdin_rank=self.stdin_rank,
            piped=self.piped,
            payload=self.payload,
            orders=self.orders,
            scratch="" if self.traces is None else self.traces.scratch,
        )

    def start(self, layout: Layout, secret: bytes, listener: socket.socket | None = None) -> Started:
        """Starts all ranks of `layout`."""
        places = {layout.first + local: rank_environment(layout, local) for local in range(layout.ranks)}
        processes = self._processes(places, secret)
        started = Started(layout, processes, listener, secret)
        try:
            processes.start()
        except BaseException:
            started.close()
            raise
        return started

    def start_in_place_of(self, rank: int, layout: Layout, secret: bytes, number: int, *, join: bool) -> Processes:
        """Starts the `number`-th replacement, for one rank of `layout`; with `join` it comes to the running world."""
        at = replace(layout, replacement=number, join=join)
        processes = self._processes({rank: rank_environment(at, rank - layout.first)}, secret)
        try:
            processes.start()
        except BaseException:
            processes.close()
            raise
        return processes

    def start_alone(self, layout: Layout) -> Started:
        """On one host: a fresh secret, a port for the store, which we keep, one for MASTER_PORT, which we do not."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1024)  # ranks may connect before the store's loop runs
            at = place_on_loopback(layout, listener.getsockname()[1])
            return self.start(at, os.urandom(SECRET_BYTES), listener)
        except BaseException:
            listener.close()
            raise


def place_on_loopback(layout: Layout, port: int) -> Layout:
    """The layout with the store's address and, unless the user wants another, torch's."""
    return replace(layout, rdzv=f"tcp://127.0.0.1:{port}", master=layout.master or f"127.0.0.1:{free_port()}")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
