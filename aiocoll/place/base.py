"""Place, and how detectors read variables; the rule: a place described by halves is an error that names the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiocoll.errors import UsageError

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """What the environment says about this process; None and "" where it says nothing (a world of one)."""

    rank: int | None = None
    size: int | None = None
    local_rank: int | None = None
    local_size: int | None = None
    job: str = ""
    secret: bytes = field(default=b"", repr=False)
    init_method: str = ""
    """Where this job meets, ``tcp://host:port`` or ``file:///path``; empty for a world of one."""
    source: str = "alone"
    """The name of the detector that found it."""
    restart: int = 0
    """How often the job's ranks have been restarted: ranks of different restarts never meet."""
    store_is_hosted: bool = False
    """Whether somebody else (the runner) serves the store at `init_method`, so that rank 0 must not."""
    names_come_late: bool = False
    """Whether the host of `init_method` may have its name only after this process has started, as pods do."""

    @property
    def job_name(self) -> str:
        """What every handshake calls the job."""
        return self.job or "aiocoll"


class Detector(Protocol):
    """What each file of this directory offers."""

    PRIORITY: int

    def find(self, environ: Environ) -> Place | None:
        """The place, None if this is another environment; UsageError if it is described by halves."""

    def verdict(self, environ: Environ) -> str:
        """One line for ``aiocoll doctor --env``: why this detector recognises the environment, or what it lacks."""


def whole(environ: Environ, name: str, *, least: int = 0) -> int | None:
    """The whole number in variable `name`, None if it is not set."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise UsageError(f"{name}={text!r}: a whole number of at least {least} is needed")
    return int(text)


def port_of(environ: Environ, name: str) -> int:
    """The port in variable `name`."""
    port = whole(environ, name, least=1)
    if port is None or port > 65535:
        raise UsageError(f"{name}={environ.get(name, '')!r}: a port from 1 to 65535 is needed")
    return port


def require(environ: Environ, names: Sequence[str], *, because: str) -> None:
    """Raises UsageError that lists those of `names` which are missing."""
    missing = [name for name in names if not environ.get(name, "").strip()]
    if missing:
        plural = "are" if len(missing) > 1 else "is"
        raise UsageError(f"{' and '.join(missing)} {plural} not set, but {because}: set all of {', '.join(names)}")


def rank_of(environ: Environ, rank_name: str, size_name: str) -> tuple[int, int]:
    """Rank and size out of two variables that are both set."""
    rank, size = whole(environ, rank_name), whole(environ, size_name, least=1)
    if rank is None or size is None:
        raise UsageError(f"{rank_name if rank is None else size_name} is not set: set both {rank_name} and {size_name}")
    if rank >= size:
        raise UsageError(f"{rank_name}={rank} is not a rank of a world of {size_name}={size}: ranks are 0..{size - 1}")
    return rank, size


def meeting_url(environ: Environ) -> str:
    """The address that whoever started the ranks has put into AIOCOLL_RDZV, as a URL; "" if it is not set."""
    text = environ.get("AIOCOLL_RDZV", "").strip()
    return f"tcp://{text}" if text and "://" not in text else text


def tcp_address(host: str, port: int) -> str:
    """The URL of host and port; IPv6 addresses get their brackets."""
    return f"tcp://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"tcp://{host}:{port}"
