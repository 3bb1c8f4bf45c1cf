"""One frozen Settings; the only reader of AIOCOLL_* variables outside place/ and runner/."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .errors import UsageError

_PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set; seconds and bytes unless a name says otherwise."""

    timeout: float = 60.0
    transport: str = "auto"
    algorithm: Mapping[str, str] = field(default_factory=dict)
    allow_pickle: bool = False
    join: bool = False
    """Whether this process is a newcomer to a job that is under way."""
    host: str = ""
    """The address that this rank tells the others; empty: that of the interface that faces the store."""
    spin_seconds: float = 100e-6
    """How long a blocking call looks before it sleeps."""
    shm_spin_seconds: float = 1e-3
    """The same for peers that share memory: a look costs next to nothing, and gives way to others after each."""
    loop_spin_seconds: float = 50e-6
    """How long awaited calls look in each turn of a loop that others share, for peers that share memory."""
    unreceived_bytes_max: int = 65 << 20
    """Data that may lie unreceived at one peer; more is offered first and sent when a receive takes it. The same on all
    ranks: a peer that sends far more than this is cut off. 64 MiB of it are promised; the rest is for headers and for
    what has been received and not been credited yet."""
    segment_bytes: int = 256 << 10
    """Payloads that are folded while they arrive are folded in pieces of this size, which stay in cache."""
    look_seconds: float = 1.0
    """A collective that waits so long asks those it waits for, once, whether they made the same call."""
    proxy: str = ""
    """Where a fault proxy of ``aiocoll.testing`` is to be asked for the address that the others are told."""
    lost_seconds: float = 10.0
    """After so long a silence of its host, to which it was asked, a rank on another host is lost."""
    recovery_seconds: float = 2.0
    """How long agree and shrink wait for a rank that the group broke waiting for and that gives no sign of life, and
    past their deadline for anybody's answer."""
    stall_seconds: float = 10.0
    """A call that waits so long says in the log, once, whom it waits for; 0 for never."""
    trace_dir: str = ""
    """Where a rank writes down what it knows when a group breaks; empty: nowhere."""
    breath_seconds: float = 0.002
    """Long local work gives the event loop a turn as soon as the loop's present round has lasted so long."""
    shm_cell_bytes: int = 256 << 10
    """Ranks of one host hand over longer payloads in pieces of this size. This and the next two are the same on all
    ranks of a host, or they talk over TCP."""
    shm_cells: int = 8
    """How many such pieces a rank may have under way to all its peers together; fewer where many ranks share a host."""
    shm_slots: int = 32
    """How many frames may be under way to each peer on this host."""
    shm_seconds: float = 5.0
    """How long the ranks of one host may take to share memory when they connect; after that they talk over TCP."""

    shm_cma: bool = True
    """Whether long payloads may be read straight out of a peer's private memory, where the kernel allows that."""

    shm_fence: str = "auto"
    """Who keeps order among what is written to shared memory: "auto" the processor where it does, else the kernel;
    "kernel" always the latter, which is slower."""

    def contradictions(self, timeout: float) -> list[str]:
        """What was set and cannot show, since calls end after ``timeout`` seconds already."""
        default, found = Settings(), []
        if self.stall_seconds != default.stall_seconds and self.stall_seconds >= timeout:
            found.append(f"AIOCOLL_STALL_SECONDS={self.stall_seconds:g}: no call that stalls will be reported")
        if self.lost_seconds != default.lost_seconds and self.lost_seconds >= timeout:
            found.append(
                f"AIOCOLL_LOST_SECONDS={self.lost_seconds:g}: ranks of a lost host will be missing in calls that are "
                "late, not lost"
            )
        return [f"{text}, since calls end after timeout={timeout:g} s" for text in found]

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads AIOCOLL_TIMEOUT, _TRANSPORT, _ALGORITHM, _ALLOW_PICKLE, _JOIN, _HOST, _PROXY, _SPIN_US,
        _UNRECEIVED_BYTES, _SEGMENT_BYTES, _LOST_SECONDS, _RECOVERY_SECONDS, _STALL_SECONDS, _TRACE_DIR, and
        _SHM_CELL_BYTES (in whole pages), _SHM_CELLS, _SHM_SLOTS, _SHM_SECONDS, _SHM_SPIN_US, _SHM_CMA, _SHM_FENCE."""
        env = os.environ if environ is None else environ
        default = cls()
        return cls(
            timeout=_number(env, "AIOCOLL_TIMEOUT", default.timeout),
            transport=env.get("AIOCOLL_TRANSPORT", "").strip().lower() or default.transport,
            algorithm=_algorithms(env.get("AIOCOLL_ALGORITHM", "")),
            allow_pickle=_flag(env, "AIOCOLL_ALLOW_PICKLE"),
            join=_flag(env, "AIOCOLL_JOIN"),
            host=env.get("AIOCOLL_HOST", "").strip(),
            proxy=env.get("AIOCOLL_PROXY", "").strip(),
            spin_seconds=_number(env, "AIOCOLL_SPIN_US", default.spin_seconds * 1e6, least=0.0) * 1e-6,
            shm_spin_seconds=_number(env, "AIOCOLL_SHM_SPIN_US", default.shm_spin_seconds * 1e6, least=0.0) * 1e-6,
            unreceived_bytes_max=int(_number(env, "AIOCOLL_UNRECEIVED_BYTES", default.unreceived_bytes_max, least=1)),
            segment_bytes=int(_number(env, "AIOCOLL_SEGMENT_BYTES", default.segment_bytes, least=4096)),
            lost_seconds=_number(env, "AIOCOLL_LOST_SECONDS", default.lost_seconds, least=1.0, most=1e6),
            recovery_seconds=_number(env, "AIOCOLL_RECOVERY_SECONDS", default.recovery_seconds),
            stall_seconds=_number(env, "AIOCOLL_STALL_SECONDS", default.stall_seconds, least=0.0),
            trace_dir=env.get("AIOCOLL_TRACE_DIR", "").strip(),
            shm_cell_bytes=_pages(_number(env, "AIOCOLL_SHM_CELL_BYTES", default.shm_cell_bytes, least=4096, most=1e9)),
            shm_cells=int(_number(env, "AIOCOLL_SHM_CELLS", default.shm_cells, least=4, most=1e6)),
            shm_slots=int(_number(env, "AIOCOLL_SHM_SLOTS", default.shm_slots, least=2, most=1e6)),
            shm_seconds=_number(env, "AIOCOLL_SHM_SECONDS", default.shm_seconds),
            shm_cma=_flag(env, "AIOCOLL_SHM_CMA", default.shm_cma),
            shm_fence=_one_of(env, "AIOCOLL_SHM_FENCE", ("auto", "kernel")),
        )


def _number(env: Mapping[str, str], name: str, default: float, *, least: float = 1e-9, most: float = math.inf) -> float:
    text = env.get(name, "").strip()
    if not text:
        return float(default)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value >= least:
        raise UsageError(f"{name}={text!r}: a number of at least {least:g} is needed")
    if value > most:
        raise UsageError(f"{name}={text!r}: a number of at most {most:g} is needed")
    return value


def _one_of(env: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = env.get(name, "").strip().lower() or choices[0]
    if text not in choices:
        raise UsageError(f"{name}={text!r}: one of {', '.join(choices)} is needed")
    return text


def _pages(nbytes: float) -> int:
    return -(-int(nbytes) // _PAGE_BYTES) * _PAGE_BYTES


def _flag(env: Mapping[str, str], name: str, default: bool = False) -> bool:
    text = env.get(name, "").strip().lower()
    if not text:
        return default
    if text in ("0", "false", "no", "off"):
        return False
    if text in ("1", "true", "yes", "on"):
        return True
    raise UsageError(f"{name}={text!r}: use 1 or 0")


def _algorithms(text: str) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        collective, colon, name = item.partition(":")
        if not colon or not collective.strip() or not name.strip():
            raise UsageError(f"AIOCOLL_ALGORITHM={text!r}: write collective:algorithm, e.g. all_reduce:ring")
        chosen[collective.strip()] = name.strip()
    return chosen
