"""One rank of scripts/kill_storm.py: what the ranks of a world do until one of them dies, and what the others see then.

The rule: every rank draws the same calls from the same seed; every result is checked.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import importlib
import os
import pkgutil
import random
import signal
import socket
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

import aiocoll.algorithms.owner
import aiocoll.algorithms.spread
import aiocoll.endpoint.rivals
import aiocoll.place
import aiocoll.rendezvous
import aiocoll.store
import aiocoll.sync
import aiocoll.transport
from aiocoll import CollectiveTimeoutError, GroupBrokenError, PeerLostError, RendezvousError
from aiocoll.testing.leaks import Belongings, left_behind

Array = NDArray[Any]
Call = tuple[str, tuple[Any, ...]]
Check = Callable[[Any], bool]
MODES = ("await", "block", "start")
"""Coroutines in a loop; blocking calls; blocking calls that are started and go on in a thread."""
COUNTS = (1, 7, 128, 129, 1000, 8192, 32768, 32769, 100_000, 300_000, 1_000_000)
"""Elements of 8 bytes: in a slot, in a cell, just a cell, more, and what is read in private memory."""
LIFE_SECONDS = 600
ROUNDS_AFTER_LAST_KILL = 5
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_CELLS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"CELLS": "4", "CELL_BYTES": "4096", "SLOTS": "2"},
    {"CELLS": "4", "SLOTS": "4"},
)


@dataclass(frozen=True)
class Plan:
    """What happens in one world, all of it from the seed."""

    number: int
    seed: str
    size: int
    mode: str
    transport: str
    victims: tuple[tuple[int, ...], ...]
    """Who dies in each stage."""
    early: tuple[bool, ...]
    """Whether the kill of a stage does not wait until all members are there."""
    settings: tuple[tuple[str, str], ...]
    stop_seconds: float = 0.0
    """The deadline of every call in a world whose victim is stopped rather than killed; 0: it is killed."""

    def __str__(self) -> str:
        how = f"stopped, calls of {self.stop_seconds:g} s" if self.stop_seconds else "killed"
        return f"{self.size} ranks, {self.mode}, {dict(self.settings)}, victims {self.victims} {how}"

    @classmethod
    def of(cls, seed: int, number: int, transport: str, stop_seconds: float = 0.0) -> Plan:
        """World ``number`` of a storm; ``stop_seconds``: one rank is stopped in it, and nobody dies."""
        rng = random.Random(f"{seed} {number}")
        size = rng.randint(2, 8)
        order = rng.sample(range(size), size - rng.choice([1, 1, 2]) if size > 2 else 1)
        victims = []
        while order:
            count = min(rng.choice([1, 1, 1, 2]), len(order))
            victims.append(tuple(order[:count]))
            del order[:count]
        if stop_seconds:
            victims = [victims[0][:1]]
        early = tuple(rng.random() < 0.15 for _ in victims)
        settings = tuple((f"AIOCOLL_SHM_{name}", value) for name, value in rng.choice(_CELLS).items())
        text = f"world {seed} {number}"
        mode = rng.choice(MODES)
        return cls(number, text, size, mode, transport, tuple(victims), early, settings, stop_seconds)

    def members(self, stage: int) -> list[int]:
        """Who is left when a stage begins."""
        dead = {rank for victims in self.victims[:stage] for rank in victims}
        return [rank for rank in range(self.size) if rank not in dead]


class Program:
    """The calls of one stage: batches of them, each with what its results must be."""

    def __init__(self, plan: Plan, stage: int, group: Any) -> None:
        self.rank, self.size, self.group = group.rank, group.size, group
        self.rng = random.Random(f"{plan.seed} {stage}")
        self.mode = plan.mode
        if plan.stop_seconds:  # a late receive is withdrawn and breaks nothing
            self.kinds = tuple(kind for kind in self.kinds if kind is not Program.ring)

    def __repr__(self) -> str:
        return f"<Program of rank {self.rank} of {self.size}>"

    def array(self, count: int, turn: int, rank: int | None = None) -> Array:
        """What a rank (this one) brings along."""
        return (np.arange(count) % 97 + 5 * (self.rank if rank is None else rank) + turn).astype(np.float64)

    def mine(self, count: int, turn: int) -> Array:
        """The same, now and then in memory that the others can read."""
        array = self.array(count, turn)
        if self.rng.random() < 0.4:
            lent: Array = self.group.empty(count)
            lent[...] = array
            return lent
        return array

    def total(self, count: int, turn: int, ranks: int) -> Array:
        """The sum of what the first ``ranks`` ranks bring along."""
        return ranks * (np.arange(count) % 97 + float(turn)) + 5.0 * sum(range(ranks))

    def batches(self) -> Generator[list[Call], list[Any], None]:
        """For ever: calls to be under way together; takes their results."""
        turn = 0
        while True:
            together = 1 if self.mode == "block" else self.rng.choice([1, 1, 2, 4])
            kinds = [self.rng.choice(self.kinds) for _ in range(together)]
            made = [kind(self, self.rng.choice(COUNTS), turn + i) for i, kind in enumerate(kinds)]
            for _ in range(self.rng.choice([1, 1, 2, 6])):
                results = yield [call for calls, _ in made for call in calls]
                for calls, check in made:
                    mine, results = results[: len(calls)], results[len(calls) :]
                    if not check(mine[-1]):
                        raise ArithmeticError(f"wrong result of {calls[-1][0]} in turn {turn}")
            turn += together

    # Each gives calls of one kind and a check of the last one's result.

    def all_reduce(self, count: int, turn: int) -> tuple[list[Call], Check]:
        x, total = self.mine(count, turn), self.total(count, turn, self.size)
        return [("all_reduce", (x,))], lambda out: bool((out == total).all())

    def all_reduce_into(self, count: int, turn: int) -> tuple[list[Call], Check]:
        x, out, total = self.mine(count, turn), self.mine(count, turn), self.total(count, turn, self.size)
        return [("all_reduce", (x, "sum", out))], lambda _: bool((out == total).all())

    def reduce(self, count: int, turn: int) -> tuple[list[Call], Check]:
        root, total = turn % self.size, self.total(count, turn, self.size)
        x = self.mine(count, turn)
        return [("reduce", (x, "sum", root))], lambda out: self.rank != root or bool((out == total).all())

    def broadcast(self, count: int, turn: int) -> tuple[list[Call], Check]:
        root = turn % self.size
        x, theirs = self.mine(count, turn), self.array(count, turn, root)
        return [("broadcast", (x if self.rank == root else None, root))], lambda out: bool((out == theirs).all())

    def all_gather(self, count: int, turn: int) -> tuple[list[Call], Check]:
        count = count // self.size + 1
        theirs = [self.array(count, turn, rank) for rank in range(self.size)]
        return [("all_gather", (self.mine(count, turn),))], lambda out: _equal(out, theirs)

    def gather(self, count: int, turn: int) -> tuple[list[Call], Check]:
        root, count = turn % self.size, count // self.size + 1
        theirs = [self.array(count, turn, rank) for rank in range(self.size)]
        x = self.mine(count, turn)
        return [("gather", (x, root))], lambda out: self.rank != root or _equal(out, theirs)

    def scatter(self, count: int, turn: int) -> tuple[list[Call], Check]:
        root, count = turn % self.size, count // self.size + 1
        parts = [self.mine(count, turn + rank) for rank in range(self.size)]
        given = parts if self.rank == root else None
        mine = self.array(count, turn + self.rank, root)
        return [("scatter", (given, root))], lambda out: bool((out == mine).all())

    def reduce_scatter(self, count: int, turn: int) -> tuple[list[Call], Check]:
        count = max(count, self.size)
        mine = np.array_split(self.total(count, turn, self.size), self.size)[self.rank]
        return [("reduce_scatter", (self.mine(count, turn),))], lambda out: bool((out == mine).all())

    def all_to_all(self, count: int, turn: int) -> tuple[list[Call], Check]:
        count = count // self.size + 1
        parts = [self.mine(count, turn + 3 * rank) for rank in range(self.size)]
        theirs = [self.array(count, turn + 3 * self.rank, rank) for rank in range(self.size)]
        return [("all_to_all", (parts,))], lambda out: _equal(out, theirs)

    def scan(self, count: int, turn: int) -> tuple[list[Call], Check]:
        total = self.total(count, turn, self.rank + 1)
        return [("scan", (self.mine(count, turn),))], lambda out: bool((out == total).all())

    def exscan(self, count: int, turn: int) -> tuple[list[Call], Check]:
        total = self.total(count, turn, self.rank)
        return [("exscan", (self.mine(count, turn),))], lambda out: self.rank == 0 or bool((out == total).all())

    def barrier(self, count: int, turn: int) -> tuple[list[Call], Check]:
        return [("barrier", ())], lambda _: True

    def objects(self, count: int, turn: int) -> tuple[list[Call], Check]:
        theirs = [{"rank": rank, "text": "x" * (count // 10)} for rank in range(self.size)]
        return [("all_gather_object", (theirs[self.rank],))], lambda out: bool(out == theirs)

    def ring(self, count: int, turn: int) -> tuple[list[Call], Check]:
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        x, theirs = self.mine(count, turn), self.array(count, turn, before)
        return [("send", (x, after, turn)), ("recv", (before, turn))], lambda out: bool((out == theirs).all())

    kinds: tuple[Callable[[Program, int, int], tuple[list[Call], Check]], ...] = (
        all_reduce, all_reduce, all_reduce_into, all_reduce_into, reduce, broadcast, all_gather, gather, scatter,
        reduce_scatter, all_to_all, scan, exscan, barrier, objects, ring, ring,
    )  # fmt: skip


def _equal(out: Sequence[Array], theirs: Sequence[Array]) -> bool:
    return len(out) == len(theirs) and all((a == b).all() for a, b in zip(out, theirs, strict=True))


class Rank:
    """What one rank does and says."""

    def __init__(self, plan: Plan, rank: int, pipe: Connection) -> None:
        self.plan, self.rank, self.pipe = plan, rank, pipe

    def __repr__(self) -> str:
        return f"<Rank {self.rank} of {self.plan}>"

    @property
    def stages(self) -> list[int]:
        """Those in which this rank takes part; the last one has no victims."""
        return [stage for stage in range(len(self.plan.victims) + 1) if self.rank in self.plan.members(stage)]

    async def awaiting(self, where: dict[str, Any], url: str) -> None:
        async with aiocoll.connect(url, **where) as world:
            self.check_links(world)
            groups = [await world.subgroup(self.plan.members(stage)) for stage in self.stages]
            self.pipe.send(("ready",))
            for stage, group in zip(self.stages, groups, strict=True):
                program = Program(self.plan, stage, group).batches()
                batch = self.begin(stage, program)
                for _ in self.turns(stage):
                    limits = self.limits(stage)
                    awaited = [getattr(group, name)(*arguments, **limits) for name, arguments in batch]
                    results = await asyncio.gather(*awaited, return_exceptions=True)
                    if self.failed(stage, results, group):
                        break
                    batch = program.send(results)

    def blocking(self, where: dict[str, Any], url: str) -> None:
        with aiocoll.sync.connect(url, **where) as world:
            self.check_links(world.asynchronous)
            groups = [world.subgroup(self.plan.members(stage)) for stage in self.stages]
            self.pipe.send(("ready",))
            for stage, group in zip(self.stages, groups, strict=True):
                program = Program(self.plan, stage, group).batches()
                batch = self.begin(stage, program)
                for _ in self.turns(stage):
                    results = self.block_on(group, batch, self.limits(stage))
                    if self.failed(stage, results, group):
                        break
                    batch = program.send(results)

    def block_on(self, group: Any, batch: list[Call], limits: dict[str, float]) -> list[Any]:
        """The results or errors of a batch."""
        results: list[Any] = []
        if self.plan.mode == "start":
            works = [getattr(group.start, name)(*arguments, **limits) for name, arguments in batch]
            for work in works:
                error = work.exception()
                results.append(work.result() if error is None else error)
            return results
        for name, arguments in batch:
            try:
                results.append(getattr(group, name)(*arguments, **limits))
            except (PeerLostError, GroupBrokenError, CollectiveTimeoutError) as error:
                results.append(error)
        return results

    def check_links(self, world: Any) -> None:
        """It is about shared memory, where that is wanted."""
        if (self.plan.transport == "shm") != (world._endpoint.memory is not None):
            raise AssertionError("the ranks of this world do not share memory")

    def begin(self, stage: int, program: Generator[list[Call], list[Any], None]) -> list[Call]:
        batch = next(program)
        self.pipe.send(("stage", stage))
        return batch

    def limits(self, stage: int) -> dict[str, float]:
        """The deadline of a stage's calls, where somebody is stopped in it."""
        return {"timeout": self.plan.stop_seconds} if self.plan.stop_seconds and stage < len(self.plan.victims) else {}

    def turns(self, stage: int) -> range:
        """For ever, but in the last stage, where nobody dies any more."""
        return range(1 << 60 if stage < len(self.plan.victims) else ROUNDS_AFTER_LAST_KILL)

    def failed(self, stage: int, results: list[Any], group: Any) -> bool:
        """Whether somebody died; says so, and what is wrong with how it was told."""
        errors = [each for each in results if isinstance(each, BaseException)]
        if not errors:
            return False
        when = time.monotonic()
        wrong = []
        if group.broken is None and not all(self.was_unreached(error) for error in errors):
            wrong.append(f"{group} is not broken")
        victims = self.plan.victims[stage] if stage < len(self.plan.victims) else ()
        first_class = CollectiveTimeoutError if self.plan.stop_seconds else PeerLostError
        for error in errors:
            cause = error.cause if isinstance(error, GroupBrokenError) else error
            if not self.names(cause, victims, group):
                text = "".join(traceback.format_exception(error))
                wrong.append(f"{victims} died, or stood still, and this was raised: {text}")
        if not self.plan.stop_seconds and not any(isinstance(error, first_class) for error in errors):
            wrong.append(f"nobody said {first_class.__name__}: {errors}")
        self.pipe.send(("lost", stage, when, [type(error).__name__ for error in errors], wrong))
        return True

    def was_unreached(self, error: BaseException) -> bool:
        """Whether a message found nobody at the other end of a connection that was not made before the death: whether
        that one died or left is found out a moment later."""
        message = isinstance(error, PeerLostError) and error.operation.startswith(("send", "recv"))
        return message and self.plan.transport == "tcp"

    def names(self, cause: BaseException | None, victims: tuple[int, ...], group: Any) -> bool:
        """Whether an error says what has happened: who died, or who was missing when the deadline had passed."""
        if not self.plan.stop_seconds:
            return isinstance(cause, PeerLostError) and cause.world_rank in victims
        if not isinstance(cause, CollectiveTimeoutError) or cause.elapsed < self.plan.stop_seconds:
            return False
        return victims[0] in [group.ranks[rank] for rank in cause.missing]


