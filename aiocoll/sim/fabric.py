"""The links of one run: a switch for the first world, and one for each larger world that grows out of it.

Rule: everybody is called by the rank in the simulation here, whatever number that has in a world: members first, then
newcomers. A power cut ends a rank in all worlds, also in those that others make later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ..transport.inproc import InprocTransport, Switch

PID: Final = 10_000
"""The process id of rank 0; those of the others follow."""

Delay = Callable[["SimSwitch", int, int, int, float], float]
"""(switch, from, to, bytes, now): when a frame between two ranks of the simulation arrives."""


class SimSwitch(Switch):
    """The links of one world, whose number i is ``ranks[i]`` of the simulation."""

    def __init__(self, fabric: Fabric, ranks: Sequence[int]) -> None:
        super().__init__()
        self.fabric: Fabric = fabric
        self.ranks: tuple[int, ...] = tuple(ranks)
        self.number: dict[int, int] = {rank: number for number, rank in enumerate(self.ranks)}
        self.down.update(self.number[rank] for rank in fabric.dead if rank in self.number)
        self.ended.update(self.number[rank] for rank in fabric.over if rank in self.number)
        self._came: set[int] = set()
        fabric.switches.append(self)

    def __repr__(self) -> str:
        return f"<SimSwitch of ranks {self.ranks}>"

    def carries(self, delay: Delay) -> None:
        """Frames take so long from now on."""
        self.delay: Callable[[int, int, int, float], float] | None = partial(self._delay, delay)

    def _delay(self, delay: Delay, src: int, dst: int, nbytes: int, now: float) -> float:
        return delay(self, self.ranks[src], self.ranks[dst], nbytes, now)

    def _grow(self, members: Sequence[Mapping[str, Any]]) -> Switch:
        larger = SimSwitch(self.fabric, [int(member["pid"]) - PID for member in members])
        if self.fabric.delay is not None:
            larger.carries(self.fabric.delay)
        return larger

    def memory(self, size: int) -> dict[int, str]:
        """Ranks of one host share its memory."""
        return {number: f"memory{self.fabric.hosts[rank]}" for number, rank in enumerate(self.ranks)}

    def came(self, number: int) -> None:
        """That one can be reached."""
        self._came.add(number)

    def missed(self, port: InprocTransport, peer: int) -> None:
        """Nobody answers for one that died before it could be reached: that is no news of a death."""
        port.soon(port.owner_lost if peer in self._came else port.owner_unreached, peer)

    def cut(self, rank: int, loses: Callable[[int], bool]) -> None:
        """Rank ``rank`` is dead."""
        number = self.number[rank]
        if number in self._came:
            self.power_cut(number, loses=lambda other: loses(self.ranks[other]))
        else:
            self.down.add(number)
            self._refuse(number)

    def left(self, rank: int) -> None:
        """The process of ``rank`` has ended in good order."""
        number = self.number[rank]
        if number not in self._came:
            self.ended.add(number)
            self._refuse(number)

    def _refuse(self, number: int) -> None:
        """Those who have tried to reach it hear that nobody is there."""
        self.early.pop(number, None)
        for port in self.ports.values():
            if number in port.made:
                port.soon(port.owner_unreached, number)


class Fabric:
    """All of them."""

    hosts: Sequence[int]

    def __init__(self, hosts: Sequence[int]) -> None:
        self.hosts = hosts
        self.dead: set[int] = set()
        self.over: set[int] = set()
        """Those whose programs have ended, the dead among them or not."""
        self.switches: list[SimSwitch] = []
        self.delay: Delay | None = None
        """What larger worlds' frames take."""

    def __repr__(self) -> str:
        return f"<Fabric of {len(self.switches)} worlds, dead: {sorted(self.dead)}>"

    def power_cut(self, rank: int, loses: Callable[[int], bool]) -> None:
        """See ``Switch.power_cut``."""
        self.dead.add(rank)
        for switch in self._worlds(rank):
            switch.cut(rank, loses)

    def left(self, rank: int) -> None:
        """The program of ``rank`` has ended, and its process with it."""
        self.over.add(rank)
        for switch in self._worlds(rank):
            switch.left(rank)

    def silence(self, rank: int) -> None:
        """Nothing leaves ``rank`` any more, and nobody is told."""
        for switch in self._worlds(rank):
            switch.down.add(switch.number[rank])

    def links(self, one: int, other: int) -> Iterator[tuple[InprocTransport, int]]:
        """The ports of ``one`` that have a link to ``other``, and its number there."""
        for switch in self._worlds(one):
            port, number = switch.ports.get(switch.number[one]), switch.number.get(other)
            if port is not None and number in port.made and port.rank not in switch.down:
                yield port, number

    def ports(self) -> Iterator[tuple[int, InprocTransport]]:
        """All that are open, with the rank of each."""
        for switch in self.switches:
            for number, port in switch.ports.items():
                yield switch.ranks[number], port

    def _worlds(self, rank: int) -> list[SimSwitch]:
        return [switch for switch in self.switches if rank in switch.number]


__all__ = ["PID", "Delay", "Fabric", "SimSwitch"]
