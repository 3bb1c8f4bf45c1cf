"""What a message costs in simulated time: latency, bandwidth, and network cards that the ranks of a host share.

Rule: pure arithmetic on the order of calls; randomness only through the generator that it is given.

    sender's card           the wire             receiver's card
    busy n / bandwidth  ->  latency (+ jitter) -> busy n / bandwidth

Both ends work at once, as a stream does: a message that meets two idle cards takes latency + n / bandwidth. Cards are
full duplex. Ranks of one host talk past their card, through memory with its own latency and bandwidth.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from .. import observe
from ..errors import UsageError
from .faults import SlowLink


@dataclass(slots=True)
class Traffic:
    """What one rank has sent, frame headers included."""

    frames: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class Network:
    """`delay(src, dst, nbytes, now)` books a message and tells when it arrives.

    `hosts` gives each rank's host (None: a host each). Latency and jitter (a delay of 0 to so much is drawn for each
    message) in seconds, bandwidth in bytes per second; ``local_`` between ranks of one host (None: as between hosts).
    """

    size: int
    latency: float = 0.0
    bandwidth: float = math.inf
    hosts: Sequence[int] | None = None
    local_latency: float | None = None
    local_bandwidth: float | None = None
    jitter: float = 0.0
    generator: random.Random = field(default_factory=random.Random)
    slow: list[SlowLink] = field(init=False, default_factory=list)
    sent: list[Traffic] = field(init=False)
    _leaving: dict[tuple[int, int], float] = field(init=False, default_factory=dict)
    _arriving: dict[tuple[int, int], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.hosts is None:
            self.hosts = tuple(range(self.size))
        if len(self.hosts) != self.size:
            raise UsageError(f"hosts= names {len(self.hosts)} hosts for {self.size} ranks; give one per rank")
        for name in ("latency", "bandwidth", "local_latency", "local_bandwidth", "jitter"):
            value = getattr(self, name)
            least = 0 if "latency" in name or name == "jitter" else math.ulp(0.0)
            if value is not None and not value >= least:
                raise UsageError(f"{name}={value!r} of the simulated network: a number of at least {least:g} is needed")
        self.sent = [Traffic() for _ in range(self.size)]

    def delay(self, src: int, dst: int, nbytes: int, now: float) -> float:
        """The time at which a message that is sent now has arrived whole."""
        self.sent[src].frames += 1
        self.sent[src].nbytes += nbytes
        if observe.active:
            observe.emit("sent", transport="sim", rank=src, peer=dst, nbytes=nbytes, at=now)
        if src == dst:
            return now
        done = self._book(src, dst, nbytes, now)
        return now + self._slowed(src, dst, done - now, now) if self.slow else done

    def _slowed(self, src: int, dst: int, seconds: float, now: float) -> float:
        for link in self.slow:
            if (link.src, link.dst) == (src, dst) and link.at <= now < link.until:
                seconds = seconds * link.factor + link.latency
        return seconds

    def _book(self, src: int, dst: int, nbytes: int, now: float) -> float:
        assert self.hosts is not None
        here, there = self.hosts[src], self.hosts[dst]
        leaving, arriving, latency, speed = (here, -1), (there, -1), self.latency, self.bandwidth
        if here == there:  # memory has no card to queue for, but one pair of ranks shares one path
            leaving = arriving = (src, dst)
            latency = latency if self.local_latency is None else self.local_latency
            speed = speed if self.local_bandwidth is None else self.local_bandwidth
        busy = nbytes / speed
        begin = max(now, self._leaving.get(leaving, 0.0))
        self._leaving[leaving] = begin + busy
        first = begin + latency + (self.generator.random() * self.jitter if self.jitter else 0.0)
        done = self._arriving[arriving] = max(first, self._arriving.get(arriving, 0.0)) + busy
        return done


__all__ = ["Network", "Traffic"]
