"""Memory between the ranks of one host: part of meeting, since all of them share it or none does, and all ranks know.

The rule: nothing that goes wrong here keeps ranks from meeting; those of that host then talk over TCP, and each says
why in one line of the log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aiocoll.config import Settings
from aiocoll.observe import emit
from aiocoll.rendezvous.accord import agree
from aiocoll.rendezvous.meeting import Meeting
from aiocoll.transport.shm.door import Door, impossible, islands
from aiocoll.transport.shm.order import disorder
from aiocoll.transport.tcp_connect import TcpWorld

if TYPE_CHECKING:
    from aiocoll.transport.shm.meeting import Shared

_log = logging.getLogger("aiocoll.transport")


class Island:
    """The ranks of this host that share memory, from before the meeting until that is settled."""

    def __init__(self, settings: Settings, transport: str) -> None:
        """``transport``: what this rank wants; "shm": the log warns where that is not to be had; "tcp": it only learns
        who of the others shares memory, since all ranks choose their algorithms by that."""
        self._settings, self._transport = settings, transport
        self._door: Door | None = None
        self._doorless = ""

    def __repr__(self) -> str:
        return f"<Island through {self._door or self._doorless!r}>"

    def info(self) -> Mapping[str, Any]:
        """What the others are told before they meet; nothing where this rank cannot share memory."""
        if self._transport == "tcp":
            return {}
        self._doorless = impossible() or disorder(self._settings.shm_fence)
        if not self._doorless:
            try:
                self._door = Door()
                return self._door.info
            except OSError as error:
                self._doorless = f"no UNIX socket: {error.strerror or error}"
        return {}

    def close(self) -> None:
        """Nobody comes any more; idempotent."""
        if self._door is not None:
            self._door.close()

    async def settle(self, meeting: Meeting, world: TcpWorld, seconds: float) -> tuple[dict[int, str], Shared | None]:
        """A name for the memory of every rank of the world that shares it, and what this rank got; about ``seconds`` at
        most. RendezvousError when the store is gone."""
        named = {f"memory/{ranks[0]}": ranks for ranks in islands(meeting.members)}
        mine = next((name for name, ranks in named.items() if meeting.rank in ranks), None)
        shared: Shared | None = None
        try:
            async with contextlib.AsyncExitStack() as stack:
                pairing = None
                if mine is not None and self._door is not None:
                    from aiocoll.transport.shm.meeting import Pairing  # loads only where there can be shared memory

                    names = {rank: str(meeting.members[rank]["unix"]) for rank in named[mine]}
                    pairing = Pairing(world, self._door, names, self._settings, seconds)
                    await stack.enter_async_context(pairing)
                sizes = {name: len(ranks) for name, ranks in named.items()}
                work = pairing.run if pairing else None
                answers = await agree(meeting.store, sizes, mine=mine, work=work, seconds=seconds)
                if pairing is not None and mine is not None and not answers[mine]:
                    shared = pairing.take()
        except BaseException:  # cancelled in the last moment, say
            if shared is not None:
                shared.close()
            raise
        self.close()
        self._say(meeting, named.get(mine or "", ()), answers.get(mine or "", ""))
        memory = {rank: name for name, ranks in named.items() if not answers[name] for rank in ranks}
        return memory, shared

    def _say(self, meeting: Meeting, island: tuple[int, ...], refusal: str) -> None:
        """One line where ranks of this host talk over TCP."""
        emit("memory_settled", rank=meeting.rank, ranks=island, refusal=refusal)
        boots = [info.get("boot") for info in meeting.members]
        others = [rank for rank, boot in enumerate(boots) if boot == boots[meeting.rank] and rank != meeting.rank]
        if not refusal:
            others = [rank for rank in others if rank not in island]
            refusal = self._doorless or "they want TCP, or are in another container"
        if others and self._transport != "tcp":
            level = logging.WARNING if island or self._transport == "shm" else logging.INFO
            ranks = ", ".join(map(str, others))
            _log.log(level, "rank %d talks over TCP with rank %s of its own host: %s", meeting.rank, ranks, refusal)


__all__ = ["Island"]
