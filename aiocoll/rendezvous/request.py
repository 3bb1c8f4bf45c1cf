"""What a scheme is asked for; the rule: by now every argument has been checked and the environment has been heard."""

from __future__ import annotations

import inspect
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiocoll.place import Place
from aiocoll.rendezvous.meeting import Meeting
from aiocoll.rendezvous.url import Url
from aiocoll.store.base import Store

Info = Mapping[str, Any] | Callable[[str], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
"""What the others shall know of me; or makes it, given the address at which they reach me."""


@dataclass(frozen=True, slots=True)
class Request:
    """One `meet`."""

    url: Url
    rank: int | None
    size: int | None
    job: str
    secret: bytes = field(repr=False)
    path: str
    """The name under which to meet: those of other names, groups and restarts never see one another."""
    timeout: float
    info: Info
    place: Place
    environ: Mapping[str, str] | None = field(default=None, repr=False)
    advertise: str = ""
    """An address given by the user; empty: find out."""
    listener: socket.socket | None = None
    """A listening socket for the store that rank 0 hosts."""
    store_is_hosted: bool = False
    started: float = field(default_factory=time.monotonic)

    def seconds_left(self) -> float:
        """Until the deadline, at least 0."""
        return max(0.0, self.started + self.timeout - time.monotonic())

    async def info_at(self, address: str) -> Mapping[str, Any]:
        """What the others shall know of me, who am reachable at `address` unless the user said otherwise."""
        if not callable(self.info):
            return self.info
        made = self.info(self.advertise or address)
        return await made if inspect.isawaitable(made) else made


class Scheme(Protocol):
    """What each file of ``schemes/`` offers."""

    async def meet(self, request: Request) -> Meeting:
        """All of it: from the address to the meeting."""

    async def reach(self, request: Request) -> Reached:
        """Only the store, for a newcomer to a job that is under way; UsageError where that cannot be."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The store of a job that is under way, and how this process is reached from there."""

    store: Store
    where: str
    """The address, for messages."""
    address: str
    close: Callable[[], Awaitable[None]]
    """Lets go of the store."""
