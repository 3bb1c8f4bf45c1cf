"""Ranks started by torchrun or anything else that gives torch's variables to each process.

Rule: RANK and WORLD_SIZE alone prove nothing (some clusters set them once per machine); a process-level LOCAL_RANK or
TORCHELASTIC_RUN_ID must be there as well. ``env://`` does not ask for those: who writes it says what the variables are.
"""

from __future__ import annotations

from aiocoll.place.base import Environ, Place, port_of, rank_of, require, tcp_address, whole

PRIORITY = 10
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PROCESS_LEVEL = ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")


def find(environ: Environ) -> Place | None:
    """The place; when all ranks are on this machine they meet on loopback, where no secret is needed."""
    if not all(environ.get(name, "").strip() for name in ("RANK", "WORLD_SIZE")):
        return None
    if not any(environ.get(name, "").strip() for name in _PROCESS_LEVEL):
        return None
    require(environ, _NEEDED, because="RANK and WORLD_SIZE are, as torchrun sets them")
    rank, size = rank_of(environ, "RANK", "WORLD_SIZE")
    local_size = whole(environ, "LOCAL_WORLD_SIZE", least=1)
    host = "127.0.0.1" if local_size == size else environ["MASTER_ADDR"].strip()
    return Place(
        rank=rank,
        size=size,
        local_rank=whole(environ, "LOCAL_RANK"),
        local_size=local_size,
        job=environ.get("AIOCOLL_JOB_ID", "").strip() or environ.get("TORCHELASTIC_RUN_ID", "").strip(),
        init_method=tcp_address(host, store_port(environ)),
        restart=whole(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
    )


def verdict(environ: Environ) -> str:
    """Which of torch's variables are there."""
    place = find(environ)
    if place is not None:
        return f"rank {place.rank} of {place.size}, meeting at {place.init_method}"
    if not all(environ.get(name, "").strip() for name in ("RANK", "WORLD_SIZE")):
        return "RANK and WORLD_SIZE are not set"
    return (
        "RANK and WORLD_SIZE are set, but neither LOCAL_RANK nor TORCHELASTIC_RUN_ID: they may describe machines, "
        'not processes; start the ranks with "aiocoll run", or use init_method="env://"'
    )


def store_port(environ: Environ) -> int:
    """The port for our store, out of MASTER_PORT.

    torchrun's agent may serve its own store on MASTER_PORT (``TORCHELASTIC_USE_AGENT_STORE``); ours then takes the
    port above it (the one below, at the very top).
    """
    port = port_of(environ, "MASTER_PORT")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE", "").strip().lower() in ("true", "1"):
        port += 1 if port < 65535 else -1
    return port
