"""The same runs on real endpoints in simulated time: payload bytes read off the network, rounds off its clock.

The rule: an algorithm gets the channel that a group would give it, wrapped only to count what is folded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from aiocoll import Group
from aiocoll.algorithms.channel import Array
from aiocoll.endpoint import Channel
from aiocoll.ops import Op
from aiocoll.sim import Simulation
from aiocoll.wire.frame import HEADER_BYTES

from .fake import Outcome, layout
from .harness import Main

LATENCY = 1.0


class Metered:
    """A channel whose ops are counted."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self.folded = channel, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def counting(self, op: Op) -> Op:
        def fold(left: Array, right: Array, out: Array) -> None:
            self.folded += left.nbytes
            op.fold(left, right, out)

        return replace(op, fold=fold)


@dataclass
class Took:
    result: Any
    seconds: float
    sent: int
    folded: int


def simulate(size: int, main: Main, seed: int) -> Outcome:
    """main(channel) on every rank of a simulated world where a message takes LATENCY and bytes take no time."""
    simulation = Simulation(size, seed=seed, latency=LATENCY, hosts=layout(size, seed))

    async def program(group: Group) -> Took:
        meters: list[Metered] = []

        def body(channel: Channel) -> Coroutine[Any, Any, Any]:
            meters.append(Metered(channel))
            return main(meters[0])

        before = replace(simulation.sent[group.rank])
        result = await group._made(group._turn("matrix", None), None, lambda: ("matrix", body))
        after, call = simulation.sent[group.rank], meters[0].call
        overhead = HEADER_BYTES * (after.frames - before.frames) + len(call.greeting) * len(call.sent)
        took = asyncio.get_running_loop().time()
        return Took(result, took, after.nbytes - before.nbytes - overhead, meters[0].folded)

    took = simulation.run(program)
    return Outcome(
        [each.result for each in took],
        round(max(each.seconds for each in took) / LATENCY),
        [each.sent for each in took],
        [each.folded for each in took],
    )