def load_everything() -> None:
    """What ranks would load one by one when they first need it: before they are forked, all get it at once."""
    for package in (aiocoll.algorithms, aiocoll.transport, aiocoll.rendezvous, aiocoll.store, aiocoll.place):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    for name in ("aiocoll.world", "aiocoll.observe.report", "encodings.idna", "importlib.metadata"):
        importlib.import_module(name)
    # Which of its ways a long call takes is left to chance, since worlds end before either has been timed.
    aiocoll.algorithms.owner.ASK_BYTES = aiocoll.algorithms.spread.READ_BYTES_MIN = 1 << 19
    aiocoll.endpoint.rivals.Rivals.second = lambda _: random.random() < 0.7  # type: ignore[assignment, method-assign]


def rank_process(
    plan: Plan, rank: int, port: int, listener: socket.socket | None, pipe: Connection, output: str
) -> NoReturn:
    """All of one process."""
    status = 1
    try:
        with open(output, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            faulthandler.enable(file)
            faulthandler.register(signal.SIGUSR1, file, all_threads=True)
            signal.alarm(LIFE_SECONDS)  # whatever happens, nobody stays for ever
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            os.environ.update(plan.settings)
            before = Belongings.now()
            where = {"rank": rank, "size": plan.size, "transport": plan.transport, "listener": listener}
            where["timeout"] = LIFE_SECONDS / 2
            one, url = Rank(plan, rank, pipe), f"tcp://127.0.0.1:{port}"
            if listener is not None:
                listener.setblocking(False)
            if plan.mode == "await":
                asyncio.run(one.awaiting(where, url))
            else:
                one.blocking(where, url)
            left = left_behind(before)
            pipe.send(("end", left))
            status = 0
    except RendezvousError as error:
        pipe.send(("unmet", str(error)))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
    finally:
        os._exit(status)
