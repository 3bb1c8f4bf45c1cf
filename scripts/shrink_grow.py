"""A job whose ranks are killed again and again: the survivors shrink, compute, take a replacement in, and compute.

    python scripts/shrink_grow.py [--rounds 100] [--ranks 4] [--transport shm] [--everybody] [--wild] [--seed 0]

Every round one rank is killed by SIGKILL in the middle of an all_reduce, and a new process waits to join. The results
are checked, and that shrinking takes less than a second; and of the one rank that is never killed (``--everybody``: all
may be), that it holds no more memory, descriptors and tasks at the end than after the first rounds. ``--wild``: ranks
die at any moment, in shrink and grow as well, and newcomers too. Exit status 0 says that all was well.

The rule: who is killed follows from the seed; when, only the machine knows.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

import aiocoll
from aiocoll.errors import AiocollError, GroupBrokenError, PeerLostError
from aiocoll.store import TCPStore, host_store

SECRET = b"a job that shrinks and grows"
WAIT_SECONDS = 30.0
HANG_SECONDS = 60.0
ELDER = 1
Address = tuple[str, int]


# ------------------------------------------------------------------------------------------------ a rank


class Rank:
    """One process of the job: what it does until all rounds are over."""

    def __init__(self, group: aiocoll.Group, pipe: connection.Connection, ranks: int, rounds: int) -> None:
        self.group, self.pipe, self.ranks, self.rounds = group, pipe, ranks, rounds
        self.round, self.shrinking = 0, 0.0

    def __repr__(self) -> str:
        return f"<Rank {self.group!r} in round {self.round}>"

    async def live(self) -> None:
        """Computes, and mends the group whenever somebody dies."""
        new = self.group.rank in self.group.new_ranks
        while True:
            try:
                if new:
                    await self.welcome()
                    new = False
                await self.grow()
                if self.round >= self.rounds:
                    return
                await self.compute()
            except (PeerLostError, GroupBrokenError):
                await self.shrink()
                new = False

    async def compute(self) -> None:
        """An all_reduce whose result everybody knows."""
        group = self.group
        x = np.arange(1000.0) * (group.rank + 1)
        total = await group.all_reduce(x)
        expected = np.arange(1000.0) * (group.size * (group.size + 1) / 2)
        if not np.array_equal(total, expected):
            raise AssertionError(f"rank {group.rank} of {group.size}: a wrong result {total[:5]}")

    async def shrink(self) -> None:
        """The survivors' group."""
        while True:
            began = time.perf_counter()
            try:
                self.group = await self.group.shrink()
                self.shrinking = time.perf_counter() - began
                self.say("shrunk", seconds=self.shrinking, size=self.group.size)
                await self.compute()
                return
            except PeerLostError:
                continue  # one more has died meanwhile

    async def grow(self) -> None:
        """Takes newcomers in until all places are filled."""
        while self.group.size < self.ranks:
            self.group = await self.group.grow(self.ranks - self.group.size, wait=WAIT_SECONDS)
            await self.welcome()

    async def welcome(self) -> None:
        """What all have done so far; everybody tells where it stands, and computes with the newcomers."""
        self.round = await self.group.broadcast_object(self.round + 1)
        gc.collect()
        self.say("grown", round=self.round, size=self.group.size, new=self.group.new_ranks, **belongings())
        await self.compute()

    def say(self, kind: str, **facts: Any) -> None:
        self.pipe.send({"kind": kind, "pid": os.getpid(), **facts})


def belongings() -> dict[str, int]:
    """What this process holds."""
    statm = Path("/proc/self/statm").read_text().split()
    return {
        "kilobytes": int(statm[1]) * resource.getpagesize() // 1024,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
    }


def rank_process(
    rank: int | None, ranks: int, rounds: int, address: Address, transport: str, pipe: connection.Connection
) -> None:
    """The program of one process; ``rank`` None: it joins a job that is under way."""

    async def main() -> None:
        store = await TCPStore.connect(*address, secret=SECRET, job="storm", timeout=WAIT_SECONDS)
        places = {"rank": rank, "size": ranks} if rank is not None else {"join": True}
        connecting = aiocoll.connect(store=store, secret=SECRET, transport=transport, timeout=WAIT_SECONDS, **places)
        try:
            async with connecting as group:
                program = Rank(group, pipe, ranks, rounds)
                del group
                program.say("ready")
                await program.live()
                program.say("done")
        finally:
            await store.close()

    try:
        asyncio.run(main())
    except AiocollError as error:
        pipe.send({"kind": "failed", "pid": os.getpid(), "error": f"{type(error).__name__}: {error}"})
        sys.exit(1)


# ------------------------------------------------------------------------------------------------ the storm


