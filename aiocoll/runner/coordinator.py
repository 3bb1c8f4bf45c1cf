"""Node 0's part among several runners: who belongs to the job, who is lost, and when it is over.

Rule: one actor. Runners push what happens to one queue (``door``), here it is taken in order, and what follows is
written where they read it: ``plan`` (who begins), ``reply/<process>`` (to one who comes later), ``<restart>/end``.

    gathering --MAX came, or MIN and nobody new for the last call--> running --all over, or fewer than MIN--> end
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiocoll.errors import AiocollError, RendezvousTimeoutError
from aiocoll.runner.chronicle import Result, merged
from aiocoll.runner.options import JOIN_S, Options
from aiocoll.store.base import Store

BEAT_S, LOST_S = 2.0, 15.0
DOOR = "door"


@dataclass(frozen=True, slots=True)
class Seat:
    """What a runner says of itself when it comes."""

    ranks: int
    nnodes: str
    on_failure: str
    host: str
    pid: int
    process: str
    """By which the store's server knows it."""

    def encode(self) -> bytes:
        return json.dumps([self.ranks, self.nnodes, self.on_failure, self.host, self.pid, self.process]).encode()

    @classmethod
    def decode(cls, data: bytes) -> Seat:
        return cls(*json.loads(data))


class Ends(Protocol):
    """How the end of an attempt is told; the first that tells decides."""

    async def __call__(self, restart: int, code: int, words: list[str], *, final: bool) -> object: ...


@dataclass(slots=True)
class _Standing:
    """What is known of one runner that belongs to the job."""

    seat: Seat
    first: int
    restart: int = -1
    result: Result | None = None
    beat: int = -1
    seen: float = field(default_factory=time.monotonic)


