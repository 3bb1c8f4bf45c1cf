"""Ranks started by ``aiocoll run`` or ``aiocoll.launch``: the runner serves the store, rank 0 does not."""

from __future__ import annotations

from aiocoll.place.base import Environ, Place, meeting_url, rank_of, require, whole

PRIORITY = 0
_NEEDED = ("AIOCOLL_RANK", "AIOCOLL_WORLD_SIZE")
_YES = ("1", "true", "yes", "on")


def find(environ: Environ) -> Place | None:
    """The runner's variables; any one of rank and size without the other is an error. One that joins a job that is
    under way needs neither, only where it meets."""
    init_method = meeting_url(environ)
    job = environ.get("AIOCOLL_JOB_ID", "").strip()
    if not any(environ.get(name, "").strip() for name in _NEEDED):
        if init_method and environ.get("AIOCOLL_JOIN", "").strip().lower() in _YES:
            return Place(job=job, init_method=init_method, store_is_hosted=True)
        return None
    if not environ.get("AIOCOLL_RANK", "").strip() and environ.get("JOB_COMPLETION_INDEX", "").strip():
        return None  # an indexed job of Kubernetes is told its size under our name, see kubernetes.py
    require(environ, _NEEDED, because="the other half of the place is")
    rank, size = rank_of(environ, *_NEEDED)
    if size > 1:
        require(environ, (*_NEEDED, "AIOCOLL_RDZV"), because=f"{size} ranks need a place to meet")
    # A replacement has been started again, and yet it comes to the ranks of the attempt that goes on.
    attempt = whole(environ, "AIOCOLL_ATTEMPT")
    restart = whole(environ, "AIOCOLL_RESTART_COUNT") if attempt is None else attempt
    return Place(
        rank=rank,
        size=size,
        local_rank=whole(environ, "AIOCOLL_LOCAL_RANK"),
        local_size=whole(environ, "AIOCOLL_LOCAL_WORLD_SIZE", least=1),
        job=job,
        init_method=init_method,
        restart=restart or 0,
        store_is_hosted=bool(init_method),
    )


def verdict(environ: Environ) -> str:
    """Which of the runner's variables are there."""
    place = find(environ)
    if place is None:
        return "AIOCOLL_RANK and AIOCOLL_WORLD_SIZE are not set"
    if place.rank is None:
        return f"a newcomer to the job at {place.init_method}"
    return f"rank {place.rank} of {place.size}, meeting at {place.init_method or 'no address (a world of one)'}"


def script_moved_the_master(environ: Environ) -> bool:
    """Whether the script put its own MASTER_ADDR or MASTER_PORT in place of the runner's.

    The runner exports torch's variables, and a copy in ``AIOCOLL_MASTER``: while both say the same, ``env://`` means
    the runner's own store; a script that wants to meet elsewhere has changed them.
    """
    addr, port = environ.get("MASTER_ADDR", "").strip(), environ.get("MASTER_PORT", "").strip()
    if not addr and not port:
        return False
    host, _, number = environ.get("AIOCOLL_MASTER", "").strip().rpartition(":")
    return (addr.strip("[]"), port) != (host.strip("[]"), number)
