"""Several runners, one job: they meet in the store that node 0 serves, agree on the ranks, and end together.

Rule: the first who writes the ``end`` of an attempt decides for all; nobody waits for a runner that cannot answer.
Who belongs to the job, and what follows when one is lost, `coordinator` decides, which runs beside the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import math
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiocoll.errors import AiocollError, RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.runner.chronicle import Result
from aiocoll.runner.coordinator import BEAT_S, DOOR, LOST_S, Coordinator, Seat, nnodes_text
from aiocoll.runner.options import JOIN_S, Options, split_address
from aiocoll.runner.plan import Layout
from aiocoll.runner.start import free_port
from aiocoll.store.prefix import PrefixStore
from aiocoll.store.server import StoreServer, process_token
from aiocoll.store.stream import address_text
from aiocoll.store.tcp import TCPStore

GOODBYE_S = 10.0
NODES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt of the whole job ended: the exit code, the node that says so and its words."""

    code: int
    node: int
    words: tuple[str, ...] = ()
    final: bool = False
    """Whether no restart may follow (somebody wanted the job to stop)."""
    lost: bool = False
    """Whether this runner says so alone, because it has lost node 0 and with it the others."""

    def encode(self) -> bytes:
        words = list(self.words)
        while sum(map(len, words)) > 100_000:  # a store's value is bounded; the end is what matters
            del words[: max(1, len(words) // 4)]
        return json.dumps([self.code, self.node, words, self.final]).encode()

    @classmethod
    def decode(cls, data: bytes) -> End:
        code, node, words, final = json.loads(data)
        return cls(code, node, tuple(words), final)


class Node:
    """This runner among the others; made by `open`, one `Meeting`-like round (`meet`, `finish`) per attempt."""

    def __init__(
        self, options: Options, server: StoreServer | None, store: TCPStore, say: Callable[[str], None]
    ) -> None:
        self._options, self._server, self._client = options, server, store
        self._store = PrefixStore(store, "runner/")
        self.rank = 0 if server is not None else -1
        """Its number; below 0 before it has one."""
        self._counts: dict[int, int] = {}
        """Who began, with how many ranks."""
        self._tasks: list[asyncio.Task[None]] = []
        self._coordinator: Coordinator | None = None
        self._coordinating: asyncio.Task[None] | None = None
        if server is not None:
            self._coordinator = Coordinator(options, self._store, self._end_of_all, say)
            self._coordinating = asyncio.ensure_future(self._coordinator.run())
            server.on_process_gone = self._coordinator.process_gone
        self.host: str = socket.gethostname()

    def __repr__(self) -> str:
        return f"Node({self.rank} of {nnodes_text(self._options)} at {self._options.rdzv})"

    @property
    def serves(self) -> bool:
        """Whether this is node 0, without which no other can come."""
        return self._server is not None

    @property
    def may_go_alone(self) -> bool:
        """Whether the job goes on when only node 0, and with it the store, is lost."""
        left = len(self._counts) - 1
        return self._options.on_failure == "shrink" and not self.serves and left >= self._options.nnodes_min

    @property
    def may_leave(self) -> bool:
        """Whether somebody who stops this runner means only this one: the job can do with fewer."""
        options = self._options
        return options.on_failure == "shrink" and not self.serves and options.nnodes_min < options.nnodes

    @classmethod
    async def open(cls, options: Options, say: Callable[[str], None]) -> Node:
        """Serves the store (node 0) or finds it; every way to fail says what and where."""
        host, port = split_address(options.rdzv)
        await _require_secret(host, options)
        job = job_name(options)
        server = await _serve(host, port, options, job) if not options.node_rank else None
        try:
            patience = min(JOIN_S, options.timeout)
            store = await TCPStore.connect(host, port, secret=options.secret, job=job, timeout=patience)
        except BaseException:
            if server is not None:
                await server.close()
            raise
        return cls(options, server, store, say)

    # -- one attempt ------------------------------------------------------------------------------------------------

    async def meet(self, restart: int) -> Layout:
        """All runners say how many ranks they start; the ranks are numbered in the order of the nodes."""
        if restart:
            await self._gather_again(restart)
            return self._layout(restart, await self._store.get(f"{restart}/master", timeout=JOIN_S))
        await self._take_seat()
        if self._server is not None:
            await self._store.set("0/master", self._master())
        await self._push("came")
        patience = min(JOIN_S, self._options.timeout) + BEAT_S  # node 0 is the first to know who is missing
        plan = json.loads(await self._store.get("plan", timeout=patience))
        if "failed" in plan:
            raise (RendezvousTimeoutError if plan["late"] else RendezvousError)(plan["failed"])
        self._counts = dict(plan["nodes"])
        master = await self._store.get("0/master", timeout=patience)
        return self._layout(0, master) if self.rank in self._counts else await self._come_later(master)

    def _master(self) -> bytes:
        return address_text(split_address(self._options.rdzv)[0], free_port()).encode()

    async def _take_seat(self) -> None:
        options = self._options
        mine = Seat(options.ranks, nnodes_text(options), options.on_failure, self.host, os.getpid(), process_token())
        wanted = options.node_rank
        if wanted is None:
            wanted = 0 if self.serves else await self._free_number(mine)
        taken = Seat.decode(await self._store.compare_set(f"seat/{wanted}", b"", mine.encode()))
        if taken != mine:
            raise RendezvousError(
                f"--node-rank {wanted} is taken: the runner with pid {taken.pid} on {taken.host} has it"
            )
        self.rank = wanted

    async def _free_number(self, mine: Seat) -> int:
        for number in range(1, NODES_MAX):
            if await self._store.compare_set(f"seat/{number}", b"", mine.encode()) == mine.encode():
                return number
        raise RendezvousError(f"all of {NODES_MAX} numbers of runners are taken at {self._options.rdzv}")

    async def _gather_again(self, restart: int) -> None:
        if self._coordinator is not None:
            self._coordinator.attempt(restart)
            await self._store.set(f"{restart}/master", self._master())
        await self._store.set(f"{restart}/node/{self.rank}", b"1")
        keys = [f"{restart}/node/{node}" for node in self._counts]
        try:
            await self._store.wait(keys, timeout=min(JOIN_S, self._options.timeout))
        except RendezvousTimeoutError as error:
            missing = [str(n) for n, key in zip(self._counts, keys, strict=True) if not await self._store.check([key])]
            raise RendezvousTimeoutError(
                f"{len(keys) - len(missing)} of {len(keys)} runners came to restart {restart} at {self._options.rdzv}; "
                f"--node-rank {', '.join(missing)} missing"
            ) from error

    def _layout(self, restart: int, master: bytes) -> Layout:
        before = [self._counts[node] for node in self._counts if node < self.rank]
        return Layout(
            size=sum(self._counts.values()),
            ranks=self._options.ranks,
            first=sum(before),
            node_rank=len(before),
            nnodes=len(self._counts),
            job=job_name(self._options),
            rdzv=f"tcp://{self._options.rdzv.removeprefix('tcp://')}",
            master=master.decode(),
            restart=restart,
            restarts_max=self._options.max_restarts,
        )

    async def _come_later(self, master: bytes) -> Layout:
        """The job has begun without us: our ranks come to it as newcomers, if it wants them."""
        key = f"reply/{process_token()}"
        reply = json.loads(await self._store.get(key, timeout=JOIN_S))
        await self._store.delete(key)
        if "refused" in reply:
            raise RendezvousError(reply["refused"])
        first, ranks = reply["first"], self._options.ranks
        layout = self._layout(0, master)
        return replace(layout, size=first + ranks, first=first, node_rank=self.rank, nnodes=reply["nodes"], join=True)

    def watch(self, restart: int, ended: Callable[[End], None]) -> None:
        """From now on `ended` is called (once) when the attempt is over somewhere, or node 0 is gone."""
        called = False

        def once(end: End) -> None:
            nonlocal called
            if not called:
                called = True
                ended(end)

        self._tasks = [
            asyncio.ensure_future(self._wait_for_end(restart, once)),
            asyncio.ensure_future(self._beat(once)),
        ]

    async def _wait_for_end(self, restart: int, ended: Callable[[End], None]) -> None:
        try:
            ended(End.decode(await self._store.get(f"{restart}/end", timeout=math.inf)))
        except AiocollError as error:
            ended(self._lost(f"is gone: {error}"))

    def _lost(self, how: str) -> End:
        text = f"aiocoll: the runner of node 0 at {self._options.rdzv} {how}"
        return End(1, self.rank, (text,), final=True, lost=True)

    async def _beat(self, ended: Callable[[End], None]) -> None:
        """Shows that we live, and sees whether node 0 does: a lost host closes no connection."""
        with contextlib.suppress(AiocollError):  # the other task says so
            while True:
                try:
                    async with asyncio.timeout(LOST_S):
                        await self._store.add(f"beat/{self.rank}")
                except TimeoutError:
                    ended(self._lost(f"has not been heard of for {LOST_S:g} s"))
                    return
                await asyncio.sleep(BEAT_S)

    async def _push(self, kind: str, *rest: Any) -> None:
        await self._store.queue_push(DOOR, json.dumps([kind, self.rank, *rest]).encode())

    async def end(self, restart: int, end: End) -> End:
        """Says that the attempt is over; the end that holds, which may be an earlier one."""
        try:
            return End.decode(await self._store.compare_set(f"{restart}/end", b"", end.encode()))
        except AiocollError:
            return end

    async def _end_of_all(self, restart: int, code: int, words: list[str], *, final: bool) -> None:
        await self.end(restart, End(code, self.rank, tuple(words), final))

    async def stands(self, restart: int, result: Result) -> None:
        """How the ranks here fare, when none of them runs (any more, or for the moment)."""
        with contextlib.suppress(AiocollError):  # a job that is over needs no news; _beat sees whether node 0 lives
            await self._push("stands", restart, result.encode())

    async def go(self, how: str) -> None:
        """This runner leaves a job that goes on."""
        with contextlib.suppress(AiocollError):  # as above
            await self._push("gone", how)

    async def next_number(self) -> int | None:
        """The number of the job's next replacement, None when there were enough or nobody can say."""
        try:
            number = await self._store.add("replacements")
        except AiocollError:
            return None
        return number if number <= self._options.max_restarts else None

    async def leave(self, restart: int) -> None:
        """Node 0 serves until the others have read the end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        with contextlib.suppress(AiocollError, TimeoutError):  # node 0 may have gone first
            async with asyncio.timeout(GOODBYE_S):
                await self._push("bye", restart)
        if self._coordinator is not None:
            await self._coordinator.all_have_left(restart, GOODBYE_S)

    async def close(self) -> None:
        if self._coordinating is not None:
            self._coordinating.cancel()
            await asyncio.gather(self._coordinating, return_exceptions=True)
        if self._coordinator is not None:
            await self._coordinator.close()
        await self._client.close()
        if self._server is not None:
            await self._server.close()


async def _serve(host: str, port: int, options: Options, job: str) -> StoreServer | None:
    """The store's server; None where --node-rank is not given, and another runner or another host serves."""
    try:
        return await StoreServer.start(host, port, secret=options.secret, job=job)
    except RendezvousError as error:
        number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
        if options.node_rank is None and number in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            return None
        raise


def job_name(options: Options) -> str:
    """All runners must give the same; they may spell the host differently, not the port."""
    return options.job or f"rdzv-{split_address(options.rdzv)[1]}"


async def _require_secret(host: str, options: Options) -> None:
    if options.secret:
        return
    try:
        found: Sequence[Any] = await asyncio.get_running_loop().getaddrinfo(host, None)
    except OSError:
        return  # whoever connects says so
    if not all(ipaddress.ip_address(str(info[4][0]).partition("%")[0]).is_loopback for info in found):
        raise UsageError(
            f"--rdzv {options.rdzv} is not loopback, and the runners share no secret: give all of them the same "
            "--secret-file, or AIOCOLL_SECRET (python3 -c 'import secrets; print(secrets.token_hex(32))')"
        )