class Coordinator:
    """Made by node 0 with its store (see the module's docstring for the keys); `run` until it is cancelled."""

    def __init__(self, options: Options, store: Store, end: Ends, say: Callable[[str], None]) -> None:
        self._options, self._store, self._end, self._say = options, store, end, say
        self._living: dict[int, _Standing] = {}
        self._next_rank = 0
        self._departed: list[Result] = []
        self._goodbyes: set[tuple[int, int]] = set()
        self._planned = False
        self._began = time.monotonic()
        self._all_left = asyncio.Event()
        self._restart = 0
        self._leaving: int | None = None
        self._pushing: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"Coordinator(living={sorted(self._living)}, planned={self._planned})"

    async def run(self) -> None:
        """Gathers the runners, then serves them."""
        try:
            await self._gather()
            await asyncio.gather(self._serve(), self._watch())
        except AiocollError:
            pass  # our own store: it goes when we do
        except Exception as error:
            words = [f"aiocoll: the runner of node 0 cannot coordinate the others: {error!r}; exit code 1"]
            await self._end(self._restart, 1, words, final=True)
            raise

    def process_gone(self, process: str) -> None:
        """The store's server has lost a client: a runner, or one of many ranks."""
        for node, standing in self._living.items():
            if standing.seat.process == process and node != 0:
                self._pushing.append(asyncio.ensure_future(self._push_gone(node)))

    async def _push_gone(self, node: int) -> None:
        with contextlib.suppress(AiocollError):  # our own store: it goes when we do
            await self._store.queue_push(DOOR, json.dumps(["gone", node, "is gone"]).encode())

    # -- who begins ---------------------------------------------------------------------------------------------------

    async def _gather(self) -> None:
        options, loop = self._options, asyncio.get_running_loop()
        deadline = loop.time() + min(JOIN_S, options.timeout)
        late = deadline
        while len(self._living) < options.nnodes:
            try:
                kind, node, *rest = await self._next(max(0.0, min(deadline, late) - loop.time()))
            except RendezvousTimeoutError:
                if len(self._living) >= options.nnodes_min:
                    break
                await self._fail(self._who_is_missing(), late=True)
                return
            if kind == "came":
                seat = Seat.decode(await self._store.get(f"seat/{node}", timeout=LOST_S))
                if why := self._differs(node, seat):
                    await self._fail(why)
                    return
                self._living[node] = _Standing(seat, 0)
            elif kind == "gone":
                await self._forget(node)
            else:
                await self._heard(kind, node, rest)
            late = loop.time() + options.last_call if len(self._living) >= options.nnodes_min else deadline
        await self._begin()

    async def close(self) -> None:
        """Nothing of it is left when this returns; `run` has been cancelled."""
        await asyncio.gather(*self._pushing, return_exceptions=True)

    async def _begin(self) -> None:
        nodes = []
        for node, standing in sorted(self._living.items()):
            standing.first, standing.seen = self._next_rank, time.monotonic()
            self._next_rank += standing.seat.ranks
            nodes.append([node, standing.seat.ranks])
        self._planned = True
        await self._store.set("plan", json.dumps({"nodes": nodes}).encode())

    async def _fail(self, why: str, *, late: bool = False) -> None:
        await self._store.set("plan", json.dumps({"failed": why, "late": late}).encode())

    def _differs(self, node: int, seat: Seat) -> str:
        mine = self._options
        what = f"node {node} (pid {seat.pid} on {seat.host})"
        if seat.nnodes != nnodes_text(mine):
            return f"--nnodes {nnodes_text(mine)} here, but {seat.nnodes} at {what}: all runners need the same"
        if seat.on_failure != mine.on_failure:
            return f"--on-failure {mine.on_failure} here, but {seat.on_failure} at {what}: all runners need the same"
        return ""

    def _who_is_missing(self) -> str:
        options = self._options
        came = f"{len(self._living)} of {nnodes_text(options)} runners came to {options.rdzv}"
        if options.nnodes_min < options.nnodes:
            return f"{came}: at least {options.nnodes_min} are needed"
        missing = [str(node) for node in range(options.nnodes) if node not in self._living]
        return f"{came}; --node-rank {', '.join(missing)} missing"

    # -- while it runs ------------------------------------------------------------------------------------------------

    async def _next(self, timeout: float) -> list[Any]:
        message: list[Any] = json.loads(await self._store.queue_pop(DOOR, timeout=timeout))
        return message

    async def _serve(self) -> None:
        while True:
            kind, node, *rest = await self._next(float("inf"))
            await self._heard(kind, node, rest)

    async def _heard(self, kind: str, node: int, rest: list[Any]) -> None:
        if kind == "came":
            await self._answer(node)
        elif kind == "gone":
            await self._lose(node, rest[0])
        elif kind == "stands" and node in self._living:
            standing = self._living[node]
            standing.restart, standing.result = rest[0], Result.decode(rest[1])
            await self._judge()
        elif kind == "bye":
            self._goodbyes.add((rest[0], node))
            self._look_who_left()

    async def _answer(self, node: int) -> None:
        """To a runner that comes when the job has begun."""
        if not self._planned:
            return  # the plan has failed, and tells why
        seat = Seat.decode(await self._store.get(f"seat/{node}", timeout=LOST_S))
        if why := self._why_not(node, seat):
            await self._store.delete(f"seat/{node}")
            await self._store.set(f"reply/{seat.process}", json.dumps({"refused": why}).encode())
            return
        self._living[node] = _Standing(seat, self._next_rank)
        self._next_rank += seat.ranks
        reply = {"first": self._living[node].first, "nodes": len(self._living)}
        await self._store.set(f"reply/{seat.process}", json.dumps(reply).encode())
        self._say(f"aiocoll: node {node} ({seat.host}) has come, with {seat.ranks} rank{'s' * (seat.ranks > 1)}")

    def _why_not(self, node: int, seat: Seat) -> str:
        mine = self._options
        if mine.on_failure != "shrink":
            return (
                f"the job at {mine.rdzv} has begun, and with --on-failure {mine.on_failure} it takes in no runner: "
                "wait until it is over, or start it with --on-failure shrink"
            )
        if why := self._differs(node, seat):
            return why
        if len(self._living) >= mine.nnodes:
            return f"the job at {mine.rdzv} has {len(self._living)} runners already, all that --nnodes allows"
        return ""

    async def _watch(self) -> None:
        """A runner whose host is lost closes no connection: it is known by its silence."""
        while True:
            for node, standing in list(self._living.items()):
                beat, now = await self._store.add(f"beat/{node}", 0), time.monotonic()
                if beat != standing.beat:
                    standing.beat, standing.seen = beat, now
                elif now - standing.seen > LOST_S and node != 0:
                    await self._lose(node, f"has not been heard of for {LOST_S:g} s")
            await asyncio.sleep(BEAT_S)

    async def _forget(self, node: int) -> _Standing | None:
        """Its number is free again."""
        for key in ("seat", "beat"):
            await self._store.delete(f"{key}/{node}")
        return self._living.pop(node, None)

    async def _lose(self, node: int, how: str) -> None:
        """A runner is no more: the end of the job, or of its ranks."""
        options = self._options
        standing = await self._forget(node)
        self._look_who_left()
        if standing is None or (self._restart, node) in self._goodbyes:
            return
        text = f"the runner of node {node} ({standing.seat.host}) {how}"
        least = options.nnodes_min if options.on_failure == "shrink" else options.nnodes
        if options.on_failure != "shrink":
            await self._end(self._restart, 1, [f"aiocoll: {text}; exit code 1"], final=True)
        elif len(self._living) < least:
            words = f"{text}: {len(self._living)} are left, and --nnodes {nnodes_text(options)} needs {least}"
            await self._end(self._restart, 1, [f"aiocoll: {words}; exit code 1"], final=True)
        else:
            ranks = range(standing.first, standing.first + standing.seat.ranks)
            after = time.monotonic() - self._began
            line = f"aiocoll: {after:.1f} s: {text}; its ranks count as dead"
            done = standing.result or Result()
            lost = [rank for rank in ranks if rank not in done.well]
            self._departed.append(Result(told=[line, *done.told], well=done.well, lost=lost))
            self._say(line)
            await self._judge()

    # -- how it ends --------------------------------------------------------------------------------------------------

    def attempt(self, restart: int) -> None:
        """All ranks have been started (again)."""
        self._restart = restart

    async def _judge(self) -> None:
        """The end, once every runner's ranks have ended, or wait where nobody is left to take them in."""
        standings = list(self._living.values())
        results = [each.result for each in standings if each.restart == self._restart and each.result is not None]
        if len(results) < len(standings) or not all(result.over for result in results):
            return
        if self._options.on_failure != "shrink":
            if all(result.code == 0 for result in results):
                await self._end(self._restart, 0, [], final=False)
            return
        code, words = merged([*self._departed, *results])
        await self._end(self._restart, code, words, final=False)

    async def all_have_left(self, restart: int, seconds: float) -> None:
        """Returns when the other runners know the end of this attempt, or the time is up."""
        self._leaving = restart
        self._look_who_left()
        with contextlib.suppress(TimeoutError):  # they had their time
            async with asyncio.timeout(seconds):
                await self._all_left.wait()
        self._all_left.clear()

    def _look_who_left(self) -> None:
        if self._leaving is not None and all((self._leaving, node) in self._goodbyes for node in self._living if node):
            self._all_left.set()


def nnodes_text(options: Options) -> str:
    """As on the command line."""
    least, most = options.nnodes_min, options.nnodes
    return str(most) if least == most else f"{least}:{most}"
