"""A launcher's side of PMI-1, as hydra speaks it, for ranks that are played in the test's own process.

The rule: one thread answers all ranks, and `close` ends it whatever they wait for.
"""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType
from typing import Self


class PmiServer:
    """Serves ``theirs``, one socket for each rank; ``said`` is every command that came, in order, and
    ``came`` is set once somebody waits at the barrier."""

    def __init__(self, size: int) -> None:
        pairs = [socket.socketpair() for _ in range(size)]
        self.theirs = [theirs for _, theirs in pairs]
        self._ours = [ours for ours, _ in pairs]
        self.said: list[tuple[int, str]] = []
        self.came = threading.Event()
        self._values: dict[str, str] = {}
        self._fresh: dict[str, str] = {}
        self._waiting: list[int] = []
        self._end, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="pmi-server")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()
        self._thread.join(10)
        for each in (*self.theirs, *self._ours, self._ended):
            each.close()

    def _serve(self) -> None:
        buffers = [b"" for _ in self._ours]
        with selectors.DefaultSelector() as selector:
            selector.register(self._ended, selectors.EVENT_READ)
            for rank, each in enumerate(self._ours):
                selector.register(each, selectors.EVENT_READ, rank)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._ended:
                        return
                    rank = int(key.data)
                    piece = self._ours[rank].recv(4096)
                    if not piece:
                        selector.unregister(self._ours[rank])
                    buffers[rank] += piece
                    while b"\n" in buffers[rank]:
                        line, _, buffers[rank] = buffers[rank].partition(b"\n")
                        self._heed(rank, line.decode())

    def _heed(self, rank: int, line: str) -> None:
        said = dict(token.split("=", 1) for token in line.split())
        command = said["cmd"]
        self.said.append((rank, command))
        match command:
            case "init":
                self._answer(rank, "response_to_init rc=0 pmi_version=1 pmi_subversion=2")
            case "get_my_kvsname":
                self._answer(rank, "my_kvsname rc=0 kvsname=kvs_17")
            case "put":
                self._fresh[said["key"]] = said["value"]
                self._answer(rank, "put_result rc=0")
            case "get" if said["key"] in self._values:
                self._answer(rank, f"get_result rc=0 value={self._values[said['key']]}")
            case "get":
                self._answer(rank, "get_result rc=1")
            case "barrier_in":
                self._waiting.append(rank)
                self.came.set()
                if len(self._waiting) == len(self._ours):
                    self._values |= self._fresh
                    waiting, self._waiting = self._waiting, []
                    for each in waiting:
                        self._answer(each, "barrier_out tag=0")
            case "finalize":
                self._answer(rank, "finalize_ack rc=0")

    def _answer(self, rank: int, text: str) -> None:
        half = len(text) // 2  # lines may come in pieces
        self._ours[rank].sendall(f"cmd={text[:half]}".encode())
        self._ours[rank].sendall(f"{text[half:]}\n".encode())
