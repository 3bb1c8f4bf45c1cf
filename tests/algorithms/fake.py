"""Channels in memory for one call of many ranks, driven step by step in an order that a seed decides.

The rule: as unfriendly as the contract allows. *Late* runs read what is sent only when the receive is posted and the
message has travelled, and a send ends only then, so that a deadlock or an array changed too early shows; the other
runs read and end at once. Scratch memory is full of rubbish. Nothing is random but by the seed.

Each rank has a clock that only messages advance: one that left at t arrives at t + 1. The latest clock at the end is
the longest chain of messages that waited for one another: the rounds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aiocoll.algorithms.channel import Array, Data, Parcel, Place
from aiocoll.ops import Op


@dataclass
class Outcome:
    """What a run gave, and what it took; lists by rank."""

    results: list[Any]
    rounds: int
    sent: list[int]
    folded: list[int]


def layout(size: int, seed: int) -> list[int]:
    """Hosts of unequal sizes whose ranks lie anywhere; now and then one for all, or one for each."""
    hosts = [1, 2, 3, size][seed // 2 % 4]
    return np.random.default_rng(seed).integers(0, hosts, size).tolist()


@dataclass
class Log:
    """What one rank has done so far."""

    time: int = 0
    sent: int = 0
    folded: int = 0


class Ticket:
    """A verb that runs: awaiting it twice is as good as once, not awaiting it harms nobody."""

    def __init__(self, log: Log) -> None:
        self.log, self.done, self.value, self.time = log, False, None, 0

    def __await__(self) -> Generator[Ticket, None, Any]:
        while not self.done:
            yield self
        self.log.time = max(self.log.time, self.time)
        return self.value


@dataclass
class Sending:
    data: memoryview | bytes
    meta: bytes
    time: int
    ticket: Ticket


@dataclass
class Receiving:
    store: Callable[[bytes, bytes], Any]
    ticket: Ticket


@dataclass
class Pipe:
    """From one rank to another; in order."""

    sending: deque[Sending] = field(default_factory=deque)
    receiving: deque[Receiving] = field(default_factory=deque)


class FakeWorld:
    def __init__(self, size: int, seed: int, late: bool, hosts: Sequence[int] | None = None) -> None:
        self.size, self.late, self.random = size, late, random.Random(seed)
        self.hosts = list(hosts or range(size))
        self.logs = [Log() for _ in range(size)]
        self.lenders = [rank for rank in range(size) if seed % 4 < 2 or self.random.random() < 0.8]
        self.readable = [rank for rank in range(size) if seed % 3 < 2 or self.random.random() < 0.8]
        self.shown: dict[int, Array] = {}
        self.lent: list[Array] = []
        self.pipes: dict[tuple[int, int], Pipe] = {}
        self.ready: list[Any] = []  # ranks that can go on, and pipes that can deliver
        self.parked: dict[Ticket, int] = {}
        self.channels = [FakeChannel(self, range(size), rank) for rank in range(size)]

    def pipe(self, source: int, to: int) -> Pipe:
        assert source != to and 0 <= source < self.size and 0 <= to < self.size, f"a message from {source} to {to}"
        return self.pipes.setdefault((source, to), Pipe())

    def wake(self, ticket: Ticket, time: int) -> None:
        ticket.done, ticket.time = True, time
        if ticket in self.parked:
            self.ready.append(self.parked.pop(ticket))

    def offer(self, pipe: Pipe) -> None:
        """One chance to deliver for each pair of a send and a receive."""
        self.ready.append(pipe)

    def deliver(self, pipe: Pipe) -> None:
        if not (pipe.sending and pipe.receiving):
            return
        message, receiving = pipe.sending.popleft(), pipe.receiving.popleft()
        receiving.ticket.value = receiving.store(bytes(message.data), message.meta)
        self.wake(receiving.ticket, message.time + 1)
        self.wake(message.ticket, 0)

    def run(self, main: Callable[[FakeChannel], Coroutine[Any, Any, Any]]) -> Outcome:
        ranks = [main(channel) for channel in self.channels]
        results: list[Any] = [None] * self.size
        running = set(range(self.size))
        self.ready = list(range(self.size))
        while self.ready:
            at = self.random.randrange(len(self.ready))
            self.ready[at], self.ready[-1] = self.ready[-1], self.ready[at]
            chosen = self.ready.pop()
            if isinstance(chosen, Pipe):
                self.deliver(chosen)
                continue
            try:
                waits_for = ranks[chosen].send(None)
            except StopIteration as stop:
                results[chosen] = stop.value
                running.discard(chosen)
                continue
            if waits_for is None or waits_for.done:
                self.ready.append(chosen)
            else:
                self.parked[waits_for] = chosen
        assert not running, f"ranks {sorted(running)} of {self.size} wait for ever"
        assert not any(pipe.sending or pipe.receiving for pipe in self.pipes.values()), "messages are left over"
        return Outcome(
            results,
            max(log.time for log in self.logs),
            [log.sent for log in self.logs],
            [log.folded for log in self.logs],
        )


class FakeChannel:
    def __init__(self, world: FakeWorld, ranks: Sequence[int], me: int) -> None:
        self.world, self.ranks, self.me, self.size, self.log = world, list(ranks), me, len(ranks), world.logs[me]
        self.rank = self.ranks.index(me) if me in self.ranks else -1

    def narrow(self, ranks: Sequence[int]) -> FakeChannel:
        return FakeChannel(self.world, [self.ranks[rank] for rank in ranks], self.me)

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        found: dict[int, list[int]] = {}
        for rank, world in enumerate(self.ranks):
            found.setdefault(self.world.hosts[world], []).append(rank)
        return tuple(tuple(ranks) for ranks in found.values())

    def counting(self, op: Op) -> Op:
        """The same op; what it folds is counted for this rank."""

        def fold(left: Array, right: Array, out: Array) -> None:
            assert len(left) == len(right) == len(out)
            self.log.folded += left.nbytes
            op.fold(left, right, out)

        return replace(op, fold=fold)

    def send(self, peer: int, data: Data, meta: bytes = b"") -> Ticket:
        view = memoryview(data.view("u1")) if isinstance(data, np.ndarray) else memoryview(data)
        ticket = Ticket(self.log)
        self.log.sent += view.nbytes + len(meta)
        assert self.rank >= 0, "a send among others"
        pipe = self.world.pipe(self.me, self.ranks[peer])
        if not self.world.late:
            ticket.done = True
        pipe.sending.append(Sending(view if self.world.late else bytes(view), meta, self.log.time, ticket))
        self.world.offer(pipe)
        return ticket

    def _receive(self, peer: int, store: Callable[[bytes, bytes], Any]) -> Ticket:
        ticket = Ticket(self.log)
        assert self.rank >= 0, "a receive among others"
        pipe = self.world.pipe(self.ranks[peer], self.me)
        pipe.receiving.append(Receiving(store, ticket))
        self.world.offer(pipe)
        return ticket

    def recv(self, peer: int, into: Array) -> Ticket:
        def store(data: bytes, meta: bytes) -> None:
            assert len(data) == into.nbytes, f"{len(data)} bytes from {peer} for an array of {into.nbytes}"
            into[...] = np.frombuffer(data, into.dtype) if into.size else into

        assert into.flags.c_contiguous and into.flags.writeable
        return self._receive(peer, store)

    def recv_fold(self, peer: int, into: Array, op: Op, *, left: bool = False) -> Ticket:
        def store(data: bytes, meta: bytes) -> None:
            assert len(data) == into.nbytes, f"{len(data)} bytes from {peer} for an array of {into.nbytes}"
            theirs = np.frombuffer(data, into.dtype) if into.size else into.copy()
            middle = len(into) // 2 if op.splittable else len(into)
            for part in (slice(0, middle), slice(middle, None)) if op.splittable else (slice(None),):
                op.fold(*((theirs[part], into[part]) if left else (into[part], theirs[part])), into[part])

        return self._receive(peer, store)

    def exchange(
        self, to: int, data: Data, source: int, into: Array, op: Op | None = None, *, left: bool = False
    ) -> Both:
        if isinstance(data, np.ndarray):
            assert not np.may_share_memory(data, into) or not data.size
        receiving = self.recv_fold(source, into, op, left=left) if op else self.recv(source, into)
        return Both([receiving, self.send(to, data)])

    def combine(self, peer: int, x: Array, op: Op) -> Combining:
        theirs = self.scratch(x)
        operands = (theirs, x) if peer < self.rank else (x, theirs)
        return Combining([self.recv(peer, theirs), self.send(peer, x)], lambda: op.fold(*operands, x))

    def guess(self, peer: int, meta: bytes, into: Array) -> bool:
        return False

    def take(self, peer: int, place: Place | None = None) -> Ticket:
        def store(data: bytes, meta: bytes) -> Parcel:
            into = place(meta, len(data)) if place else np.empty(len(data), np.uint8)
            into[...] = np.frombuffer(data, np.uint8)
            return Parcel(meta, into)

        return self._receive(peer, store)

    def publish(self, data: Data, meta: bytes = b"") -> Both:
        return Both([self.send(peer, data, meta) for peer in range(self.size) if peer != self.rank])

    def lends(self, data: Array) -> bool:
        return self.me in self.world.lenders

    def exposes(self, data: Array, to: int | None = None) -> bool:
        return self.me not in self.world.lenders

    def expose(self, data: Data, meta: bytes = b"", to: int | None = None) -> Both:
        return self.publish(data, meta) if to is None else Both([self.send(to, data, meta)])

    def reach(self, data: Array, to: int | None = None) -> int:
        if self.me not in self.world.readable:
            return 0
        address = 1 << 40 | len(self.world.shown) << 20
        self.world.shown[address] = data
        return address

    def read(self, peer: int, address: int, into: Array) -> Ticket:
        start = max(place for place in self.world.shown if place <= address)
        data = self.world.shown[start].view("u1")[address - start :]
        into.view("u1")[...] = data[: into.nbytes]
        ticket = Ticket(self.log)
        ticket.done = True
        return ticket

    def place(self, data: Array, to: int) -> int:
        if self.me not in self.world.lenders:
            return -1
        self.world.lent.append(data)
        return len(self.world.lent) - 1

    async def lent(self, peer: int, place: int, nbytes: int) -> Array:
        view = self.world.lent[place].view("u1")[:nbytes]
        view.flags.writeable = False
        return view

    def counted(self, peer: int, sent: int, received: int) -> None:
        assert sent >= 0 and received >= 0

    def rivals(self, what: str, nbytes: int) -> AtRandom:
        return AtRandom(self.world.random)

    async def breathe(self) -> None:
        await Turn()

    def scratch(self, like: Array) -> Array:
        rubbish = np.empty_like(like)
        rubbish.view("u1")[...] = 0xA5
        return rubbish

    def borrow(self, nbytes: int) -> Array:
        return np.full(nbytes, 0xA5, np.uint8)


class AtRandom:
    """Takes either way."""

    def __init__(self, random: random.Random) -> None:
        self.random = random

    def second(self) -> bool:
        return self.random.random() < 0.5

    def took(self, second: bool, seconds: float) -> None:
        assert seconds >= 0.0


class Turn:
    """Lets others go first once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@dataclass
class Combining:
    tickets: Sequence[Ticket]
    then: Callable[[], None]

    def __await__(self) -> Generator[Ticket, None, None]:
        for ticket in self.tickets:
            yield from ticket.__await__()
        self.then()


@dataclass
class Both:
    tickets: Sequence[Ticket]

    def __await__(self) -> Generator[Ticket, None, None]:
        for ticket in self.tickets:
            yield from ticket.__await__()
