"""Several runners, one job: they meet in the store that node 0 serves, agree on the ranks, and end together.

Rule: the first who writes the ``end`` of an attempt decides for all; nobody waits for a runner that cannot answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiocoll.errors import AiocollError, RendezvousError, RendezvousTimeoutError, UsageError
from aiocoll.runner.options import JOIN_S, Options, split_address
from aiocoll.runner.plan import Layout
from aiocoll.runner.start import free_port
from aiocoll.store.prefix import PrefixStore
from aiocoll.store.server import StoreServer
from aiocoll.store.stream import address_text
from aiocoll.store.tcp import TCPStore

BEAT_S, LOST_S = 2.0, 15.0
GOODBYE_S = 10.0


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt of the whole job ended: the exit code, the node that says so and its words."""

    code: int
    node: int
    words: tuple[str, ...] = ()
    final: bool = False
    """Whether no restart may follow (somebody wanted the job to stop)."""
    lost: bool = False
    """Whether this runner says so alone, because it has lost another one."""

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

    def __init__(self, options: Options, server: StoreServer | None, store: TCPStore) -> None:
        self._options, self._server, self._client = options, server, store
        self._store = PrefixStore(store, "runner/")
        self.rank, self._count = options.node_rank or 0, options.nnodes
        self._tasks: list[asyncio.Task[None]] = []
        self.host = socket.gethostname()

    def __repr__(self) -> str:
        return f"Node({self.rank} of {self._count} at {self._options.rdzv})"

    @classmethod
    async def open(cls, options: Options) -> Node:
        """Serves the store (node 0) or finds it; every way to fail says what and where."""
        host, port = split_address(options.rdzv)
        await _require_secret(host, options)
        job = job_name(options)
        server = None
        if options.node_rank == 0:
            server = await StoreServer.start(host, port, secret=options.secret, job=job)
        try:
            patience = min(JOIN_S, options.timeout)
            store = await TCPStore.connect(host, port, secret=options.secret, job=job, timeout=patience)
        except BaseException:
            if server is not None:
                await server.close()
            raise
        return cls(options, server, store)

    # -- one attempt ------------------------------------------------------------------------------------------------

    async def meet(self, restart: int) -> Layout:
        """All runners say how many ranks they start; the ranks are numbered in the order of the nodes."""
        options, at = self._options, f"{restart}/"
        mine = json.dumps([options.ranks, options.nnodes, self.host, os.getpid()]).encode()
        taken = await self._store.compare_set(f"{at}node/{self.rank}", b"", mine)
        if taken != mine:
            _, _, host, pid = json.loads(taken)
            raise RendezvousError(f"--node-rank {self.rank} is taken: the runner with pid {pid} on {host} has it")
        if self.rank == 0:
            host, _ = split_address(options.rdzv)
            await self._store.set(f"{at}master", address_text(host, free_port()).encode())
        keys = [f"{at}node/{node}" for node in range(self._count)]
        try:
            found = await self._store.multi_get([*keys, f"{at}master"], timeout=min(JOIN_S, options.timeout))
        except RendezvousTimeoutError as error:
            here = [key for key in keys if await self._store.check([key])]
            missing = [str(node) for node, key in enumerate(keys) if key not in here]
            raise RendezvousTimeoutError(
                f"{len(here)} of {self._count} runners came to {options.rdzv}; --node-rank {', '.join(missing)} missing"
            ) from error
        nodes = [json.loads(text) for text in found[:-1]]
        for node, (_, nnodes, host, pid) in enumerate(nodes):
            if nnodes != self._count:
                raise RendezvousError(
                    f"--nnodes {self._count} here, but {nnodes} at node {node} (pid {pid} on {host}): "
                    "all runners need the same"
                )
        counts = [node[0] for node in nodes]
        return Layout(
            size=sum(counts),
            ranks=options.ranks,
            first=sum(counts[: self.rank]),
            node_rank=self.rank,
            nnodes=self._count,
            job=job_name(options),
            rdzv=f"tcp://{options.rdzv.removeprefix('tcp://')}",
            master=found[-1].decode(),
            restart=restart,
            restarts_max=options.max_restarts,
        )

    def watch(self, restart: int, ended: Callable[[End], None]) -> None:
        """From now on `ended` is called (once) when the attempt is over somewhere, or the others are gone."""
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
            text = f"aiocoll: the runner of node 0 at {self._options.rdzv} is gone: {error}"
            ended(End(1, self.rank, (text,), final=True, lost=True))

    async def _beat(self, ended: Callable[[End], None]) -> None:
        """Shows that we live, and looks whether the others do: a lost host closes no connection."""
        loop = asyncio.get_running_loop()
        seen: dict[int, tuple[bytes, float]] = {}
        with contextlib.suppress(AiocollError):  # the other task says so
            while True:
                await self._store.add(f"beat/{self.rank}")
                for node in range(self._count):
                    beat = b"%d" % await self._store.add(f"beat/{node}", 0)
                    if seen.get(node, (b"",))[0] != beat:
                        seen[node] = beat, loop.time()
                    elif loop.time() - seen[node][1] > LOST_S:
                        text = f"aiocoll: the runner of node {node} has not been heard of for {LOST_S:g} s; exit code 1"
                        ended(End(1, self.rank, (text,), final=True, lost=True))
                await asyncio.sleep(BEAT_S)

    async def end(self, restart: int, end: End) -> End:
        """Says that the attempt is over; the end that holds, which may be an earlier one."""
        try:
            return End.decode(await self._store.compare_set(f"{restart}/end", b"", end.encode()))
        except AiocollError:
            return end

    async def finish(self, restart: int, mine: End) -> End:
        """My ranks have ended; waits for the others' and returns what counts for all."""
        if mine.code == 0:
            with contextlib.suppress(AiocollError):
                if await self._store.add(f"{restart}/well") == self._count:
                    await self.end(restart, mine)
        else:
            mine = await self.end(restart, mine)
        return mine

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
        with contextlib.suppress(AiocollError, TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                if await self._store.add(f"{restart}/left") == self._count:
                    await self._store.set(f"{restart}/all_left", b"1")
                if self.rank == 0:
                    await self._store.get(f"{restart}/all_left", timeout=GOODBYE_S)

    async def close(self) -> None:
        await self._client.close()
        if self._server is not None:
            await self._server.close()


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
