"""What faults do to a run: who stands still, which links carry nothing, what takes longer.

Rule: every fault is known before the run begins, and happens as real systems would show it: a crash ends links, a
frozen rank says nothing, and a link over which nothing passes is given up after `lost_seconds`, by presumption only.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from .faults import Cancel, Crash, Fault, Freeze, OneWay, Partition, SlowLink, SlowRank, Strike
from .ranks import CANCELLED, CRASHED, FROZEN, Ranks

if TYPE_CHECKING:
    from .fabric import Fabric, SimSwitch
    from .loop import SimLoop
    from .network import Network

Pair = tuple[int, int]


class Trouble:
    """The faults of one run."""

    faults: tuple[Fault, ...]
    network: Network
    fabric: Fabric
    lost_seconds: float
    loop: SimLoop
    ranks: Ranks

    def __init__(
        self, faults: tuple[Fault, ...], network: Network, fabric: Fabric, lost_seconds: float, seed: int
    ) -> None:
        self.faults, self.network, self.fabric, self.lost_seconds = faults, network, fabric, lost_seconds
        self.struck: dict[int, float] = {}
        """When a fault struck a rank, by rank."""
        self.at_crash: Callable[[int], object] | None = None
        """Also hears of a rank that has crashed."""
        self._random = random.Random(f"trouble {seed}")
        self._frames: dict[int, list[tuple[int, Strike]]] = {}
        self._steps: dict[int, list[tuple[int, Strike]]] = {}
        self._sent: dict[int, int] = {}
        self._stepped: dict[int, int] = {}
        self._free: dict[int, float] = {}
        self._cuts: dict[Pair, int] = {}
        """Directions in which nothing passes, and how many faults say so."""
        self._waiting: dict[Pair, list[tuple[SimSwitch, int]]] = {}
        """The frames that wait to pass, in order: in which world, and how many bytes."""
        self._given_up: dict[Pair, asyncio.TimerHandle] = {}
        """When the first of a pair gives the second up."""
        for fault in faults:
            if isinstance(fault, Crash | Freeze | Cancel):
                if fault.frames is not None:
                    self._frames.setdefault(fault.rank, []).append((fault.frames, fault))
                elif fault.steps is not None:
                    self._steps.setdefault(fault.rank, []).append((fault.steps, fault))

    @property
    def watches_frames(self) -> bool:
        """Whether any fault depends on frames, or concerns them."""
        return bool(self._frames) or any(isinstance(fault, Partition | OneWay) for fault in self.faults)

    def __repr__(self) -> str:
        return f"<Trouble: {len(self.faults)} faults, struck {self.struck}, {len(self._cuts)} directions cut>"

    def begin(self, loop: SimLoop, ranks: Ranks) -> None:
        """The run begins: all ranks have their tasks, and none has run."""
        self.loop, self.ranks = loop, ranks
        for fault in self.faults:
            if isinstance(fault, Partition):
                inside = set(fault.ranks)
                outside = [rank for rank in range(ranks.size) if rank not in inside]
                pairs = [(a, b) for a in sorted(inside) for b in outside]
                self._cut(fault, pairs + [(b, a) for a, b in pairs])
            elif isinstance(fault, OneWay):
                self._cut(fault, [(fault.src, fault.dst)])
            elif isinstance(fault, SlowLink):
                self.network.slow.append(fault)
            elif isinstance(fault, SlowRank):
                self._watch(fault.rank, functools.partial(self._take_time, fault))
            elif fault.at is not None:
                loop.call_at(fault.at, self._strike, fault)
            elif fault.frames is not None and fault.frames <= 0:
                self._strike(fault)
        for rank in self._steps:
            self._watch(rank, functools.partial(self._count_step, rank))

    def _watch(self, rank: int, look: Callable[[], None]) -> None:
        before = self.loop.before_step.get(rank)

        def both() -> None:
            look()
            if before is not None:
                before()

        self.loop.before_step[rank] = look if before is None else both

    def _at(self, when: float, what: Callable[..., None], *arguments: int) -> asyncio.TimerHandle:
        """Later, as the simulation's own work: what a rank would do waits while that rank is held."""
        return self.loop.call_at(max(when, self.loop.now), what, *arguments, context=contextvars.Context())

    # -- ranks

    def left(self, src: int) -> None:
        """A frame has left `src` for another rank."""
        waiting = self._frames.get(src)
        if waiting is not None:
            sent = self._sent[src] = self._sent.get(src, 0) + 1
            for frames, fault in waiting:
                if frames == sent:
                    self._strike(fault)

    def _count_step(self, rank: int) -> None:
        stepped = self._stepped.get(rank, 0)
        self._stepped[rank] = stepped + 1
        for steps, fault in self._steps[rank]:
            if steps == stepped:
                self._strike(fault)

    def _take_time(self, fault: SlowRank) -> None:
        now, free = self.loop.now, self._free.get(fault.rank, 0.0)
        if now < free:
            self.loop.hold(fault.rank)
            self._at(free, self.loop.release, fault.rank)
        else:
            self._free[fault.rank] = now + fault.seconds

    def _strike(self, fault: Strike) -> None:
        rank = fault.rank
        if self.ranks.tasks[rank].done() or rank in self.ranks.stopped:
            return
        self.struck[rank] = self.loop.now
        if isinstance(fault, Cancel):
            self.ranks.cancel(rank, CANCELLED)
        elif isinstance(fault, Crash):
            self.fabric.power_cut(rank, lambda other: self._random.random() < 0.5)
            if self.at_crash is not None:
                self.at_crash(rank)
            self._end(rank)
            self.ranks.cancel(rank, CRASHED)
        else:
            self.loop.hold(rank)
            if fault.until < math.inf:
                self._at(fault.until, self.loop.release, rank)
            else:
                self.ranks.stand_still(rank)

    def _end(self, rank: int) -> None:
        """What `rank` still does is nothing but to end."""
        self.loop.before_step.pop(rank, None)
        self.loop.release(rank)

    def bury(self) -> None:
        """All that is left are ranks that stand still for good: they end without a word."""
        for rank in self.ranks.still():
            self.fabric.silence(rank)
            self._end(rank)
            self.ranks.cancel(rank, FROZEN)

    # -- links

    def passes(self, switch: SimSwitch, src: int, dst: int, nbytes: int) -> bool:
        """Whether a frame that is sent now in one of the worlds passes; if not, it waits."""
        pair = src, dst
        if not self._cuts or src == dst:
            return True
        if pair in self._cuts or (dst, src) in self._cuts:
            self._give_up_later(src, dst)
        if pair not in self._cuts:
            return True
        self._waiting.setdefault(pair, []).append((switch, nbytes))
        return False

    def _cut(self, fault: Partition | OneWay, pairs: list[Pair]) -> None:
        def cut() -> None:
            for pair in pairs:
                self._cuts[pair] = self._cuts.get(pair, 0) + 1
            for src, dst in pairs:
                if any(self.fabric.links(src, dst)):
                    self._give_up_later(src, dst)

        def heal() -> None:
            for pair in pairs:
                self._cuts[pair] -= 1
                if not self._cuts[pair]:
                    del self._cuts[pair]
            for src, dst in pairs:
                self._healed(src, dst)

        self.loop.call_at(fault.at, cut)
        if fault.until < math.inf:
            self.loop.call_at(fault.until, heal)

    def _give_up_later(self, src: int, dst: int) -> None:
        """Each end gives up on its own clock: the later one up to a tenth earlier or later than the other."""
        for one, other in ((src, dst), (dst, src)):
            if (one, other) not in self._given_up:
                seconds = self.lost_seconds * (0.9 + 0.1 * self._random.random())
                self._given_up[one, other] = self._at(self.loop.now + seconds, self._give_up, one, other)

    def _give_up(self, one: int, other: int) -> None:
        for port, number in self.fabric.links(one, other):
            port.made[number].close()
            port.soon(port.owner_lost, number, f"nothing was heard of it for {self.lost_seconds:g} s", False)

    def _healed(self, src: int, dst: int) -> None:
        """What has waited goes its way, unless an end has given up: then the other end hears that."""
        if (src, dst) in self._cuts or (dst, src) in self._cuts:
            if (src, dst) not in self._cuts:
                self._send_on(src, dst)
            return
        timers = [(pair, self._given_up.pop(pair, None)) for pair in ((src, dst), (dst, src))]
        gave_up = [pair for pair, timer in timers if timer is not None and timer.when() <= self.loop.now]
        for _, timer in timers:
            if timer is not None:
                timer.cancel()
        for one, other in gave_up:
            self._waiting.pop((one, other), None)
            for port, number in self.fabric.links(other, one):
                self._waiting.pop((other, one), None)
                port.made[number].close()
                port.soon(port.owner_lost, number, "it had given up this connection", False)
        self._send_on(src, dst)

    def _send_on(self, src: int, dst: int) -> None:
        for switch, nbytes in self._waiting.pop((src, dst), ()):
            switch.pass_on(switch.number[src], switch.number[dst], nbytes)


__all__ = ["Trouble"]
