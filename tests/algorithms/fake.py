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


class Ticket:
    """A verb that runs: awaiting it twice is as good as once, not awaiting it harms nobody."""

    def __init__(self, channel: FakeChannel) -> None:
        self.channel, self.done, self.value, self.time = channel, False, None, 0

    def __await__(self) -> Generator[Ticket, None, Any]:
        while not self.done:
            yield self
        self.channel.time = max(self.channel.time, self.time)
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
    def __init__(self, size: int, seed: int, late: bool) -> None:
        self.size, self.late, self.random = size, late, random.Random(seed)
        self.pipes: dict[tuple[int, int], Pipe] = {}
        self.ready: list[Any] = []  # ranks that can go on, and pipes that can deliver
        self.parked: dict[Ticket, int] = {}
        self.channels = [FakeChannel(self, rank) for rank in range(size)]

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
            max(channel.time for channel in self.channels),
            [channel.sent for channel in self.channels],
            [channel.folded for channel in self.channels],
        )


class FakeChannel:
    def __init__(self, world: FakeWorld, rank: int) -> None:
        self.world, self.rank, self.size = world, rank, world.size
        self.time = self.sent = self.folded = 0

    def counting(self, op: Op) -> Op:
        """The same op; what it folds is counted for this rank."""

        def fold(left: Array, right: Array, out: Array) -> None:
            assert len(left) == len(right) == len(out)
            self.folded += left.nbytes
            op.fold(left, right, out)

        return replace(op, fold=fold)

    def send(self, peer: int, data: Data, meta: bytes = b"") -> Ticket:
        view = memoryview(data.view("u1")) if isinstance(data, np.ndarray) else memoryview(data)
        ticket = Ticket(self)
        self.sent += view.nbytes + len(meta)
        pipe = self.world.pipe(self.rank, peer)
        if not self.world.late:
            ticket.done = True
        pipe.sending.append(Sending(view if self.world.late else bytes(view), meta, self.time, ticket))
        self.world.offer(pipe)
        return ticket

    def _receive(self, peer: int, store: Callable[[bytes, bytes], Any]) -> Ticket:
        ticket = Ticket(self)
        pipe = self.world.pipe(peer, self.rank)
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

    def take(self, peer: int, place: Place | None = None) -> Ticket:
        def store(data: bytes, meta: bytes) -> Parcel:
            into = place(meta, len(data)) if place else np.empty(len(data), np.uint8)
            into[...] = np.frombuffer(data, np.uint8)
            return Parcel(meta, into)

        return self._receive(peer, store)

    def publish(self, data: Data, meta: bytes = b"") -> Both:
        return Both([self.send(peer, data, meta) for peer in range(self.size) if peer != self.rank])

    async def breathe(self) -> None:
        await Turn()

    def scratch(self, like: Array) -> Array:
        rubbish = np.empty_like(like)
        rubbish.view("u1")[...] = 0xA5
        return rubbish


class Turn:
    """Lets others go first once."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@dataclass
class Both:
    tickets: Sequence[Ticket]

    def __await__(self) -> Generator[Ticket, None, None]:
        for ticket in self.tickets:
            yield from ticket.__await__()
