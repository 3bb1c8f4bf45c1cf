"""A replicated HTTP service whose metrics are those of all replicas: requests are answered while metrics are added up.

    aiocoll run -n 3 examples/async_service.py --port 8000   # replicas on 8000, 8001, 8002, until Ctrl-C or GET /stop
    aiocoll run -n 3 examples/async_service.py --demo 200    # asks itself 200 times per replica, reports, ends

The rule: replicas decide things (when to stop) only on what a collective told all of them, so they always agree.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from urllib.request import urlopen

import numpy as np

import aiocoll

parser = argparse.ArgumentParser(description="A replicated HTTP service on loopback.")
parser.add_argument("--port", type=int, default=0, help="rank 0's port, the others follow (default: any free ones)")
parser.add_argument("--demo", type=int, default=0, metavar="N", help="each replica asks each one N times, then all end")


class Replica:
    """What one replica has counted, and what all of them together had at the last round."""

    def __init__(self, rank: int) -> None:
        self.rank, self.rounds, self.slowest = rank, 0, 0.0
        self.mine = np.zeros(3, np.int64)  # requests served, requests to stop, bytes sent
        self.all = self.mine

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One HTTP request per connection: GET / gives the metrics as JSON, GET /stop ends the service everywhere."""
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(10):  # a client that says nothing must not hold up the end of the service
                path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
            self.mine += [1, path == b"/stop", 0]
            metrics = {"served": int(self.mine[0]), "by_all": int(self.all[0]), "bytes_by_all": int(self.all[2])}
            body = json.dumps({"rank": self.rank, **metrics, "rounds": self.rounds}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
            await writer.drain()
            self.mine[2] += len(body)
            self.slowest = max(self.slowest, time.perf_counter() - begun)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, IndexError, TimeoutError):
            pass  # the client went away, fell silent or sent something else than HTTP
        finally:
            writer.close()

    async def exchange(self, group: aiocoll.Group, expected: int) -> None:
        """Adds up the metrics, 50 times a second, until somebody was asked to stop or all have served `expected`."""
        while not self.all[1] and not (expected and self.all[0] >= expected):
            self.all, self.rounds = await group.all_reduce(self.mine), self.rounds + 1
            await asyncio.sleep(0.02)


async def main(group: aiocoll.Group) -> None:
    """Serves and exchanges until the replicas agree to stop."""
    options, replica, loop = parser.parse_args(), Replica(group.rank), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: replica.mine.put(1, 1))
    server = await asyncio.start_server(replica.answer, "127.0.0.1", options.port and options.port + group.rank)
    ports = await group.all_gather_object(server.sockets[0].getsockname()[1])
    if group.rank == 0:
        print(f"a world of {group.size} serves on 127.0.0.1, ports {ports}", flush=True)
    async with server, asyncio.TaskGroup() as tasks:
        tasks.create_task(replica.exchange(group, options.demo * group.size**2))
        for port in ports * options.demo:
            await asyncio.to_thread(lambda url: urlopen(url).read(), f"http://127.0.0.1:{port}/")  # noqa: S310  an address of our own
    slowest = await group.all_reduce(replica.slowest, aiocoll.MAX)
    if group.rank == 0:
        print(f"{replica.all[0]} requests served in {replica.rounds} rounds; slowest answer {1000 * slowest:.0f} ms")


if __name__ == "__main__":
    aiocoll.run(main)
