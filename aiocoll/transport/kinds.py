"""Transports beside those that ship: what ``transport="name"`` means when it is none of auto, shm, tcp, inproc.

The rule: a kind is one file of this directory with a function ``listen`` (third parties: an entry point of the group
``aiocoll.transport`` that names a module with one), and all ranks of a job use the same; nothing is loaded unasked.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Protocol

from ..errors import UsageError
from .base import Transport

SHIPPED: Final = ("auto", "shm", "tcp", "inproc")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Peers:
    """The world that a transport is to join, once its ranks have met."""

    rank: int
    size: int
    world: int
    """A random number that only this world's ranks know."""
    job: str
    secret: bytes = field(repr=False)
    """What every connection has to be proved with before anything else is read from it; empty without one."""
    told: Sequence[Mapping[str, Any]]
    """What each rank's ``info`` said."""
    seconds: float
    """How long connecting may take."""


class Ear(Protocol):
    """What others may reach of a rank before it knows who they are."""

    def info(self) -> Mapping[str, Any]:
        """What they must know for that: a few plain values."""

    async def connect(self, peers: Peers) -> Transport:
        """The transport; it owns what the ear had. Links may be made now or on first use. Raises an OSError, or an
        error of aiocoll, when it fails."""

    def close(self) -> None:
        """Nobody comes any more; idempotent, and without effect on what was connected."""


Listen = Callable[[str], Ear]
"""listen(address): ``address`` is the one that this rank tells the others, or a host's name for it."""


@cache
def find(name: str) -> Listen:
    """The ``listen`` of that kind; UsageError that says which names there are, and where another one would go."""
    if not _NAME.fullmatch(name) or name in SHIPPED:
        raise UsageError(f"transport={name!r} is none of {', '.join(SHIPPED)}")
    home = __name__.rpartition(".")[0]
    module: Any = None
    if importlib.util.find_spec(f"{home}.{name}") is not None:
        module = importlib.import_module(f"{home}.{name}")
    if not hasattr(module, "listen"):
        module = _of_others(name)
    if module is None:
        raise UsageError(
            f"transport={name!r} is none of {', '.join(SHIPPED)}, no file of aiocoll/transport/ with a function "
            f"listen(), and no entry point of the group 'aiocoll.transport'"
        )
    listen: Listen = module.listen
    return listen


def _of_others(name: str) -> Any:
    from importlib import metadata  # 10 ms that only a process with a transport of its own should pay

    for entry in metadata.entry_points(group="aiocoll.transport", name=name):
        return entry.load()
    return None
