"""One frozen Settings; the only reader of AIOCOLL_* variables outside place/ and runner/."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from .errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set; seconds and bytes unless a name says otherwise."""

    timeout: float = 60.0
    transport: str = "auto"
    algorithm: Mapping[str, str] = field(default_factory=dict)
    allow_pickle: bool = False
    host: str = ""
    """The address that this rank tells the others; empty: that of the interface that faces the store."""
    spin_seconds: float = 100e-6
    """How long a blocking call looks before it sleeps."""
    unreceived_bytes_max: int = 64 << 20
    """Data that may lie unreceived at one peer; more is offered first and sent when a receive takes it. The same on all
    ranks: a peer that sends far more than this is cut off."""
    segment_bytes: int = 256 << 10
    """Payloads that are folded while they arrive are folded in pieces of this size, which stay in cache."""
    shm_slots: int = 32
    """Frames that may be under way from one local rank to another."""
    shm_cells: int = 16
    """Pieces of payload that one rank may have under way in shared memory; fewer where many ranks share a host."""
    shm_cell_bytes: int = 256 << 10
    """The longest piece; a multiple of 4096."""
    look_seconds: float = 1.0
    """A collective that waits so long asks those it waits for, once, whether they made the same call."""
    breath_seconds: float = 0.002
    """Long local work gives the event loop a turn as soon as the loop's present round has lasted so long."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Reads AIOCOLL_TIMEOUT, _TRANSPORT, _ALGORITHM, _ALLOW_PICKLE, _HOST, _SPIN_US, _UNRECEIVED_BYTES and
        _SEGMENT_BYTES."""
        env = os.environ if environ is None else environ
        default = cls()
        return cls(
            timeout=_number(env, "AIOCOLL_TIMEOUT", default.timeout),
            transport=env.get("AIOCOLL_TRANSPORT", "").strip().lower() or default.transport,
            algorithm=_algorithms(env.get("AIOCOLL_ALGORITHM", "")),
            allow_pickle=_flag(env, "AIOCOLL_ALLOW_PICKLE"),
            host=env.get("AIOCOLL_HOST", "").strip(),
            spin_seconds=_number(env, "AIOCOLL_SPIN_US", default.spin_seconds * 1e6, least=0.0) * 1e-6,
            unreceived_bytes_max=int(_number(env, "AIOCOLL_UNRECEIVED_BYTES", default.unreceived_bytes_max, least=1)),
            segment_bytes=int(_number(env, "AIOCOLL_SEGMENT_BYTES", default.segment_bytes, least=4096)),
        )


def _number(env: Mapping[str, str], name: str, default: float, *, least: float = 1e-9) -> float:
    text = env.get(name, "").strip()
    if not text:
        return float(default)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value >= least:
        raise UsageError(f"{name}={text!r}: a number of at least {least:g} is needed")
    return value


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").strip().lower()
    if text in ("", "0", "false", "no", "off"):
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
