"""A replicated HTTP service: each replica answers requests while it awaits collectives with the others.

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
from dataclasses import dataclass, field

import numpy as np

import aiocoll

ROUND_SECONDS = 0.02  # how often the replicas exchange what they know
REQUEST_SECONDS = 10.0  # a client that says nothing for so long must not hold up the end of the service
TABLE_ELEMENTS = 1 << 19  # 4 MiB of statistics per replica, added up while requests are answered


@dataclass(slots=True)
class Replica:
    """What one replica knows: its own counters, and what all of them had counted at the last round."""

    rank: int
    served: int = 0
    wants_to_stop: bool = False
    served_by_all: list[int] = field(default_factory=list)
    rounds: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One HTTP request per connection: GET / gives the counters as JSON, GET /stop ends the service everywhere."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0].split()
            found = len(request) == 3 and request[0] == b"GET" and request[1] in (b"/", b"/stop")
            if found:
                self.served += 1
                self.wants_to_stop |= request[1] == b"/stop"
            facts = {"rank": self.rank, "served": self.served, "by_all": self.served_by_all, "rounds": self.rounds}
            body = json.dumps(facts if found else {"error": "ask for / or /stop"}).encode() + b"\n"
            status = b"200 OK" if found else b"404 Not Found"
            writer.write(b"HTTP/1.1 %b\r\nContent-Type: application/json\r\n" % status)
            writer.write(b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, TimeoutError):
            pass  # the client went away, fell silent or sent something else than HTTP
        finally:
            writer.close()

    async def exchange(self, group: aiocoll.Group, expected: int | None) -> None:
        """Rounds of collectives until some replica wants to stop, or all have served the expected number together."""
        table = np.full(TABLE_ELEMENTS, float(self.rank))
        while True:
            mine = np.array([self.served, self.wants_to_stop], dtype=np.int64)
            gathered, _ = await asyncio.gather(group.all_gather(mine), group.all_reduce(table, aiocoll.MAX))
            self.served_by_all = [int(served) for served, _ in gathered]
            self.rounds += 1
            if any(stop for _, stop in gathered) or (expected and sum(self.served_by_all) >= expected):
                return
            await asyncio.sleep(ROUND_SECONDS)


async def ask(port: int) -> float:
    """One request to a replica; gives the seconds until the whole answer was there."""
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    json.loads(answer.split(b"\r\n\r\n", 1)[1])
    return time.perf_counter() - begun


async def ask_everybody(ports: list[int], requests: int) -> list[float]:
    """Asks each replica in turn; gives the latencies."""
    return [await ask(port) for _ in range(requests) for port in ports]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="A replicated HTTP service on loopback.")
    parser.add_argument("--port", type=int, default=0, help="rank 0's port, the others follow (default: any free ones)")
    parser.add_argument("--demo", type=int, metavar="N", help="each replica asks each one N times, then all end")
    return parser.parse_args()


async def main(group: aiocoll.Group) -> None:
    """Serves and exchanges until the replicas agree to stop."""
    options = arguments()
    replica = Replica(group.rank)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: setattr(replica, "wants_to_stop", True))
    port = options.port + group.rank if options.port else 0
    async with await asyncio.start_server(replica.answer, "127.0.0.1", port) as server:
        ports = await group.all_gather_object(server.sockets[0].getsockname()[1])
        if group.rank == 0:
            print(f"{group.size} replicas serve on 127.0.0.1, ports {ports}", flush=True)
        expected = None
        clients: asyncio.Task[list[float]] | None = None
        if options.demo:
            expected = options.demo * group.size**2
            clients = asyncio.create_task(ask_everybody(ports, options.demo))
        await replica.exchange(group, expected)
        if clients is not None:
            worst = await group.all_reduce(max(await clients), aiocoll.MAX)
            if group.rank == 0:
                print(f"{sum(replica.served_by_all)} requests served in {replica.rounds} rounds of collectives")
                print(f"slowest answer {1000 * worst:.0f} ms", flush=True)


if __name__ == "__main__":
    aiocoll.run(main)