class Storm:
    """The job seen from outside: starts, kills and replaces ranks, and hears what they say."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rng = random.Random(options.seed)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["aiocoll", "aiocoll.world", "numpy", __name__])
        self.hosted = host_store("127.0.0.1", 0, secret=SECRET, job="storm")
        self.processes: dict[int, BaseProcess] = {}
        self.pipes: dict[int, connection.Connection] = {}
        self.elder = 0
        self.round, self.killed = 0, 0
        self.said: dict[str, set[int]] = {}
        """Who has said what since the last kill."""
        self.shrinking: list[float] = []
        self.held: list[dict[str, int]] = []
        self.wrong: list[str] = []

    def __repr__(self) -> str:
        return f"<Storm in round {self.round}: {len(self.processes)} processes>"

    def start(self, rank: int | None) -> int:
        ours, theirs = self.context.Pipe(duplex=False)
        options = self.options
        process = self.context.Process(
            target=rank_process,
            args=(rank, options.ranks, options.rounds, self.hosted.address, options.transport, theirs),
        )
        process.start()
        theirs.close()
        assert process.pid is not None
        self.processes[process.pid], self.pipes[process.pid] = process, ours
        return process.pid

    def run(self) -> bool:
        """Whether all was well."""
        try:
            for rank in range(self.options.ranks):
                pid = self.start(rank)
                self.elder = pid if rank == ELDER else self.elder
            self.wait("ready")
            while self.round < self.options.rounds and not self.wrong:
                self.one_round()
            self.wait("done")
        finally:
            if self.wrong:
                self.ask_for_dumps()
            for process in self.processes.values():
                process.kill()
                process.join()
            self.hosted.release()
            self.hosted.join(10.0)
        return not self.wrong

    def ask_for_dumps(self) -> None:
        """Has those who live write to stderr what they are at."""
        for pid, process in self.processes.items():
            if process.is_alive():
                os.kill(pid, signal.SIGUSR2)
        self.listen(1.0)

    def one_round(self) -> None:
        """A kill and everything that follows it."""
        time.sleep(self.rng.uniform(0.0, 0.02))
        victims = [self.victim()]
        for victim in victims:
            self.kill(victim)
        before = self.round
        while self.round == before and not self.wrong:
            if self.options.wild and self.rng.random() < 0.5 and len(victims) < self.options.ranks - 1:
                self.listen(self.rng.uniform(0.0, 0.3))
                if self.round == before:
                    victims.append(self.victim())
                    self.kill(victims[-1])
            self.wait("grown")

    def victim(self) -> int:
        mortal = [pid for pid in self.processes if self.options.everybody or pid != self.elder]
        return self.rng.choice(mortal)

    def kill(self, pid: int) -> None:
        """One process dies, and another one waits in its place."""
        os.kill(pid, signal.SIGKILL)
        self.processes.pop(pid).join()
        self.pipes.pop(pid).close()
        self.killed += 1
        self.said.clear()
        self.start(None)

    def wait(self, kind: str) -> None:
        """Until all who live have said so since the last kill."""
        until = time.monotonic() + HANG_SECONDS
        while not self.wrong and (silent := set(self.processes) - self.said.get(kind, set())):
            if time.monotonic() > until:
                self.wrong.append(f"round {self.round}: {sorted(silent)} have not said {kind!r} for {HANG_SECONDS:g} s")
            self.listen(0.5)
        if kind == "grown" and not self.wrong:
            self.round += 1

    def listen(self, seconds: float) -> None:
        """Takes note of what is said meanwhile."""
        ready = connection.wait(list(self.pipes.values()), seconds)
        for pid in [pid for pid, pipe in self.pipes.items() if pipe in ready]:
            try:
                self.note(self.pipes[pid].recv())
            except EOFError:
                self.pipes.pop(pid).close()
                process = self.processes[pid]
                process.join()
                if process.exitcode:
                    self.wrong.append(f"round {self.round}: process {pid} ended with exit code {process.exitcode}")

    def note(self, fact: dict[str, Any]) -> None:
        if fact["kind"] != "grown" or fact["size"] == self.options.ranks:
            self.said.setdefault(fact["kind"], set()).add(fact["pid"])
        if fact["kind"] == "failed":
            self.wrong.append(f"round {self.round}, process {fact['pid']}: {fact['error']}")
        elif fact["kind"] == "shrunk":
            self.shrinking.append(fact["seconds"])
        elif fact["kind"] == "grown" and fact["pid"] == self.elder:
            self.held.append({key: fact[key] for key in ("kilobytes", "descriptors", "tasks")})
        if self.options.verbose:
            print(f"{self.round:4d} {fact}", flush=True)


def report(storm: Storm, seconds: float) -> bool:
    """Prints what came of it; whether it is what it must be."""
    slow = max(storm.shrinking, default=0.0)
    ordered = sorted(storm.shrinking)
    median = ordered[len(ordered) // 2] if ordered else 0.0
    print(f"{storm.round} rounds, {storm.killed} kills in {seconds:.1f} s; shrink: median {median * 1e3:.1f} ms, "
          f"longest {slow * 1e3:.1f} ms")  # fmt: skip
    well = not storm.wrong and (slow < 1.0 or storm.options.wild)
    quarter = len(storm.held) // 4
    if quarter > 1:
        early, late = (
            {key: max(each[key] for each in held) for key in held[0]}
            for held in (storm.held[:quarter], storm.held[-quarter:])
        )
        print(f"the rank that was never killed held at most {early} in the first quarter, {late} in the last")
        grown = late["kilobytes"] - early["kilobytes"]
        if late["descriptors"] > early["descriptors"] or late["tasks"] > early["tasks"] or grown > 8 << 10:
            print("it holds more than it did")
            well = False
    for text in storm.wrong:
        print(text)
    return well


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--transport", default="shm", choices=("shm", "tcp"))
    parser.add_argument("--everybody", action="store_true", help="no rank is spared")
    parser.add_argument("--wild", action="store_true", help="ranks die at any moment")
    parser.add_argument("--verbose", action="store_true")
    began = time.perf_counter()
    storm = Storm(parser.parse_args())
    storm.run()
    return 0 if report(storm, time.perf_counter() - began) else 1


if __name__ == "__main__":
    sys.exit(main())
